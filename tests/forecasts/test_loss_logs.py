"""`LossRun.read`: logs in every format, next to the run that they give or the warning."""

import json
import math
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.examples import examples
from support.forecasts.law_runs import csv_of, rows_of

from plateau_jax import CurveWarning, LossRun, PlateauCurve
from plateau_jax.forecasts.logs import parse_rows

CURVE, PEAK = PlateauCurve(300, warmup_steps=100), 1e-3
# The run that each of `LOGS` gives.
STEPS, LOSSES = [100, 200, 300], [3.5, 3.25, 3.0]
OTHERS = [9.5, 8.5, 7.5]


def json_lines(rows: Any) -> str:
    return "\n".join(map(json.dumps, rows))


def read(log: Any, folder: Path, *arguments: Any, **columns: Any) -> LossRun:
    """Read rows, or a text as that of a file."""
    if isinstance(log, str):
        (folder / "log").write_text(log, newline="")
        log = folder / "log"
    return LossRun.read(log, *arguments, **columns)


# Transformers: training, evaluation, and a summary at the end.
HISTORY = [
    {"epoch": 0.2, "grad_norm": 1.0, "learning_rate": 1e-3, "loss": 9.5, "step": 100},
    {"epoch": 0.2, "eval_loss": 3.5, "eval_runtime": 1.2, "step": 100},
    {"epoch": 0.4, "grad_norm": 1.0, "learning_rate": 5e-4, "loss": 8.5, "step": 200},
    {"epoch": 0.4, "eval_loss": 3.25, "eval_runtime": 1.2, "step": 200},
    {"epoch": 0.6, "grad_norm": 1.0, "learning_rate": 0.0, "loss": 7.5, "step": 300},
    {"epoch": 0.6, "eval_loss": 3.0, "eval_runtime": 1.2, "step": 300},
    {"epoch": 0.6, "step": 300, "total_flos": 1e9, "train_loss": 3.1, "train_runtime": 9.0},
]
AUXILIARY = dict.fromkeys(["val/aux_loss", "mtp_loss", "z_loss", "best_val_loss", "val_loss_ema"], OTHERS)
LOGS: dict[str, Any] = {
    "commas": "step,loss\n100,3.5\n200,3.25\n300,3\n",
    "tabs": "iter\tval_loss\n100\t3.5\n200\t3.25\n300\t3\n",
    "semicolons, blank lines and cells": "\n\nstep;loss\n\n100;3.5;;\n200;3.25\n300;3;;;\n",
    "header again": "step,loss\n100,3.5\nstep,  loss\n200,3.25\nstep, loss\n300,3\n",
    "byte-order mark": "\ufeffiterations,Validation Loss\r\n100,3.5\r\n200,3.25\r\n300,3\r\n",
    "note": "step,val_loss,note\n100,3.5,\n200,3.25,resumed from step 50 with loss 3.1\n300,3,\n",
    "wandb export": csv_of(Step=STEPS, **{
        "run-1 - eval/loss": LOSSES, "run-1 - eval/loss__MIN": OTHERS, "run-1 - eval/loss__MAX": OTHERS}),
    "wandb trainer": csv_of(_step=[1, 2, 3], **{
        "run 1 - train/global_step": STEPS, "run 1 - train/loss": OTHERS, "run 1 - eval/loss": LOSSES}),
    "wandb only _step": csv_of(_step=STEPS, **{"val/loss": LOSSES}),
    "lightning":
        "lr-AdamW,epoch,step,train_loss,val_loss\n1e-3,0,100,9.5,\n1e-3,0,100,,3.5\n5e-4,0,200,8.5,\n"
        "5e-4,0,200,,3.25\n0,0,300,7.5,\n0,0,300,,3\n",
    "trainer_state.json": json.dumps({"global_step": 9, "log_history": HISTORY}),
    "JSON": json.dumps(HISTORY, indent=1),
    "JSON lines": json_lines(HISTORY) + "\n\n",
    "torchtitan": json.dumps(rows_of(
        step=STEPS, **{"loss_metrics/global_avg_loss": OTHERS, "validation_metrics/loss": LOSSES})),
    "auxiliary losses": rows_of(step=STEPS, **{"val/loss": LOSSES}, **AUXILIARY),
    # Columns of other numbers per step.
    "steps of wandb": rows_of(loss=LOSSES, **{"time/step": OTHERS, "tokens/step": OTHERS, "sec/iter": OTHERS,
        "ms/step": OTHERS, "batches/step": OTHERS, "_step": STEPS}),
    "steps": rows_of(loss=LOSSES, **{"val/step": OTHERS, "sec/step": OTHERS, "_step": OTHERS, "step": STEPS}),
    "global steps": rows_of(loss=LOSSES, step=OTHERS, _step=OTHERS, **{"trainer/global_step": STEPS}),
    "steps of training": rows_of(loss=LOSSES, **{"loss/step": OTHERS, "run - train/step": STEPS}),
    "updates": rows_of(loss=LOSSES, **{"valid/step": OTHERS, "num_updates": STEPS}),
    # An evaluation before training and one at the end: only one of them is after an update.
    **{f"evaluations {cells}, step {zero!r}": rows_of(step=[zero, *STEPS], loss=[11, *LOSSES], val_loss=cells)
       for zero in (0, 0.0, "0", "0.0") for cells in ([10.0, "", "", 3.0], [10.0, "nan", math.nan, "-"])},
    "two evaluations": rows_of(step=[0, 50, *STEPS], loss=[1] * 5, val_loss=[9, "", *LOSSES]),
    **{f"missing: {cell!r}": rows_of(step=[50, *STEPS], loss=[cell, *LOSSES], lr=[cell, 1e-3, 5e-4, 0.0])
       for cell in ("NA", "N/A", "null", "None", "-", "<NA>", " ", None)},
    # No resumed run: late evaluations, and steps logged twice.
    "late evaluations": [{"step": 200, "lr": 5e-4}, {"step": 100, "val_loss": 3.5}, {"step": 300, "lr": 0.0},
                         {"step": 200, "val_loss": 3.25}, {"step": 300, "val_loss": 3.0}],
    "repeated rows": [row for each in rows_of(step=STEPS, loss=OTHERS, lr=[1e-3, 5e-4, 0.0])
                      for row in (each, each | {"val_loss": each["step"] / -400 + 3.75})],
    "evaluated twice": [row for row in rows_of(step=STEPS, loss=LOSSES) for _ in range(2)],
    # Trainers log learning rates of the curve one step late or early, rounded, or not at all.
    **{f"learning rates: {name}": rows_of(step=STEPS, loss=LOSSES, lr=lrs) for name, lrs in {
        "late": [PEAK * CURVE(step - 1) for step in STEPS],
        "early": [PEAK * CURVE(step + 1) for step in STEPS],
        "decimals": [0.001, 0.0005, 0.0], "digits": ["1.0e-03", "5.0e-04", "0"], "rounded to 0": [0.0] * 3,
        "gaps": ["N/A", float("nan"), 0.0], "text": ["no number"] * 3,
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_logs_give_the_same_run(name, tmp_path) -> None:
    run = read(LOGS[name], tmp_path, CURVE, PEAK)
    assert (run.steps.tolist(), run.losses.tolist()) == (STEPS, LOSSES)
    assert (run.curve, run.peak_value) == (CURVE, PEAK)


METRICS = [
    {"loss": 5 - step / 100, "lr": PEAK * CURVE(step), "applied": step, "skipped": step // 100, "clock": step}
    for step in range(20, 301, 20)
]
# The loss of a skipped update is not finite.
SKIPPED = [METRICS[4] | {"loss": math.nan, "skipped": 2}, METRICS[9] | {"loss": math.inf, "skipped": 3}]


def test_rows_of_a_metric_log_are_read() -> None:
    rows = [*METRICS[:5], SKIPPED[0], *METRICS[5:10], SKIPPED[1], *METRICS[10:]]
    for source in (rows, iter(rows)):
        run = LossRun.read(source, CURVE, PEAK)
        assert run.steps.tolist() == [row["applied"] for row in METRICS]
        assert run.losses.tolist() == [row["loss"] for row in METRICS]
    groups = [row | {"lr": [row["lr"] / 2, 0.0, 1e-3]} for row in rows]  # the first one counts
    assert LossRun.read(groups, CURVE).peak_value == pytest.approx(PEAK / 2)
    assert LossRun.read(groups).curve.total_steps == 300


def test_columns_can_be_named() -> None:
    rows = rows_of(n=[20, 200, 300], eta=[0.1, 0.5, 0.2], loss=LOSSES, a=OTHERS, step=[3, 3, 3])
    rows[0] |= {"train/loss": "diverged"}  # a column that nobody asked for
    run = LossRun.read(rows, step="n", loss="loss", lr="eta")
    assert (run.steps.tolist(), run.losses.tolist(), run.peak_value) == ([20, 200, 300], LOSSES, 0.5)
    assert LossRun.read(rows, CURVE, PEAK, step="n", loss="a").losses.tolist() == OTHERS


SETTINGS = [
    "lr-AdamW-momentum", "lr-AdamW-weight_decay", "base_lr", "lr_scale", "lr_decay_steps", "maxLR", "min-lr",
    "learning_rate/mult", "initial_lr", "peakLearningRate", "lr ratio",
]  # fmt: skip


@pytest.mark.parametrize("name", ["Learning Rate", "learningRate", "train/learning-rate", "lr-AdamW/pg1"])
def test_learning_rates_are_found_among_their_settings(name) -> None:
    rows = rows_of(step=STEPS, loss=LOSSES, **dict.fromkeys(SETTINGS, OTHERS), **{name: [0.5, 0.2, 0.1]})
    run = LossRun.read([row | {"lr of the same": row[name]} for row in [{"step": 10, name: 0.1}, *rows]])
    assert run.peak_value == 0.5
    assert repr(run).endswith(f"lr={name!r})")


@pytest.mark.parametrize("offset", [-1, 0])
@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt"])
@pytest.mark.parametrize(("digits", "error"), [(".17g", 1e-6), (".5f", 0.01)])
def test_peak_is_that_of_either_convention(offset, shape, digits, error) -> None:
    """Trainers log the learning rate of the last update, or that of the next one, or round it."""
    curve, steps = PlateauCurve(1000, warmup_steps=300, decay_shape=shape), range(20, 1001, 20)
    rows = [{"step": t, "loss": 3, "lr": f"{PEAK * curve(t + offset):{digits}}"} for t in steps]
    assert LossRun.read(rows, curve).peak_value == pytest.approx(PEAK, rel=error)


@pytest.mark.parametrize("stray", [0, 20])
@pytest.mark.parametrize("interval", [20, 60, 100, 180])
def test_learning_rates_may_end_an_interval_early(interval, stray) -> None:
    """Such as those of a trainer that evaluates after its last update; a last stray row does not count."""
    last = (1000 - 1000 % interval or 1000 - interval) + stray
    with_lr = [20, *range(interval, last + 1, interval), last]
    rows = [{"step": t, "loss": 3.0, "lr": 1 - t / 2000 if t in with_lr else ""} for t in range(20, 1001, 20)]
    curve = LossRun.read(rows).curve
    assert curve.total_steps == 1000
    assert curve(last) == curve(1000)


@examples(50)
@given(st.sets(st.integers(2, 51), min_size=1, max_size=40), st.floats(0, 1e-2), st.booleans())
def test_logged_learning_rates_are_those_of_the_curve(steps, first, at_zero) -> None:
    """Also the one at step 0; without it, the curve begins at 0. Between them it is a straight line."""
    lrs = {step: 1e-3 / step for step in [1, *sorted(steps), 60]}
    lrs = {0: first if at_zero else 0.0} | lrs
    rows = [{"step": step, "loss": 3.0, "lr": lr} for step, lr in lrs.items()]
    run = LossRun.read(rows[not at_zero :])
    expected = np.interp(np.arange(61), list(lrs), list(lrs.values()))
    np.testing.assert_allclose(run.peak_value * run.curve(np.arange(61)), expected, rtol=1e-5, atol=1e-9)
    assert run.steps[0] == 1


# The first line of the text of a console, and those of each evaluation.
CONSOLES = {
    "nanoGPT": "step {t}: train loss 9.9, val loss {loss}\niter {t}: loss 9.9, time 321.45ms, mfu 34.56%\n"
               "iter {t}1: loss 9.9, time 3.2ms, mfu -1%\n",
    "number of parameters: 123.59M\n": "iter {t}: loss {loss}, time 3.45ms\n",
    "+------------+\n| device | H100, 80 GB |\nval loss 11.009\n":
        "step {t:4}/1000 | loss {loss} (+nanz)| norm 15.3 (+nanz)| lr 8.57e-07 | 98.25 ms\n",
    "import os, sys\nprint(step, loss)\n":
        "step:{t}/1000 val_loss:{loss} train_time:433ms step_avg:43.3ms\n"
        "step:{t}1/1000 train_time:433ms step_avg:43.3ms\n",
    "Megatron-LM": " [2024-05-01 10:00:00] iteration {t:8}/    1000 | consumed samples: 16 | "
                   "learning rate: 1E-04 | lm loss: {loss:.17E} | loss scale: 1.0 |\n",
    "torchtitan": "[titan] 2024-05-01 10:00:00 - root - INFO - step: {t:2}  loss: {loss}. memory: 30.1GiB\n",
}  # fmt: skip


@pytest.mark.parametrize("begin", CONSOLES)
def test_lines_of_the_error_read_the_text_of_a_console(begin, tmp_path) -> None:
    pairs = zip(STEPS, LOSSES, strict=True)
    text = f"{begin}\n" + "".join(CONSOLES[begin].format(t=t, loss=loss) for t, loss in pairs)
    with pytest.raises(ValueError, match="log is the text of a console, not a table") as caught:
        read(text, tmp_path, CURVE, PEAK)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert len(lines) == 2
    names = {"re": re, "LossRun": LossRun, "text": text, "curve": CURVE, "peak_value": PEAK}
    exec("\n".join(lines), names)
    assert (names["run"].steps.tolist(), names["run"].losses.tolist()) == (STEPS, LOSSES)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_line_ends_end_lines(end) -> None:
    """Samples of generated text in a log may hold other separators of lines."""
    rows = [{"step": str(step), "text": "a\u2028b\x85c\x0cd"} for step in (1, 2)]
    text = end.join(["", "step,text", *(",".join(row.values()) for row in rows)])
    json_text = end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert parse_rows(text, "log") == parse_rows(json_text, "log") == rows


def test_repr_names_the_columns_that_were_read() -> None:
    rows = [{"step": t, "lr": PEAK * CURVE(t), "a - val/loss": 3.0} for t in range(10, 301, 10)]
    columns = "read from step='step', loss='a - val/loss'"
    ends = {(CURVE, PEAK): f"{columns})", (CURVE,): f"{columns}, lr='lr')", (): "lr='lr')"}
    for arguments, end in ends.items():
        run = LossRun.read(rows, *arguments)
        assert repr(run).endswith(end)
        assert repr(pickle.loads(pickle.dumps(run))) == repr(run)
        assert (run == run, run == pickle.loads(pickle.dumps(run))) == (True, False)
    assert repr(LossRun.read(rows)).startswith("LossRun(<StagedCurve of 30 stages>, ")
    assert "read" not in repr(LossRun(CURVE, PEAK, STEPS, LOSSES))


# Logged at every step of 20; the learning rates are those of `CURVE`.
FINE = [{"step": row["applied"], "loss": row["loss"], "lr": row["lr"]} for row in METRICS]
LONGER = PlateauCurve(600, warmup_steps=100)
HELD = PlateauCurve(300, warmup_steps=100, plateaus=[(80, 19)])
STEPS_20 = [row["step"] for row in FINE]
DIVERGED = [row | {"loss": math.nan} for row in FINE[6:9]]


def losses_in(column: str, *losses: float) -> list[dict[str, Any]]:
    return rows_of(step=STEPS[: len(losses)], **{column: losses})


TORN = '{"step": 100, "loss": 3}\n\n{"step": 200, "loss": 2}\n'
REPEATED = "the log repeats steps, as a resumed run does: earlier values are left out, "
# A log, the arguments next to it, the warning, and the steps that are read.
WARNINGS: list[tuple[Any, dict[str, Any], str, list[int]]] = [
    # A trainer that was stopped while it wrote.
    *((TORN + torn, {}, "log: the last line is incomplete and left out", STEPS[:2])
      for torn in ('{"step": 3, "lo', '{"step"', "{", "\0\0")),
    ([*FINE[:9], *DIVERGED, *FINE[6:]], {}, f"{REPEATED}at 3 steps from 140 to 180", STEPS_20),
    # The update after the checkpoint was logged, then the run resumed at it: nothing was skipped.
    ([*METRICS[:3], METRICS[2] | {"loss": 1.5}], {}, f"{REPEATED}at step 60", [20, 40, 60]),
    (losses_in("val/ppl", 14.0, 12.0), {"loss": "val/ppl"},
     "the log: 'val/ppl' seems to be a perplexity: take the logarithm", STEPS[:2]),
    (losses_in("eval_perplexity", 90.0, 12.0), {"loss": "eval_perplexity"},
     "the log: the first logged loss is 90, as if the losses were perplexities: take the log", STEPS[:2]),
    (losses_in("loss", 15.1, 12.0), {}, "the log: the first logged loss is 15.1, ", STEPS[:2]),
    (FINE, {"peak_value": 1.04e-3},
     "the learning rate 0.0008 at step 80, and the curve with the peak 0.00104 has 0.000832: give", STEPS_20),
    (FINE, {"curve": LONGER}, "at step 120, and the curve with the peak 0.001 has 0.0009961:", STEPS_20),
    (FINE, {"curve": HELD, "peak_value": None},
     "0.0009045 at step 140, and the curve with the peak 0.001017 has 0.0008681:", STEPS_20),
]  # fmt: skip


@pytest.mark.parametrize(("log", "arguments", "message", "steps"), WARNINGS)
def test_unlikely_logs_warn_once(log, arguments, message, steps, tmp_path) -> None:
    arguments = {"curve": CURVE, "peak_value": PEAK} | arguments
    with pytest.warns(CurveWarning, match=re.escape(message)) as caught:
        run = read(log, tmp_path, **arguments)
    assert [warning.filename for warning in caught] == [__file__]
    assert (run.curve, run.steps.tolist()) == (arguments["curve"], steps)
    pickle.loads(pickle.dumps(run))  # in silence


def test_likely_logs_are_silent() -> None:
    LossRun.read(losses_in("val/log_ppl", 15.0, 12.0), CURVE, PEAK, loss="val/log_ppl")  # a logarithm
    LossRun.read(losses_in("perplexity - loss", 15.0, 12.0), CURVE, PEAK)  # the name of a run
    LossRun.read(FINE, CURVE, 1.015 * PEAK)


@st.composite
def logs_of_resumed_runs(draw):
    """Rows at every tenth step; each attempt begins some intervals earlier, often between logged steps."""
    rows, step = [{"step": 0, "lr": 1e-4}], 0
    for attempt in range(draw(st.integers(1, 5))):
        step = max(0, step - 10 * draw(st.integers(0, 30))) + draw(st.integers(0, 9))
        for _ in range(draw(st.integers(6, 20))):
            step += 10
            rows.append({"step": step, "loss": 4 - step / 10_000 - attempt / 100, "lr": 1e-4 * (attempt + 1)})
    return rows


@examples(100)
@given(logs_of_resumed_runs(), st.booleans())
def test_later_rows_replace_earlier_ones(rows, is_split) -> None:
    """A row stays if no later one has its step or a lower one; of two runs in one log, few would stay."""
    kept = [row for i, row in enumerate(rows) if all(row["step"] < later["step"] for later in rows[i + 1 :])]
    replaced = [row["step"] for row in rows if row not in kept]
    if len(replaced) >= (len(rows) - 1) / 2:
        with pytest.raises(ValueError, match=rf"has {len(rows) - 1} losses at \d+ steps: keep those of one"):
            LossRun.read(rows)
        return
    if is_split:
        rows = [{"step": row["step"], key: row[key]} for row in rows for key in ("lr", "loss") if key in row]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = LossRun.read(rows)
    assert [warning.filename for warning in caught] == [__file__] * bool(replaced)
    if len(replaced) > 1:
        assert f"{len(replaced)} steps from {min(replaced)} to {max(replaced)}" in str(caught[0].message)
    assert run.steps.tolist() == [row["step"] for row in kept[1:]]
    assert run.losses.tolist() == [row["loss"] for row in kept[1:]]
    for row in kept:
        assert run.peak_value * run.curve(row["step"]) == pytest.approx(row["lr"], rel=1e-5)


HUNDRED = [{"step": step, "loss": 4 - step / 10_000} for step in range(3, 301, 3)]
FORMS: dict[str, Callable[[Any], Any]] = {
    "rows": list,
    "JSON": json.dumps,
    "JSON lines": json_lines,
    "CSV": lambda rows: csv_of(**{name: [row[name] for row in rows] for name in rows[0]}),
}
NOT_FINITE = [math.nan, math.inf, -math.inf, "nan", "NaN", "Infinity", "-Infinity", "inf"]


@examples(60)
@given(
    st.dictionaries(st.integers(1, 99), st.sampled_from(NOT_FINITE), min_size=1, max_size=7),
    st.sampled_from(list(FORMS)),
)
@example(dict.fromkeys(range(8), math.nan), "rows")
def test_few_losses_may_be_not_finite(tmp_path_factory, wrong, form) -> None:
    """At most 5 %."""
    folder = tmp_path_factory.getbasetemp()
    log = FORMS[form]([row | {"loss": wrong.get(index, row["loss"])} for index, row in enumerate(HUNDRED)])
    kept = [row for index, row in enumerate(HUNDRED) if index not in wrong]
    count = rf"losses that are not finite, {len(wrong)} of 100, at .*{HUNDRED[min(wrong)]['step']}\b.*"
    if len(wrong) > 5:
        with pytest.raises(ValueError, match=f"{count}; at most 5% may be left out"):
            read(log, folder, CURVE, PEAK)
        return
    with pytest.warns(CurveWarning, match=f"{count}: they are left out") as caught:
        run = read(log, folder, CURVE, PEAK)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.steps.tolist() == [row["step"] for row in kept]
    assert run.losses.tolist() == [row["loss"] for row in kept]
