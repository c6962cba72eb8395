"""Shared by tests of curves in JAX: sample curves, both x64 modes, and bitwise equality."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.curves.descriptions import SHAPES
from support.curves.strategies import SMALLEST_NORMAL

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve, stack
from plateau_jax.table.segments import Segments

CURVE = PlateauCurve(
    1000, warmup_steps=100, plateaus=[(20, 10), (60, 30)], min_lr_ratio=0.1, init_lr_ratio=0.01
)
MANY = PlateauCurve(1000, warmup_steps=100, plateaus=[(3 * i, 1) for i in range(30)], decay_shape="linear")
_STAGES = [
    *((100, 1.0, "exponential"), (50,), (50, 0.6, "1-x^0.4"), (50, 0.3, "t^-0.75"), (50, 0.9, "(1-x)^3")),
    *((0, 1e-12), (50, 2e-12), (50, 3e-12, "t^-2"), (50, 0.25, "cosine")),
]
_COOLED = StagedCurve(_STAGES, start=1e-6).cooldown(435, 100, to=1e-3)
NESTED = _COOLED.then(CURVE.cooldown(400, 65), scale=0.3)
"""Every shape, in both directions, and levels of every size."""
STEPS = np.arange(-5, 1019, dtype=np.int32)

x64_both_ways = pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
mostly_x64 = pytest.mark.parametrize(
    "x64", [pytest.param(False, marks=pytest.mark.slow), True], ids=["x32", "x64"]
)
"""For a test that compiles much: x32 only with `--all`."""
both_searches = pytest.mark.parametrize("curve", [NESTED, MANY], ids=["compared", "searched"])


_EVERY_SHAPE = [shape.replace("P", "1.5") for shape in SHAPES]


def every_shape(rows: int) -> Curve:
    """Build a curve of `rows` rows with every column, so that tables stacked with it have one form."""
    shapes = StagedCurve(
        [(1, 0.5 + row % 2 / 4, _EVERY_SHAPE[row % len(_EVERY_SHAPE)]) for row in range(rows - 3)], start=0.5
    )
    doubled = BatchPlan([(0, 1), (2, 2)]).scale(StagedCurve([(4, 0.2)], start=1.0), 1, reference=1)
    return shapes.then(doubled)


def in_one_of_two_forms(curve: Curve) -> Segments:
    """Pad a table to one of two lengths, with the columns of every shape."""
    longer = every_shape(39 if len(curve.table.begin) < 40 else 63)
    return stack([curve, longer]).map(lambda column: column[0])


def product(curve: Curve, peak: float, steps: NDArray[Any]) -> Any:
    """Return the learning rate: the product, exact in double, rounded to float32."""
    exact = np.float64(np.float32(peak)) * np.float64(curve(steps))
    return exact.astype(np.float32)


def assert_equal_bits(actual: Any, wanted: Any) -> None:
    values: NDArray[Any] = np.asarray(actual)
    assert values.dtype == wanted.dtype
    np.testing.assert_array_equal(values.view(f"i{wanted.itemsize}"), wanted.view(f"i{wanted.itemsize}"))


def assert_equal_rates(actual: Any, wanted: NDArray[Any]) -> None:
    # XLA flushes float32 below 2⁻¹²⁶ to zero, so these are not compared.
    promised: NDArray[np.bool] = (wanted == 0) | (wanted >= SMALLEST_NORMAL)
    assert_equal_bits(np.asarray(actual)[promised], wanted[promised])
