"""What the tests of the JAX edge share: two curves, both x64 modes, and equality to the last bit."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.strategies import SMALLEST_NORMAL

from plateau_jax import Curve, PlateauCurve

CURVE = PlateauCurve(
    1000, warmup_steps=100, plateaus=[(20, 10), (60, 30)], min_lr_ratio=0.1, init_lr_ratio=0.01
)
MANY = PlateauCurve(1000, warmup_steps=100, plateaus=[(3 * i, 1) for i in range(30)], decay="linear")
STEPS = np.arange(-5, 1019, dtype=np.int32)

x64_both_ways = pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
both_searches = pytest.mark.parametrize("curve", [CURVE, MANY], ids=["compared", "searched"])


def product(curve: Curve, peak: float, steps: NDArray[Any], x64: bool) -> Any:
    """The rate: two float32, multiplied exactly, rounded to float32 with x64 off."""
    exact: Any = np.float64(np.float32(peak)) * np.float64(curve(steps))
    return exact if x64 else exact.astype(np.float32)


def assert_equal_bits(found: Any, wanted: Any) -> None:
    values: NDArray[Any] = np.asarray(found)
    assert values.dtype == wanted.dtype
    np.testing.assert_array_equal(values.view(f"i{wanted.itemsize}"), wanted.view(f"i{wanted.itemsize}"))


def assert_equal_rates(found: Any, wanted: NDArray[Any]) -> None:
    # XLA flushes float32 below 2⁻¹²⁶ to zero: those alone are not compared.
    promised: NDArray[np.bool] = (wanted == 0) | (wanted >= SMALLEST_NORMAL) | (wanted.dtype == np.float64)
    assert_equal_bits(np.asarray(found)[promised], wanted[promised])
