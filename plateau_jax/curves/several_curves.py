"""The curves of `plot` and `compare`: several arguments, or one list or mapping."""

from collections.abc import Iterable, Mapping
from typing import Any

from plateau_jax.curves.curve import Curve
from plateau_jax.drawing.sampling import CurveToDraw
from plateau_jax.validation.checks import short_repr


def curves_to_draw(function: str, curves: tuple[Any, ...]) -> list[tuple[Curve, CurveToDraw]]:
    """Return each curve among the arguments of a function, and what to draw of it.

    The keys of a mapping become names.
    """
    advice = f"write {function}(curve, other) or {function}({{'name': curve, ...}})"
    items: Any = curves
    if len(curves) == 1 and _is_collection(curves[0]):
        items = curves[0]
    has_names = isinstance(items, Mapping)
    keyed: Iterable[Any] = items.items() if has_names else enumerate(items)
    checked: list[tuple[Curve, CurveToDraw]] = []
    for key, curve in keyed:
        if not isinstance(curve, Curve):
            argument = f"curves[{short_repr(key)}] = {short_repr(curve)}"
            raise TypeError(f"{argument} must be a Curve: {advice}")
        to_draw = curve._to_draw()
        if has_names:
            if not isinstance(key, str):
                raise TypeError(f"the name {short_repr(key)} of a curve must be a string")
            to_draw = to_draw._replace(name=key)
        checked.append((curve, to_draw))
    if not checked:
        raise ValueError(f"there is no curve: {advice}")
    return checked


def _is_collection(value: Any) -> bool:
    # An array without dimensions passes for an `Iterable`, but cannot be iterated.
    is_scalar = isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Iterable) and not is_scalar
