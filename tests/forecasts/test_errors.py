"""Errors of `LossRun`, of logs, and of fits and forecasts: see `support.errors`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import Row, check_error, each_row
from support.forecasts.law_runs import changed, logged, rows_of

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.logged_lrs import UnclearLogError
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
    ("loss_run(steps=[1, [2], 3])", TypeError, "steps = [1, [2], 3]", "integers"),
    ("loss_run(losses=[1.0, np.nan, 1.0])", ValueError, "losses[1] = nan", "finite and positive"),
    ("loss_run(losses=[1.0, 0.0, 1.0])", ValueError, "losses[1] = 0.0", "finite and positive"),
    ("loss_run(losses=[1.0, 1e300, 1.0])", ValueError, "losses[1] = 1e+300", "float32"),
    ("loss_run(losses=[1.0, 1e-300, 1.0])", ValueError, "losses[1] = 1e-300", "float32"),
    ("loss_run(losses=[1.0, 10**400, 1.0])", TypeError, "losses = ", "1000", "sequence of numbers"),
    ("loss_run(losses='high')", TypeError, "losses[0] = 'high'", "real number"),
    ("loss_run(losses=[3.0, 2.0, True])", TypeError, "losses[2] = True", "real number"),
    ("loss_run(losses=np.ones(3, bool))", TypeError, "losses[0] = ", "True", "real number"),
    ("loss_run(losses=np.ones(3, complex))", TypeError, "losses[0] = ", "j", "real number"),
]  # fmt: skip


def read(log: Any, curve: Any = CURVE, peak_value: Any = PEAK, **columns: Any) -> LossRun:
    """Read rows, or a text as that of a file."""
    if isinstance(log, str | bytes):
        Path("log").write_bytes(log if isinstance(log, bytes) else log.encode())
        log = "log"
    return LossRun.read(log, curve, peak_value, **columns)


TWO = rows_of(step=[1, 2], loss=VALUES)
LRS = rows_of(step=STEPS, loss=LOSSES, lr=PEAK * CURVE(STEPS))
UNTIL_900 = [row if row["step"] <= 900 else row | {"lr": None} for row in LRS]
TORN = '{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 3, "lo\n{"step": 4, "loss": 2}\n'


def one_loss(column: str) -> list[dict[str, Any]]:
    return rows_of(step=[1, 2], **{column: VALUES})


PERPLEXITIES = [
    "ppl", "val_ppl", "valid ppl", "train/ppl", "Perplexity", "eval_perplexity", "test/Perplexity",
    "lm-loss-validation/lm loss validation PPL",
]  # fmt: skip
OTHER_LOSSES = "log_ppl", "val/aux_loss", "best_val_loss", "ema/val_loss", "run - lm loss", "a/c4/loss"
NO_LRS = "no learning rates among the columns 'step', 'loss': give the run's curve and its peak"
NO_JSON = [
    "'{\"log_history\": ['", "'{\"step\": ['", "'[' * 100_000", "'{\"log_history\": null}'",
    "'[{\"step\": 1}, {\"step\": ' + '1' * 10_000 + '}]'", "'step,loss\\n1,\"3\\n' + '2,2\\n' * 50_000",
]  # fmt: skip
LOG_ERRORS: list[Row] = [
    ("read([])", ValueError, "the log has no rows"),
    ("read('')", ValueError, "log has no rows"),
    ("read(TWO, 3)", TypeError, "curve = 3 must be a Curve"),
    ("read(TWO, None)", ValueError, "peak_value= without curve="),
    ("read(rows_of(step=[1, ''], loss=['', 1]), loss='loss')", ValueError, "both 'step' and 'loss'"),
    ("read([row | {'loss': loss} for row in LRS for loss in (3, 2)])", ValueError,
     "the log has 100 losses at 50 steps: keep those of one split, rank or run"),
    *((f"read({rows})", ValueError, "the log has ", "keep those of one split, rank or run")
      for rows in ("LRS[::-1]", "[row | {'step': row['step'] % 250 + 1} for row in LRS]")),
    ("read([*LRS[:-1], LRS[-1] | {'lr': -PEAK}], None, None)", ValueError, "to = -1."),
    *((f"read({text})", ValueError, "log is not a log in CSV, JSON or JSON lines: ") for text in NO_JSON),
    ("read('[1]')", ValueError, "[1] must be a path, or rows"),
    ("read('{\"log_history\": 5}')", ValueError, "JSON lines: 5 must be a path, or rows"),
    ("read('{\"log_history\": [{\"step\": 1}, 2]}')", ValueError, "[{'step': 1}, 2] must be a path"),
    ("read(TORN)", ValueError, "log is not a log in", ": row 3: "),
    # Decimal commas in a file with commas would cut off the decimals.
    ("read('step,loss\\n1,3,5\\n2,3,4\\n')", ValueError, "more cells than columns: ['1', '3', '5']"),
    ("read('step;loss\\n1;3,5\\n2;3,4\\n')", ValueError, "log: loss = '3,5' must be a number"),
    # In a chart of Weights & Biases, two runs may share a name.
    ("read('step,loss, loss \\n1,3,3')", ValueError, "several columns are named 'loss'"),
    *((f"read([*LRS, {{'step': 2000, 'loss': 1, 'lr': 1, {column!r}: {cell}}}], None, None)", ValueError,
       f"the log: {column} = ", "must be a number")
      for column in ("step", "loss", "lr") for cell in ("'x'", "'5%'", "'1,234'", "2j", "10**400")),
    *((f"read(rows_of(step=[1, {cell}], loss=VALUES))", ValueError, "step = ", "integer up to 2**31 - 1")
      for cell in ("'nan'", "'inf'", "'2.5'", "2.5", "2**31")),
    *((f"read(rows_of(step=[1, 2], loss=[3, {loss}]))", ValueError, "the log: losses[1] = ", "positive")
      for loss in (-2.0, 0, 1e39)),
    ("read(rows_of(step=[1, 1001], loss=VALUES))", ValueError, "the log: steps[-1] = 1001", "after the end"),
    ("read('step,loss\\n1,2\\n'.encode('utf-16'))", ValueError, "log is not a text file in UTF-8"),
    ("LossRun.read('missing.csv', CURVE, PEAK)", FileNotFoundError, "missing.csv"),
    *((f"read({log})", TypeError, "must be a path, or rows", 'df.to_dict("records")')
      for log in ("3", "None", "np.ones(())", "{'step': [1]}", "[3]", "iter(['step,loss'])")),
]  # fmt: skip
LOG_ERRORS += [
    (f"read({arguments})", UnclearLogError, *parts)
    for arguments, *parts in [
        ("rows_of(loss=VALUES)", "no column of steps; name one of the columns 'loss' with", "step="),
        ("rows_of(epoch=[1, 2], loss=VALUES)", "of steps; name one of the columns 'epoch', 'loss' with"),
        ("rows_of(**{'val/step': [1, 2], 'train/step': [2, 3]})", "several", "steps", "'train/step' with"),
        ("TWO, step=3", "no column of steps named 3"),
        ("one_loss('x')", "no column of losses; name one of the columns 'step', 'x' with", "loss="),
        *((f"one_loss({name!r})", "no column of losses", f"only {name!r}, a perplexity", "logarithm")
          for name in PERPLEXITIES),
        *((f"one_loss({name!r})", "no column of losses; name one") for name in OTHER_LOSSES),
        ("'Wall time,Step,Value\\n1,1,2\\n2,2,1'", "no column of losses", "'Step', 'Value'", "loss="),
        ("rows_of(step=[1, 2], val_loss=VALUES, eval_loss=VALUES)", "several columns of losses",
         "'val_loss', 'eval_loss' with"),
        ("rows_of(step=[1, 2], loss=VALUES, **{'x - loss': VALUES}), loss='loss'",
         "several columns of losses named 'loss'", "'loss', 'x - loss' with"),
        ("TWO, loss='los'", "no column of losses named 'los'", "'step', 'loss' with", "loss="),
        ("TWO, CURVE, None", NO_LRS),
        ("TWO, None, None", NO_LRS),
        ("rows_of(step=STEPS, loss=LOSSES, base_lr=STEPS), None, None", "no learning rates", "'base_lr'"),
        ("rows_of(step=[1, 2], loss=VALUES, lr=[0.0, 0.0]), CURVE, None", "no learning rates among"),
        ("[{'step': 0, 'lr': PEAK}, *TWO], CURVE, None", "only where the curve is 0"),
        ("rows_of(step=[101, 1000], loss=VALUES, lr=VALUES), None, None", "from step 101 to 1000 of 1000"),
        ("UNTIL_900, None, None", "learning rates only from step 20 to 900 of 1000: give"),
        ("rows_of(step=[1, 2], loss=VALUES, lr=VALUES, learning_rate=[2, 3]), None, None",
         "several columns of learning rates", "'lr', 'learning_rate' with", "lr="),
    ]
]  # fmt: skip

STABLE = logged(StagedCurve([(50, 1.0), (950,)]))
NOISY = changed(RUN, LOSSES * (1 + 0.02 * np.random.default_rng(0).standard_normal(50)))
RISING = changed(RUN, np.where(STEPS > 700, LOSSES[34] * (1 + (STEPS - 700) / 3000), LOSSES))
CONSTANT = changed(RUN, np.full(50, 3.0))
# Falls slowly, then fast, so that no power describes it.
STEPPED = changed(RUN, LOSSES - 0.6 / (1 + np.exp(-(STEPS - 500) / 40)))
OTHER_MODEL = changed(RUN, LOSSES + 0.3)
HALF = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
AT_HALF = LossRun(HALF, 2e-3 * (1 - 9e-7), STEPS, LOSSES)
FIT_ERRORS: list[Row] = [
    *((f"fit_losses({runs})", TypeError, "must be a LossRun: write LossRun(")
      for runs in ("None", "3", "'run'", "[RUN, LOSSES]")),
    ("fit_losses([])", ValueError, "no run: write fit_losses("),
    ("fit_losses(changed(RUN, LOSSES, slice(None, None, 3)))", ValueError,
     "of 17 logged losses", "ends at step 50,", "at least 20", "more often"),
    ("fit_losses(changed(RUN, LOSSES, STEPS < 400))", ValueError, "no run's", "half", "with a decay"),
    ("fit_losses([STABLE, STABLE])", ValueError, "no run's", "half its peak"),
    ("fit_losses(NOISY)", ValueError, "noise of 1.", "more than 1%", "validation loss"),
    ("fit_losses(RISING)", ValueError, "rises from ", "at step 700 to ", "while the learning rate does not"),
    ("fit_losses(CONSTANT)", ValueError, "its scale is 0", "longer run"),
    ("fit_losses(STEPPED)", ValueError, "law misses these losses by ", "first fast phase"),
    ("fit_losses([RUN, OTHER_MODEL])", ValueError, "one model and one data set"),
    *((f"fit_losses([LossRun(CURVE, {peak}, STEPS, LOSSES), RUN])", ValueError,
       f"several peaks, 0.001, {peak:g}", "fit the runs of each peak alone") for peak in (1.00001e-3, 2e-3)),
    ("fit_losses([AT_HALF, RUN]).predict(CURVE)", ValueError, "several peak_value, 0.001, 0.002"),
    ("FIT.losses(CURVE, [0])", ValueError, "steps = [0] must lie in 1 … total_steps = 1000"),
    ("FIT.losses(CURVE, 1001)", ValueError, "steps = 1001 must lie in 1"),
    ("FIT.losses(CURVE, 1.5)", TypeError, "steps = 1.5", "integers"),
    ("FIT.compare([CURVE])", TypeError, "curves", "mapping"),
    ("FIT.compare({})", ValueError, "no curve"),
    ("FIT.plot([CURVE, 3], ax=1)", TypeError, "curve = 3 must be a Curve"),
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
        ("(lambda step: 1.0)", "None", TypeError, "curve = "),
    ]
]  # fmt: skip


@each_row([*RUN_ERRORS, *LOG_ERRORS, *FIT_ERRORS])
def test_errors(row: Row, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_error(row, globals())


def test_values_at_the_limits_are_accepted() -> None:
    loss_run(losses=[3, 1e38, 1e-37])
    fit_losses([RUN, STABLE])  # a stable run next to one that decays
    fit_losses([LossRun(CURVE, PEAK * (1 + 9e-7), STEPS, LOSSES), RUN])
    FIT.predict(PlateauCurve(4000), 1.5e-3)
    FIT.predict(PlateauCurve(101))
    fit_losses(logged(CURVE, 30)).predict(PlateauCurve(4000))  # four times all steps, not the 990 of the log
