"""Wrong runs, logs, fits and forecasts: errors name the value, and say what to do instead."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.curves.requirements import A_NUMBER, at_least, in_range
from support.forecasts.logs import CURVE, PEAK, STEPS, kept_losses, logged, rows_of, with_losses
from support.wrong import wrong

from plateau_jax import BatchPlan, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.tools.logged_lrs.log_table import UnclearLogError

RUN = logged(CURVE)
LOSSES = RUN.losses
SCALED = BatchPlan([(0, 32)]).scale(CURVE, 32, reference=32)


# The arguments of a run.


def make_run(curve=CURVE, peak_value=PEAK, steps=(10, 20, 30), losses=(3, 2, 1)):
    return LossRun(curve, peak_value, steps, losses)


@wrong(ValueError, "peak_value = 0 must be positive")
def test_peak_of_zero():
    make_run(peak_value=0)


@wrong(ValueError, "steps has length 2, and losses 3")
def test_fewer_steps_than_losses():
    make_run(steps=[1, 2])


@wrong(ValueError, "steps must increase: steps[1] = 3, steps[2] = 3; a resumed")
def test_repeated_step():
    make_run(steps=[1, 3, 3])


@wrong(ValueError, f"steps[0] = 0 {at_least(1)}")
def test_loss_before_the_first_update():
    make_run(steps=[0, 1, 2])


@wrong(ValueError, "steps[-1] = 1001", "after the end", "total_steps = 1000")
def test_loss_after_the_end_of_the_curve():
    make_run(steps=[1, 2, 1001])


@wrong(
    ValueError, "curve is from BatchPlan.scale: a step is 32 samples or tokens, but a log counts"
)
def test_curve_that_counts_samples():
    make_run(SCALED)


@pytest.mark.parametrize("steps", [5, [True, True, True], [10, [20], 30]])
@wrong(TypeError, "steps = {steps}", "sequence of integers")
def test_steps_that_are_not_integers(steps):
    make_run(steps=steps)


@pytest.mark.parametrize("loss", [np.nan, 0.0, -1.0, 1e39, 1e-46])
@wrong(ValueError, "losses[1] = {loss} must be finite and positive as a float32")
def test_loss_that_is_not_positive(loss):
    make_run(losses=[1.0, loss, 1.0])


@wrong(TypeError, "losses = ", "sequence of real numbers")
def test_losses_that_are_not_real():
    make_run(losses=np.ones(3, complex))


# Files and their cells.


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    """The directory in which `read_text` writes."""
    monkeypatch.chdir(tmp_path)


def read_text(text):
    """Read a file of this text."""
    Path("log").write_text(text)
    return LossRun.read("log", CURVE, PEAK)


def read_rows(rows):
    return LossRun.read(rows, CURVE, PEAK)


TWO_ROWS = rows_of(step=[1, 2], loss=[3.0, 2.0])
ROWS_WITH_LRS = rows_of(step=STEPS, loss=LOSSES, lr=PEAK * CURVE(STEPS))


@pytest.mark.parametrize("source", [3, {"step": [1]}, iter(["step,loss"]), pd.Series([1])])
@wrong(TypeError, "must be a path, a pandas data frame, or a list of dictionaries")
def test_source_without_rows(source):
    read_rows(source)


@wrong(ValueError, "log: 'utf-8' codec can't decode byte 0xe9", "save the log as UTF-8, or pass")
def test_log_in_latin_1():
    Path("log").write_bytes("step,note\n1,é\n".encode("latin-1"))
    LossRun.read("log", CURVE, PEAK)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "log has no rows"),
        ('{"step": [\n', "log, line 1: this line is not JSON"),
        ("[1, 2]", "log, line 1: this line is not a JSON object; for other JSON, pass the rows"),
        ('step,loss\n1,2\n2,"3\n', "log, line 3: this row is not CSV (unexpected end of data)"),
        ("step,loss\n1,3\n2,3,4\n", "log, line 3: more cells than columns; is this CSV"),
        ("step,loss, loss\n1,3,3\n", "log has several columns named 'loss'"),
    ],
)
def test_text_that_is_not_a_log(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_text(text)


@wrong(ValueError, "the log has 100 losses at 50 steps: keep those of one split, rank or run")
def test_losses_of_two_splits():
    rows = []
    for training_row in ROWS_WITH_LRS:
        validation_row = {**training_row, "loss": 2}
        rows += [training_row, validation_row]
    read_rows(rows)


@wrong(ValueError, "peak_value= without curve=: give both, or neither")
def test_peak_without_a_curve():
    LossRun.read(TWO_ROWS, None, PEAK)


def read_with_last_row(**cells):
    """Read a log without a curve, whose last row has these cells."""
    last_row = {"step": 1020, "loss": 1, "lr": 1, **cells}
    return LossRun.read([*ROWS_WITH_LRS, last_row])


@pytest.mark.parametrize("cell", ["true", True, "1,234", 2j, pytest.param(10**400, id="large"), {}])
@wrong(ValueError, "the log, row 51: loss = ", A_NUMBER)
def test_loss_that_is_not_a_number(cell):
    read_with_last_row(loss=cell)


@pytest.mark.parametrize("step", ["nan", 2.5, -1, 2**31])
@wrong(ValueError, "row 2: step = ", "number of updates")
def test_step_that_is_not_a_number_of_updates(step):
    read_rows(rows_of(step=[1, step], loss=[3.0, 2.0]))


@pytest.mark.parametrize("lr", [-1, float("inf")])
@wrong(ValueError, "the log, row 51: lr = {lr}", "must be finite and not negative")
def test_negative_or_infinite_learning_rate(lr):
    read_with_last_row(lr=lr)


def test_steps_with_separators_of_thousands(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("step 900: loss 3.2\nstep 1,000: loss 3.1\nstep 1,100: loss 3.0\n")
    with pytest.raises(ValueError, match="line 2: the step has separators of thousands"):
        LossRun.read(log, CURVE, PEAK)


# Columns: the error names the argument that helps.


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"epoch": [1], "loss": [3]}, "no usual column for step among 'epoch', 'loss'"),
        ({"step": [1], "_step": [1], "loss": [3]}, "several columns for step, 'step', '_step'"),
        ({"step": [1], "loss": [3]}, "for lr among 'step', 'loss': give the run's curve"),
        ({"step": [1], "loss": [3], "lr": [PEAK]}, "only one learning rate: give the run's curve"),
        ({"step": [1], "loss": [3], "lr": [0.0]}, "no learning rate above 0: give the run's"),
    ],
)
def test_log_that_does_not_suffice(columns, problem):
    with pytest.raises(UnclearLogError, match=re.escape(problem)):
        LossRun.read(rows_of(**columns))


@wrong(UnclearLogError, "no column loss = 'los', only 'step', 'loss'")
def test_misspelled_name_of_a_column():
    LossRun.read(TWO_ROWS, CURVE, PEAK, loss="los")


def with_damaged_lr(lr):
    """Return a log in which one row has a different learning rate."""
    damaged_row = {**ROWS_WITH_LRS[24], "lr": lr}
    return [*ROWS_WITH_LRS[:24], damaged_row, *ROWS_WITH_LRS[25:]]


@wrong(
    UnclearLogError,
    "the log: 1.6, at step 500, is more than twice every other learning rate: give the run's",
)
def test_peak_of_a_damaged_row():
    LossRun.read(with_damaged_lr(1.6))


@wrong(UnclearLogError, "no learning rates that show the peak of this curve: give the run's peak")
def test_curve_that_is_not_that_of_the_log():
    LossRun.read(with_damaged_lr(2e-3), CURVE)


@wrong(UnclearLogError, "no learning rates between steps 300 and 700: give the run's curve")
def test_learning_rates_with_a_gap():
    rows = []
    for row in ROWS_WITH_LRS:
        if 300 < row["step"] < 700:
            row = {**row, "lr": None}
        rows.append(row)
    LossRun.read(rows)


LONG = "many\nlines " * 1_000
ROW = {"step": 1, "loss": 3, "lr": 1}


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({**ROW, "step": LONG}, {}),
        ({f"{LONG}{number}": 1 for number in range(100)}, {}),
        ({**ROW, LONG: "x"}, {"lr": LONG}),
        (ROW, {"loss": LONG}),
    ],
)
def test_messages_are_one_line_of_limited_length(row, columns):
    with pytest.raises(ValueError, match="the log") as caught:
        LossRun.read([row], **columns)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500


# Runs that cannot be fitted.


@wrong(TypeError, "must be a LossRun: write LossRun(")
def test_fit_of_something_else():
    fit_losses([RUN, LOSSES])


@wrong(ValueError, "of 17 logged losses", "at least 20", "more often")
def test_too_few_losses():
    every_third = slice(None, None, 3)
    run = kept_losses(RUN, every_third)
    fit_losses(run)


@wrong(ValueError, "there is no run whose learning rate falls", "a decay")
def test_run_that_ended_before_its_decay():
    run = kept_losses(RUN, STEPS < 400)
    fit_losses(run)


@wrong(ValueError, "noise of 1.", "more than 1%", "validation loss")
def test_noisy_losses():
    rng = np.random.default_rng(0)
    errors = 0.02 * rng.standard_normal(len(STEPS))
    run = with_losses(RUN, LOSSES * (1 + errors))
    fit_losses(run)


@wrong(
    ValueError,
    "rises from ",
    "at step 700 to ",
    "while the learning rate does not",
)
def test_losses_that_rise():
    at_step_700 = LOSSES[STEPS == 700]
    rise = at_step_700 * (1 + (STEPS - 700) / 3000)
    losses = np.where(STEPS > 700, rise, LOSSES)
    fit_losses(with_losses(RUN, losses))


@wrong(ValueError, "law misses these losses by ", "initial fast fall")
def test_losses_that_no_power_describes():
    # They fall slowly, then fast.
    drop = 0.6 / (1 + np.exp(-(STEPS - 500) / 40))
    fit_losses(with_losses(RUN, LOSSES - drop))


@wrong(ValueError, "learning rates before step 400 are missing: give the run's curve")
def test_learning_rates_that_begin_late():
    rows = [row for row in ROWS_WITH_LRS if row["step"] >= 400]
    run = LossRun.read(rows)
    fit_losses(run)


@wrong(ValueError, "one model and one data set")
def test_runs_of_two_models():
    run_of_another_model = with_losses(RUN, LOSSES + 0.3)
    fit_losses([RUN, run_of_another_model])


@wrong(ValueError, "several peaks, 0.001, 0.00", "fit only those of one")
def test_runs_of_two_peaks():
    run = LossRun(CURVE, 1.00001e-3, STEPS, LOSSES)
    fit_losses([run, RUN])


@wrong(ValueError, "several peak_value, 0.001, 0.002")
def test_forecast_from_runs_of_two_peak_values():
    # The curve reaches half its peak_value, so the largest learning rates agree.
    half = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
    run_at_half = LossRun(half, 2e-3 * (1 - 9e-7), STEPS, LOSSES)
    fit = fit_losses([run_at_half, RUN])
    fit.predict(CURVE)


# Forecasts.


@pytest.fixture(scope="module")
def forecasting_fit():
    return fit_losses(RUN)


@pytest.fixture
def fit(forecasting_fit):
    """A fit, which must still make the same forecast when the test ends."""
    forecast = forecasting_fit.predict(CURVE)
    yield forecasting_fit
    assert forecasting_fit.predict(CURVE) == forecast


@pytest.mark.parametrize("steps", [[0], 1001])
@wrong(ValueError, "steps = {steps}", in_range(1, "total_steps = 1000"))
def test_forecast_at_no_step_of_the_curve(fit, steps):
    fit.losses(CURVE, steps)


@wrong(TypeError, "curves", "mapping")
def test_comparison_of_curves_without_names(fit):
    fit.compare([CURVE])


@wrong(ValueError, "curve is from BatchPlan.scale")
def test_forecast_of_a_curve_that_counts_samples(fit):
    fit.predict(SCALED)


@wrong(ValueError, "4001 steps", "at most 4 times the 1000 steps", "log a")
def test_curve_too_long(fit):
    fit.predict(PlateauCurve(4001))


@wrong(ValueError, "10 % of the run's steps", "in samples or tokens")
def test_curve_too_short(fit):
    fit.predict(PlateauCurve(100))


@wrong(ValueError, "0.00151", "factor of 1.5 from that of the runs, 0.001")
def test_peak_too_high(fit):
    fit.predict(CURVE, 1.51e-3)


@wrong(ValueError, "no positive learning rate with peak_value = -1")
def test_negative_peak(fit):
    fit.predict(CURVE, -1.0)


# Values at the limits are accepted.


def test_longest_and_shortest_curve_can_be_forecast(fit):
    fit.predict(PlateauCurve(4000), 1.5e-3)
    fit.predict(PlateauCurve(101))


def test_length_of_a_run_counts_the_steps_after_its_last_loss():
    run = logged(CURVE, 30)
    assert run.steps[-1] == 990
    fit = fit_losses(run)
    fit.predict(PlateauCurve(4000))  # 4 times 1000
