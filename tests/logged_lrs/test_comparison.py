"""`compare_log`: planted faults are named, and never a wrong one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from numpy.typing import NDArray
from support.examples import examples
from support.forecasts.logs import rows_of

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare_log, find_curve
from plateau_jax.logged_lrs.comparison import LogComparison

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Displacement = Callable[[Ints, int], Ints]

PEAK = 6e-4


def formatted(digits: int, lrs: Floats) -> list[str]:
    return [f"{lr:.{digits - 1}e}" for lr in lrs.tolist()]


def compared(
    curve: Curve, updates: Ints, lrs: Floats, digits: int = 4, peak: float = PEAK, **options: Any
) -> LogComparison:
    rows = rows_of(step=updates.tolist(), lr=formatted(digits, lrs))
    return compare_log(rows, curve, peak, **options)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Curves without a part in which a fault would be invisible for long."""
    total = draw(st.sampled_from([200, 1_000, 5_000]))
    warmup = draw(st.sampled_from([total // 20, total // 10]))
    floor = draw(st.sampled_from([0.0, 0.1]))
    decay = draw(st.sampled_from(["cosine", "linear", "1-sqrt", "(1-x)^2"]))
    cosine = PlateauCurve(total, warmup_steps=warmup, min_lr_ratio=floor, decay_shape=decay)
    wsd = StagedCurve.wsd(
        total,
        warmup_steps=warmup,
        decay_steps=total // 2,
        min_lr_ratio=floor,
        decay_shape=decay,
    )
    return draw(st.sampled_from([cosine, wsd]))


digits = st.sampled_from([3, 4, 6])
intervals = st.sampled_from([1, 10])


def updates_of(curve: Curve, interval: int) -> Ints:
    return np.arange(0, curve.total_steps, interval)


@examples(60)
@given(curves(), digits, intervals)
def test_learning_rates_of_the_curve_are_on_it(curve: Curve, digits: int, interval: int) -> None:
    updates = updates_of(curve, interval)
    comparison = compared(curve, updates, curve.learning_rate(updates, PEAK), digits)
    assert comparison.first_difference is None
    assert comparison.faults == ()
    assert str(comparison).endswith("all are on the curve")


def late(updates: Ints, number: int) -> Ints:
    return updates - number


def early(updates: Ints, number: int) -> Ints:
    return updates + number


def too_fast(updates: Ints, number: int) -> Ints:
    return number * updates


def too_slow(updates: Ints, number: int) -> Ints:
    return updates // number


def restarted(updates: Ints, number: int) -> Ints:
    begin = 30 * number
    return np.where(updates < begin, updates, updates - begin)


def stopped(updates: Ints, number: int) -> Ints:
    return np.minimum(updates, 30 * number)


@pytest.mark.slow
@examples(150)
@given(
    curves(),
    digits,
    intervals,
    st.sampled_from([late, early, too_fast, too_slow, restarted, stopped]),
    st.integers(2, 6),
)
def test_a_planted_displacement_is_named(
    curve: Curve, digits: int, interval: int, displacement: Displacement, number: int
) -> None:
    """Or the difference is not printed, or other faults explain the same rows."""
    updates = updates_of(curve, interval)
    lrs = curve.learning_rate(displacement(updates, number), PEAK)
    differs = formatted(digits, lrs) != formatted(digits, curve.learning_rate(updates, PEAK))
    comparison = compared(curve, updates, lrs, digits)
    if not differs:
        assert comparison.first_difference is None
        return
    names = [fault.name for fault in comparison.faults]
    planted_name = displacement.__name__.replace("_", " ")
    if comparison.fault is not None:
        assert names == [planted_name]
        planted = number
        if displacement in (restarted, stopped):
            planted = 30 * number
        assert comparison.fault.least <= planted <= comparison.fault.most


@pytest.mark.slow
@examples(100)
@given(curves(), digits, intervals, st.integers(0, 199))
def test_a_named_fault_gives_every_row(curve: Curve, digits: int, interval: int, seed: int) -> None:
    """Learning rates of a different curve: a fault may be named only if it gives all of them."""
    generator = np.random.default_rng(seed)
    total = int(curve.total_steps * generator.uniform(0.7, 1.4))
    other = PlateauCurve(total, warmup_steps=total // 20)
    updates = updates_of(curve, interval)
    lrs = other.learning_rate(updates, PEAK)
    comparison = compared(curve, updates, lrs, digits)
    positions = {"late": late, "early": early, "too fast": too_fast, "too slow": too_slow}
    for fault in comparison.faults:
        assume(fault.name in positions)
        steps = positions[fault.name](updates, int(fault.least))
        explained = curve.learning_rate(steps, PEAK)
        np.testing.assert_allclose(explained, lrs, rtol=0.6 * 10.0 ** (1 - digits), atol=3e-10)


CURVE = PlateauCurve(1_000, warmup_steps=100, min_lr_ratio=0.1)
UPDATES = np.arange(0, 1_000, 5)
LRS = CURVE.learning_rate(UPDATES, PEAK)


def test_a_different_peak() -> None:
    fault = compared(CURVE, UPDATES, LRS, peak=3e-4).fault
    assert fault.name == "peak"
    assert fault.least < PEAK < fault.most
    assert fault.text.startswith("the peak is 0.0006, 2 times the given one")


def test_a_difference_in_the_seventh_digit_is_shown() -> None:
    level = PlateauCurve(1_000, plateaus=[(0, 50)])
    rows = rows_of(step=[50, 100, 150], lr=["6.0000000e-04"] * 3)
    report = str(compare_log(rows, level, 6.000_003e-4))
    assert "0.0006 instead of 0.00060000032" in report
    assert "the peak is 0.0006, 0.9999995 times the given one" in report


def test_the_learning_rates_of_another_group() -> None:
    head = PlateauCurve(1_000, decay_shape="linear")
    lrs = head.learning_rate(UPDATES, 1e-3)
    groups = [({"total_steps": 500}, 1e-3), (head, 1e-3)]
    fault = compared(CURVE, UPDATES, lrs, groups=groups).fault
    assert fault.name == "group"
    assert fault.most == 1


@pytest.mark.parametrize("warmup", [25, 50, 200, 400])
def test_a_warmup_counted_in_micro_batches(warmup: int) -> None:
    longer = PlateauCurve(1_000, warmup_steps=warmup, min_lr_ratio=0.1)
    fault = compared(CURVE, UPDATES, longer.learning_rate(UPDATES, PEAK)).fault
    assert fault.name == "warmup"
    assert fault.least == fault.most == warmup


def test_a_longer_warmup_takes_steps_of_the_plateau() -> None:
    stages = [(50, 1.0), (0, 0.9), (650,), (300, 0.0, "1-sqrt")]
    longer = StagedCurve([(200, 1.0), (0, 0.9), (500,), (300, 0.0, "1-sqrt")])
    fault = compared(StagedCurve(stages), UPDATES, longer.learning_rate(UPDATES, PEAK)).fault
    assert fault.name == "warmup"
    assert fault.most == 200


def test_a_part_of_a_warmup_is_not_a_longer_warmup() -> None:
    """The curve has 10 steps of a warmup of 20; the run reaches the same level in 20 steps."""
    curve = StagedCurve([(20, 1.0), (180,)]).cooldown(10, 40)
    updates = np.arange(13)
    lrs = PEAK * np.minimum(updates, 20) / 40
    assert compared(curve, updates, lrs).faults == ()


def test_a_scheduler_that_never_steps() -> None:
    fault = compared(CURVE, UPDATES, np.zeros(len(UPDATES))).fault
    assert fault.name == "stopped"
    assert fault.text.startswith("the learning rate never leaves its first value")


def test_rows_past_the_end() -> None:
    updates = np.arange(0, 1_500, 5)
    climbing = np.where(updates < 1_000, updates, 2_000 - updates)
    for lrs in (CURVE.learning_rate(updates, PEAK), CURVE.learning_rate(climbing, PEAK)):
        fault = compared(CURVE, updates, lrs).fault
        assert fault.name == "past the end"
        assert fault.most == 495


def test_a_log_that_counts_from_one() -> None:
    """The learning rate is late; another fault is found all the same."""
    assert compared(CURVE, UPDATES + 1, LRS).fault.name == "late"
    lrs = CURVE.learning_rate(4 * UPDATES, PEAK)
    fault = compared(CURVE, UPDATES + 1, lrs).fault
    assert fault.name == "too fast"
    assert fault.most == 4


def test_a_fault_of_a_log_that_counts_from_one_is_listed_too() -> None:
    """From 0, a peak of 0.00200307 explains it; the run has 0.002 and counts from 1."""
    curve = StagedCurve([(3_000, 0.01, "exponential")], start=1.0)
    updates = np.arange(0, 1_000, 100)
    lrs = curve.learning_rate(updates, 2e-3)
    comparison = compared(curve, updates + 1, lrs, digits=6, peak=1e-3)
    from_zero, from_one = comparison.faults
    assert from_zero.name == from_one.name == "peak"
    assert from_zero.least > 2.002e-3
    assert from_one.least < 2e-3 < from_one.most
    assert from_one.text.startswith("if the log counts updates from 1: the peak is 0.002,")


def test_the_end_of_the_curve_is_reported_once() -> None:
    """It is past whether the log counts from 0 or from 1."""
    curve = StagedCurve([(100, 0.5)], start=0.5)
    updates = np.arange(5, 160, 10)
    lrs = np.where(updates < 100, PEAK / 2, PEAK)
    assert [fault.name for fault in compared(curve, updates, lrs).faults] == ["past the end"]


@pytest.mark.parametrize("function", [find_curve, lambda rows: compare_log(rows, CURVE, PEAK)])
def test_a_log_that_is_not_sorted(function: Callable[[Any], Any]) -> None:
    """Each row seems to replace all rows before it, as after a resume."""
    newest_first = rows_of(step=UPDATES[::-1].tolist(), lr=formatted(4, LRS[::-1]))
    with pytest.raises(ValueError, match="has 200 learning rates at 200 steps: keep those of one"):
        function(newest_first)


def test_ranks_that_log_the_same() -> None:
    rows = rows_of(step=UPDATES.tolist(), lr=formatted(4, LRS))
    comparison = compare_log([*rows, *rows], CURVE, PEAK)
    assert comparison.num_lrs == len(rows)
    assert comparison.first_difference is None


def test_two_faults_are_unknown() -> None:
    lrs = CURVE.learning_rate(np.minimum(2 * UPDATES, 600), PEAK)
    comparison = compared(CURVE, UPDATES, lrs)
    assert comparison.first_difference == 5
    assert comparison.faults == ()
    assert "no fault is named" in str(comparison)


def test_too_few_rows_are_unknown() -> None:
    """Two rows with twice the learning rate could have any cause."""
    updates = np.array([0, 20, 50])
    lrs = CURVE.learning_rate(2 * updates, PEAK)
    comparison = compared(CURVE, updates, lrs)
    assert comparison.first_difference == 20
    assert comparison.faults == ()


def test_several_faults() -> None:
    """In the warmup, twice the peak cannot be distinguished from two steps per update."""
    updates = np.arange(0, 50)
    comparison = compared(CURVE, updates, CURVE.learning_rate(2 * updates, PEAK))
    assert comparison.fault is None
    assert [fault.name for fault in comparison.faults] == ["peak", "too fast", "warmup"]
    assert "3 faults explain all of them" in str(comparison)


def test_trailing_zeros_may_be_missing() -> None:
    """A data frame has 0.0003 for 3.00e-04, and 0.0 for 0.00e+00."""
    lrs = [float(text) for text in formatted(3, LRS)]
    comparison = compare_log(rows_of(step=UPDATES.tolist(), lr=lrs), CURVE, PEAK)
    assert comparison.first_difference is None
    assert comparison.digits == 3


def test_the_zero_of_a_whole_number_is_no_digit() -> None:
    """Python has 30.0 for a float that was rounded to two digits."""
    curve = PlateauCurve(1_000)
    lrs = [float(text) for text in formatted(2, curve.learning_rate(UPDATES, 30.0))]
    comparison = compare_log(rows_of(step=UPDATES.tolist(), lr=lrs), curve, 30.0)
    assert comparison.first_difference is None
    assert comparison.digits == 2


def test_decimals_of_a_column() -> None:
    """The smallest learning rate has one significant digit."""
    lrs = [f"{lr:.5f}" for lr in LRS.tolist()]
    comparison = compare_log(rows_of(step=UPDATES.tolist(), lr=lrs), CURVE, PEAK)
    assert comparison.first_difference is None


@pytest.mark.parametrize("zero", [0.0, "0", "0.0", "0.00", "0.0e+00"])
def test_a_column_of_zeros_without_digits_is_rejected(zero: Any) -> None:
    """A learning rate that moves may print like this."""
    rows = rows_of(step=UPDATES.tolist(), lr=[zero] * len(UPDATES))
    with pytest.raises(ValueError, match="may stand for different numbers"):
        compare_log(rows, CURVE, PEAK)


def test_a_column_of_zeros_with_three_decimals() -> None:
    """Learning rates below 0.0005 print as 0.000."""
    rows = rows_of(step=UPDATES.tolist(), lr=["0.000"] * len(UPDATES))
    assert compare_log(rows, CURVE, 4e-4).first_difference is None
    assert compare_log(rows, CURVE, 1e-2).first_difference is not None


def test_a_restart_on_a_plateau_may_be_a_late_start() -> None:
    curve = StagedCurve.wsd(3_000, warmup_steps=0, decay_steps=1_000)
    updates = np.arange(0, 3_000, 50)
    lrs = curve.learning_rate(np.where(updates < 500, updates, updates - 500), PEAK)
    comparison = compared(curve, updates, lrs)
    assert comparison.fault is None
    assert {"late", "restarted"} <= {fault.name for fault in comparison.faults}


def test_a_fault_with_two_numbers_is_listed_twice() -> None:
    """Three and thirteen steps per update print the same rows."""
    stages = [(10, 0.1), (0, 1.0), (20, 0.1, "cosine"), (0, 1.0), (10, 0.1)]
    curve = StagedCurve(stages, start=1.0)
    updates = np.array([3, 31, 34, 37])
    comparison = compared(curve, updates, curve.learning_rate(3 * updates, 0.02), 2, peak=0.02)
    numbers = [fault.most for fault in comparison.faults if fault.name == "too fast"]
    assert numbers[:2] == [3, 13]


def texts_by_name(comparison: LogComparison) -> dict[str, str]:
    return {fault.name: fault.text for fault in comparison.faults}


def test_a_number_without_a_limit() -> None:
    """The run may be past the end of its curve by any number of updates."""
    curve = PlateauCurve(1_000, min_lr_ratio=0.1)
    updates = np.arange(20, 200, 20)
    texts = texts_by_name(compared(curve, updates, curve.learning_rate(updates + 1_000, PEAK)))
    assert " or more updates early" in texts["early"]
    assert " or more times per update" in texts["too fast"]


def test_a_large_number_has_a_limit() -> None:
    """A long plateau explains all rows, but not the level that follows it."""
    curve = StagedCurve([(1_000,), (0, 1.0), (6_000_000,), (0, 0.1), (1_000,)], start=0.1)
    updates = np.arange(1, 11)
    texts = texts_by_name(compared(curve, updates, curve.learning_rate(updates + 1_000, PEAK)))
    assert " 999 to 6000989 updates early" in texts["early"]
    assert " 1000 to 600099 times per update" in texts["too fast"]


def test_floats_are_compared_to_float32() -> None:
    """A trainer may compute in float64."""
    exact = PEAK * (0.1 + 0.9 * (1 + np.cos(np.pi * (UPDATES[20:] - 100) / 900)) / 2)
    rows = rows_of(step=UPDATES[20:].tolist(), lr=exact.tolist())
    assert compare_log(rows, CURVE, PEAK).first_difference is None
    rows = rows_of(step=UPDATES[20:].tolist(), lr=(exact * (1 + 2e-6)).tolist())
    assert compare_log(rows, CURVE, PEAK).fault.name == "peak"
