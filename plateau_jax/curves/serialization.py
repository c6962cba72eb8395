"""Curves as plain JSON values, and back.

A curve is a frozen dataclass, and its fields are its arguments. The class of each kind registers itself:

    @register_kind("staged")
    @dataclass(frozen=True)
    class StagedCurve(Curve): ...
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, cast

from plateau_jax.validation.curve_warning import suppress_warnings

MAX_DEPTH = 64
"""How deep cooldowns and continuations may be nested."""

DERIVED = "derived"
"""The key of the fields that a derived class has beside those of its kind."""

_Class = TypeVar("_Class", bound=type[Any])


@dataclass(frozen=True)
class _Kind:
    name: str | None
    cls: type[Any]
    curves: tuple[str, ...]
    former_keys: Mapping[str, str]


_KINDS: dict[str | None, _Kind] = {}


def register_kind(
    name: str | None, *, curves: Sequence[str] = (), former_keys: Mapping[str, str] | None = None
) -> Callable[[_Class], _Class]:
    """Register a class as what a mapping with this `"kind"` describes.

    Args:
        name: The value of `"kind"`; None for mappings without one.
        curves: The fields that hold curves.
        former_keys: Keys that were written in earlier versions, each with the field that it stands for.
    """

    def register(cls: _Class) -> _Class:
        _KINDS[name] = _Kind(name, cls, tuple(curves), former_keys or {})
        return cls

    return register


def curve_class(name: str) -> type[Any]:
    """The class of a kind. A file that may not import the class, since the class imports it, asks here."""
    return _KINDS[name].cls


def field_names(cls: type[Any]) -> list[str]:
    return [field.name for field in fields(cls)]


def curve_to_dict(curve: object) -> dict[str, Any]:
    """The kind and all arguments of a curve."""
    cls = type(curve)
    found = _kind_of(cls)
    own = field_names(found.cls)
    written = {} if found.name is None else {"kind": found.name}
    written |= {name: _plain(getattr(curve, name)) for name in own}
    # As they are: only their own class knows how to turn them into plain values and back.
    added = {name: getattr(curve, name) for name in field_names(cls) if name not in own}
    return {**written, DERIVED: added} if added else written


def _kind_of(cls: type[Any]) -> _Kind:
    """The kind that a class is, or derives from."""
    return next(kind for base in cls.__mro__ for kind in _KINDS.values() if kind.cls is base)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def curve_from_dict(cls: type[Any], arguments: Any, depth: int = 0) -> Any:
    """Build the curve that `curve_to_dict` wrote.

    It is a `cls` if `cls` derives from the class of the kind, else an object of that class.
    """
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments = {arguments!r} must be a mapping, as to_dict returns it")
    if depth > MAX_DEPTH:
        raise ValueError(f"cooldowns and continuations are nested more than {MAX_DEPTH} deep")
    values = dict(cast("Mapping[str, Any]", arguments))
    found = _pop_kind(values)
    if not issubclass(cls, found.cls):
        if not issubclass(found.cls, cls):
            raise ValueError(f"these are the arguments of a {found.cls.__name__}, not of a {cls.__name__}")
        cls = found.cls
    names = field_names(cls)
    derived = values.pop(DERIVED, {})
    if not isinstance(derived, Mapping):
        raise TypeError(f"{DERIVED} = {derived!r} must be a mapping, as to_dict returns it")
    added = cast("Mapping[str, Any]", derived)
    values = {name: added[name] for name in names if name in added} | values
    for former, now in found.former_keys.items():
        if former in values and former not in names:
            if now in values:
                raise ValueError(f"{former} is the former name of {now}: only one of them may be given")
            values[now] = values.pop(former)
    values = _defaults(cls, field_names(found.cls)) | values
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in names]
    if missing or unknown:
        raise ValueError(
            f"not the arguments of a {cls.__name__}: missing keys {missing}, unknown keys {unknown}"
        )
    values |= {name: curve_from_dict(object, values[name], depth + 1) for name in found.curves}
    return build_curve(cls, values)


def _defaults(cls: type[Any], names: Sequence[str]) -> dict[str, Any]:
    """The defaults of those fields that have one."""
    # No kind has a default that is made by a factory.
    found = {field.name: field.default for field in fields(cls) if field.name in names}
    return {name: default for name, default in found.items() if default is not MISSING}


def _pop_kind(values: dict[str, Any]) -> _Kind:
    """The kind of a mapping, taken out of it."""
    if "kind" not in values:
        return _KINDS[None]
    name = values.pop("kind")
    if not isinstance(name, str) or name not in _KINDS:
        names = sorted(repr(name) for name in _KINDS if name is not None)
        raise ValueError(f"kind = {name!r} must be one of {', '.join(names)}, or left out")
    return _KINDS[name]


def build_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """A curve with these fields, checked as the constructor checks them, and without warnings.

    `__init__` is not called: that of a derived class may take other arguments than the fields.
    """
    curve = _new_curve(cls, values)
    with suppress_warnings():
        curve.__post_init__()
    return curve


def rebuild_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """A curve with the attributes of another one, without warnings.

    The `__post_init__` of a derived class is not called: it has run, and may change a field each time.
    """
    curve = _new_curve(cls, values)
    with suppress_warnings():
        _kind_of(cls).cls.__post_init__(curve)
    return curve


def _new_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    curve = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(curve, name, value)
    return curve
