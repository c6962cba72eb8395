"""The outlook of a curve: its formula in 50 digits, parts within 10⁻³, refusals."""

from decimal import Decimal, localcontext
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import Curve, Outlook, PlateauCurve, StagedCurve, last_iterate, outlook


def _in_digits(curve: Curve) -> tuple[Decimal, Decimal]:
    """Bound and peak by the formula as it is written, from the last step to the first."""
    with localcontext() as context:
        context.prec = 50
        rates = [Decimal(curve(step)) for step in range(curve.total_steps)]
        total = squares = inner = Decimal(0)
        for rate in reversed([rate for rate in rates if rate]):
            after, total, squares = total, total + rate, squares + rate * rate
            if after:
                inner += rate / after * (squares / total)
        first = 1 / (2 * total)
        second = squares / (2 * total) + inner / 2
        return 2 * (first * second).sqrt(), (first / second).sqrt()


def _assert_near(curve: Curve, tolerance: float) -> None:
    found, (bound, peak) = outlook(curve), _in_digits(curve)
    assert abs(Decimal(found.bound) / bound - 1) < tolerance
    assert abs(Decimal(found.peak) / peak - 1) < tolerance


@examples(60)
@given(descriptions())
def test_it_is_the_formula(description: Any) -> None:
    curve = build(description)
    assume(curve.total_steps <= 20_000)
    assume(any(curve(step) > 0 for step in range(curve.total_steps)))
    _assert_near(curve, 1e-12)


_LONG = {
    "cosine": PlateauCurve(100_000),
    "wsd": PlateauCurve(100_000, warmup_steps=1_000, plateaus=[(0, 80)], decay_shape="linear"),
    "exponential": StagedCurve([(1_000, 1.0), (99_000, 1e-12, "exponential")]),
    "jump": StagedCurve([(10_000, 1.0), (30_000,), (1, 1e-6), (50_000,)]),
    "1-sqrt": StagedCurve([(50_000,), (50_000, 0.0, "1-sqrt")], start=1.0),
}


@pytest.mark.parametrize("curve", _LONG.values(), ids=_LONG)
def test_so_it_is_for_long_curves(curve: Curve) -> None:
    _assert_near(curve, 1e-12)


@pytest.mark.parametrize("curve", _LONG.values(), ids=_LONG)
@pytest.mark.parametrize("parts", [2**10, 2**13])
def test_parts_are_within_a_thousandth(curve: Curve, parts: int) -> None:
    with patch.object(last_iterate, "MOST_PARTS", parts):
        _assert_near(curve, 1e-3)


@given(st.floats(2**-6, 1.0, width=32))
def test_one_step_is_exact(level: float) -> None:
    assert outlook(StagedCurve([(1,)], start=level)) == Outlook(bound=1.0, peak=1 / level)


def test_a_curve_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="has no positive rate"):
        outlook(StagedCurve([(5,)], start=0.0))
    not_a_curve: Any = [1.0, 0.5]
    with pytest.raises(TypeError, match="must be a Curve"):
        outlook(not_a_curve)
