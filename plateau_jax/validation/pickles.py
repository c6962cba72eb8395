"""Pickles and copies of frozen values."""

from collections.abc import Mapping
from typing import Any

from plateau_jax.validation.curve_warning import suppress_warnings


def restore(value: Any, state: Mapping[str, Any]) -> None:
    """Restore a frozen value from its arguments, as its `__setstate__`.

    The constructor checks them: without this, unpickling would write anything that a file holds
    into the value, also under `torch.load(weights_only=True)`, which checks classes, but not
    states. The value has warned already, when it was first built.
    """
    with suppress_warnings():
        rebuilt = type(value)(**state)
    object.__setattr__(value, "__dict__", vars(rebuilt))
