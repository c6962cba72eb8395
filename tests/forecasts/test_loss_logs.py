"""`LossRun.read`: every format of logs gives the same run, and unclear logs are rejected by name."""

import copy
import csv
import io
import json
import math
import pickle
import random
import re
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.examples import examples

from plateau_jax import CurveWarning, LossRun, PlateauCurve, fit_losses
from plateau_jax.forecasts.logged_lrs import UnclearLogError
from plateau_jax.forecasts.logs import parse_rows

CURVE, PEAK = PlateauCurve(1000, warmup_steps=100), 1e-3
STEPS = list(range(20, 1001, 20))
TRAIN = [5 - step / 400 for step in STEPS]
VALIDATION = [loss + 0.1 for loss in TRAIN]
LRS = [PEAK * CURVE(step) for step in STEPS]
VALUES = [3.0, 2.0]


def rows_of(**columns: Any) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def logged(lrs: Any) -> list[dict[str, Any]]:
    return rows_of(step=STEPS, loss=TRAIN, lr=lrs)


def table(delimiter: str = ",", **columns: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def history() -> list[dict[str, Any]]:
    """The `log_history` of Transformers: training, evaluation, and a summary at the end."""
    rows: list[dict[str, Any]] = []
    for step, loss, validation, lr in zip(STEPS, TRAIN, VALIDATION, LRS, strict=True):
        rows.append({"epoch": step / 500, "grad_norm": 1.0, "learning_rate": lr, "loss": loss, "step": step})
        rows.append({"epoch": step / 500, "eval_loss": validation, "eval_runtime": 1.2, "step": step})
    rows.append({"epoch": 2.0, "step": 1000, "total_flos": 1e9, "train_loss": 3.1, "train_runtime": 9.0})
    return rows


def between(values: list[Any], *, first: bool) -> list[Any]:
    """Put a blank cell after each value, or before."""
    return [cell for value in values for cell in ((value, "") if first else ("", value))]


PAIRS = list(zip(STEPS, VALIDATION, strict=True))
TEXTS = {
    "comma": table(step=STEPS, loss=VALIDATION),
    "tab": table("\t", iter=STEPS, val_loss=VALIDATION),
    "note": table(step=STEPS, val_loss=VALIDATION, note=["resumed from step 50 with loss 3.1"] * 50),
    "wandb export": table(Step=STEPS, **{
        "run-1 - eval/loss": VALIDATION, "run-1 - eval/loss__MIN": TRAIN, "run-1 - eval/loss__MAX": TRAIN}),
    "wandb trainer": table(_step=range(50), **{
        "run 1 - train/global_step": STEPS, "run 1 - train/loss": TRAIN, "run 1 - eval/loss": VALIDATION}),
    "wandb only _step": table(_step=STEPS, **{"val/loss": VALIDATION}),
    "lightning": table(
        **{"lr-AdamW": np.repeat(LRS, 2)}, epoch=[0] * 100, step=np.repeat(STEPS, 2),
        train_loss=between(TRAIN, first=True), val_loss=between(VALIDATION, first=False)),
    "trainer_state": json.dumps({"global_step": 9, "log_history": history()}),
    "list": json.dumps(history(), indent=1),
    "json lines": "\n".join(map(json.dumps, history())) + "\n\n",
    "torchtitan": json.dumps(rows_of(
        step=STEPS, **{"loss_metrics/global_avg_loss": TRAIN, "validation_metrics/loss": VALIDATION})),
    "auxiliary": table(
        **{"step": STEPS, "val/loss": VALIDATION},
        **dict.fromkeys(["val/aux_loss", "mtp_loss", "z_loss", "best_val_loss", "val_loss_ema"], TRAIN)),
    "header again": "".join(f"step,{' ' * (step % 3)}loss\n{step},{loss}\n" for step, loss in PAIRS),
    "blank lines": "\n\nstep;loss\n\n" + "".join(f"{t};{loss};{';' * (t % 3)}\n" for t, loss in PAIRS),
    "byte-order mark": "\ufeffsteps,Validation Loss\n" + "".join(f"{t},{loss}\r\n" for t, loss in PAIRS),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_formats_give_the_same_run(name, tmp_path) -> None:
    path = tmp_path / "log"
    path.write_text(TEXTS[name])
    for source in (path, str(path)):
        run = LossRun.read(source, CURVE, PEAK)
        assert (run.steps.tolist(), run.losses.tolist()) == (STEPS, VALIDATION)
        assert (run.curve, run.peak_value) == (CURVE, PEAK)


def metric_rows() -> list[dict[str, Any]]:
    """Rows of a `MetricLog`; every fifth update is skipped, and its loss is not finite."""
    rows: list[dict[str, Any]] = []
    for index, (step, loss, lr) in enumerate(zip(STEPS, TRAIN, LRS, strict=True)):
        rows.append({"loss": loss, "lr": lr, "applied": step, "skipped": index // 5, "clock": step})
        if index % 5 == 4:
            rows.append(rows[-1] | {"loss": float("nan"), "skipped": index // 5 + 1})
    return rows


def test_rows_of_a_metric_log_are_read() -> None:
    for rows in (metric_rows(), iter(metric_rows())):
        run = LossRun.read(rows, CURVE, PEAK)
        assert (run.steps.tolist(), run.losses.tolist()) == (STEPS, TRAIN)
    groups = [row | {"lr": [row["lr"] / 2, 0.0, 1e-3]} for row in metric_rows()]  # the first one counts
    assert LossRun.read(groups, CURVE).peak_value == pytest.approx(PEAK / 2)
    assert LossRun.read(groups).curve.total_steps == 1000
    # The update after the checkpoint was logged, then the run resumed at it: nothing was skipped.
    rows = metric_rows()[:3]
    with pytest.warns(CurveWarning, match="earlier values are left out, at step 60"):
        run = LossRun.read([*rows, rows[-1] | {"loss": 1.5}], CURVE, PEAK)
    assert run.losses.tolist() == [*TRAIN[:2], 1.5]


@pytest.mark.parametrize(
    "lrs",
    [
        [PEAK * CURVE(step - 1) for step in STEPS],
        [PEAK * CURVE(step + 1) for step in STEPS],
        [float(f"{lr:.4f}") for lr in LRS],
        [f"{lr:.1e}" for lr in LRS],
        [None, float("nan"), "N/A", "", *LRS[4:]],
        [0.0 for _ in LRS],
        ["no number" for _ in LRS],
    ],
    ids=["late", "early", "decimals", "digits", "gaps", "rounded to 0", "text"],
)
def test_logged_learning_rates_of_the_curve_are_silent(lrs) -> None:
    """Trainers log them one step late or early, and rounded."""
    assert LossRun.read(logged(lrs), CURVE, PEAK).peak_value == PEAK


@pytest.mark.parametrize("offset", [-1, 0])
@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt"])
@pytest.mark.parametrize(("digits", "error"), [(".17g", 1e-6), (".5f", 0.01)])
def test_peak_is_that_of_either_convention(offset, shape, digits, error) -> None:
    """Trainers log the learning rate of the last update, or that of the next one, or round it."""
    curve = PlateauCurve(1000, warmup_steps=300, decay_shape=shape)
    rows = logged([f"{PEAK * curve(step + offset):{digits}}" for step in STEPS])
    assert LossRun.read(rows, curve).peak_value == pytest.approx(PEAK, rel=error)


@pytest.mark.parametrize(
    ("curve", "peak"),
    [
        (CURVE, 1.1e-3),
        (PlateauCurve(1000, warmup_steps=100, decay_shape="linear"), PEAK),
        (PlateauCurve(1000, warmup_steps=100, plateaus=[(80, 20)]), None),
        (PlateauCurve(2000, warmup_steps=100), PEAK),
    ],
)
def test_curve_that_the_log_contradicts_warns(curve, peak) -> None:
    with pytest.warns(CurveWarning, match="the log has the learning rate") as caught:
        run = LossRun.read(logged(LRS), curve, peak)
    near = [[run.peak_value * curve(step + offset) for offset in (-1, 0, 1)] for step in STEPS]
    differences = np.abs(np.array(near) - np.array(LRS)[:, None]).min(axis=1)
    first = int(np.argmax(differences > 0.02 * run.peak_value))
    (warning,) = caught
    assert f"the learning rate {LRS[first]:.4g} at step {STEPS[first]}," in str(warning.message)
    assert f"has {near[first][1]:.4g}: give the curve and the peak of this run" in str(warning.message)
    assert (run.curve, warning.filename) == (curve, __file__)


@pytest.mark.parametrize("interval", [20, 60, 100, 180])
def test_learning_rates_may_end_an_interval_early(interval) -> None:
    """Such as those of a trainer that evaluates after its last update; a last stray row does not count."""
    last = 1000 - 1000 % interval or 1000 - interval
    is_kept = [step == 20 or (step % interval == 0 and step <= last) for step in STEPS]
    run = LossRun.read(logged(np.where(is_kept, LRS, np.nan)))
    assert run.curve.total_steps == 1000
    assert run.curve(last) == run.curve(1000)


@examples(50)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40, unique=True).map(sorted),
    st.floats(0, 1e-2), st.booleans(),
)  # fmt: skip
def test_logged_learning_rates_are_those_of_the_curve(steps, first, at_zero) -> None:
    """Also the one at step 0; without it, the curve begins at 0. Between them it is a straight line."""
    lrs = {step: 1e-3 / step for step in [1, *(step + 1 for step in steps), 60]}
    lrs = {0: first if at_zero else 0.0} | lrs
    run = LossRun.read(
        [{"step": step, "loss": 3.0, "lr": lr} for step, lr in list(lrs.items())[not at_zero :]]
    )
    expected = np.interp(np.arange(61), list(lrs), list(lrs.values()))
    np.testing.assert_allclose(run.peak_value * run.curve(np.arange(61)), expected, rtol=1e-5, atol=1e-9)
    assert run.steps[0] == 1


def test_fit_without_curve_is_close_to_fit_with_it() -> None:
    losses = 2 + np.sqrt(100 / np.array(STEPS)) + 0.05 * np.array(LRS) / PEAK
    rows, longer = rows_of(step=STEPS, loss=losses, lr=LRS), PlateauCurve(2000, warmup_steps=100)
    runs = LossRun.read(rows), LossRun.read(rows, CURVE, PEAK)
    forecast, expected = (fit_losses(run).predict(longer, PEAK) for run in runs)
    assert forecast.loss == pytest.approx(expected.loss, abs=2e-3)


def test_columns_can_be_named() -> None:
    rows = rows_of(n=STEPS, a=TRAIN, **{"b - a": [1.0] * 50}, eta=LRS, loss=VALIDATION, step=[3] * 50)
    with pytest.raises(
        ValueError, match="several columns of losses named 'a'; name one of the columns 'a', 'b "
    ):
        LossRun.read(rows, CURVE, PEAK, step="n", loss="a")
    rows[0] |= {"train/loss": "diverged"}  # a column that nobody asked for
    run = LossRun.read(rows, step="n", loss="loss", lr="eta")
    assert (run.steps.tolist(), run.losses.tolist(), run.peak_value) == (STEPS, VALIDATION, max(LRS))


@pytest.mark.parametrize(
    ("step", "others"),
    [
        ("_step", ["time/step", "tokens/step", "sec/iter", "ms/step", "batches/step"]),
        ("step", ["val/step", "sec/step", "_step"]),
        ("trainer/global_step", ["step", "_step"]),
        ("run - train/step", ["loss/step"]),
        ("num_updates", ["valid/step"]),
    ],
)
def test_steps_are_not_other_numbers_per_step(step, others) -> None:
    rows = rows_of(loss=TRAIN, **dict.fromkeys(others, range(50)), **{step: STEPS})
    assert LossRun.read(rows, CURVE, PEAK).steps.tolist() == STEPS


@pytest.mark.parametrize("marker", ["NA", "N/A", "null", "None", "-", "<NA>", " "])
def test_missing_markers_are_empty_cells(marker) -> None:
    cells = [marker if step % 100 else str(loss) for step, loss in zip(STEPS, TRAIN, strict=True)]
    rows = rows_of(step=STEPS, loss=cells, lr=[marker, *map(str, LRS[1:])])
    run = LossRun.read(rows, CURVE, PEAK)
    assert (run.steps.tolist(), run.losses.tolist()) == (STEPS[4::5], TRAIN[4::5])


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0.0"])
@pytest.mark.parametrize("validation", [[10.0, *[""] * 49, 3.0], [10.0, "nan", math.nan, "-", *[""] * 47]])
def test_losses_without_a_log_are_not_preferred(zero, validation) -> None:
    """Such as an evaluation before training and one at the end: one of them is after an update."""
    rows = rows_of(step=[zero, *STEPS], loss=[11.0, *TRAIN], val_loss=validation)
    assert LossRun.read(rows, CURVE, PEAK).losses.tolist() == TRAIN
    rows = rows_of(step=[zero, *STEPS], loss=[11.0, *TRAIN], val_loss=[10.0, 4.0, *[""] * 48, 3.0])
    assert LossRun.read(rows, CURVE, PEAK).losses.tolist() == [4.0, 3.0]


@pytest.mark.parametrize(
    "name", ["lr", "learning-rate", "Learning Rate", "learningRate", "train/learning_rate", "lr-AdamW/pg1",
             "optim/learning_rate_group0"],
)  # fmt: skip
def test_learning_rates_are_found_among_their_settings(name) -> None:
    others = ["lr-AdamW-momentum", "lr-AdamW-weight_decay", "base_lr", "lr_scale", "lr_decay_steps", "maxLR",
              "min-lr", "learning_rate/mult", "initial_lr", "peakLearningRate", "lr ratio"]  # fmt: skip
    rows = rows_of(step=STEPS, loss=TRAIN, **dict.fromkeys(others, STEPS))
    with pytest.raises(UnclearLogError, match="has no learning rates among the columns 'step', 'loss', "):
        LossRun.read(rows)
    rows = [row | {name: lr, "lr of the same": lr} for row, lr in zip(rows, LRS, strict=True)]
    run = LossRun.read(rows)
    assert run.peak_value == max(LRS)
    assert repr(run).endswith(f"lr={name!r})")


TWO = rows_of(step=[1, 2], loss=VALUES)
ALL_NONE = {"curve": None, "peak_value": None}
REJECTED: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "the log has no rows"),
    ("", {}, "log has no rows"),
    (rows_of(loss=VALUES), {}, "no column of steps; name one of the columns 'loss' with .*step="),
    (rows_of(epoch=[1, 2], loss=VALUES), {}, "no column of steps; name one of the columns 'epoch', 'loss'"),
    (rows_of(step=[1, 2], x=VALUES), {}, "no column of losses; name one of the columns 'step', 'x' with"),
    *((rows_of(step=[1, 2], **{name: VALUES}), {},
       f"has no column of losses, only '{name}', a perplexity: take its logarithm; name one")
      for name in ("ppl", "val_ppl", "valid ppl", "train/ppl", "Perplexity", "eval_perplexity",
                   "test/Perplexity", "lm-loss-validation/lm loss validation PPL")),
    *((rows_of(step=[1, 2], **{name: VALUES}), {}, "has no column of losses; name one")
      for name in ("log_ppl", "val/aux_loss", "best_val_loss", "ema/val_loss", "run - lm loss", "a/c4/loss")),
    ("Wall time,Step,Value\n1,1,2\n2,2,1", {}, "no column of losses.* 'Value' with .*loss="),
    (rows_of(step=[1, 2], val_loss=VALUES, eval_loss=VALUES), {}, "several columns of losses; .*'eval_loss'"),
    (rows_of(**{"val/step": [1, 2], "train/step": [2, 3]}), {}, "several columns of steps; .*'train/step'"),
    (TWO, {"loss": "los"}, "no column of losses named 'los'; name one of the columns 'step', 'loss'"),
    (TWO, {"step": 3}, "no column of steps named 3"),
    (rows_of(step=[1, ""], loss=["", 1]), {"loss": "loss"}, "has no row with both 'step' and 'loss'"),
    *((TWO, arguments, "no learning rates among the columns 'step', 'loss': give the run's curve and")
      for arguments in ({"peak_value": None}, ALL_NONE)),
    (TWO, {"curve": None}, "peak_value= without curve="),
    ([{"step": 0, "lr": PEAK}, *TWO], {"peak_value": None}, "only where the curve is 0: give the run's"),
    (rows_of(step=[200, 1000], loss=VALUES, lr=VALUES), ALL_NONE, "only from step 200 to 1000 of 1000: give"),
    (logged([lr if step <= 900 else None for step, lr in zip(STEPS, LRS, strict=True)]), ALL_NONE,
     "learning rates only from step 20 to 900 of 1000: give the run's curve"),
    (rows_of(step=[1, 2], loss=VALUES, lr=[0.0] * 2), {"peak_value": None}, "no learning rates among"),
    (rows_of(step=[1, 2], loss=VALUES, lr=VALUES, learning_rate=VALUES[::-1]), ALL_NONE,
     "several columns of learning rates; name one of the columns 'lr', 'learning_rate' with .*lr="),
    *((text, {}, "log is not a log in CSV, JSON or JSON lines: ")
      for text in ('{"log_history": [', '{"step": [', "[" * 100_000, '{"log_history": null}',
                   '[{"step": 1}, {"step": ' + "1" * 10_000 + "}]", 'step,loss\n1,"3\n' + "2,2\n" * 50_000)),
    ('{"log_history": 5}', {}, "JSON lines: 5 must be a path, or rows"),
    ('{"log_history": [{"step": 1}, 2]}', {}, r"JSON lines: \[\{'step': 1\}, 2\] must be a path, or rows"),
    # Decimal commas in a file with commas would cut off the decimals.
    ("step,loss\n1,3,5\n2,3,4\n", {}, "a row has more cells than columns"),
    ("step;loss\n1;3,5\n2;3,4\n", {}, "log: loss = '3,5' must be a number"),
    # In a chart of Weights & Biases, two runs may share a name.
    *((text, {}, "several columns are named '(a - )?loss'")
      for text in ("step,loss,loss\n1,3,3", "Step,a - loss,a - loss\n1,3,3", "step,loss, loss \n1,3,3")),
    *(([*logged(LRS), {"step": 2000, "loss": 1, "lr": 1, column: cell}], ALL_NONE,
       f"{column} = .* must be a number")
      for column in ("step", "loss", "lr") for cell in ("x", "5%", "1,234", 2j, 10**400)),
    *((rows_of(step=[1, cell], loss=VALUES), {}, "step = .* must be an integer up to .*, not of samples or")
      for cell in ("nan", "inf", "2.5", 2.5, 2**31)),
    *((rows_of(step=[1, 2], loss=[3, loss]), {}, r"the log: losses\[1\] = .* must be finite and positive")
      for loss in (-2.0, 0, 1e39)),
    (logged([*LRS[:-1], -1e-3]), ALL_NONE, "to = -1.0 must lie in"),
    ("step,loss\n1,2\n".encode("utf-16"), {}, "log is not a text file in UTF-8"),
    (rows_of(step=[1, 1001], loss=VALUES), {}, r"the log: steps\[-1\] = 1001 lies after the end of the curv"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "arguments", "message"), REJECTED, ids=range(len(REJECTED)))
def test_unclear_logs_are_rejected(source, arguments, message, tmp_path) -> None:
    """Text is that of a file."""
    if isinstance(source, str | bytes):
        path = tmp_path / "log"
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        source = path
    with pytest.raises(ValueError, match=message):
        LossRun.read(source, **{"curve": CURVE, "peak_value": PEAK} | arguments)


@pytest.mark.parametrize("source", [3, None, np.ones(()), {"step": [1]}, [3], io.StringIO("step,loss\n1,2")])
def test_sources_that_are_no_logs_are_rejected(source) -> None:
    with pytest.raises(TypeError, match=r'must be a path, or rows .*df\.to_dict\("records"\)'):
        LossRun.read(source, CURVE, PEAK)
    with pytest.raises(FileNotFoundError, match="missing"):
        LossRun.read("missing.csv", CURVE, PEAK)


LINES = {
    "nanoGPT": (
        "step {t}: train loss 9.9, val loss {loss}\n"
        "iter {t}: loss 9.9, time 321.45ms, mfu 34.56%\niter {t}1: loss 9.9, time 3.2ms, mfu -1%\n"
    ),
    "nanoGPT without evaluations": "iter {t}: loss {loss}, time 3.45ms\n",
    "llm.c": "step {t:4}/1000 | loss {loss} (+nanz)| norm 15.3 (+nanz)| lr 8.57e-07 | 98.25 ms\n",
    "modded-nanogpt": (
        "step:{t}/1000 val_loss:{loss} train_time:433ms step_avg:43.3ms\n"
        "step:{t}1/1000 train_time:433ms step_avg:43.3ms\n"
    ),
    "Megatron-LM": (
        " [2024-05-01 10:00:00] iteration {t:8}/    1000 | consumed samples: 16 | "
        "learning rate: 1E-04 | lm loss: {loss:.17E} | loss scale: 1.0 |\n"
    ),
    "torchtitan": "[titan] 2024-05-01 10:00:00 - root - INFO - step: {t:2}  loss: {loss}. memory: 30.1GiB\n",
}
FIRST_LINES = {
    "nanoGPT without evaluations": "number of parameters: 123.59M\n",
    "llm.c": "+-----------------------+\n| device | H100, 80 GB |\nval loss 11.009\n",
    "modded-nanogpt": "import os, sys\nprint(step, loss)\n",
}


@pytest.mark.parametrize("name", LINES)
def test_lines_of_the_error_read_the_text_of_a_console(name, tmp_path) -> None:
    path = tmp_path / "train.log"
    text = FIRST_LINES.get(name, "") + "".join(LINES[name].format(t=t, loss=loss) for t, loss in PAIRS)
    path.write_text(text)
    with pytest.raises(ValueError, match=r"train\.log is the text of a console, not a table") as caught:
        LossRun.read(path, CURVE, PEAK)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert len(lines) == 2
    names = {"re": re, "LossRun": LossRun, "text": text, "curve": CURVE, "peak_value": PEAK}
    exec("\n".join(lines), names)
    assert (names["run"].steps.tolist(), names["run"].losses.tolist()) == (STEPS, VALIDATION)


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step"', "{", "\0\0"])
def test_incomplete_last_line_of_json_is_left_out(torn, tmp_path) -> None:
    """A trainer that was stopped while it wrote may have left one."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 3}\n\n{"step": 2, "loss": 2}\n' + torn)
    with pytest.warns(CurveWarning, match=r"log\.jsonl: the last line is incomplete and left out") as caught:
        assert LossRun.read(path, CURVE, PEAK).steps.tolist() == [1, 2]
    assert [warning.filename for warning in caught] == [__file__]
    path.write_text(path.read_text() + '{"step": 4, "loss": 2}\n{"step": 5, "loss": 2}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl is not a log in .*: row 3: "):
        LossRun.read(path, CURVE, PEAK)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_line_ends_end_lines(end) -> None:
    """Samples of generated text in a log may hold other separators of lines."""
    rows = [{"step": str(step), "text": "a\u2028b\x85c\x0cd"} for step in (1, 2)]
    text = end.join(["", "step,text", *(",".join(row.values()) for row in rows)])
    json_lines = end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert parse_rows(text, "log") == parse_rows(json_lines, "log") == rows


def test_repr_names_the_columns_that_were_read() -> None:
    rows = rows_of(step=STEPS, lr=LRS, **{"a - val/loss": VALIDATION})
    read = "read from step='step', loss='a - val/loss'"
    for run, end in [
        (LossRun.read(rows, CURVE, PEAK), f"{read})"),
        (LossRun.read(rows, CURVE), f"{read}, lr='lr')"),
        (LossRun.read(rows), f"{read}, lr='lr')"),
    ]:
        for same in (run, copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
            assert repr(same).endswith(end)
        assert (run == run, run == copy.copy(run)) == (True, False)
    assert repr(LossRun.read(rows)).startswith("LossRun(<StagedCurve of 50 stages>, ")
    assert "read" not in repr(LossRun(CURVE, PEAK, STEPS, TRAIN))


@pytest.mark.parametrize(
    ("column", "losses", "message"),
    [
        ("val/ppl", [14.0, 12.0], "the log: 'val/ppl' seems to be a perplexity: take the logarithm"),
        ("eval_perplexity", [90.0, 12.0], "the log: the first logged loss is 90,.*: take the logarithm"),
        ("loss", [15.1, 12.0], r"the log: the first logged loss is 15\.1,.*: take the logarithm"),
    ],
)
def test_perplexities_warn_once(column, losses, message) -> None:
    with pytest.warns(CurveWarning, match=message) as caught:
        run = LossRun.read(rows_of(step=[1, 2], **{column: losses}), CURVE, PEAK, loss=column)
    assert [warning.filename for warning in caught] == [__file__]
    copy.copy(run), pickle.loads(pickle.dumps(run))
    for silent in ("perplexity - loss", "val/log_ppl"):
        LossRun.read(rows_of(step=[1, 2], **{silent: [15.0, 12.0]}), CURVE, PEAK, loss=silent)


CURVE_OF_ROWS = PlateauCurve(10_000)
ROWS = [
    {"step": step, "loss": 4 - step / 10_000, "lr": PEAK * CURVE_OF_ROWS(step)}
    for step in range(20, 2001, 20)
]


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


@examples(200)
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


def test_late_evaluations_and_equal_losses_are_no_resumed_run() -> None:
    """Nor learning rates that are logged with the losses of training and of validation.

    Some trainers evaluate the last update twice.
    """
    steps = [row["step"] for row in ROWS]
    late = [row for each in ROWS for row in (each, {"step": each["step"] - 60, "val_loss": 3.0})]
    both = [row for each in ROWS for row in (each, each | {"val_loss": 3.0})]
    twice = [row for row in ROWS for _ in range(2)]
    for rows, expected in [(late, steps[:-3]), (both, steps), (twice, steps)]:
        assert LossRun.read(rows, CURVE_OF_ROWS).steps.tolist() == expected


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[::-1],
        random.Random(0).sample(ROWS, 100),
        sorted(ROWS[4:], key=lambda row: str(row["step"])),
        [row | {"loss": row["loss"] + k} for row in ROWS for k in range(2)],
        [row | {"loss": row["loss"] + k} for k in range(2) for row in ROWS],
        [row | {"step": row["step"] % 500 + 1} for row in ROWS],
    ],
    ids=["reversed", "shuffled", "as text", "two splits", "two runs", "steps of epochs"],
)
def test_rows_that_are_not_of_one_run_in_order_are_rejected(rows) -> None:
    with pytest.raises(ValueError, match=r"the log has \d+ losses at \d+ steps: keep those of one split"):
        LossRun.read(rows, CURVE_OF_ROWS, PEAK)


FORMS = {
    "rows": lambda rows: rows,
    "JSON": json.dumps,
    "JSON lines": lambda rows: "\n".join(map(json.dumps, rows)),
    "CSV": lambda rows: table(**{name: [row[name] for row in rows] for name in rows[0]}),
}


@examples(100)
@given(
    st.dictionaries(
        st.integers(1, 99),
        st.sampled_from([math.nan, math.inf, -math.inf, "nan", "NaN", "Infinity", "-Infinity", "inf"]),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from(list(FORMS)),
)
@example(dict.fromkeys(range(8), math.nan), "rows")
def test_few_losses_may_be_not_finite(wrong, form) -> None:
    """At most 5 %; those that a resumed run logged again do not count."""
    source = FORMS[form]([row | {"loss": wrong.get(index, row["loss"])} for index, row in enumerate(ROWS)])
    kept = [row for index, row in enumerate(ROWS) if index not in wrong]
    first = ROWS[min(wrong)]["step"]
    count = rf"losses that are not finite, {len(wrong)} of 100, at .*{first}\b.*"
    with TemporaryDirectory() as folder:
        if isinstance(source, str):
            path = Path(folder, "log")
            path.write_text(source)
            source = path
        if len(wrong) > 5:
            with pytest.raises(ValueError, match=f"{count}; at most 5% may be left out"):
                LossRun.read(source, CURVE_OF_ROWS, PEAK)
            return
        with pytest.warns(CurveWarning, match=f"{count}: they are left out") as caught:
            run = LossRun.read(source, CURVE_OF_ROWS, PEAK)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.steps.tolist() == [row["step"] for row in kept]
    assert run.losses.tolist() == [row["loss"] for row in kept]


def test_divergence_before_a_resume_is_one_warning() -> None:
    """The run diverged after half its steps, and went back to a checkpoint."""
    diverged = [row | {"loss": math.nan} for row in ROWS[40:60]]
    with pytest.warns(CurveWarning, match="left out, at 20 steps from 820 to 1200") as caught:
        run = LossRun.read([*ROWS[:40], *diverged, *ROWS[40:]], CURVE_OF_ROWS, PEAK)
    assert len(caught) == 1
    assert run.steps.tolist() == [row["step"] for row in ROWS]
