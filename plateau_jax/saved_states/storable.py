"""Frozen dataclasses in JSON, in pickles and in copies."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, cast

from plateau_jax.arguments.curve_warning import suppress_warnings


class Storable:
    """The base class of frozen dataclasses that programs save, pickle and copy.

    Every field is an argument of the constructor, which checks it. A class names its kind:
    `class DataClock(Storable, kind="data")`.
    """

    _kind: ClassVar[str]
    """The value of `"kind"` in `to_dict`."""

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        if kind is not None:
            cls._kind = kind

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and all arguments as plain JSON values."""
        arguments = {
            name: value.to_dict() if isinstance(value, Storable) else value
            for name, value in self.__getstate__().items()
        }
        return {"kind": self._kind, **arguments}

    # Pickles and copies contain only the arguments, with lists in place of tuples, which may be
    # named ones: `torch.load(weights_only=True)` needs to allow no other class.
    def __getstate__(self) -> dict[str, Any]:
        names = [item.name for item in fields(cast("Any", self))]
        return {name: _with_lists(getattr(self, name)) for name in names}

    # Built again, so that the arguments are checked: unpickling would copy whatever a file contains
    # into the value, even under `weights_only`, which checks classes but not states. Warnings are
    # suppressed: the value gave them when it was first built.
    def __setstate__(self, state: Mapping[str, Any]) -> None:
        with suppress_warnings():
            rebuilt = type(self)(**state)
        vars(self).update(vars(rebuilt))


def _with_lists(value: Any) -> Any:
    """Return a value with lists in place of tuples."""
    if isinstance(value, tuple):
        return [_with_lists(item) for item in cast("tuple[Any, ...]", value)]
    return value
