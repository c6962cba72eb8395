"""The curves of `plot` and `compare`: several arguments, or one list or mapping."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.drawing.sampling import CurveToDraw
from plateau_jax.validation.checks import short_repr


def curves_to_draw(function: str, curves: tuple[Any, ...]) -> list[tuple[Curve, CurveToDraw]]:
    """Return each curve among the arguments of a function, and what to draw of it; keys become names."""
    advice = f"write {function}(curve, other) or {function}({{'name': curve, ...}})"
    items: Any = curves
    # An array without dimensions passes for an `Iterable`, but cannot be iterated.
    is_single = len(curves) == 1 and getattr(curves[0], "ndim", 1) != 0
    if is_single and isinstance(curves[0], Iterable) and not isinstance(curves[0], str | bytes):
        items = cast("Any", curves[0])
    has_names = isinstance(items, Mapping)
    checked: list[tuple[Curve, CurveToDraw]] = []
    for key, curve in cast("Mapping[Any, Any]", items).items() if has_names else enumerate(items):
        if not isinstance(curve, Curve):
            raise TypeError(
                f"curves[{short_repr(key)}] = {short_repr(curve)} must be a Curve: {advice}"
            )
        if has_names and not isinstance(key, str):
            raise TypeError(f"the name {short_repr(key)} of a curve must be a string")
        checked.append((curve, curve._to_draw()._replace(name=key if has_names else None)))
    if not checked:
        raise ValueError(f"there is no curve: {advice}")
    return checked
