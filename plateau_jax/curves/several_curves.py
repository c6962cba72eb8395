"""Several curves, stacked for `vmap`."""

from collections.abc import Iterable

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.table import evaluation
from plateau_jax.table.evaluation import Table


def stack(curves: Iterable[Curve]) -> Table:
    """Stack the tables of several curves for `vmap`: each array has a leading axis of curves.

    A shorter table repeats its last row and piece, and pieces of lower degree begin with
    coefficients of 0, which changes no value.

    Args:
        curves: At least one curve. A step is an update, or, for curves from `BatchPlan.scale`,
            their unit of samples or tokens: stack only curves whose steps mean the same.

    Returns:
        One table, a pytree of int32 arrays.

    Raises:
        TypeError: `curves` is a single curve, or has no order (a set), or contains something that
            is not a `Curve`.
        ValueError: `curves` is empty.

    >>> from plateau_jax import PlateauCurve, stack
    >>> table = stack([PlateauCurve(100), PlateauCurve(100, plateaus=[(50, 30)])])
    >>> table.begin.shape
    (2, 16)
    """
    if not checks.is_ordered(curves):
        raise TypeError(checks.must("curves", curves, "be several Curves, in order"))
    tables = [check_curve(("curves", index), curve).table for index, curve in enumerate(curves)]
    if not tables:
        raise ValueError("curves is empty; stack needs at least one Curve")
    return evaluation.stack_tables(tables)
