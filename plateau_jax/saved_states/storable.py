"""Frozen values in pickles, in copies, and among the hyperparameters of Lightning."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

from plateau_jax.arguments.curve_warning import suppress_warnings

_Class = TypeVar("_Class", bound=type[Any])


def storable(cls: _Class) -> _Class:
    """Decorate a frozen dataclass whose values programs pickle and copy."""
    field_names = {field.name for field in fields(cls)}

    def set_equal_value(self: Any, name: str, value: Any) -> None:
        # Lightning copies hyperparameters, and then sets each field of the copy to a copy of the
        # value that it already has, also in frozen dataclasses.
        current: Any = getattr(self, name, None)
        # Types first: an array has no single answer to `==`.
        is_unchanged = (type(value), value) == (type(current), current)
        if name not in field_names or not is_unchanged:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

    methods: dict[str, Any] = {"__setattr__": set_equal_value, "__setstate__": _restore}
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def arguments_of(instance: Any) -> dict[str, Any]:
    """Return the values of the fields of a dataclass's instance by their names."""
    return {item.name: getattr(instance, item.name) for item in fields(instance)}


def _restore(value: Any, state: Mapping[str, Any]) -> None:
    """Restore a value from its arguments.

    The constructor checks them. Otherwise unpickling would copy whatever a file contains into the
    value, even under `torch.load(weights_only=True)`, which checks classes but not states. Warnings
    are suppressed: the value gave them when it was first built.
    """
    with suppress_warnings():
        rebuilt = type(value)(**state)
    vars(value).update(vars(rebuilt))
