"""`outlook` against its formula in 50 digits, and within 10⁻⁵ for long curves."""

import tracemalloc
from decimal import Decimal, localcontext
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import MAX_STEP
from support.examples import examples

from plateau_jax import Curve, Outlook, PlateauCurve, StagedCurve, outlook
from plateau_jax.theory import last_iterate


def _in_digits(curve: Curve) -> tuple[Decimal, Decimal]:
    """Compute bound and peak from the formula, from the last step to the first."""
    with localcontext() as context:
        context.prec = 50
        rates = [Decimal(float(rate)) for rate in curve(np.arange(curve.total_steps))]
        rates = [rate for rate in rates if rate]
        ends, tail = list[tuple[int, Decimal]](), Decimal(0)
        for end in range(len(rates), 0, -1):
            if rates[end - 1] > tail:
                ends.append((end, tail))
            tail += rates[end - 1]
        return min(_until(rates[:end], tail) for end, tail in ends)


def _until(rates: list[Decimal], tail: Decimal) -> tuple[Decimal, Decimal]:
    """Compute them from the steps before a tail that is left out."""
    total = squares = inner = Decimal(0)
    for rate in reversed(rates):
        after, total, squares = total, total + rate, squares + rate * rate
        if after:
            inner += rate / after * (squares / total)
    first = 1 / (2 * total)
    second = squares / (2 * total) + inner / 2 + 4 * tail
    return 2 * (first * second).sqrt(), (first / second).sqrt()


def _assert_near(curve: Curve, tolerance: float) -> None:
    found, (bound, peak) = outlook(curve), _in_digits(curve)
    assert abs(Decimal(found.bound) / bound - 1) < tolerance
    assert abs(Decimal(found.peak) / peak - 1) < tolerance


@examples(60)
@given(descriptions(scaled=True))
def test_outlook_matches_formula(description: Any) -> None:
    curve = build(description)
    assume(curve.total_steps <= 100_000)
    assume(curve(np.arange(curve.total_steps)).any())
    _assert_near(curve, 1e-12)


def _long(steps: int) -> dict[str, Curve]:
    """One curve of each kind."""
    warmup = steps // 100
    cosine = PlateauCurve(steps, warmup_steps=warmup)
    return {
        "cosine": cosine,
        "wsd": PlateauCurve(steps, warmup_steps=warmup, plateaus=[(0, 80)], decay_shape="linear"),
        "exponential": StagedCurve([(warmup, 1.0), (steps - warmup, 1e-12, "exponential")]),
        "jump": StagedCurve([(steps // 10, 1.0), (steps // 3,), (1, 1e-6), (steps // 2,)]),
        "cooldown": cosine.cooldown(steps // 2, steps // 2),
        "restarts": PlateauCurve(steps // 2).then(PlateauCurve(steps // 2), scale=0.3),
        "held": StagedCurve([(steps,)], start=0.3),
        "held, then linear": StagedCurve(
            [(7 * steps // 10,), (3 * steps // 10, 0.0)], start=0.7363739609718323
        ),
    }


@pytest.mark.parametrize("steps", [30_000, pytest.param(2**20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", _long(100))
def test_outlook_of_long_curves_matches_formula(kind: str, steps: int) -> None:
    _assert_near(_long(steps)[kind], 1e-11 if steps == 2**20 else 1e-12)


def _added_up(curve: Curve) -> tuple[float, float]:
    """Evaluate the formula at every step in plain float64."""
    rates = np.asarray(curve(np.arange(curve.total_steps)), np.float64)
    rates = rates[rates > 0]
    tails = np.append(np.cumsum(rates[::-1])[::-1][1:], 0.0)
    return min(_added_up_until(rates[: end + 1], tails[end]) for end in np.flatnonzero(rates > tails))


def _added_up_until(rates: Any, tail: float) -> tuple[float, float]:
    sums, squares = (np.cumsum(values[::-1])[::-1] for values in (rates, rates**2))
    first = 1 / (2 * sums[0])
    second = squares[0] * first + np.sum(rates[:-1] / sums[1:] * (squares / sums)[:-1]) / 2 + 4 * tail
    return 2 * float(np.sqrt(first * second)), float(np.sqrt(first / second))


def _with_tail(level: float, steps: int = 100) -> Outlook:
    return outlook(StagedCurve([(900,), (0, level), (steps,)], start=1.0))


def test_tiny_tail_counts_as_little_as_none() -> None:
    """The prediction is continuous in the tail's level, from none to the level before it."""
    without, levels = outlook(StagedCurve([(900,)], start=1.0)), np.geomspace(1e-12, 1.0, 400)
    tiny = _with_tail(1e-8)
    assert (tiny.bound, tiny.peak) == pytest.approx((without.bound, without.peak), rel=1e-5)
    found = [_with_tail(float(level)) for level in levels]
    for before, after in pairwise(found):
        assert after.bound == pytest.approx(before.bound, rel=0.1)
        assert after.peak == pytest.approx(before.peak, rel=0.15)
    assert max(one.bound for one in found) < 1.5 * without.bound


def _assert_within_1e_5(curve: Curve) -> None:
    assert curve.total_steps > last_iterate.MAX_SINGLE_STEPS
    found, expected = outlook(curve), _added_up(curve)
    assert (found.bound, found.peak) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", _long(100))
def test_outlook_in_parts_is_within_1e_5(kind: str) -> None:
    with patch.object(last_iterate, "MAX_SINGLE_STEPS", 2**17):
        _assert_within_1e_5(_long(150_001)[kind])


_LEVELS = st.sampled_from([1.0, 0.7, 0.1, 1e-3, 1e-6, 1e-12])
_HELD = st.tuples(st.sampled_from([1, 2, 5, 1000, 100_000]))
_POWERS = "1-x^0.05", "1-x^20", "(1-x)^0.05", "(1-x)^20", "t^-1", "t^-4"
_SHAPES = st.sampled_from(("linear", "cosine", "1-sqrt", "exponential", *_POWERS))
_MOVING = st.tuples(st.sampled_from([64, 5000, 100_000]), _LEVELS, _SHAPES)
_STAGES = st.lists(_HELD | _MOVING, max_size=4)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")  # levels that look like learning rates
@examples(28)
@given(_LEVELS, _STAGES, _LEVELS, st.sampled_from([1.0, 1e-4]), st.booleans())
def test_outlook_of_any_stages_is_within_1e_5(
    start: float, stages: Any, end: float, scale: float, last: bool
) -> None:
    """Even if the curve jumps to a level that it holds for a step or two."""
    first = StagedCurve([(50_000, end, "cosine"), *stages], start=start)
    other = StagedCurve([*stages, (2,)] if last else [(3,), (800, 1e-12, "exponential")], start=1.0)
    with patch.object(last_iterate, "MAX_SINGLE_STEPS", 2**14):
        _assert_within_1e_5(first.then(other, scale=scale))


@pytest.mark.parametrize("level", [1.0, 0.3])
def test_outlook_of_longest_held_curve_follows_its_sum(level: float) -> None:
    harmonic = np.log(MAX_STEP - 1) + np.euler_gamma
    expected = np.sqrt(1 / MAX_STEP * (1 + harmonic))
    assert outlook(StagedCurve([(MAX_STEP,)], start=level)).bound == pytest.approx(expected, rel=1e-5)


def test_outlook_of_longest_curve_needs_little_memory() -> None:
    tracemalloc.start()
    outlook(PlateauCurve(MAX_STEP, plateaus=[(0, 50)]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**28


@given(st.floats(2**-6, 1.0, width=32), st.integers(0, 5))
def test_one_step_is_exact(level: float, zeros: int) -> None:
    curve = StagedCurve([(1,)], start=level).then(build({"stages": [(1 + zeros,)], "start": 0.0}))
    assert outlook(curve) == Outlook(bound=1.0, peak=1 / level)
