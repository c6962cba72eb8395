"""Frozen values in pickles, in copies, and in the configurations of other libraries."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

from plateau_jax.validation.curve_warning import suppress_warnings

_Class = TypeVar("_Class", bound=type[Any])


def storable(cls: _Class) -> _Class:
    """Decorate a frozen dataclass whose values programs store and copy."""
    field_names = {field.name for field in fields(cls)}

    def set_own_value(self: Any, name: str, value: Any) -> None:
        # Lightning copies hyperparameters field by field, also those of frozen dataclasses: it may
        # set each field of the copy to the value that this has already.
        own: Any = getattr(self, name, None)
        # Types first: an array has no single answer to `==`.
        is_own = (type(value), value) == (type(own), own)
        if name not in field_names or not is_own:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

    methods: dict[str, Any] = {"__setattr__": set_own_value, "__setstate__": _restore}
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _restore(value: Any, state: Mapping[str, Any]) -> None:
    """Restore a value from its arguments.

    The constructor checks them: without this, unpickling would write anything that a file holds
    into the value, also under `torch.load(weights_only=True)`, which checks classes, but not
    states. The value has warned already, when it was first built.
    """
    with suppress_warnings():
        rebuilt = type(value)(**state)
    object.__setattr__(value, "__dict__", vars(rebuilt))
