"""The number of steps j that a shape scales: to j·4ᵏ for the root, and to j·2ᵏ for the powers."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from proofs.arithmetic.multiples import (
    LENGTH,
    Multiple,
    steps_scaled_by_fours,
    steps_scaled_by_twos,
)
from proofs.arithmetic.proven import MAX_LENGTH

from plateau_jax.numerics.arithmetic import PYTHON
from plateau_jax.shapes import power as power_shapes, root

every_scale = pytest.mark.parametrize(
    ("scale", "ranges", "factor"),
    [
        (root.scale_by_fours, steps_scaled_by_fours(), 4),
        (power_shapes.scale_near_length, steps_scaled_by_twos(), 2),
    ],
    ids=["by fours", "by twos"],
)


@every_scale
def test_steps_are_scaled_by_their_fraction_of_the_length(
    scale: Callable[..., Any], ranges: list[Multiple], factor: int
) -> None:
    """All j and L with j/L in a range have the same k, and nothing overflows."""
    for expected_k, steps in enumerate(ranges):
        k, scaled = scale(PYTHON, steps, LENGTH)
        assert k == expected_k
        assert scaled.least == steps.least * factor**k
        assert scaled.most == steps.most * factor**k


@every_scale
def test_ranges_contain_every_fraction_of_a_length(
    scale: Callable[..., Any], ranges: list[Multiple], factor: int
) -> None:
    """Between two ranges there are only fractions of lengths above the longest.

    A range begins at a fraction c/d. Every j/L below it is at most c/d - 1/(d·L), because
    c·L - d·j is an integer.
    """
    assert ranges[0].most == 1 - Fraction(1, MAX_LENGTH)
    assert ranges[-1].least <= Fraction(1, MAX_LENGTH)
    for longer, shorter in pairwise(ranges):
        begin = longer.least
        assert begin - shorter.most <= Fraction(1, begin.denominator * MAX_LENGTH)
