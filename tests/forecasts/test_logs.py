"""`LossRun.read`: the columns and rows of a log that become a run, and its learning rates."""

import json
import math
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from support.curves.requirements import A_NUMBER
from support.docs.pages import ROOT, sections
from support.examples import examples
from support.forecasts.logs import csv_of, logged, rows_of

from plateau_jax import CurveWarning, LossRun, PlateauCurve, StagedCurve, fit_losses

CURVE = PlateauCurve(300, warmup_steps=100)
PEAK = 1e-3
STEPS = [100, 200, 300]
LOSSES = [3.5, 3.25, 3.0]
DIFFERENT_LOSSES = [9.5, 8.5, 7.5]


def read_log(log):
    """Read a log of a run whose curve and peak are known."""
    return LossRun.read(log, CURVE, PEAK)


def check_run(run):
    assert run.steps.tolist() == STEPS
    assert run.losses.tolist() == LOSSES


# Columns.


@pytest.mark.parametrize(
    ("step", "loss", "lr"),
    [
        ("step", "loss", "lr"),
        ("global_step", "train_loss", "learning_rate"),
        ("iter", "train/loss", "train/lr"),
        ("_step", "train/loss", "train/learning_rate"),
        ("applied", "loss", "lr"),
    ],
)
def test_usual_columns_are_read(step, loss, lr, tmp_path):
    columns = {step: STEPS, loss: LOSSES, lr: [1e-3, 5e-4, 0.0]}
    rows = rows_of(**columns, val_loss=DIFFERENT_LOSSES, Step=DIFFERENT_LOSSES)
    rows.insert(2, {"val_loss": 1.0})
    check_run(read_log(rows))

    run = LossRun.read(rows)
    check_run(run)
    assert run.peak_value == 1e-3

    frame = pd.DataFrame(rows)
    csv_file = tmp_path / "log.csv"
    csv_file.write_text(frame.to_csv(index=False))
    json_file = tmp_path / "log.jsonl"
    json_file.write_text("\n".join(map(json.dumps, rows)))
    for source in (frame, iter(rows), csv_file, str(json_file)):
        same = LossRun.read(source)
        check_run(same)
        assert same.curve == run.curve
        assert same.peak_value == run.peak_value


def test_cells_may_be_missing():
    losses = [pd.NA, *LOSSES, math.nan]
    frame = pd.DataFrame({"step": [1, *STEPS, 400], "loss": losses})
    check_run(read_log(frame.convert_dtypes()))


def test_last_learning_rate_holds_for_one_interval_of_logging():
    rows = rows_of(step=STEPS, loss=LOSSES, lr=[0.4, 0.2, None])
    run = LossRun.read(rows)
    assert run.curve.total_steps == 300
    assert run.curve(300) == np.float32(0.5)


def test_learning_rate_of_the_first_group_counts():
    lrs = [[0.2, 0.5], [0.4, 0.0], [0.1, 0.9]]
    rows = rows_of(step=STEPS, loss=LOSSES, lr=lrs)
    assert LossRun.read(rows).peak_value == 0.4


# Files.

TEXTS = {
    "line ends of Windows": "step,loss\r\n100,3.5\r\n200,3.25\r\n300,3\r\n",
    "blank lines, cells and spaces": (
        "\n\nstep, loss\n\n100, 3.5,,\n150,\n200 ,3.25\n300,3,\n,3\n"
    ),
    "commas in text": 'step,note,loss\n100,"a, b",3.5\n200,,3.25\n300,"c\nd",3\n',
    # Samples of generated text may hold other separators of lines.
    "separators in text": ("step,note,loss\n100,a\u2028b\x85c\x0cd,3.5\n200,,3.25\n300,,3\n"),
    "separators in JSON": (
        '{"step": 100, "note": "\u2028\x85", "loss": 3.5}\n'
        '{"step": 200, "loss": 3.25}\n'
        '{"step": 300, "loss": 3}\n'
    ),
    "exponents": "step,loss\n1e2,3.5e0\n2e2,325e-2\n3e2,3.\n",
    "evaluated twice": "step,loss\n100,3.5\n200,3.25\n300,3\n300,3\n",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_give_the_same_run(name, encoding, tmp_path):
    file = tmp_path / "log"
    file.write_bytes(TEXTS[name].encode(encoding))
    check_run(read_log(file))


# Files of other loggers, with the losses of this run next to others. The code in the table of
# `docs/forecast.md` reads them.

TRAINER_STATE = {
    "global_step": 300,
    "log_history": [
        {"loss": 3.5, "learning_rate": 1e-3, "epoch": 1, "step": 100},
        {"loss": 3.25, "learning_rate": 5e-4, "epoch": 2, "step": 200},
        {"loss": 3.0, "learning_rate": 0.0, "epoch": 3, "step": 300},
        {"eval_loss": 3.1, "step": 300},
        {"step": 300, "train_loss": 3.1, "train_runtime": 9.0},
    ],
}
WANDB_COLUMNS = {
    "Step": STEPS,
    "run-1 - eval/loss": LOSSES,
    "run-1 - eval/loss__MIN": DIFFERENT_LOSSES,
}
TENSORBOARD_COLUMNS = {
    "Wall time": DIFFERENT_LOSSES,
    "Step": STEPS,
    "Value": LOSSES,
}
FILES = {
    "wandb.csv": csv_of(**WANDB_COLUMNS),
    "tensorboard.csv": csv_of(**TENSORBOARD_COLUMNS),
    "trainer_state.json": json.dumps(TRAINER_STATE, indent=1),
    "metrics.csv": (
        "epoch,step,train_loss,val_loss\n"
        "0,100,9.5,\n0,100,,3.5\n"
        "0,200,,3.25\n"
        "0,300,7.5,\n0,300,,3\n"
    ),
    "nanogpt.txt": (
        "step 100: train loss 9.9000, val loss 3.5000\n"
        "iter 100: loss 9.8, time 321.45ms, mfu 34.56%\n"
        "step 200: train loss 9.9000, val loss 3.2500\n"
        "iter 200: loss 9.8, time 321.45ms, mfu 34.56%\n"
        "step 300: train loss 9.9000, val loss 3.0000\n"
        "iter 300: loss 9.8, time 321.45ms, mfu 34.56%\n"
    ),
    "log.csv": "samples;loss\n3200;3,5\n6400;3,25\n9600;3\n",
}
IMPORTS = """
import json
import re
from pathlib import Path

import pandas as pd

from plateau_jax import LossRun, PlateauCurve

curve = PlateauCurve(300, warmup_steps=100)
peak = 1e-3
"""


LINES = [
    code
    for section in sections(ROOT / "docs" / "forecast.md")
    for row in section.rows
    for cell in row
    for code in cell.code
    if "LossRun" in code
]


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_page_reads_the_run(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    program = Path("read_log.py")
    program.write_text(f"{IMPORTS}\nrun = {line}\n")
    variables = runpy.run_path(str(program))
    check_run(variables["run"])


# Learning rates.


@examples(50)
@given(
    intervals=st.lists(st.integers(1, 9), min_size=1, max_size=40), first=st.sampled_from([0, 1, 2])
)
def test_logged_learning_rates_are_those_of_the_curve(intervals, first):
    """From the first one on: before it there is none. Between them the curve is a straight line."""
    steps = np.cumsum([first, *intervals]).tolist()
    lrs = [1e-3 / (1 + step / 10) ** 0.5 for step in steps]
    rows = rows_of(step=steps, loss=[3.0] * len(steps), lr=lrs)
    if first == 0:
        del rows[0]["loss"]
    run = LossRun.read(rows)
    all_steps = np.arange(steps[-1] + 1)
    expected = np.interp(all_steps, steps, lrs, left=0.0)
    actual = run.peak_value * run.curve(all_steps)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-9)
    assert run.lrs_from == first
    assert repr(run).endswith(f", learning rates of the log from step {first} on)")


@pytest.mark.parametrize(("interval", "last"), [(20, 980), (60, 960), (100, 900), (180, 900)])
def test_learning_rates_may_end_an_interval_early(interval, last):
    """Such as those of a trainer that evaluates after its last update."""
    steps_with_lr = {20, *range(interval, last + 1, interval)}
    rows = []
    for step in range(20, 1001, 20):
        lr = ""
        if step in steps_with_lr:
            lr = 1 - step / 2000
        rows.append({"step": step, "loss": 3.0, "lr": lr})
    curve = LossRun.read(rows).curve
    assert curve.total_steps == 1000
    assert curve(last) == curve(1000)


@pytest.mark.parametrize("offset", [-1, 0])
@pytest.mark.parametrize("first", [20, 500])
def test_peak_is_that_of_the_largest_learning_rate(offset, first):
    """Trainers log the learning rate of the last update, or that of the next one."""
    curve = PlateauCurve(1000, warmup_steps=300)
    steps = np.arange(first, 1001, 20)
    lrs = PEAK * curve(steps + offset)
    rows = rows_of(step=steps, loss=[3.0] * len(steps), lr=lrs)
    run = LossRun.read(rows, curve)
    assert run.peak_value == pytest.approx(PEAK, rel=0.005)
    message = re.escape("the peak is 0.001, 0.5 times the given one")
    with pytest.warns(CurveWarning, match=message):
        run = LossRun.read(rows, curve, 2 * PEAK)
    assert run.peak_value == 2 * PEAK


STABLE = StagedCurve([(300, 1.0), (49_700,)])
LOGGED_CURVE = STABLE.cooldown(20_000, 5_000, shape="linear")


def logged_lrs(offset):
    """Return the rows of a run whose learning rates are logged before or after each update."""
    steps = np.arange(600, 25_000, 600)
    losses = np.linspace(4, 3, len(steps))
    lrs = LOGGED_CURVE.learning_rate(steps + offset, 2e-3)
    return rows_of(step=steps, loss=losses, lr=lrs)


@pytest.mark.parametrize("offset", [-1, 0])
def test_rates_of_a_different_curve_warn(offset):
    rows = logged_lrs(offset)
    curve = STABLE.cooldown(20_000, 5_000)
    message = r"the log: .*the learning rate at step 20400 is .*\. Give the run's curve"
    with pytest.warns(CurveWarning, match=message):
        LossRun.read(rows, curve, 2e-3)
    LossRun.read(rows, LOGGED_CURVE, 2e-3)
    LossRun.read(rows, LOGGED_CURVE)


def test_rates_that_cannot_be_read_are_not_compared():
    """With a curve and its peak, a run needs no learning rates."""
    rows = rows_of(step=[10, 20], loss=[3.0, 2.9], lr=["n/a", "n/a"])
    assert len(read_log(rows).steps) == 2
    with pytest.raises(ValueError, match=f"row 1: lr = 'n/a' {A_NUMBER}"):
        LossRun.read(rows, CURVE, PEAK, lr="lr")


LONG_CURVE = PlateauCurve(10_000, warmup_steps=300, plateaus=[(0, 60)])
TRAINED = logged(LONG_CURVE, 100, exponent=0.44)


@pytest.mark.parametrize(("first", "has_reason"), [(100, False), (500, True)])
def test_log_that_starts_late_is_used_from_there(first, has_reason):
    """The curve that is given says what happened before; without it, the fit says from where."""
    kept = TRAINED.steps >= first
    steps = TRAINED.steps[kept]
    losses = TRAINED.losses[kept]
    rows = rows_of(step=steps, loss=losses, lr=PEAK * LONG_CURVE(steps))
    run_with_curve = LossRun.read(rows, LONG_CURVE, PEAK)
    forecast_with_curve = fit_losses(run_with_curve).predict(LONG_CURVE)
    assert "known only" not in " ".join(forecast_with_curve.reasons)

    run = LossRun.read(rows)
    assert not run.curve(np.arange(first)).any()
    fit = fit_losses(run)
    assert f"learning rates of the log from step {first} on" in repr(fit)
    forecast = fit.predict(LONG_CURVE)
    assert forecast.loss == pytest.approx(forecast_with_curve.loss, abs=0.02)
    reason = f"the learning rates of a run are known only from step {first} on"
    assert (reason in forecast.reasons) == has_reason
    assert (reason in str(forecast).replace("\n", " ")) == has_reason


# Rows that are left out.

# Zeros as loggers write them.
ZEROS = st.sampled_from([0, 0.0, -0.0, "0", "0.0", "0e0", " 0 "])
NOT_FINITE = st.sampled_from(["nan", "inf", "-inf", "1e39", "-1e300"])


@examples(50)
@given(st.lists(st.just(3.0) | ZEROS | NOT_FINITE, min_size=1, max_size=20))
def test_losses_of_zero_or_not_finite_are_left_out(losses):
    """Unless no other is left."""
    rows = rows_of(step=range(1, 1 + len(losses)), loss=losses)
    kept = [row["step"] for row in rows if row["loss"] == 3.0]
    left_out = [row["step"] for row in rows if row["loss"] != 3.0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kept:
            run = read_log(rows)
            assert run.steps.tolist() == kept
            assert set(run.losses.tolist()) == {3.0}
        else:
            with pytest.raises(ValueError, match="no positive loss after the first update"):
                read_log(rows)
    messages = [str(warning.message) for warning in caught]
    if left_out:
        (message,) = messages
        assert f"({len(left_out)}, the first at step {left_out[0]})" in message
    else:
        assert messages == []


def test_losses_of_zero_replace_nothing():
    """A logger may write the training loss and a validation loss of 0 at the same step."""
    steps = [100, 100, 200, 200, 300, 300]
    rows = rows_of(step=steps, loss=[3.5, 0, 3.25, 0, 3.0, 0])
    with pytest.warns(CurveWarning, match=r"0 or not finite .* \(3, the first at step 100\)"):
        check_run(read_log(rows))


# Logs that warn.


@pytest.fixture
def log_file(tmp_path):
    return tmp_path / "log"


def read_with_warning(log, message):
    """Read a log that gives one warning, at the line of the caller."""
    with pytest.warns(CurveWarning, match=message) as caught:
        run = read_log(log)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.curve == CURVE
    return run


LEFT_OUT = "log: the last line has no line end.* left out.* end it with a newline"

CSV = "step,loss\n100,3\n\n200,2\n"
JSON_LINES = '{"step": 100, "loss": 3}\n\n{"step": 200, "loss": 2}\n'
TORN_LOGS = [JSON_LINES + '{"step": 3, "lo', JSON_LINES + "\0\0", CSV + "3", CSV + '300,"']


@pytest.mark.parametrize("text", [*TORN_LOGS, CSV + "300,3.0173"])
def test_last_line_without_its_end_warns(log_file, text):
    """From a trainer that was stopped while it wrote: its last number may be cut."""
    log_file.write_text(text)
    assert read_with_warning(log_file, LEFT_OUT).steps.tolist() == [100, 200]


def test_half_of_a_character_at_the_end_warns(log_file):
    content = "step,loss,note\n100,3,a\n200,2,é".encode()
    log_file.write_bytes(content[:-1])
    assert read_with_warning(log_file, LEFT_OUT).steps.tolist() == [100]


def test_loss_before_the_first_update_warns(log_file):
    log_file.write_text("step,loss\n0,11\n100,3.5\n200,3.25\n300,3\n")
    message = "log: the loss at step 0, before the first update, is left out"
    check_run(read_with_warning(log_file, message))


def test_perplexities_warn():
    rows = rows_of(step=STEPS, loss=[90.0, 12.0, 8.0])
    message = "the first loss is 90, as if the losses were perplexities"
    assert read_with_warning(rows, message).steps.tolist() == STEPS
