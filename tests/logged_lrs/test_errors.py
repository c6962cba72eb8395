"""Logs without learning rates that can be compared: errors name the place and the argument."""

import re

import numpy as np
import pandas as pd
import pytest
from logged_lrs.logs import rows_of
from support.curves.requirements import A_NUMBER
from support.raises import raises

from plateau_jax import BatchPlan, PlateauCurve, compare_log

CURVE = PlateauCurve(1_000, warmup_steps=50)
PEAK = 1e-3
STEPS = range(0, 1_000, 20)
ROWS = rows_of(step=STEPS, lr=CURVE.learning_rate(STEPS, PEAK))


def compare_rows(rows, **columns):
    return compare_log(rows, CURVE, PEAK, **columns)


@pytest.mark.parametrize("source", [3, {"step": [1]}, iter(["step,lr"]), pd.Series([1])])
@raises(TypeError, "must be a path, a pandas data frame, or a list of dictionaries")
def test_source_without_rows(source):
    compare_rows(source)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "log has no rows"),
        ("\n\n", "log has no rows"),
        ("[1, 2]\n", "log has no rows"),
        ('{"step": [\n', "log has no rows"),
        ("training\nhas ended\n", "log has no rows"),
        ("step,lr\n", "log has no rows"),
        ("step,lr\n1,2,3\n", "log has no rows"),
        ("step,lr, lr\n1,3,3\n", "log has several columns named 'lr'"),
        ("step,lr\n1,n/a\n", f"log, line 2: lr = 'n/a' {A_NUMBER}"),
        ("epoch 1 lr 3e-4\n", "log has no usual column for step among 'epoch', 'lr'"),
        ("step 1: lr 0,00015\n", "line 1: lr = '0,00015' must be a number: write it without sep"),
        ("step 900: lr 1\nstep 1,000: lr 1\n", "line 2: step = '1,000' must be a number: write it"),
    ],
)
def test_text_that_is_not_a_log(tmp_path, text, problem):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(problem)):
        compare_rows(path)


def test_learning_rates_of_two_runs():
    two_runs = [{**row, "lr": lr} for row in ROWS for lr in (row["lr"], 1.0)]
    message = "the log has 100 learning rates at 50 steps: keep those of one rank or run"
    with raises(ValueError, message, unchanged=[ROWS]):
        compare_rows(two_runs)


def test_wrong_cell():
    """In the last row."""

    def compare_with_last_row(**cells):
        compare_rows([*ROWS, {"step": 1_000, "lr": 0.0, **cells}])

    for lr in ("true", True, "1,234", 2j, 10**400, {}):
        with raises(ValueError, "the log, row 51: lr = ", A_NUMBER):
            compare_with_last_row(lr=lr)
    for lr in (-1, np.inf):
        with raises(ValueError, f"the log, row 51: lr = {lr}", "must be finite and not negative"):
            compare_with_last_row(lr=lr)
    for step in (2.5, -1, 2**31):
        with raises(ValueError, "row 51: step = ", "number of updates"):
            compare_with_last_row(step=step)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"epoch": [1], "lr": [3]}, "no usual column for step among 'epoch', 'lr': name one with"),
        ({"step": [1], "applied": [1], "lr": [3]}, "several columns for step, 'step', 'applied'"),
        ({"step": [1], "loss": [3]}, "for lr among 'step', 'loss': name one with lr=, or in a"),
        ({"step": [1], "lr": [3], "learning_rate": [3]}, "several columns for lr, 'lr', 'learning"),
        ({"step": [1], "lr": [None]}, "the log has no learning rates"),
    ],
)
def test_log_that_does_not_suffice(columns, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        compare_rows(rows_of(**columns))


@raises(ValueError, "no column lr = 'lrs', only 'step', 'lr'")
def test_misspelled_name_of_a_column():
    compare_rows(ROWS, lr="lrs")


LONG = "many\nlines " * 1_000


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"step": LONG, "lr": 1}, {}),
        ({f"{LONG}{number}": 1 for number in range(100)}, {}),
        ({"step": 1, LONG: "x"}, {"lr": LONG}),
        ({"step": 1, LONG: -1}, {"lr": LONG}),
        ({"step": 1, "lr": 1}, {"lr": LONG}),
    ],
)
def test_messages_are_one_line_of_limited_length(row, columns):
    with pytest.raises(ValueError, match="the log") as caught:
        compare_rows([row], **columns)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500


@raises(ValueError, "peak_value = 0 must be positive")
def test_peak_of_zero():
    compare_log(ROWS, CURVE, 0)


@raises(
    ValueError, "curve is from BatchPlan.scale: a step is 1 samples or tokens, but a log counts"
)
def test_curve_that_counts_samples():
    plan = BatchPlan([(0, 1), (400, 2)])
    compare_log(ROWS, plan.scale(CURVE, 1, reference=2), PEAK)
