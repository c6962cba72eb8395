"""Errors of `LossRun`, of logs, and of fits and forecasts: see `support.errors`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.errors import Row, check_error, each, each_row
from support.forecasts.logs import changed, logged, rows_of

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


BOOLEANS = [True, False, np.True_, np.array(True)]

RUN_ERRORS: list[Row] = [
    (lambda: loss_run(curve=3), TypeError, "curve = 3 must be a Curve"),
    (lambda: loss_run(peak_value=0), ValueError, "peak_value = 0 must be positive"),
    (lambda: loss_run(peak_value="1"), TypeError, "peak_value = '1' must be a number"),
    (lambda: loss_run(steps=[1, 2]), ValueError, "steps has 2 items and losses has 3"),
    (lambda: loss_run(steps=[]), ValueError, "no logged losses"),
    (lambda: loss_run(steps=[1, 3, 3]), ValueError,
     "steps must increase: steps[1] = 3, steps[2] = 3; a resumed"),
    (lambda: loss_run(steps=[0, 1, 2]), ValueError, "steps[0] = 0 must be at least 1"),
    (lambda: loss_run(steps=[1, 2, 1001]), ValueError, "steps[-1] = 1001", "after the end",
     "total_steps = 1000"),
    (lambda: loss_run(steps=[1.0, 2.0, 3.0]), TypeError, "steps = [1.0, 2.0, 3.0]", "integers"),
    (lambda: loss_run(steps=5), TypeError, "steps = 5", "sequence of integers"),
    (lambda: loss_run(losses=[1.0, np.nan, 1.0]), ValueError, "losses[1] = nan", "finite and positive"),
    *each(lambda value: loss_run(losses=[1.0, value, 1.0]), [0.0, -1.0, 1e39, 1e-46, 5e-324], ValueError,
          "losses[1] = {} must be finite and positive as a float32"),
    *each(lambda value: loss_run(losses=value),
          ["high", [3, 2, "x"], [1, 10**400, 2], np.ones(3, bool), np.ones(3, complex)],
          TypeError, "losses = ", "sequence of real numbers"),
    *each(lambda value: loss_run(losses=value), [[3, [2], 1], [[3], [2], [1]], 3.0, (3, None, 1)],
          TypeError, "losses = {}", "sequence of real numbers"),
    *each(lambda value: loss_run(losses=[3.5, value, 1.0]), BOOLEANS, TypeError,
          "losses[1] = {} must be a number"),
    *each(lambda value: loss_run(losses=(3, 2, value)), BOOLEANS, TypeError,
          "losses[2] = {} must be a number"),
    *each(lambda value: loss_run(steps=[value, 2, 3]), BOOLEANS, TypeError, "steps[0] = {} must be a number"),
    *each(lambda value: loss_run(steps=value),
          [[True, True, True], np.ones(1, bool), [10, [20], 30], np.array([10, True, 30], object)],
          TypeError, "steps = {}", "sequence of integers"),
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


def read_changed_row(column: str, value: Any) -> LossRun:
    return read([*LRS, {"step": 2000, "loss": 1, "lr": 1, column: value}], None, None)


LOG_ERRORS: list[Row] = [
    *each(lambda value: read(value),
          [3, None, np.ones(()), {"step": [1]}, [3], iter(["step,loss"]), pd.Series([1])],
          TypeError, "must be a path, a pandas data frame, or a list of dictionaries"),
    (lambda: LossRun.read("missing.csv"), FileNotFoundError, "missing.csv"),
    (lambda: read(""), ValueError, "log has no rows"),
    (lambda: read('[{"step": 1}]'), ValueError, "log, row 1: ", "not a JSON object; for other JSON, pass"),
    (lambda: read('step,loss\n1,2\n2,"3\n'), ValueError, "log is not a CSV file: unexpected end of data"),
    (lambda: read([row | {"loss": loss} for row in LRS for loss in (3, 2)]), ValueError,
     "the log has 100 losses at 50 steps: keep those of one split, rank or run"),
    (lambda: read(TWO, 3), TypeError, "curve = 3 must be a Curve"),
    (lambda: read(TWO, None), ValueError, "peak_value= without curve=: give both, or neither"),
    *each(lambda value: read(value), ['{"step": [', "{" * 100_000, '{\n"loss": 3}'], ValueError,
          "log, row 1: ", "JSON"),
    (lambda: read('{"step": 1}\n3\n{}'), ValueError, "log, row 2: ", "JSON"),
    (lambda: read('step,loss\n1,"3\n' + "2,2\n" * 50_000), ValueError, "log is not a CSV file: "),
    (lambda: read("step,loss\n1,3\n2,3,4\n"), ValueError, "log, row 2: more cells than columns; is this CSV"),
    (lambda: read("step,loss, loss\n1,3,3"), ValueError, "log has several columns named 'loss'"),
    *(row for column in ("step", "loss", "lr")
      for row in each(partial(read_changed_row, column),
                      ["x", "true", True, np.True_, "5%", "1,234", "3 s", 2j, 10**400, {}],
                      ValueError, f"the log, row 51: {column} = ", "must be a number")),
    *each(lambda value: read(f"step,loss\n10,3\n20,{value}\n"), ["true", "false", "True", "FALSE"],
          ValueError, "log, row 2: loss = {} must be a number"),
    *each(lambda value: read(f'{{"step": 10, "loss": 3}}\n{{"step": {value}, "loss": 2}}\n'),
          ["true", "false"], ValueError, "log, row 2: step = ", "must be a number"),
    (lambda: read(rows_of(step=[1], loss=[10**5000])), ValueError, "row 1: loss = int(...) must be a number"),
    *each(lambda value: read(rows_of(step=[1, value], loss=VALUES)), ["nan", "inf", "2.5", 2.5, -1, 2**31],
          ValueError, "row 2: step = ", "number of updates"),
    *each(lambda value: read_changed_row("lr", value), [-1, float("inf")], ValueError,
          "the log: lr = {}", "at step 2000 must be finite and not negative"),
    (lambda: read(rows_of(step=[1, 2], loss=[3, -2.0])), ValueError, "the log: losses[1] = -2.0", "positive"),
    (lambda: read(rows_of(step=[1, ""], loss=["", 1])), ValueError, "no finite loss after the first update"),
    (lambda: read(rows_of(step=[1], loss=[[3, 2]])), ValueError, "row 1: loss = [3, 2] must be a number"),
    *((call, UnclearLogError, *parts) for call, *parts in [
        (lambda: read(rows_of(Step=[1], loss=[3])), "no usual column for step among 'Step', 'loss'",
         "step=..."),
        (lambda: read(rows_of(step=[1], _step=[1], loss=[3])), "several columns for step, 'step', '_step'",
         "step=..."),
        (lambda: read(rows_of(step=[1], val_loss=[3])), "column for loss among 'step', 'val_loss'",
         "loss=..."),
        (lambda: read([*TWO, {"train_loss": 3}]), "several columns for loss, 'loss', 'train_loss'",
         "loss=..."),
        (lambda: read(TWO, step=3), "no column step = 3, only 'step', 'loss'"),
        (lambda: read(TWO, loss="los"), "no column loss = 'los', only 'step', 'loss'"),
        (lambda: read(TWO, CURVE, None), "no usual column for lr among 'step', 'loss': give the run's curve",
         "lr=..."),
        (lambda: read([{"step": 0, "lr": PEAK}, *TWO], CURVE, None),
         "no learning rate where the curve is above 0"),
        (lambda: read([row | {"learning_rate": 1} for row in LRS], None, None), "several",
         "'lr', 'learning_rate'"),
        (lambda: read(rows_of(step=[1], loss=[3], lr=[0.0]), None, None),
         "no learning rate above 0: give the run's"),
        (lambda: read(UNTIL_900, None, None),
         "learning rates only from step 20 to 900 of 1000: give the run's curve"),
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
    *each(lambda value: fit_losses(value), [None, 3, "run", [RUN, LOSSES]], TypeError,
          "must be a LossRun: write LossRun("),
    (lambda: fit_losses([]), ValueError, "there is no run whose learning rate falls"),
    (lambda: fit_losses(changed(RUN, LOSSES, slice(None, None, 3))), ValueError,
     "of 17 logged losses", "at least 20", "more often"),
    (lambda: fit_losses(changed(RUN, LOSSES, STEPS < 400)), ValueError, "no run whose", "a decay"),
    (lambda: fit_losses([STABLE, STABLE]), ValueError, "no run whose", "half its peak"),
    (lambda: fit_losses(NOISY), ValueError, "noise of 1.", "more than 1%", "validation loss"),
    (lambda: fit_losses(RISING), ValueError, "rises from ", "at step 700 to ",
     "while the learning rate does not"),
    (lambda: fit_losses(CONSTANT), ValueError, "its scale is 0", "longer run"),
    (lambda: fit_losses(STEPPED), ValueError, "law misses these losses by ", "first fast phase"),
    (lambda: fit_losses(LATE), ValueError,
     "learning rates before step 400 are missing: give the run's curve"),
    (lambda: fit_losses([RUN, OTHER_MODEL]), ValueError, "one model and one data set"),
    *each(lambda value: fit_losses([LossRun(CURVE, value, STEPS, LOSSES), RUN]), [1.00001e-3, 2e-3],
          ValueError, "several peaks, 0.001, 0.00", "fit the runs of each peak alone"),
    (lambda: fit_losses([AT_HALF, RUN]).predict(CURVE), ValueError, "several peak_value, 0.001, 0.002"),
    (lambda: FIT.losses(CURVE, [0]), ValueError, "steps = [0] must lie in 1 … total_steps = 1000"),
    (lambda: FIT.losses(CURVE, 1001), ValueError, "steps = 1001 must lie in 1"),
    (lambda: FIT.losses(CURVE, 1.5), TypeError, "steps = 1.5", "integers"),
    (lambda: FIT.compare([CURVE]), TypeError, "curves", "mapping"),
    (lambda: FIT.compare({}), ValueError, "no curve"),
    (lambda: FIT.plot([CURVE, 3], ax=1), TypeError, "curves[1] = 3 must be a Curve"),
]  # fmt: skip
# The same curves and peaks are rejected by every call.
FORECASTS: list[Callable[[Any, Any], Any]] = [
    lambda curve, peak: FIT.predict(curve, peak),
    lambda curve, peak: FIT.losses(curve, [5], peak),
    lambda curve, peak: FIT.compare({"a": curve}, peak),
    lambda curve, peak: FIT.plot(curve, peak_value=peak, ax=1),
]
FIT_ERRORS += [
    (partial(forecast, curve, peak), error, *parts)
    for forecast in FORECASTS
    for curve, peak, error, *parts in [
        (PlateauCurve(4001), None, ValueError, "4001 steps", "at most 4 times the 1000 steps", "log a"),
        (PlateauCurve(100), None, ValueError, "10 % of the run's steps", "in samples or tokens"),
        (CURVE, 1.51e-3, ValueError, "0.00151", "factor of 1.5 from that of the runs, 0.001"),
        (CURVE, 0.66e-3, ValueError, "0.00066", "factor of 1.5"),
        (CURVE, -1.0, ValueError, "no positive learning rate with peak_value = -1"),
        (CURVE, "high", TypeError, "peak_value = 'high' must be a number"),
        (ZERO, None, ValueError, "no positive learning rate"),
        (lambda step: 1.0, None, TypeError, "must be a Curve"),
    ]
]  # fmt: skip


@each_row([*RUN_ERRORS, *LOG_ERRORS, *FIT_ERRORS])
def test_errors(row: Row, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_error(row)


LONG = "many\nlines " * 1_000
NAMED = {"step": 1, "loss": 3, "lr": 1}
# Logs with a long column or cell, and the columns that are named.
LONG_LOGS: list[tuple[list[Any], dict[str, Any]]] = [
    ([NAMED | {"step": LONG}], {}),
    ([NAMED | {"step": "1" * 10_000}], {}),
    ([NAMED | {"loss": LONG}], {}),
    ([NAMED | {"lr": LONG}], {}),
    ([{LONG: 1}], {}),
    ([{f"{LONG}{number}": 1 for number in range(100)}], {}),
    ([{f"column {number}": 1 for number in range(10_000)}], {}),
    ([NAMED | {LONG: "x"}], {"step": LONG}),
    ([NAMED | {LONG: -1}], {"step": LONG}),
    ([NAMED | {LONG: "x"}], {"loss": LONG}),
    ([NAMED | {LONG: ""}], {"loss": LONG}),
    ([NAMED | {LONG: "x"}], {"lr": LONG}),
    ([NAMED | {LONG: -1}], {"lr": LONG}),
    ([NAMED], {"step": LONG}),
    ([NAMED], {"loss": LONG}),
]


@pytest.mark.parametrize(("log", "columns"), LONG_LOGS)
def test_messages_are_one_line_of_limited_length(log, columns) -> None:
    with pytest.raises(ValueError, match="the log") as caught:
        LossRun.read(log, **columns)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500


def test_values_at_the_limits_are_accepted() -> None:
    fit_losses([RUN, STABLE])  # a stable run next to one that decays
    fit_losses([LossRun(CURVE, PEAK * (1 + 9e-7), STEPS, LOSSES), RUN])
    FIT.predict(PlateauCurve(4000), 1.5e-3)
    FIT.predict(PlateauCurve(101))
    fit_losses(logged(CURVE, 30)).predict(PlateauCurve(4000))  # four times all steps, not the 990 of the log
