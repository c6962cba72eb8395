"""`compare_log`: right logs are on the curve, and planted faults are named, never a wrong one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from logged_lrs.logs import rows_of
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve, StagedCurve, compare_log

PEAK = 6e-4
COSINE = PlateauCurve(1_000, warmup_steps=100, min_lr_ratio=0.1)
FROM_ONE = replace(COSINE, init_lr_ratio=1 / 101)
"""Its warmup is (n + 1) / 101."""
WSD = StagedCurve.wsd(1_000, warmup_steps=100, decay_steps=200)
UPDATES = np.arange(0, 1_000, 5)


def lrs_of(curve, steps, peak=PEAK):
    return curve.learning_rate(steps, peak).astype(np.float64)


# How tools print a learning rate.


def olmo_core(lr):
    if lr == 0:
        return "0.0"
    return f"{lr:.2E}" if lr < 1e-4 else f"{lr:.4f}"


def keras(lr):
    return f"{lr:.4f}" if lr > 1e-3 else f"{lr:.4e}"


def rounded_to_three_digits(lr):
    return float(f"{lr:.3g}")


def rounded_to_six_decimals(lr):
    return round(lr, 6)


FORMATS = [
    float,
    repr,
    np.float32,
    "{:.2e}".format,
    "{:.4e}".format,
    "{:g}".format,
    "{:.6f}".format,
    "{:.8f}".format,
    olmo_core,
    keras,
    rounded_to_three_digits,
    rounded_to_six_decimals,
]
formats = st.sampled_from(FORMATS)
intervals = st.sampled_from([1, 10])


def compared(curve, updates, lrs, print_lr="{:.3e}".format, peak=PEAK):
    rows = rows_of(step=updates.tolist(), lr=[print_lr(lr) for lr in lrs.tolist()])
    return compare_log(rows, curve, peak)


@st.composite
def curves(draw):
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


FEW_DIGITS = StagedCurve.wsd(200, warmup_steps=10, decay_steps=100, decay_shape="cosine")


@examples(100)
@given(curves(), formats, intervals)
@example(FEW_DIGITS, rounded_to_six_decimals, 10)
def test_learning_rates_of_the_curve_are_on_it(curve, print_lr, interval):
    updates = np.arange(0, curve.total_steps, interval)
    comparison = compared(curve, updates, lrs_of(curve, updates), print_lr)
    assert comparison.first_difference is None
    assert comparison.faults == ()
    assert "all are on the curve" in str(comparison)


# Planted faults: the step of the curve that update n shows, or a different curve.

DISPLACEMENTS = {
    "late": lambda n, k: n - k,
    "early": lambda n, k: n + k,
    "too fast": lambda n, k: k * n,
    "too slow": lambda n, k: n // k,
    "stopped": lambda n, k: np.minimum(n, 30 * k),
    "restarted": lambda n, k: np.where(n < 30 * k, n, n - 30 * k),
}


@pytest.mark.slow
@examples(200)
@given(curves(), formats, intervals, st.sampled_from([*DISPLACEMENTS]), st.integers(2, 6))
def test_a_planted_displacement_is_named(curve, print_lr, interval, name, number):
    """Or a plateau hides it, or other faults explain the same rows."""
    updates = np.arange(0, curve.total_steps, interval)
    lrs = lrs_of(curve, DISPLACEMENTS[name](updates, number))
    comparison = compared(curve, updates, lrs, print_lr)
    if [print_lr(lr) for lr in lrs] == [print_lr(lr) for lr in lrs_of(curve, updates)]:
        assert comparison.first_difference is None
        return
    fault = comparison.fault
    if fault is not None and "plateau" not in fault.text:
        assert fault.name == name
        shown = 30 * number if name in ("stopped", "restarted") else number
        assert fault.least <= shown <= fault.most


def skipped(number):
    """A GradScaler skips updates at the start and two later ones; the scheduler waits."""
    late_by = number + (UPDATES > 100) + (UPDATES > 350)
    return lrs_of(COSINE, UPDATES - late_by)


def resumed(number):
    return lrs_of(COSINE, np.where(UPDATES < 400, UPDATES, UPDATES - number))


def plateau(number):
    run = StagedCurve.wsd(1_000 - number, warmup_steps=100, decay_steps=200)
    return lrs_of(run, UPDATES)


def total(number):
    return lrs_of(replace(COSINE, total_steps=number), UPDATES)


def warmup(number):
    return lrs_of(replace(COSINE, warmup_steps=number), UPDATES)


def warmup_from_one(number):
    run = replace(COSINE, warmup_steps=number, init_lr_ratio=1 / (number + 1))
    return lrs_of(run, UPDATES)


def plateau_after_warmup(number):
    run = StagedCurve.wsd(1_000, warmup_steps=number, decay_steps=200)
    return lrs_of(run, UPDATES)


def floor(number):
    return lrs_of(replace(COSINE, min_lr_ratio=number / PEAK), UPDATES)


def clipped(number):
    """A floor that a warmup ignores."""
    lrs = lrs_of(COSINE, UPDATES)
    return np.where(UPDATES < 100, lrs, np.maximum(lrs, number))


def peak(number):
    return lrs_of(COSINE, UPDATES, number)


@pytest.mark.parametrize(
    ("curve", "run", "number", "name", "phrase"),
    [
        (COSINE, skipped, 2, "skipped", "grows from 2 to 4 updates: fp16 skipped updates"),
        (COSINE, resumed, 300, "resumed", "are 300 updates late from update 400 on"),
        (WSD, plateau, 200, "plateau", "ends 200 updates earlier than at update 799"),
        (COSINE, total, 900, "total", "900 updates instead of 1000"),
        (COSINE, total, 1_500, "total", "takes 1500 updates instead of 1000"),
        (COSINE, warmup, 1, "no warmup", "there is no warmup"),
        (WSD, plateau_after_warmup, 0, "no warmup", "there is no warmup"),
        (COSINE, warmup, 25, "warmup", "the warmup takes 25 updates instead of 100"),
        (FROM_ONE, warmup_from_one, 25, "warmup", "takes 25 updates instead of 100"),
        (FROM_ONE, warmup_from_one, 300, "warmup", "takes 300 updates instead of 100"),
        (WSD, plateau_after_warmup, 400, "warmup", "the warmup takes 400 updates instead"),
        (COSINE, floor, 0.0, "floor", "towards 0.0 instead of 6e-05: the floor is ignored"),
        (COSINE, floor, 1.2e-4, "floor", "towards 0.00012 instead of 6e-05: a different floor"),
        (COSINE, clipped, 1e-4, "floor", "does not fall below 0.0001: a floor was added"),
        (COSINE, peak, 3e-4, "peak", "the peak is 0.0003, 0.5 times the given one"),
    ],
)
def test_other_planted_faults(curve, run, number, name, phrase):
    faults = compared(curve, UPDATES, run(number), "{:.5e}".format).faults
    texts = [fault.text for fault in faults if fault.name == name]
    assert phrase in " ".join(texts)
    (fault, *_) = [fault for fault in faults if fault.name == name]
    assert fault.least * 0.99 <= number <= fault.most * 1.01


def test_rows_past_the_end():
    updates = np.arange(0, 1_500, 5)
    climbing = np.where(updates < 1_000, updates, 2_000 - updates)
    for steps in (updates, climbing):
        fault = compared(COSINE, updates, lrs_of(COSINE, steps)).fault
        assert fault is not None
        assert (fault.name, fault.most) == ("past the end", 495)


# Causes that can be, and rows that the log does not have.


def test_only_one_update_can_be_the_order_of_two_calls():
    for number in (1, 200):
        comparison = compared(COSINE, UPDATES, lrs_of(COSINE, UPDATES + number))
        assert ("steps before the optimizer" in str(comparison)) == (number == 1)
        assert "1 updates" not in str(comparison)


def test_a_longer_plateau_is_not_a_scheduler_that_stands_still():
    longer = StagedCurve.wsd(1_300, warmup_steps=100, decay_steps=200)
    updates = np.arange(60, 1_000, 20)
    comparison = compared(WSD, updates, lrs_of(longer, updates))
    assert "plateau" in {fault.name for fault in comparison.faults}
    assert "stopped" not in {fault.name for fault in comparison.faults}
    text = "the plateau ends 180 or more updates later than at update 799"
    assert text in str(comparison)
    assert math.inf in {fault.most for fault in comparison.faults}
    missing = "not in the log: the learning rates before step 60 and after step 980"
    assert str(comparison).endswith(missing)


@pytest.mark.parametrize("updates", [UPDATES, np.array([0, 20, 50])])
def test_two_faults_or_two_rows_are_unknown(updates):
    """Two rows with twice the learning rate could have any cause."""
    comparison = compared(COSINE, updates, lrs_of(COSINE, np.minimum(2 * updates, 600)))
    assert comparison.first_difference == updates[1]
    assert comparison.faults == ()
    assert "no fault is named" in str(comparison)


@pytest.mark.parametrize("lr", ["0.0000e+00", "0.00000000", 0.0, PEAK])
@pytest.mark.parametrize("curve", [COSINE, WSD])
def test_a_constant_learning_rate_has_stopped(curve, lr):
    """Nothing calls the scheduler: the warmup stays at 0. Or it has a different optimizer."""
    comparison = compare_log(rows_of(step=UPDATES, lr=[lr] * len(UPDATES)), curve, PEAK)
    assert "stopped" in {fault.name for fault in comparison.faults}
    assert "a floor was added" not in str(comparison)


@pytest.mark.parametrize("ratio", [0.0, 0.2])
def test_floor_of_a_curve_without_a_warmup(ratio):
    curve = PlateauCurve(1_000, decay_shape="linear", min_lr_ratio=0.1)
    lrs = lrs_of(replace(curve, min_lr_ratio=ratio), UPDATES)
    assert "floor" in {fault.name for fault in compared(curve, UPDATES, lrs).faults}


# Digits.


def test_bare_round_numbers_are_judged_by_three_digits():
    """0.0005 does not count as 0.001."""
    rows = rows_of(step=range(0, 600, 10), lr=[1e-3] * 30 + [5e-4] * 30)
    comparison = compare_log(rows, StagedCurve([(600,)], start=1.0), 5e-4)
    assert comparison.first_difference == 0
    assert comparison.digits is None
    assert "the log has 60 learning rates whose digits are not known" in str(comparison)
    step_curve = StagedCurve([(300,), (0, 0.5), (300,)], start=1.0)
    assert compare_log(rows, step_curve, 1e-3).first_difference is None


@pytest.mark.parametrize("cell", ["0", 0.0, "0.00", "3e-05"])
def test_too_few_digits_are_rejected(cell):
    """As printed, all rows may be on the curve."""
    rows = rows_of(step=range(40), lr=[cell] * 40)
    with pytest.raises(ValueError, match="of the log have too few digits: as they are printed"):
        compare_log(rows, PlateauCurve(200_000), float(cell) + 4e-6)


def test_zeros_with_three_decimals():
    """Learning rates below 0.0005 print as 0.000."""
    rows = rows_of(step=UPDATES.tolist(), lr=["0.000"] * len(UPDATES))
    comparison = compare_log(rows, COSINE, 4e-4)
    assert comparison.first_difference is None
    assert comparison.digits == 0
    assert compare_log(rows, COSINE, 1e-2).first_difference is not None


# Logs that count from 1, and logs of several runs.


def test_a_log_that_counts_from_one():
    """The learning rate is late; another fault is found all the same."""
    fault = compared(COSINE, UPDATES + 1, lrs_of(COSINE, UPDATES)).fault
    assert fault is not None
    assert fault.name == "late"
    assert "the log counts from 1" in fault.text
    begin = np.where(UPDATES < 400, UPDATES, UPDATES - 400)
    comparison = compared(COSINE, UPDATES + 1, lrs_of(COSINE, begin), "{:.6e}".format)
    assert comparison.counts_from == 1
    assert comparison.first_difference == 401
    assert {fault.name for fault in comparison.faults} == {"restarted"}
    assert "if it counts updates from 1:\nthe learning rate at step 401" in str(comparison)


# Curves of every kind.


@pytest.mark.slow
@examples(30)
@given(descriptions(range(4), depth=0, kind="plateau"), st.integers(0, 199))
def test_a_log_that_leaves_a_curve_of_any_kind(description, seed):
    """Learning rates at random: no fault gives them, and the report is not an error."""
    with ignore_curve_warnings():
        curve = build(description)
        if not 4 <= curve.total_steps <= 100_000:
            curve = COSINE
        middle = curve.total_steps // 2
        derived = [curve, curve.then(WSD), curve.cooldown(middle, 20), curve.part(middle)]
    generator = np.random.default_rng(seed)
    for run in derived:
        updates = np.unique(np.linspace(0, run.total_steps, 40).astype(np.int64))
        lrs = generator.uniform(0.1, 2, len(updates)) * PEAK
        comparison = compared(run, updates, lrs, float)
        assert comparison.first_difference is not None
        assert not {"total", "skipped", "plateau"} & {fault.name for fault in comparison.faults}
