"""For tests in JAX and torch: sample curves and bitwise equality; for JAX, both x64 modes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.table.evaluation import Table, padded

CURVE = PlateauCurve(
    1000,
    warmup_steps=100,
    plateaus=[(20, 10), (60, 30)],
    min_lr_ratio=0.1,
    init_lr_ratio=0.01,
)
_THIRTY_PLATEAUS = [(percent, 1) for percent in range(0, 90, 3)]
MANY = PlateauCurve(1000, warmup_steps=100, plateaus=_THIRTY_PLATEAUS, decay_shape="linear")
"""More rows than other curves of these tests."""
_STAGES = StagedCurve(
    [
        (100, 1.0, "exponential"),
        (50,),
        (50, 0.6, "1-x^0.4"),
        (50, 0.3, "t^-0.75"),
        (50, 0.9, "(1-x)^3"),
        (0, 1e-12),
        (50, 2e-12),
        (50, 3e-12, "t^-2"),
        (50, 0.25, "cosine"),
    ],
    start=1e-6,
)
NESTED = _STAGES.cooldown(435, 100, to=1e-3).then(CURVE.cooldown(400, 65), scale=0.3)
"""Every shape, in both directions, and levels of every size."""
STEPS = np.arange(-5, 1019, dtype=np.int32)

x64_both_ways = pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
_slow_x32 = pytest.param(False, marks=pytest.mark.slow)
mostly_x64 = pytest.mark.parametrize("x64", [_slow_x32, True], ids=["x32", "x64"])
"""For a test that compiles much: x32 only with `--all`."""
few_and_many_rows = pytest.mark.parametrize("curve", [NESTED, MANY], ids=["few", "many"])


def in_one_of_two_sizes(curve: Curve) -> Table:
    """Pad a table to one of two sizes, so that few shapes are compiled."""
    (table,) = in_one_form([curve])
    return table


def in_one_form(curves: Sequence[Curve]) -> list[Table]:
    """Pad the tables of some curves to the same one of these two sizes."""
    rows = max(len(curve.table.begin) for curve in curves)
    pieces = max(len(curve.table.exponent) for curve in curves)
    sizes = 32, 512
    if rows > 32 or pieces > 512:
        sizes = 4096, 16384
    assert rows <= sizes[0]
    assert pieces <= sizes[1]
    return [padded(curve.table, 11, *sizes) for curve in curves]


def product(curve: Curve, peak: float, steps: NDArray[Any]) -> Any:
    """Return the learning rate: the product, exact in double, rounded to float32."""
    multipliers = np.float64(curve(steps))
    exact = np.float64(np.float32(peak)) * multipliers
    return exact.astype(np.float32)


def assert_equal_bits(actual: Any, expected: Any) -> None:
    values: NDArray[Any] = np.asarray(actual)
    assert values.dtype == expected.dtype
    integers = f"i{expected.itemsize}"
    np.testing.assert_array_equal(values.view(integers), expected.view(integers))
