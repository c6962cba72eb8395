"""The straight line."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from proofs.arithmetic.bounded import BOUNDED
from proofs.arithmetic.errors_of_sine import at_x, phases
from proofs.arithmetic.intervals import Interval, assert_covered
from proofs.arithmetic.proven import LEAST_STEP
from proofs.shapes.spec import InterpolatedSpec, units

from plateau_jax.numerics.arithmetic import ONE
from plateau_jax.shapes.line import Linear


class LinearSpec(InterpolatedSpec):
    name = "linear"
    title = "linear"
    counted_from = "nearer end"
    error = units("-1.5", "0")
    value_error = units("-4.5", "4.5")
    samples = ("linear",)
    other_names = "1-x^1", "(1-x)^1"
    file_name = "long_linear"
    stages: ClassVar[Mapping[str, str]] = {"staged_linear": "linear"}

    def formula(self, mp: Any, x: Any, power: Any) -> Any:
        return x

    def prove_error(self) -> Interval:
        (x,) = phases(1)
        assert Linear.interpolant(BOUNDED, at_x(x), ()) is x
        return x.error

    def prove_monotone(self) -> None:
        """x = j/L grows by 1/L."""
        assert self.error.width < LEAST_STEP


@pytest.mark.parametrize("count", [1, 64, 256])
def test_phases_contain_half_of_a_segment(count: int) -> None:
    """So do those of every shape that is counted from the nearer end."""
    boxes = [x.exact.range for x in phases(count)]
    assert_covered(Interval(0, LinearSpec().largest * ONE), boxes)
