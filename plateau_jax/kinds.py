"""Curves read back from plain JSON values."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from plateau_jax.branches import Cooldown, Then
from plateau_jax.curve import MAX_DEPTH, Curve
from plateau_jax.plateau_curve import PlateauCurve
from plateau_jax.staged import StagedCurve

_KINDS: dict[str, type[Curve]] = {"staged": StagedCurve, "cooldown": Cooldown, "then": Then}


def from_dict(cls: type[Curve], arguments: Any, depth: int = 0) -> Curve:
    """The curve that `to_dict` wrote; without a kind, a `PlateauCurve`, or a `cls` that is one."""
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments = {arguments!r} must be a mapping, as to_dict returns it")
    if depth > MAX_DEPTH:
        raise ValueError(f"cooldowns and continuations are nested more than {MAX_DEPTH} deep")
    values = dict(cast("Mapping[str, Any]", arguments))
    found: type[Any] = cls if issubclass(cls, PlateauCurve) else PlateauCurve
    if "kind" in values:
        kind = values.pop("kind")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError(f"kind = {kind!r} must be one of {', '.join(map(repr, _KINDS))}, or left out")
        found = _KINDS[kind]
    names = [field.name for field in fields(found)]
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in names]
    if missing or unknown:
        raise ValueError(
            f"not the arguments of a {found.__name__}: missing keys {missing}, unknown keys {unknown}"
        )
    for name in ("curve", "other"):
        if name in values:
            values[name] = from_dict(Curve, values[name], depth + 1)
    return found(**values)
