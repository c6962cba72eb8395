"""The square root, for j from 1 to L - 1."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar
from unittest.mock import Mock, patch

import pytest
from proofs.arithmetic.bounded import BOUNDED, Bounded
from proofs.arithmetic.errors_of_root import ROOTS, root_of_square
from proofs.arithmetic.integers import INTEGERS, integer
from proofs.arithmetic.intervals import Interval, Variable, assert_covered, power_of, union
from proofs.arithmetic.multiples import steps_scaled_by_fours
from proofs.arithmetic.parts import (
    ELAPSED,
    INVERSE,
    INVERSE_REST,
    POSITION,
    UP_TO_ONE,
    replace_function,
)
from proofs.arithmetic.positions import position
from proofs.arithmetic.proven import LEAST_STEP, MAX_LENGTH, MOST_K_OF_ROOT
from proofs.shapes.spec import InterpolatedSpec, units

from plateau_jax.numerics.arithmetic import ONE
from plateau_jax.shapes import root
from plateau_jax.shapes.root import SquareRoot


class SquareRootSpec(InterpolatedSpec):
    name = "1-sqrt"
    title = "square root"
    counted_from = "start"
    error = units("-3.001", "2.001")
    value_error = units("-7.001", "7.001")
    samples = ("1-sqrt",)
    other_names = ("1-x^0.5",)
    file_name = "long_root"
    stages: ClassVar[Mapping[str, str]] = {"staged_root": "1-sqrt"}

    def formula(self, mp: Any, x: Any, power: Any) -> Any:
        return mp.sqrt(x)

    def prove_error(self) -> Interval:
        return error_of_root(0)

    def prove_monotone(self) -> None:
        """√(j/L) grows by 1/(√(j + 1) + √j)/√L, which is more than 1/(2·L) for j + 1 <= L."""
        assert self.error.width < LEAST_STEP / 2


IN_FOUR_STEPS = position(elapsed=1, remaining=3, length=4, inverse=ONE // 4, inverse_rest=0)

BOXES_OF_ROOTS = tuple(ROOTS.boxes(32))


@cache
def roots() -> list[tuple[Variable, Bounded]]:
    return [root_of_square(box) for box in BOXES_OF_ROOTS]


def error_of_root(k: int) -> Interval:
    """Return the error of S = √y/2ᵏ, for all y in [1/4, 1)."""
    errors: list[Interval] = []
    for t, root_of_y in roots():
        assert root_of_y.computed.high <= ONE
        scale = Mock(return_value=(k, 2))
        ratio = Mock(return_value=ONE // 2)
        square_root = Mock(return_value=root_of_y)
        with (
            patch.object(root, "scale_by_fours", scale),
            patch.object(root, "ratio", ratio),
            patch.object(root, "square_root", square_root),
        ):
            value = SquareRoot.interpolant(BOUNDED, IN_FOUR_STEPS, ())
        scale.assert_called_once_with(BOUNDED, 1, 4)
        ratio.assert_called_once_with(2, ONE // 4, 0)
        square_root.assert_called_once_with(BOUNDED, ONE // 2)
        of_formula = value.exact - power_of(t, 1).scaled(ONE).halved(k)
        errors.append(of_formula.range + value.error)
    return union(errors)


@pytest.mark.parametrize("k", range(1, MOST_K_OF_ROOT + 1))
def test_root_of_scaled_steps_is_no_farther_off(k: int) -> None:
    """The shift by k divides the error by 2ᵏ, and adds at most a unit."""
    assert error_of_root(k).within(SquareRootSpec.error)


def test_boxes_contain_every_root() -> None:
    assert_covered(ROOTS, BOXES_OF_ROOTS)
    squares = ROOTS**2
    for k, steps in enumerate(steps_scaled_by_fours()):
        scaled = Interval(steps.least * 4**k, steps.most * 4**k)
        assert scaled.within(squares)


@pytest.mark.parametrize("k", [0, 3, MOST_K_OF_ROOT])
def test_root_joins_its_parts(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """√(j/L) is √y/2ᵏ with y = j·4ᵏ/L, for the steps j from the start."""
    length = integer("length", Interval(2, MAX_LENGTH))
    scaled = integer("scaled", Interval(1, MAX_LENGTH))
    scale = Mock(return_value=(k, scaled))
    monkeypatch.setattr(root, "scale_by_fours", scale)
    ratio_of_steps = replace_function("ratio", UP_TO_ONE, root, monkeypatch)
    square_root = replace_function("square_root", UP_TO_ONE, root, monkeypatch)
    at = POSITION._replace(length=length)
    value = SquareRoot.interpolant(INTEGERS, at, ())
    scale.assert_called_once_with(INTEGERS, ELAPSED, length)
    ratio_of_steps.assert_called_once_with(scaled, INVERSE, INVERSE_REST)
    square_root.assert_called_once_with(INTEGERS, ratio_of_steps.return_value)
    assert value == square_root.return_value >> k
