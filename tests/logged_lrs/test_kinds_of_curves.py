"""`compare_log` with curves of every kind, and with logs that count from 1.

A log that leaves a curve gets a report, not an error.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from support.curves.descriptions import descriptions
from support.examples import examples
from support.forecasts.logs import rows_of

from plateau_jax import BatchPlan, Curve, LossRun, PlateauCurve, StagedCurve, compare_log
from plateau_jax.arguments.curve_warning import CurveWarning, suppress_warnings

PEAK = 6e-4
EARLY_PLATEAU = PlateauCurve(1000, warmup_steps=10, absolute_plateaus=[(50, 100)])
LINE = PlateauCurve(700, decay_shape="linear")
STAGED = StagedCurve([(50, 0.5), (0, 0.9), (50, 0.1, "t^-0.5")], start=1.0)


def log_of(curve: Curve, updates: NDArray[np.int64]) -> list[dict[str, Any]]:
    lrs = curve.learning_rate(updates, PEAK)
    return rows_of(step=updates, lr=in_scientific_notation(lrs, digits=3))


def in_scientific_notation(lrs: NDArray[Any], *, digits: int) -> list[str]:
    return [f"{lr:.{digits}e}" for lr in lrs.tolist()]


def with_losses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"loss": 3.0} for row in rows]


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Draw a curve, or a continuation, a cooldown or a part of it, of at least two steps."""
    arguments = draw(descriptions(range(4), depth=0, kind="plateaus"))
    with suppress_warnings():
        curve = PlateauCurve(**arguments)
        if curve.total_steps > 100_000 or curve.total_steps < 4:
            curve = EARLY_PLATEAU
        middle = curve.total_steps // 2
        choices = [
            curve,
            STAGED,
            curve.then(STAGED),
            curve.cooldown(middle, 20),
            curve.part(middle),
            STAGED.then(curve).cooldown(middle + 100, 20).part(1),
        ]
    return draw(st.sampled_from(choices))


@pytest.mark.slow
@examples(30)
@given(curves(), st.integers(0, 199))
def test_a_log_that_leaves_a_curve_of_any_kind(curve: Curve, seed: int) -> None:
    """Learning rates at random: no warmup, and no other fault, gives them."""
    generator = np.random.default_rng(seed)
    updates = np.unique(np.linspace(0, curve.total_steps, 40).astype(np.int64))
    lrs = generator.uniform(0, 2 * PEAK, len(updates))
    rows = rows_of(step=updates, lr=lrs.tolist())
    comparison = compare_log(rows, curve, PEAK)
    assert comparison.first_difference is not None


def test_a_plateau_that_would_start_within_a_longer_warmup() -> None:
    rows = log_of(LINE, np.arange(0, 600, 20))
    comparison = compare_log(rows, EARLY_PLATEAU, PEAK)
    assert comparison.faults == ()
    with pytest.warns(CurveWarning) as warnings:
        LossRun.read(with_losses(rows), EARLY_PLATEAU, PEAK)
    last = str(warnings[-1].message)
    assert "as on the curve. Give the run's curve" in last


@pytest.mark.parametrize("reference", [2, 4])
def test_a_curve_that_counts_samples(reference: int) -> None:
    """`compare_log` rejects it; a run with it is not compared."""
    plan = BatchPlan([(0, 1), (400, 2)])
    unscaled = PlateauCurve(1000, warmup_steps=10)
    curve = plan.scale(unscaled, 1, reference=reference)
    rows = log_of(LINE, np.arange(20, 600, 20))
    with pytest.raises(ValueError, match=r"^curve is from BatchPlan.scale: a step is 1 samples"):
        compare_log(rows, curve, PEAK)
    with pytest.raises(ValueError, match=r"^groups\[0\]\.curve is from BatchPlan.scale"):
        compare_log(rows, unscaled, PEAK, groups=[(curve, PEAK)])
    run = LossRun.read(with_losses(rows), curve, PEAK)
    assert run.curve is curve


@pytest.mark.parametrize("groups", [[PlateauCurve(1000)], [(PlateauCurve(1000),)], 3])
def test_groups_that_are_not_pairs(groups: Any) -> None:
    rows = rows_of(step=[0], lr=[0.0])
    with pytest.raises(TypeError, match=r"groups.* must be a .*pair.* \(curve, peak_value\)"):
        compare_log(rows, PlateauCurve(1000), PEAK, groups=groups)


@pytest.mark.slow
@examples(30)
@given(st.integers(10, 80), st.integers(1, 10))
def test_a_log_that_counts_from_one_and_restarts(place: int, interval: int) -> None:
    """The report and the warning have the same step, one more than the update of the fault."""
    curve = PlateauCurve(1000, warmup_steps=100)
    updates = np.arange(0, 1000, interval)
    begin = int(updates[place])
    curve_steps = np.where(updates < begin, updates, updates - begin)
    lrs = curve.learning_rate(curve_steps, PEAK)
    rows = rows_of(step=updates + 1, lr=in_scientific_notation(lrs, digits=5))
    comparison = compare_log(rows, curve, PEAK)
    assert comparison.counts_from == 1
    assert comparison.first_difference == begin + 1
    assert comparison.expected == curve.learning_rate(begin, PEAK)
    assert comparison.fault is not None
    assert comparison.fault.most == begin
    message = rf"at step {begin + 1} is .* \(if the log counts updates from 1\): the curve starts"
    with pytest.warns(CurveWarning, match=message):
        LossRun.read(with_losses(rows), curve, PEAK)


def test_an_unknown_fault_in_a_log_that_counts_from_one() -> None:
    """No fault explains it, but the report has the first update that differs."""
    curve = PlateauCurve(1000, warmup_steps=100)
    updates = np.arange(0, 1000, 10)
    factors = np.where(updates < 500, 1.0, updates % 30 / 30)
    lrs = factors * curve.learning_rate(updates, PEAK)
    rows = rows_of(step=updates + 1, lr=in_scientific_notation(lrs, digits=5))
    comparison = compare_log(rows, curve, PEAK)
    assert comparison.faults == ()
    assert comparison.first_difference == 501
    assert "if the log counts updates from 1, the first that is not" in str(comparison)
