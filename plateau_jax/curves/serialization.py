"""Conversion of curves to plain JSON values and back.

A curve is a frozen dataclass whose fields are its arguments. Each kind of curve registers its class:

    @register_kind("staged", read=_read, key="stages")
    @dataclass(frozen=True)
    class StagedCurve(Curve): ...
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, cast

from plateau_jax.validation.checks import did_you_mean, must
from plateau_jax.validation.curve_warning import suppress_warnings
from plateau_jax.validation.messages import Message, Wording, choices, message_of, shown

MAX_DEPTH = 64
"""The greatest nesting depth of derived curves."""

_Class = TypeVar("_Class", bound=type[Any])


@dataclass(frozen=True)
class _Kind:
    name: str | None
    cls: type[Any]
    key: str | None
    curves: tuple[str, ...]
    read: Callable[[dict[str, Any]], dict[str, Any]]


_KINDS: dict[str | None, _Kind] = {}


def register_kind(
    name: str | None,
    *,
    read: Callable[[dict[str, Any]], dict[str, Any]],
    key: str | None = None,
    curves: Sequence[str] = (),
) -> Callable[[_Class], _Class]:
    """Register a class for mappings of this `"kind"`.

    Args:
        name: The value of `"kind"`; None for mappings without this key.
        read: A function from a mapping, as a configuration file gives it, to the values of the fields.
        key: The key that decides for this kind in a mapping without `"kind"`.
        curves: The fields that hold curves.
    """

    def register(cls: _Class) -> _Class:
        _KINDS[name] = _Kind(name, cls, key, tuple(curves), read)
        return cls

    return register


def curve_class(name: str) -> type[Any]:
    """Return the class of a kind, for files that its own file imports."""
    return _KINDS[name].cls


def field_names(cls: type[Any]) -> list[str]:
    return [field.name for field in fields(cls)]


def curve_to_dict(curve: object) -> dict[str, Any]:
    """Return the kind and all arguments of a curve."""
    cls = type(curve)
    name = next(kind.name for kind in _KINDS.values() if kind.cls is cls)
    arguments = {} if name is None else {"kind": name}
    return arguments | {name: _to_plain_value(getattr(curve, name)) for name in field_names(cls)}


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_value(item) for item in cast("tuple[Any, ...]", value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def curve_from_dict(cls: type[Any], arguments: Any) -> Any:
    """Build the curve that `curve_to_dict` or a configuration file describes, of the kind `cls` or any."""
    path: list[str] = []
    try:
        return _read_curve(cls, arguments, path)
    except (TypeError, ValueError) as error:
        if not path:
            raise
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        message = message_of(error)
        raise error_type(Message(message, at=message.place, curves=path)) from None


def _read_curve(cls: type[Any], arguments: Any, path: list[str]) -> Any:
    """Build a curve; after an error, `path` holds the keys that lead to the nested curve at fault."""
    if not isinstance(arguments, Mapping):
        subject = Wording(("arguments = ", shown(arguments), " must be"), "this is not a curve: a curve is")
        mapping = Wording("mapping, as to_dict returns it", "JSON object with keys such as “total_steps”")
        raise TypeError(Message(subject, " a ", mapping))
    if len(path) > MAX_DEPTH:
        path.clear()
        raise ValueError(f"derived curves are nested more than {MAX_DEPTH} deep")
    values = dict(cast("Mapping[str, Any]", arguments))
    kind = _pop_kind(values)
    if not issubclass(kind.cls, cls):
        raise ValueError(f"these are the arguments of a {kind.cls.__name__}, not of a {cls.__name__}")
    cls = kind.cls
    names = field_names(cls)
    # `to_dict` writes all of these keys and no other, and the curve was built with warnings then. Any other
    # mapping was written by hand.
    is_saved = values.keys() == set(names)
    values = kind.read(values)
    values = _defaults(cls) | values
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in names]
    if missing or unknown:
        keys = [name for name in _argument_names(cls) if name not in arguments]
        advice = next(filter(None, (did_you_mean(name, keys, _key) for name in unknown)), "")
        in_code = f"not the arguments of a {cls.__name__}: missing keys ", shown(missing), ", unknown keys "
        separator = ", " if missing and unknown else ""
        plain = "this is not a curve: ", _listed(missing, "missing"), separator, _listed(unknown, "unknown")
        wrong = Wording((*in_code, shown(unknown)), plain)
        raise ValueError(Message(wrong, advice))
    for name in kind.curves:
        path.append(name)
        values[name] = _read_curve(object, values[name], path)
        path.pop()
    with suppress_warnings() if is_saved else nullcontext():
        return build_curve(cls, values)


def _key(key: str) -> Wording:
    return Wording(key, f"“{key}”")


def _listed(keys: Sequence[str], predicate: str) -> Message:
    """Say of keys that they are missing or unknown."""
    return Message(*choices(keys), f" {'is' if len(keys) == 1 else 'are'} {predicate}" if keys else "")


def _argument_names(cls: type[Any]) -> list[str]:
    """Return the keys that a mapping may have: those of the constructor may be more than the fields."""
    return list(dict.fromkeys([*inspect.signature(cls).parameters, *field_names(cls)]))


def _defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the defaults of those fields that have one."""
    # No kind uses a default factory.
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def _pop_kind(values: dict[str, Any]) -> _Kind:
    """Remove the kind from a mapping and return it."""
    if "kind" not in values:
        return next((kind for kind in _KINDS.values() if kind.key in values), _KINDS[None])
    name = values.pop("kind")
    if not isinstance(name, str) or name not in _KINDS:
        names = choices(sorted(name for name in _KINDS if name is not None))
        raise ValueError(must("kind", name, "be one of ", *names, ", or left out"))
    return _KINDS[name]


def build_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a curve from its fields, with the constructor's checks."""
    curve = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(curve, name, value)
    curve.__post_init__()
    return curve


def rebuild_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Rebuild a copied or pickled curve from its fields, without warnings."""
    with suppress_warnings():
        return build_curve(cls, values)
