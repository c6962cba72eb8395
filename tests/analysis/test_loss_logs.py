"""`LossRun.read`: every format of logs gives the same run, and unclear logs are rejected by name."""

import copy
import csv
import io
import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples

from plateau_jax import CurveWarning, LossRun, PlateauCurve, fit_losses
from plateau_jax.analysis.log_files import parse_rows
from plateau_jax.analysis.logged_lrs import UnclearLogError

CURVE, PEAK = PlateauCurve(1000, warmup_steps=100), 1e-3
STEPS = list(range(20, 1001, 20))
TRAIN = [5 - step / 400 for step in STEPS]
VALIDATION = [loss + 0.1 for loss in TRAIN]
LRS = [PEAK * CURVE(step) for step in STEPS]


def write_csv(path: Path, header: list[str], *columns: list[Any], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))
    return path


def history() -> list[dict[str, Any]]:
    """The `log_history` of Transformers: training, evaluation, and a summary at the end."""
    rows: list[dict[str, Any]] = []
    for step, loss, validation, lr in zip(STEPS, TRAIN, VALIDATION, LRS, strict=True):
        rows.append({"epoch": step / 500, "grad_norm": 1.0, "learning_rate": lr, "loss": loss, "step": step})
        rows.append({"epoch": step / 500, "eval_loss": validation, "eval_runtime": 1.2, "step": step})
    rows.append({"epoch": 2.0, "step": 1000, "total_flos": 1e9, "train_loss": 3.1, "train_runtime": 9.0})
    return rows


def blank(values: list[Any], is_blank: bool) -> list[Any]:
    """Put a blank cell before or after each value."""
    return [cell for value in values for cell in (("", value) if is_blank else (value, ""))]


def both(values: list[Any]) -> list[Any]:
    return [value for value in values for _ in range(2)]


WRITERS = {
    "comma": lambda path: write_csv(path, ["step", "loss"], STEPS, VALIDATION),
    "tab": lambda path: write_csv(path, ["iter", "val_loss"], STEPS, VALIDATION, delimiter="\t"),
    "wandb export": lambda path: write_csv(
        path,
        ["Step", "run-1 - eval/loss", "run-1 - eval/loss__MIN", "run-1 - eval/loss__MAX"],
        *(STEPS, VALIDATION, TRAIN, TRAIN),
    ),
    "wandb trainer": lambda path: write_csv(
        path,
        ["_step", "run 1 - train/global_step", "run 1 - train/loss", "run 1 - eval/loss"],
        *(list(range(50)), STEPS, TRAIN, VALIDATION),
    ),
    "wandb only _step": lambda path: write_csv(path, ["_step", "val/loss"], STEPS, VALIDATION),
    "lightning": lambda path: write_csv(
        path,
        ["epoch", "lr-AdamW", "step", "train_loss", "val_loss"],
        *([0] * 100, both(LRS), both(STEPS), blank(TRAIN, is_blank=True), blank(VALIDATION, is_blank=False)),
    ),
    "trainer_state": lambda path: path.write_text(json.dumps({"global_step": 9, "log_history": history()})),
    "list": lambda path: path.write_text(json.dumps(history(), indent=1)),
    "json lines": lambda path: path.write_text("\n".join(map(json.dumps, history())) + "\n\n"),
    "torchtitan": lambda path: path.write_text(json.dumps([
        {"step": step, "loss_metrics/global_avg_loss": train, "validation_metrics/loss": loss}
        for step, train, loss in zip(STEPS, TRAIN, VALIDATION, strict=True)])),
    "auxiliary": lambda path: write_csv(
        path,
        ["step", "val/loss", "val/aux_loss", "mtp_loss", "z_loss", "best_val_loss", "val_loss_ema"],
        *(STEPS, VALIDATION, TRAIN, TRAIN, TRAIN, TRAIN, TRAIN)),
    "header of Excel": lambda path: path.write_text("sep= ;\n" + "\n".join(
        ["step;loss", *(f"{step};{loss}" for step, loss in zip(STEPS, VALIDATION, strict=True))])),
    "header again": lambda path: path.write_text("".join(
        f"step,{' ' * (step % 3)}loss\n{step},{loss}\n"
        for step, loss in zip(STEPS, VALIDATION, strict=True))),
    "blank lines": lambda path: path.write_text("\n\nstep,loss\n\n" + "".join(
        f"{step},{loss},{',' * (step % 3)}\n" for step, loss in zip(STEPS, VALIDATION, strict=True))),
    "byte-order mark": lambda path: path.write_text("\ufeffstep,Validation Loss\n" + "".join(
        f"{step},{loss}\r\n" for step, loss in zip(STEPS, VALIDATION, strict=True))),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_formats_give_the_same_run(name, tmp_path) -> None:
    path = tmp_path / "log"
    WRITERS[name](path)
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
    run = LossRun.read(metric_rows(), CURVE, PEAK)
    np.testing.assert_array_equal(run.steps, STEPS)
    np.testing.assert_array_equal(run.losses, TRAIN)
    generated = LossRun.read((row for row in metric_rows()), CURVE, PEAK)
    np.testing.assert_array_equal(generated.losses, TRAIN)


def test_resumed_metric_log_keeps_the_later_loss() -> None:
    """The update after the checkpoint was logged, then the run resumed at it: nothing was skipped."""
    rows = metric_rows()[:3]
    with pytest.warns(CurveWarning, match="1 earlier loss is left out"):
        run = LossRun.read([*rows, rows[-1] | {"loss": 1.5}], CURVE, PEAK)
    assert run.losses.tolist() == [*TRAIN[:2], 1.5]


@pytest.mark.parametrize("factors", [[1], [1, 0.1], [0.5, 0.0, 1.0], [0.0, 0.0]])
def test_parameter_groups_with_one_curve_are_read(factors) -> None:
    rows = [
        row | {"lr": [float(np.float32(row["lr"] * factor)) for factor in factors]} for row in metric_rows()
    ]
    if factors[0]:
        assert LossRun.read(rows, CURVE).peak_value == pytest.approx(PEAK * factors[0], rel=1e-5)
        assert LossRun.read(rows).curve.total_steps == 1000
    other = [row | {"lr": [row["lr"], 1e-3]} for row in metric_rows()]
    with pytest.raises(ValueError, match="groups whose learning rates are not proportional: give curve= and"):
        LossRun.read(other)
    for readable, peak in [(rows, factors[0] * PEAK or PEAK), (other, PEAK)]:
        assert LossRun.read(readable, CURVE, peak).losses.tolist() == TRAIN


@pytest.mark.parametrize(("epochs", "is_numbered"), [(2, False), (3, True), (10, False)])
def test_steps_that_begin_anew_with_each_epoch_are_rejected(epochs, is_numbered) -> None:
    per_epoch = len(STEPS) // epochs
    rows = rows_of(
        epoch=[i // per_epoch for i in range(50)], iter=[i % per_epoch + 1 for i in range(50)], loss=TRAIN
    )
    if is_numbered:
        rows = [row | {"_step": step} for row, step in zip(rows, STEPS, strict=True)]
    for step in (None, "iter"):
        with pytest.raises(UnclearLogError, match="the steps of 'iter' begin anew with each epoch") as caught:
            LossRun.read(rows, CURVE, PEAK, step=step)
        assert caught.value.argument == "step"
        assert caught.value.columns == (("_step",) if is_numbered else ("epoch", "iter", "loss"))
    if is_numbered:
        assert LossRun.read(rows, CURVE, PEAK, step="_step").steps.tolist() == STEPS


def test_resumed_run_with_epochs_is_read() -> None:
    rows = [row | {"epoch": row["step"] // 200} for row in logged(LRS)]
    with pytest.warns(CurveWarning, match="as the log of a resumed run does"):
        run = LossRun.read([*rows[:30], *rows[25:]], CURVE, PEAK)
    assert run.steps.tolist() == STEPS


def test_curve_is_read_from_logged_learning_rates(tmp_path) -> None:
    """Between them it is a straight line; a curve that is given goes before them."""
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history()}))
    run = LossRun.read(path)
    assert run.peak_value == max(LRS)
    assert run.curve.total_steps == 1000
    np.testing.assert_allclose(run.peak_value * run.curve(np.array(STEPS[:-1])), LRS[:-1], rtol=1e-6)
    assert run.curve(10) == pytest.approx(run.curve(20) / 2)
    assert LossRun.read(path, CURVE).curve is CURVE
    assert LossRun.read(path, CURVE).peak_value == pytest.approx(PEAK)


def logged(lrs: Any) -> list[dict[str, Any]]:
    return [{"step": t, "loss": loss, "lr": lr} for t, loss, lr in zip(STEPS, TRAIN, lrs, strict=True)]


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
def test_peak_is_that_of_either_convention(offset, shape) -> None:
    """Trainers log the learning rate of the last update, or that of the next one."""
    curve = PlateauCurve(1000, warmup_steps=300, decay_shape=shape)
    rows = logged([PEAK * curve(step + offset) for step in STEPS])
    assert LossRun.read(rows, curve).peak_value == pytest.approx(PEAK, rel=1e-6)


def test_peak_of_rounded_learning_rates_is_silent() -> None:
    """The peak is that of rounded numbers too."""
    curve = PlateauCurve(1000)
    rows = [{"step": step, "loss": 1, "lr": f"{1e-3 * curve(step - 1):.4f}"} for step in range(1, 1001)]
    assert LossRun.read(rows, curve).peak_value == pytest.approx(1e-3, rel=0.01)


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
    assert run.curve is curve
    near = [[run.peak_value * curve(step + offset) for offset in (-1, 0, 1)] for step in STEPS]
    differences = np.abs(np.array(near) - np.array(LRS)[:, None]).min(axis=1)
    first = int(np.argmax(differences > 0.02 * run.peak_value))
    (warning,) = caught
    assert f"the learning rate {LRS[first]:.4g} at step {STEPS[first]}," in str(warning.message)
    assert f"has {near[first][1]:.4g}: give the curve and the peak of this run" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("interval", [20, 60, 100, 180])
def test_learning_rates_may_end_an_interval_early(interval) -> None:
    """Such as those of a trainer that evaluates after its last update; a last stray row does not count."""
    last = 1000 - 1000 % interval or 1000 - interval
    kept = [
        lr if step % interval == 0 and step <= last else None for step, lr in zip(STEPS, LRS, strict=True)
    ]
    kept[STEPS.index(20)] = LRS[0]
    curve = LossRun.read(logged(kept)).curve
    assert curve.total_steps == 1000
    assert curve(last) == curve(1000)


def test_fit_without_curve_is_close_to_fit_with_it() -> None:
    losses = 2 + np.sqrt(100 / np.array(STEPS)) + 0.05 * np.array(LRS) / PEAK
    rows = [{"step": step, "loss": loss, "lr": lr} for step, loss, lr in zip(STEPS, losses, LRS, strict=True)]
    longer = PlateauCurve(2000, warmup_steps=100)
    forecast, expected = (
        fit_losses(run).predict(longer, PEAK) for run in (LossRun.read(rows), LossRun.read(rows, CURVE, PEAK))
    )
    assert forecast.loss == pytest.approx(expected.loss, abs=2e-3)


def test_columns_can_be_named() -> None:
    rows = [
        {"n": step, "a": loss, "b - a": 1.0, "eta": lr, "loss": 2.0, "step": 3}
        for step, loss, lr in zip(STEPS, TRAIN, LRS, strict=True)
    ]
    with pytest.raises(ValueError, match=r"loss = 'a' names 2 columns; its columns are 'n', 'a', 'b - a'"):
        LossRun.read(rows, CURVE, PEAK, step="n", loss="a")
    run = LossRun.read(rows, step="n", loss="loss", lr="eta")
    np.testing.assert_array_equal(run.steps, STEPS)
    assert run.peak_value == max(LRS)


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
    shown = [
        marker if step % 100 else str(loss).replace(".", ",") for step, loss in zip(STEPS, TRAIN, strict=True)
    ]
    rows = rows_of(step=STEPS, loss=shown, lr=[marker, *map(str, LRS[1:])])
    run = LossRun.read(rows, CURVE, PEAK)
    assert run.steps.tolist() == STEPS[4::5]
    assert run.losses.tolist() == TRAIN[4::5]


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0.0"])
@pytest.mark.parametrize("validation", [[10.0, *[""] * 49, 3.0], [10.0, "nan", math.nan, "-", *[""] * 47]])
def test_losses_without_a_log_are_not_preferred(zero, validation) -> None:
    """Such as an evaluation before training and one at the end: one of them is after an update."""
    rows = rows_of(step=[zero, *STEPS], loss=[11.0, *TRAIN], val_loss=validation)
    assert LossRun.read(rows, CURVE, PEAK).losses.tolist() == TRAIN
    rows = rows_of(step=[zero, *STEPS], loss=[11.0, *TRAIN], val_loss=[10.0, 4.0, *[""] * 48, 3.0])
    assert LossRun.read(rows, CURVE, PEAK).losses.tolist() == [4.0, 3.0]


def test_columns_with_equal_values_are_one() -> None:
    rows = rows_of(**{"trainer/step": STEPS, "val/step": STEPS}, loss=TRAIN, lr_0=LRS, lr_1=LRS)
    assert repr(LossRun.read(rows, CURVE)).endswith("from step='trainer/step', loss='loss', lr='lr_0')")


@pytest.mark.parametrize(
    "name",
    [
        "lr",
        "learning-rate",
        "Learning Rate",
        "LearningRate",
        "learningRate",
        "train/learning_rate",
        "lr-AdamW/pg1",
        "optim/learning_rate_group0",
    ],
)
@pytest.mark.parametrize(
    "others",
    [
        ["lr-AdamW-momentum", "lr-AdamW-weight_decay", "base_lr", "lr_scale"],
        ["lr_decay_steps", "lr ratio", "maxLR"],
        ["min-lr", "learning_rate/mult", "initial_lr", "peakLearningRate"],
    ],
)
def test_learning_rates_are_found_among_their_settings(name, others) -> None:
    rows = rows_of(step=STEPS, loss=TRAIN, **dict.fromkeys(others, STEPS), **{name: LRS})
    assert LossRun.read(rows).peak_value == max(LRS)
    without = [{column: value for column, value in row.items() if column != name} for row in rows]
    with pytest.raises(UnclearLogError, match=r"no learning rates.*; its columns are .*: name one with lr="):
        LossRun.read(without)


VALUES = [3.0, 2.0]


def rows_of(**columns: Any) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


TWO = rows_of(step=[1, 2], loss=VALUES)
ALL_NONE = {"curve": None, "peak_value": None}
REJECTED: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "the log has no rows"),
    ("", {}, "log has no rows"),
    (rows_of(loss=VALUES), {}, "no column of steps; its columns are 'loss': name one with step="),
    (rows_of(step=[1, 2], x=VALUES), {}, "has no column of losses.*: name one with loss="),
    (TWO[:1], {}, "no column of losses with several values: 'loss' has one"),
    ([{"step": [1, 2], "loss": [3.0, 2.0]}], {}, "no column of losses with several values: 'loss' has one"),
    *((rows_of(step=[1, 2], epoch=[0, 0], **{name: VALUES}), {},
       f"has no column of losses, only '{name}', a perplexity: take its logarithm; its columns are .*: name")
      for name in ("ppl", "val_ppl", "valid ppl", "train/ppl", "ValPPL", "Perplexity", "eval_perplexity",
                   "test/Perplexity", "lm-loss-validation/lm loss validation PPL")),
    (rows_of(step=[1, 2], log_ppl=VALUES), {}, "has no column of losses; its columns"),
    ("Wall time,Step,Value\n1,1,2\n2,2,1", {}, "no column of losses.* 'Value': name one with loss="),
    (rows_of(step=[1, 2], val_loss=VALUES, **{"eval/loss": VALUES}), {}, "several losses, 'val_loss'"),
    (rows_of(step=[1, 2], train_loss=VALUES, loss=VALUES), {}, "several losses, 'train_loss', 'loss'"),
    (rows_of(epoch=[1, 2], loss=VALUES), {}, "only epochs: add .* name one with step="),
    (rows_of(_step=[0, 1], epoch=[1, 2], loss=VALUES), {}, "no column of steps, only epochs"),
    (TWO, {"loss": "los"}, "loss = 'los' names 0 columns"),
    (rows_of(step=[1, ""], loss=["", 1]), {"loss": "loss"}, "has no row with both 'step' and 'loss'"),
    (TWO, {"peak_value": None}, "no learning rates: give peak_value="),
    (TWO, ALL_NONE, "no learning rates: give curve= and peak_value=; its columns are 'step', 'loss': name"),
    (TWO, {"curve": None}, "peak_value= without curve="),
    ([{"step": 0, "lr": PEAK}, *TWO], {"peak_value": None}, "only at steps at which the curve is 0: give pe"),
    (rows_of(step=[200, 1000], loss=VALUES, lr=VALUES), ALL_NONE, "at step 200 of 1000, too late .*: give "),
    (logged([lr if step <= 900 else None for step, lr in zip(STEPS, LRS, strict=True)]), ALL_NONE,
     "last learning rate at step 900 of 1000: log it up to the last loss, or give curve= and"),
    (rows_of(step=[1, 2], loss=VALUES, lr=[0.0] * 2), {"peak_value": None}, "no learning rates: give peak"),
    *((rows_of(step=[1, 2], loss=VALUES, lr=[0.1, wrong]), {"curve": curve, "peak_value": None},
       f"the log has the learning rate {wrong} at step 2")
      for wrong in (math.nan, math.inf, -0.1) for curve in (None, CURVE)),
    (rows_of(step=[1, 2], loss=VALUES, lr=VALUES, learning_rate=VALUES[::-1]), ALL_NONE,
     "several learning rates, 'lr', 'learning_rate'"),
    ('{"log_history": [', {}, r"log is neither JSON nor JSON lines"),
    ('{"step": [', {}, "log is neither JSON nor JSON lines"),
    ("[" * 100_000, {}, "log is neither JSON nor JSON lines"),
    ('[{"step": 1}, {"step": ' + "1" * 10_000 + "}]", {}, "log is neither JSON nor JSON lines"),
    ('{"log_history": 5}', {}, "log is not a log: 5 must be a path, or rows"),
    ('{"log_history": [{"step": 1}, 2]}', {}, "log is not a log: a row must be a mapping"),
    ('{"log_history": null}', {}, "log is not a log: None"),
    ('step,loss\n1,"3\n' + "2,2\n" * 50_000, {}, "log is not CSV: "),
    (b"\xff\xfes\x00", {}, "log is not a text file in UTF-8"),
    # Decimal commas in a file with commas would cut off the decimals.
    ("step,loss\n1,3,5\n2,3,4\n", {}, "log has a row with more cells than columns"),
    # In a chart of Weights & Biases, two runs may share a name.
    *((text, {"loss": loss}, r"log has 2 columns named '(a - )?loss': rename or remove")
      for loss in (None, "loss") for text in (
        "step,loss,loss\n1,3,3\n2,2,2",
        "step,loss, loss \n1,3,3\n2,2,2",
        "Step,a - loss,a - loss\n1,3,3\n2,2,2",
        '{"step": 1, "loss": 3, "loss": 3}\n{"step": 2, "loss": 3}',
        '[{"step": 1, "loss": 3}, {"step": 2, "loss": 3, "loss": 3}]',
        '[{"step": 1, "loss": 3, "loss ": 2}, {"step": 2, "loss": 3}]',
        '[{"step": 1, "loss ": 2}, {"step": 2, "loss": 3}]')),
]  # fmt: skip


CONSOLES = {
    "nanoGPT": "".join(
        f"step {step}: train loss {train}, val loss {validation}\n"
        f"iter {step}: loss 9.9, time 321.45ms, mfu 34.56%\niter {step + 10}: loss 9.9, time 3.2ms, mfu -1%\n"
        for step, train, validation in zip([0, *STEPS], [9.9, *TRAIN], [9.9, *VALIDATION], strict=True)
    ),
    "nanoGPT without evaluations": "number of parameters: 123.59M\n"
    + "".join(f"iter {t}: loss {loss}, time 3.45ms\n" for t, loss in zip(STEPS, VALIDATION, strict=True)),
    "llm.c": "+-----------------------+\n| device | H100, 80 GB |\nval loss 11.009\n" + "".join(
        f"step {t:4}/1000 | loss {loss} (+nanz)| norm 15.3 (+nanz)| lr 8.57e-07 | 98.25 ms | 111830 tok/s\n"
        for t, loss in zip(STEPS, VALIDATION, strict=True)
    ),
    "modded-nanogpt": "import os, sys\nprint(step, loss)\nstep:0/1000 val_loss:10.8258 train_time:0ms\n"
    + "".join(
        f"step:{t}/1000 val_loss:{loss} train_time:433ms step_avg:43.3ms\n"
        f"step:{t + 1}/1000 train_time:433ms step_avg:43.3ms\n"
        for t, loss in zip(STEPS, VALIDATION, strict=True)
    ),
    "build-nanogpt": "".join(
        f"{t} val {loss}\n{t} hella 0.2\n{t} train 9.9\n" for t, loss in zip(STEPS, VALIDATION, strict=True)
    ),
    "MLPerf": "".join(
        f':::MLLOG {{"namespace": "", "time_ms": 1, "key": "{key}", "value": {value}, "metadata": '
        f'{{"file": "train.py", "lineno": 9, "samples_count": {16 * t}}}}}\n'
        for t, loss in zip(STEPS, VALIDATION, strict=True)
        for key, value in (("train_loss", 9.9), ("eval_accuracy", loss), ("eval_stop", "null"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSOLES)
def test_lines_of_the_error_read_the_text_of_a_console(name, tmp_path) -> None:
    path = tmp_path / "train.log"
    path.write_text(CONSOLES[name])
    with pytest.raises(ValueError, match=r"train\.log is the text of a console, not a table") as caught:
        LossRun.read(path, CURVE, PEAK)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert len(lines) == 2
    given = {"text": CONSOLES[name], "batch_size": 16, "curve": CURVE, "peak_value": PEAK}
    names = {"re": re, "LossRun": LossRun, **given}
    exec("\n".join(lines), names)
    assert (names["run"].steps.tolist(), names["run"].losses.tolist()) == (STEPS, VALIDATION)


@pytest.mark.parametrize(("source", "arguments", "message"), REJECTED, ids=range(len(REJECTED)))
def test_unclear_logs_are_rejected(source, arguments, message, tmp_path) -> None:
    """Text is that of a file."""
    if isinstance(source, str | bytes):
        path = tmp_path / "log"
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        source = path
    with pytest.raises(ValueError, match=message):
        LossRun.read(source, **{"curve": CURVE, "peak_value": PEAK} | arguments)


class Frame(list[Any]):
    def to_dict(self) -> None: ...


@pytest.mark.parametrize(
    ("source", "arguments", "error", "message"),
    [
        *((source, {}, TypeError, "must be a path, or rows") for source in (3, None, np.ones(()))),
        ({"step": [1]}, {}, TypeError, "must be a path, or rows|must be a mapping from columns"),
        ([3], {}, TypeError, "must be a mapping from columns"),
        (io.StringIO("step,loss\n1,2"), {}, TypeError, "must be a path, or rows .*the path"),
        (Frame(), {}, TypeError, r'must be a path, or rows .*df\.to_dict\("records"'),
        (TWO, {"step": 3}, TypeError, "step = 3 must be the name of a column"),
        ("missing.csv", {}, FileNotFoundError, "missing"),
    ],
)
def test_sources_that_are_no_logs_are_rejected(source, arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        LossRun.read(source, CURVE, PEAK, **arguments)


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step"', "{", "\0\0"])
def test_incomplete_last_line_of_json_is_left_out(torn, tmp_path) -> None:
    """A trainer that was stopped while it wrote may have left one."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 3}\n\n{"step": 2, "loss": 2}\n' + torn)
    with pytest.warns(
        CurveWarning, match=r"log\.jsonl: the last line, 4, is incomplete and left out"
    ) as caught:
        assert LossRun.read(path, CURVE, PEAK).steps.tolist() == [1, 2]
    assert [warning.filename for warning in caught] == [__file__]
    path.write_text(path.read_text() + '{"step": 4, "loss": 2}\n{"step": 5, "loss": 2}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl is neither JSON nor JSON lines: line 4, column "):
        LossRun.read(path, CURVE, PEAK)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_line_ends_end_lines(end) -> None:
    """Samples of generated text in a log may hold other separators of lines."""
    rows = [{"step": str(step), "text": "a\u2028b\x85c\x0cd"} for step in (1, 2)]
    table = end.join(["", "step,text", *(",".join(row.values()) for row in rows)])
    json_lines = end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert parse_rows(table, "log") == parse_rows(json_lines, "log") == rows


@pytest.mark.parametrize(
    "name",
    ["val/aux_loss", "mtp_loss", "z_loss", "best_val_loss", "ema/val_loss", "run - lm loss", "train/c4/loss"],
)
def test_loss_with_an_unknown_word_is_not_guessed(name) -> None:
    rows = rows_of(step=STEPS, other=TRAIN, **{name: VALIDATION})
    with pytest.raises(UnclearLogError, match=r"may be an auxiliary loss.*: name one with loss=") as caught:
        LossRun.read(rows, CURVE, PEAK)
    assert caught.value.columns == (name, "other")
    np.testing.assert_array_equal(LossRun.read(rows, CURVE, PEAK, loss=name).losses, VALIDATION)


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


CELLS = [
    *(("step", cell, "must be written without a comma") for cell in ("1,000", "12,000")),
    *(("step", cell, "must be written without a point") for cell in ("1.000", "1.000.000")),
    ("loss", "1,234", "must be written without a comma"),
    *((column, cell, "must be a number that float64 can hold")
      for column in ("step", "loss", "lr") for cell in ("1e-400", "1e400", "-1E+999")),
    *((column, cell, "must be a number") for column in ("step", "loss", "lr")
      for cell in ("true", "1_000", "0x10", "1 000", "١٠", "1'000", "5%", "3.2.1", "1,2,3", True, 2j, "x")),
    *(("step", cell, "must be an integer") for cell in ("nan", "inf", "2.5", 2.5)),
    ("step", 2**31, r"must be an integer up to 2\*\*31 - 1"),
    ("step", 10**400, "must be a number"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cell", "message"), CELLS)
def test_cells_that_are_not_numbers_are_named(column, cell, message, tmp_path) -> None:
    rows: list[dict[str, Any]] = rows_of(step=[10, 20], loss=["2.5", "1.5"], lr=[1e-3, 1e-3])
    rows[1][column] = cell
    with pytest.raises(ValueError, match=f"{column} = .*{message}"):
        LossRun.read(rows)
    if cell in ("1e-400", "1e400", "true"):  # numbers and words of JSON
        path = tmp_path / "log.json"
        path.write_text(json.dumps(rows).replace(f'"{cell}"', cell))
        with pytest.raises(ValueError, match=rf"{column} = ('{cell}'|True) must be a number"):
            LossRun.read(path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("loss", -2.0, "^the log: 'loss' is -2 at step 20; losses must be"),
        ("loss", 0, "^the log: 'loss' is 0 at step 20; losses must"),
        ("loss", 1e39, r"^the log: 'loss' is 1e\+39 at"),
        ("lr", "nan", "the learning rate nan at step 20"),
        ("lr", "-1e-3", "the learning rate -0.001 at step 20"),
    ],
)
def test_numbers_out_of_range_are_named(column, value, message) -> None:
    rows = rows_of(step=[10, 20], loss=VALUES, lr=[1e-3, 1e-3])
    with pytest.raises(ValueError, match=message):
        LossRun.read([rows[0], rows[1] | {column: value}])


@examples(100)
@given(
    st.lists(st.integers(1, 10**6), min_size=2, max_size=9, unique=True).map(sorted),
    st.integers(1, 6), st.sampled_from([";", ",", "\t"]), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
def test_decimal_commas_are_points(steps, decimals, delimiter, thousands, random) -> None:
    """Points separate the thousands of steps where commas are decimal."""
    losses = [f"{random.uniform(1, 14):.{decimals}f}" for _ in steps]
    shown = [f"{step:,}".replace(",", ".") if thousands else str(step) for step in steps]
    cells = [(step, f'"{loss.replace(".", ",")}"') for step, loss in zip(shown, losses, strict=True)]
    rows = parse_rows("\n".join(delimiter.join(row) for row in [("step", "loss"), *cells]), "log")
    run = LossRun.read(rows, PlateauCurve(10**6), PEAK)
    assert (run.steps.tolist(), run.losses.tolist()) == (steps, [float(loss) for loss in losses])


@examples(50)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40, unique=True).map(sorted),
    st.floats(0, 1e-2), st.booleans(),
)  # fmt: skip
def test_logged_learning_rates_are_those_of_the_curve(steps, first, at_zero) -> None:
    """Also the one at step 0; without it, the curve begins at 0."""
    lrs = {step: 1e-3 / step for step in [1, *(step + 1 for step in steps), 60]}
    first_lr = {0: first} if at_zero else {}
    run = LossRun.read([{"step": step, "loss": 3.0, "lr": lr} for step, lr in (first_lr | lrs).items()])
    for step, lr in ({0: 0.0} | first_lr | lrs).items():
        assert run.peak_value * run.curve(step) == pytest.approx(lr, rel=1e-5, abs=1e-9)
    assert run.steps[0] == 1


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
