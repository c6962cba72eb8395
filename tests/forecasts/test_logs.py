"""`LossRun.read`: which columns and rows of a log become a run, and where its learning rates begin."""

import json
import math
import pickle
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from support.docs.pages import ROOT
from support.examples import examples
from support.forecasts.logs import csv_of, logged, rows_of

from plateau_jax import CurveWarning, LossRun, PlateauCurve, fit_losses

CURVE, PEAK = PlateauCurve(300, warmup_steps=100), 1e-3
STEPS, LOSSES = [100, 200, 300], [3.5, 3.25, 3.0]
OTHERS = [9.5, 8.5, 7.5]


def check_run(run: LossRun) -> None:
    assert (run.steps.tolist(), run.losses.tolist()) == (STEPS, LOSSES)


@pytest.mark.parametrize("step", ["step", "global_step", "iter", "_step", "applied"])
@pytest.mark.parametrize("loss", ["loss", "train_loss", "train/loss"])
@pytest.mark.parametrize("lr", ["lr", "learning_rate", "train/lr", "train/learning_rate"])
def test_usual_columns_are_read(step, loss, lr, tmp_path) -> None:
    rows = rows_of(**{step: STEPS, loss: LOSSES, lr: [1e-3, 5e-4, 0.0], "val_loss": OTHERS, "Step": OTHERS})
    rows.insert(2, {"val_loss": 1.0})
    check_run(LossRun.read(rows, CURVE, PEAK))
    run = LossRun.read(rows)
    check_run(run)
    assert run.peak_value == 1e-3
    (tmp_path / "log.csv").write_text(pd.DataFrame(rows).to_csv(index=False))
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for source in (pd.DataFrame(rows), iter(rows), tmp_path / "log.csv", str(tmp_path / "log.jsonl")):
        same = LossRun.read(source)
        check_run(same)
        assert (same.curve, same.peak_value) == (run.curve, run.peak_value)


def test_columns_can_be_named() -> None:
    rows = rows_of(n=[20, 200, 300], eta=[0.1, 0.5, 0.2], loss=OTHERS, a=LOSSES, step=["?"] * 3)
    run = LossRun.read(rows, step="n", loss="a", lr="eta")
    assert (run.steps.tolist(), run.losses.tolist(), run.peak_value) == ([20, 200, 300], LOSSES, 0.5)
    # A cell may be missing; of the learning rates of several parameter groups, the first counts.
    frame = pd.DataFrame({"step": [1, *STEPS, 400], "loss": [pd.NA, *LOSSES, math.nan]})
    check_run(LossRun.read(frame.convert_dtypes(), CURVE, PEAK))
    groups = rows_of(step=STEPS, loss=LOSSES, lr=[[0.2, 0.5], [0.4, 0.0], [0.1, 0.9]])
    assert LossRun.read(groups).peak_value == 0.4


TEXTS = {
    "byte-order mark": "\ufeffstep,loss\r\n100,3.5\r\n200,3.25\r\n300,3\r\n",
    "blank lines, cells and spaces": "\n\nstep, loss\n\n100, 3.5,,\n150,\n200 ,3.25\n300,3,\n,3\n",
    "commas in text": 'step,note,loss\n100,"a, b",3.5\n200,,3.25\n300,"c\nd",3\n',
    # Samples of generated text may hold other separators of lines.
    "separators in text": "step,note,loss\n100,a\u2028b\x85c\x0cd,3.5\n200,,3.25\n300,,3\n",
    "separators in JSON": '{"step": 100, "note": "\u2028\x85", "loss": 3.5}\n{"step": 200, "loss": 3.25}\n'
    '{"step": 300, "loss": 3}\n',
    "exponents": "step,loss\n1e2,3.5e0\n2e2,325e-2\n3e2,3.\n",
    "JSON lines": '{"step": 100, "loss": 3.5}\n\n{"step": 200, "loss": 3.25}\n{"step": 300, "loss": 3}\n',
    "evaluated twice": "step,loss\n100,3.5\n200,3.25\n300,3\n300,3\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_give_the_same_run(name, tmp_path) -> None:
    (tmp_path / "log").write_text(TEXTS[name], newline="")
    check_run(LossRun.read(tmp_path / "log", CURVE, PEAK))


# Losses of an exported log, next to others; the lines of `docs/forecast.md` read them.
FILES = {
    "wandb.csv": csv_of(Step=STEPS, **{"run-1 - eval/loss": LOSSES, "run-1 - eval/loss__MIN": OTHERS}),
    "tensorboard.csv": csv_of(**{"Wall time": OTHERS, "Step": STEPS, "Value": LOSSES}),
    "trainer_state.json": json.dumps({"global_step": 300, "log_history": [
        *rows_of(loss=LOSSES, learning_rate=[1e-3, 5e-4, 0.0], epoch=[1, 2, 3], step=STEPS),
        {"eval_loss": 3.1, "step": 300}, {"step": 300, "train_loss": 3.1, "train_runtime": 9.0},
    ]}, indent=1),
    "metrics.csv":
        "epoch,step,train_loss,val_loss\n0,100,9.5,\n0,100,,3.5\n0,200,,3.25\n0,300,7.5,\n0,300,,3\n",
    "nanogpt.txt": "".join(
        f"step {t}: train loss 9.9000, val loss {loss:.4f}\niter {t}: loss 9.8, time 321.45ms, mfu 34.56%\n"
        for t, loss in zip(STEPS, LOSSES, strict=True)),
    "log.tsv": "step\tloss\n100\t3.5\n200\t3.25\n300\t3\n",
    "log.csv": "samples;loss\n3200;3,5\n6400;3,25\n9600;3\n",
}  # fmt: skip


def test_lines_of_the_page_read_other_logs(tmp_path, monkeypatch) -> None:
    page = (ROOT / "docs" / "forecast.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| [^|]+ \| `(.+)` \|$", page, re.MULTILINE)
    assert len(lines) == len(FILES)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    names = {"json": json, "re": re, "pd": pd, "Path": Path, "LossRun": LossRun, "curve": CURVE, "peak": PEAK}
    for line in lines:
        check_run(eval(line, names))


@examples(50)
@given(st.sets(st.integers(2, 51), min_size=1, max_size=40), st.sampled_from([0, 1, 2]))
def test_logged_learning_rates_are_those_of_the_curve(steps, first) -> None:
    """From the first one on: before it there is none. Between them the curve is a straight line."""
    lrs = {step: 1e-3 / (step + 1) for step in sorted({first, *(first + step for step in steps), 60})}
    rows = [{"step": step, "loss": 3.0, "lr": lr} for step, lr in lrs.items()]
    if first == 0:
        del rows[0]["loss"]
    run = LossRun.read(rows)
    expected = np.interp(np.arange(61), list(lrs), list(lrs.values()), left=0.0)
    np.testing.assert_allclose(run.peak_value * run.curve(np.arange(61)), expected, rtol=1e-5, atol=1e-9)
    for same in (run, pickle.loads(pickle.dumps(run))):
        assert repr(same).endswith(f", learning rates of the log from step {first} on)")


@pytest.mark.parametrize("interval", [20, 60, 100, 180])
def test_learning_rates_may_end_an_interval_early(interval) -> None:
    """Such as those of a trainer that evaluates after its last update."""
    last = 1000 - 1000 % interval or 1000 - interval
    with_lr = [20, *range(interval, last + 1, interval)]
    rows = [{"step": t, "loss": 3.0, "lr": 1 - t / 2000 if t in with_lr else ""} for t in range(20, 1001, 20)]
    curve = LossRun.read(rows).curve
    assert curve.total_steps == 1000
    assert curve(last) == curve(1000)


@pytest.mark.parametrize("offset", [-1, 0])
@pytest.mark.parametrize("first", [20, 500])
def test_peak_is_that_of_the_largest_learning_rate(offset, first) -> None:
    """Trainers log the learning rate of the last update, or that of the next one."""
    curve = PlateauCurve(1000, warmup_steps=300)
    rows = [{"step": t, "loss": 3.0, "lr": PEAK * float(curve(t + offset))} for t in range(first, 1001, 20)]
    assert LossRun.read(rows, curve).peak_value == pytest.approx(PEAK, rel=0.005)
    assert LossRun.read(rows, curve, 2 * PEAK).peak_value == 2 * PEAK


TRAINED = logged(PlateauCurve(10_000, warmup_steps=300, plateaus=[(0, 60)]), 100, exponent=0.44)


@pytest.mark.parametrize("first", [100, 500])
def test_log_that_starts_late_is_used_from_there(first) -> None:
    """The curve that is given says what happened before; without it, the fit says from where."""
    rows = [
        {"step": step, "loss": loss, "lr": 1e-3 * float(TRAINED.curve(step))}
        for step, loss in zip(TRAINED.steps.tolist(), TRAINED.losses.tolist(), strict=True)
        if step >= first
    ]
    given = fit_losses(LossRun.read(rows, TRAINED.curve, 1e-3)).predict(TRAINED.curve)
    fit = fit_losses(LossRun.read(rows))
    assert not fit.runs[0].curve(np.arange(first)).any()
    assert f"learning rates of the log from step {first} on" in repr(fit)
    forecast = fit.predict(TRAINED.curve)
    assert forecast.loss == pytest.approx(given.loss, abs=0.02)
    reason = f"the learning rates of a run are known only from step {first} on"
    assert (reason in forecast.reasons) == (reason in str(forecast).replace("\n", " ")) == (first == 500)
    assert not any("known only" in text for text in given.reasons)


@examples(100)
@given(
    st.lists(
        st.lists(st.integers(1, 30), min_size=1, max_size=20, unique=True).map(sorted), min_size=1, max_size=4
    )
)
def test_later_rows_replace_earlier_ones(attempts) -> None:
    """A row stays if no later one has its step or a lower one; lower steps are those of a resumed run."""
    rows = [
        {"step": 10 * step, "loss": 4 - attempt / 100, "lr": 1e-4 * (attempt + 1)}
        for attempt, steps in enumerate(attempts)
        for step in [*steps, 31]
    ]
    kept = [row for i, row in enumerate(rows) if all(row["step"] < later["step"] for later in rows[i + 1 :])]
    count = len(rows) - len(kept)
    if 2 * count >= len(rows):
        with pytest.raises(ValueError, match=f"{len(rows)} losses at .* steps: keep those of one split"):
            LossRun.read(rows)
        return
    with pytest.warns(CurveWarning, match=f"{count} earlier losses") if count else nullcontext():
        run = LossRun.read(rows)
    assert run.steps.tolist() == [row["step"] for row in kept]
    assert run.losses.tolist() == [row["loss"] for row in kept]
    for row in kept:
        assert run.peak_value * run.curve(row["step"]) == pytest.approx(row["lr"], rel=1e-5)


# Zeros as loggers write them.
ZEROS = st.sampled_from([0, 0.0, -0.0, "0", "0.0", "0e0", " 0 "])


@examples(100)
@given(st.lists(st.none() | ZEROS, min_size=1, max_size=20))
def test_losses_of_zero_are_missing_cells(zeros) -> None:
    """Unless all losses are 0, which is an error of the log."""
    rows = [{"step": step, "loss": 3.0} for step in range(1, 1 + len(zeros))]
    for row, zero in zip(rows, zeros, strict=True):
        if zero is not None:
            row["loss"] = zero
    kept = [row["step"] for row in rows if row["loss"] == 3.0]
    left_out = [row["step"] for row in rows if row["loss"] != 3.0]
    if not kept:
        with pytest.raises(ValueError, match=r"losses\[0\] = -?0.0 must be finite and positive"):
            LossRun.read(rows, CURVE, PEAK)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = LossRun.read(rows, CURVE, PEAK)
    assert (run.steps.tolist(), set(run.losses.tolist())) == (kept, {3.0})
    messages = [str(warning.message) for warning in caught]
    if left_out:
        count = f"({len(left_out)}, the first at step {left_out[0]})"
        assert messages == [f"the log: losses of 0, which count as missing, are left out {count}"]
    else:
        assert messages == []


def test_losses_of_zero_replace_nothing() -> None:
    """A logger may write the training loss and a validation loss of 0 at the same step."""
    rows = [{"step": step, "loss": loss} for step in STEPS for loss in (LOSSES[STEPS.index(step)], 0)]
    with pytest.warns(CurveWarning, match=r"losses of 0, .* \(3, the first at step 100\)"):
        check_run(LossRun.read(rows, CURVE, PEAK))


METRICS = [
    {
        "loss": 5 - step / 100,
        "lr": PEAK * CURVE(step),
        "applied": step,
        "skipped": step // 100,
        "curve_step": step,
    }
    for step in range(20, 301, 20)
]
TORN = '{"step": 100, "loss": 3}\n\n{"step": 200, "loss": 2}\n'
# A log, the warning, and the steps that are read.
WARNINGS: list[tuple[Any, str, list[int]]] = [
    # A trainer that was stopped while it wrote.
    *((TORN + torn, "log: the last line is incomplete and left out", STEPS[:2])
      for torn in ('{"step": 3, "lo', '{"step"', "{", "\0\0")),
    ([*METRICS[:9], *({**row, "loss": 3.0} for row in METRICS[6:])],
     "the log: steps repeat, as in a resumed run: 3 earlier losses are left out, from step 140 on",
     [row["applied"] for row in METRICS]),
    # A skipped update.
    ([*METRICS[:3], METRICS[2] | {"loss": math.inf}],
     "losses that are not finite are left out (1, the first at step 60)", [20, 40, 60]),
    ("step,loss\n100,3\n200,1e39\n300,1e300\n",
     "losses that are not finite are left out (2, the first at step 200)", [100]),
    ("step,loss\n100,3\n200,nan\n300,inf\n",
     "losses that are not finite are left out (2, the first at step 200)", [100]),
    ("step,loss\n0,11\n100,3.5\n200,3.25\n300,3\n",
     "log: the loss at step 0, before the first update, is left out", STEPS),
    (rows_of(step=STEPS, loss=[90.0, 12.0, 8.0]),
     "the first loss is 90, as if the losses were perplexities", STEPS),
]  # fmt: skip


@pytest.mark.parametrize(("log", "message", "steps"), WARNINGS)
def test_unlikely_logs_warn_once(log, message, steps, tmp_path) -> None:
    if isinstance(log, str):
        (tmp_path / "log").write_text(log)
        log = tmp_path / "log"
    with pytest.warns(CurveWarning, match=re.escape(message)) as caught:
        run = LossRun.read(log, CURVE, PEAK)
    assert [warning.filename for warning in caught] == [__file__]
    assert (run.curve, run.steps.tolist()) == (CURVE, steps)
    pickle.loads(pickle.dumps(run))  # in silence
