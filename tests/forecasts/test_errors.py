"""Errors of `LossRun`, of logs, and of fits and forecasts: see `support.errors`."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.errors import Row, check_error, each_row
from support.forecasts.law_runs import changed, logged, rows_of

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.logs import UnclearLogError
from plateau_jax.validation.curve_warning import suppress_warnings

CURVE, PEAK = PlateauCurve(1000, warmup_steps=50), 1e-3
STEPS = np.arange(20, 1001, 20)
RUN = logged(CURVE)
LOSSES = RUN.losses
FIT = fit_losses(RUN)
with suppress_warnings():
    ZERO = StagedCurve([(1000,)], start=0.0)
VALUES = [3.0, 2.0]


def loss_run(curve: Any = CURVE, peak_value: Any = PEAK, steps: Any = (10, 20, 30), losses: Any = (3, 2, 1)):
    return LossRun(curve, peak_value, steps, losses)


RUN_ERRORS: list[Row] = [
    ("loss_run(curve=3)", TypeError, "curve = 3 must be a Curve"),
    ("loss_run(peak_value=0)", ValueError, "peak_value = 0 must be positive"),
    ("loss_run(peak_value='1')", TypeError, "peak_value = '1' must be a number"),
    ("loss_run(steps=[1, 2])", ValueError, "steps has 2 items and losses has 3"),
    ("loss_run(steps=[])", ValueError, "no logged losses"),
    ("loss_run(steps=[1, 3, 3])", ValueError, "steps must increase: steps[1] = 3, steps[2] = 3; a resumed"),
    ("loss_run(steps=[0, 1, 2])", ValueError, "steps[0] = 0 must be at least 1"),
    ("loss_run(steps=[1, 2, 1001])", ValueError, "steps[-1] = 1001", "after the end", "total_steps = 1000"),
    ("loss_run(steps=[1.0, 2.0, 3.0])", TypeError, "steps = [1.0, 2.0, 3.0]", "integers"),
    ("loss_run(steps=5)", TypeError, "steps = 5", "sequence of integers"),
    ("loss_run(losses=[1.0, np.nan, 1.0])", ValueError, "losses[1] = nan", "finite and positive"),
    ("loss_run(losses=[1.0, 0.0, 1.0])", ValueError, "losses[1] = 0.0", "finite and positive"),
    *((f"loss_run(losses={losses})", TypeError, "losses = ", "sequence of real numbers")
      for losses in ("'high'", "[3, 2, 'x']", "[1, 10**400, 2]", "np.ones(3, bool)", "np.ones(3, complex)")),
]  # fmt: skip


def read(log: Any, curve: Any = CURVE, peak_value: Any = PEAK, **columns: Any) -> LossRun:
    """Read rows, or a text as that of a file."""
    if isinstance(log, str):
        Path("log").write_bytes(log.encode())
        log = "log"
    return LossRun.read(log, curve, peak_value, **columns)


TWO = rows_of(step=[1, 2], loss=VALUES)
LRS = rows_of(step=STEPS, loss=LOSSES, lr=PEAK * CURVE(STEPS))
UNTIL_900 = [row if row["step"] <= 900 else row | {"lr": None} for row in LRS]
LOG_ERRORS: list[Row] = [
    *((f"read({log})", TypeError, "must be a path, a pandas data frame, or a list of dictionaries") for log in
      ("3", "None", "np.ones(())", "{'step': [1]}", "[3]", "iter(['step,loss'])", "pd.Series([1])")),
    ("LossRun.read('missing.csv')", FileNotFoundError, "missing.csv"),
    ("read([])", ValueError, "the log has no rows"),
    ("read('[{\"step\": 1}]')", ValueError, "log, row 1: ", "is not a JSON object; of other JSON, pass"),
    ("read('step,loss\\n1,2\\n2,\"3\\n')", ValueError, "log is not a CSV file: unexpected end of data"),
    ("read(LRS[::-1])", ValueError, "50 losses at 50 steps: keep those of one split, rank or run"),
    ("read([row | {'loss': loss} for row in LRS for loss in (3, 2)])", ValueError,
     "the log has 100 losses at 50 steps: keep those of one split, rank or run"),
    ("read('')", ValueError, "log has no rows"),
    ("read(TWO, 3)", TypeError, "curve = 3 must be a Curve"),
    ("read(TWO, None)", ValueError, "peak_value= without curve=: give both, or neither"),
    *((f"read({text})", ValueError, f"log, row {row}: ", "JSON") for row, text in [
        (1, "'{\"step\": ['"), (1, "'{' * 100_000"), (2, "'{\"step\": 1}\\n3\\n{}'"),
        (1, "'{\\n\"loss\": 3}'")]),
    ("read('step,loss\\n1,\"3\\n' + '2,2\\n' * 50_000)", ValueError, "log is not a CSV file: "),
    ("read('step,loss\\n1,3\\n2,3,4\\n')", ValueError, "log, row 2: more cells than columns; is this CSV"),
    ("read('step,loss, loss\\n1,3,3')", ValueError, "log has several columns named 'loss'"),
    *((f"read([*LRS, {{'step': 2000, 'loss': 1, 'lr': 1, {column!r}: {cell}}}], None, None)", ValueError,
       f"the log, row 51: {column} = ", "must be a number") for column in ("step", "loss", "lr")
      for cell in ("'x'", "'true'", "True", "np.True_", "'5%'", "'1,234'", "'3 s'", "2j", "10**400", "{}")),
    *((f"read(rows_of(step=[1, {cell}], loss=VALUES))", ValueError, "row 2: step = ", "number of updates")
      for cell in ("'nan'", "'inf'", "'2.5'", "2.5", "-1", "2**31")),
    ("read(rows_of(step=[1, 2], loss=[3, -2.0]))", ValueError, "the log: losses[1] = -2.0", "positive"),
    ("read(rows_of(step=[1, 1001], loss=VALUES))", ValueError, "the log: steps[-1] = 1001", "after the end"),
    ("read(rows_of(step=[1, ''], loss=['', 1]))", ValueError, "no finite loss after the first update"),
    ("read(rows_of(step=[1], loss=[[3, 2]]))", ValueError, "row 1: loss = [3, 2] must be a number"),
    *((f"read({arguments})", UnclearLogError, *parts) for arguments, *parts in [
        ("rows_of(Step=[1], loss=[3])", "no usual column for step among 'Step', 'loss'", "step=..."),
        ("rows_of(step=[1], _step=[1], loss=[3])", "several columns for step, 'step', '_step'", "step=..."),
        ("rows_of(step=[1], val_loss=[3])", "column for loss among 'step', 'val_loss'", "loss=..."),
        ("rows_of(step=[1], Value=[3])", "column for loss among 'step', 'Value'", "loss=..."),
        ("[*TWO, {'train_loss': 3}]", "several columns for loss, 'loss', 'train_loss'", "loss=..."),
        ("TWO, step=3", "no column step = 3, only 'step', 'loss'"),
        ("TWO, loss='los'", "no column loss = 'los', only 'step', 'loss'"),
        ("TWO, CURVE, None", "no usual column for lr among 'step', 'loss': give the run's curve", "lr=..."),
        ("[{'step': 0, 'lr': PEAK}, *TWO], CURVE, None", "no learning rate where the curve is above 0"),
        ("TWO, None, None", "no usual column for lr among 'step', 'loss': give the run's curve", "lr=..."),
        ("[row | {'learning_rate': 1} for row in LRS], None, None", "several", "'lr', 'learning_rate'"),
        ("rows_of(step=[1], loss=[3], lr=[0.0]), None, None", "no learning rate above 0: give the run's"),
        ("UNTIL_900, None, None", "learning rates only from step 20 to 900 of 1000: give the run's curve"),
        ("rows_of(step=[1, 2], loss=VALUES, lr=[1, '']), None, None", "only from step 1 to 1 of 2"),
    ]),
]  # fmt: skip

STABLE = logged(StagedCurve([(50, 1.0), (950,)]))
NOISY = changed(RUN, LOSSES * (1 + 0.02 * np.random.default_rng(0).standard_normal(50)))
RISING = changed(RUN, np.where(STEPS > 700, LOSSES[34] * (1 + (STEPS - 700) / 3000), LOSSES))
CONSTANT = changed(RUN, np.full(50, 3.0))
# Falls slowly, then fast, so that no power describes it.
STEPPED = changed(RUN, LOSSES - 0.6 / (1 + np.exp(-(STEPS - 500) / 40)))
LATE = LossRun.read([row for row in LRS if row["step"] >= 400])
OTHER_MODEL = changed(RUN, LOSSES + 0.3)
HALF = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
AT_HALF = LossRun(HALF, 2e-3 * (1 - 9e-7), STEPS, LOSSES)
FIT_ERRORS: list[Row] = [
    *((f"fit_losses({runs})", TypeError, "must be a LossRun: write LossRun(")
      for runs in ("None", "3", "'run'", "[RUN, LOSSES]")),
    ("fit_losses([])", ValueError, "no run: write fit_losses("),
    ("fit_losses(changed(RUN, LOSSES, slice(None, None, 3)))", ValueError,
     "of 17 logged losses", "at least 20", "more often"),
    ("fit_losses(changed(RUN, LOSSES, STEPS < 400))", ValueError, "no run's", "half", "with a decay"),
    ("fit_losses([STABLE, STABLE])", ValueError, "no run's", "half its peak"),
    ("fit_losses(NOISY)", ValueError, "noise of 1.", "more than 1%", "validation loss"),
    ("fit_losses(RISING)", ValueError, "rises from ", "at step 700 to ", "while the learning rate does not"),
    ("fit_losses(CONSTANT)", ValueError, "its scale is 0", "longer run"),
    ("fit_losses(STEPPED)", ValueError, "law misses these losses by ", "first fast phase"),
    ("fit_losses(LATE)", ValueError, "learning rates before step 400 are missing: give the run's curve"),
    ("fit_losses([RUN, OTHER_MODEL])", ValueError, "one model and one data set"),
    *((f"fit_losses([LossRun(CURVE, {peak}, STEPS, LOSSES), RUN])", ValueError,
       f"several peaks, 0.001, {peak:g}", "fit the runs of each peak alone") for peak in (1.00001e-3, 2e-3)),
    ("fit_losses([AT_HALF, RUN]).predict(CURVE)", ValueError, "several peak_value, 0.001, 0.002"),
    ("FIT.losses(CURVE, [0])", ValueError, "steps = [0] must lie in 1 … total_steps = 1000"),
    ("FIT.losses(CURVE, 1001)", ValueError, "steps = 1001 must lie in 1"),
    ("FIT.losses(CURVE, 1.5)", TypeError, "steps = 1.5", "integers"),
    ("FIT.compare([CURVE])", TypeError, "curves", "mapping"),
    ("FIT.compare({})", ValueError, "no curve"),
    ("FIT.plot([CURVE, 3], ax=1)", TypeError, "curves[1] = 3 must be a Curve"),
]  # fmt: skip
# The same curves and peaks are rejected by every call.
FORECASTS = (
    "FIT.predict({}, {})",
    "FIT.losses({}, [5], {})",
    "FIT.compare({{'a': {}}}, {})",
    "FIT.plot({}, peak_value={}, ax=1)",
)
FIT_ERRORS += [
    (forecast.format(curve, peak), error, *parts)
    for forecast in FORECASTS
    for curve, peak, error, *parts in [
        ("PlateauCurve(4001)", "None", ValueError, "4001 steps", "at most 4 times the 1000 steps", "log a"),
        ("PlateauCurve(100)", "None", ValueError, "10 % of the run's steps", "in samples or tokens"),
        ("PlateauCurve(4)", "None", ValueError, "0.4 % of the run's steps"),
        ("CURVE", "1.51e-3", ValueError, "0.00151", "factor of 1.5 from that of the runs, 0.001"),
        ("CURVE", "0.66e-3", ValueError, "0.00066", "factor of 1.5"),
        ("CURVE", "-1.0", ValueError, "peak_value = -1.0 must be positive"),
        ("CURVE", "'high'", TypeError, "peak_value = 'high' must be a number"),
        ("ZERO", "None", ValueError, "no positive learning rate"),
        ("(lambda step: 1.0)", "None", TypeError, "must be a Curve"),
    ]
]  # fmt: skip


@each_row([*RUN_ERRORS, *LOG_ERRORS, *FIT_ERRORS])
def test_errors(row: Row, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_error(row, globals())


def test_values_at_the_limits_are_accepted() -> None:
    fit_losses([RUN, STABLE])  # a stable run next to one that decays
    fit_losses([LossRun(CURVE, PEAK * (1 + 9e-7), STEPS, LOSSES), RUN])
    FIT.predict(PlateauCurve(4000), 1.5e-3)
    FIT.predict(PlateauCurve(101))
    fit_losses(logged(CURVE, 30)).predict(PlateauCurve(4000))  # four times all steps, not the 990 of the log
