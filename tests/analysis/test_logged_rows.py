"""Logs of resumed and of diverged runs: what is left out, and logs that are in no order of training."""

import csv
import json
import math
import random
import re
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, strategies as st
from support.examples import examples

from plateau_jax import CurveWarning, LossRun, PlateauCurve

CURVE, PEAK = PlateauCurve(10_000), 1e-3
STEPS = list(range(20, 2001, 20))
ROWS = [{"step": step, "loss": 4 - step / 10_000, "lr": PEAK * CURVE(step)} for step in STEPS]


def lr_row(step: int) -> dict[str, float]:
    return {"step": step, "lr": PEAK * CURVE(step), "loss": 3.0}


def as_text(row: dict[str, float]) -> str:
    return str(row["step"])


def without_loss(row: dict[str, float]) -> dict[str, float]:
    return {"step": row["step"], "lr": row["lr"]}


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
    """A row stays if no later one has its step or a lower one: its loss and its learning rate."""
    kept = [row for i, row in enumerate(rows) if all(row["step"] < later["step"] for later in rows[i + 1 :])]
    replaced = [row["step"] for row in rows if row not in kept]
    if is_split:
        cells = [(row["step"], name, row[name]) for row in rows for name in ("lr", "loss") if name in row]
        rows = [{"step": step, name: value} for step, name, value in cells]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = LossRun.read(rows)
    assert [warning.filename for warning in caught] == [__file__] * bool(replaced)
    if replaced:
        match = re.search(r": (\d+) earlier loss.* left out, at .*?(\d+)(.* (\d+))?$", str(caught[0].message))
        assert match
        assert tuple(map(int, (match[1], match[2], match[4] or match[2]))) == (
            len(replaced), min(replaced), max(replaced),
        )  # fmt: skip
    assert run.steps.tolist() == [row["step"] for row in kept[1:]]
    assert run.losses.tolist() == [row["loss"] for row in kept[1:]]
    for row in kept:
        assert run.peak_value * run.curve(row["step"]) == pytest.approx(row["lr"], rel=1e-5)


@pytest.mark.parametrize("factor", [1, 2])
def test_learning_rates_that_were_logged_again_are_named(factor) -> None:
    """Between two losses; if they are the same, nothing is lost."""
    rows = [row if row["step"] % 100 == 0 else without_loss(row) for row in ROWS]
    again = [row | {"lr": factor * row["lr"]} for row in map(without_loss, rows[-4:-1])]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = LossRun.read([*rows[:-1], *again, rows[-1]])
    message = "the log repeats steps, as the log of a resumed run does: 3 earlier learning rates are left out"
    assert [str(warning.message) for warning in caught] == [f"{message}, at the steps 1940, 1960, 1980"] * (
        factor - 1
    )
    assert run.peak_value * run.curve(1960) == pytest.approx(factor * rows[97]["lr"])
    assert run.steps.tolist() == list(range(100, 2001, 100))


def test_late_evaluations_are_no_resumed_run() -> None:
    """Nor learning rates that are logged with the losses of training and of validation."""
    late = [row for step in STEPS for row in (lr_row(step), {"step": step - 60, "val_loss": 3.0})]
    both = [row for step in STEPS for row in (lr_row(step), lr_row(step) | {"val_loss": 3.0})]
    for rows, steps in [(late, STEPS[:-3]), (both, STEPS)]:
        assert LossRun.read(rows, CURVE).steps.tolist() == steps


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[::-1], "steps from the last to the first: they go back in 99 of 99 changes"),
        (ROWS[:2][::-1], "steps from the last to the first: they go back in 1 of 1 changes"),
        ([lr_row(row["step"]) for row in ROWS[::-1] for _ in range(3)], "steps from the last to the first"),
        (random.Random(0).sample(ROWS, 100), "steps not in the order of training: .*; sort the rows by step"),
        (random.Random(1).sample(ROWS[:20], 20), "steps not in the order of training"),
        (sorted(ROWS[4:], key=as_text), "steps not in the order of training"),
        (sorted(ROWS[4:50:5], key=as_text), "steps not in the order of training: they go back in 1 of 9"),
        (sorted(ROWS, key=as_text), "steps not in the order of training"),
        (sorted([*ROWS, *map(without_loss, ROWS)], key=as_text), "steps not in the order of training"),
    ],
)
def test_rows_in_another_order_are_rejected(rows, message) -> None:
    with pytest.raises(ValueError, match=message):
        LossRun.read(rows, CURVE, PEAK)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("steps", [STEPS, STEPS[10:25], STEPS[::9]])
def test_several_losses_per_step_are_rejected(steps, count) -> None:
    """Such as those of ranks, micro-batches, splits in one column, or two runs: the last is not theirs."""
    rows = [lr_row(step) | {"loss": 3 + k} for step in steps for k in range(count)]
    with pytest.raises(ValueError, match=f"the log has {count} losses at each step: keep those of one split"):
        LossRun.read(rows, CURVE, PEAK)
    half = [row for i, row in enumerate(rows) if i % (2 * count) < count + 1]
    with pytest.raises(ValueError, match=rf"{count} losses at \d+ of {len(steps)} steps: keep those of one"):
        LossRun.read(half, CURVE, PEAK)
    equal = [row | {"loss": 3.0} for row in rows]
    assert LossRun.read(equal, CURVE, PEAK).steps.tolist() == steps


@pytest.mark.parametrize("repeated", [[99], [0, 3, 50, 51]])
def test_few_repeated_steps_were_logged_twice(repeated) -> None:
    rows = [
        row for i, row in enumerate(ROWS) for row in ([row | {"loss": 9.0}, row] if i in repeated else [row])
    ]
    are = "loss is" if len(repeated) == 1 else "losses are"
    with pytest.warns(
        CurveWarning, match=f"steps that were logged twice: {len(repeated)} earlier {are}"
    ) as caught:
        run = LossRun.read(rows, CURVE, PEAK)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.losses.tolist() == [row["loss"] for row in ROWS]


def write_csv(rows, path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


FORMS = {
    "rows": lambda rows, path: rows,
    "JSON": lambda rows, path: path.write_text(json.dumps(rows)) and path,
    "JSON lines": lambda rows, path: path.write_text("\n".join(map(json.dumps, rows))) and path,
    "CSV": lambda rows, path: write_csv(rows, path) or path,
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
    rows = [row | {"loss": wrong.get(index, row["loss"])} for index, row in enumerate(ROWS)]
    kept = [row for index, row in enumerate(ROWS) if index not in wrong]
    steps = [ROWS[index]["step"] for index in sorted(wrong)]
    count = rf"{len(wrong)} of 100 logged losses (is|are) not finite, at (the )?steps? {steps[0]}\b.*"
    with TemporaryDirectory() as folder:
        source = FORMS[form](rows, Path(folder, "log"))
        if len(wrong) > 5:
            with pytest.raises(ValueError, match=f"{count}; at most 5% may be left out"):
                LossRun.read(source, CURVE, PEAK)
            return
        with pytest.warns(CurveWarning, match=f"{count}, and (is|are) left out") as caught:
            run = LossRun.read(source, CURVE, PEAK)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.steps.tolist() == [row["step"] for row in kept]
    assert run.losses.tolist() == [row["loss"] for row in kept]


def test_divergence_before_a_resume_is_one_warning() -> None:
    """The run diverged after half its steps, and went back to a checkpoint."""
    diverged = [row | {"loss": math.nan} for row in ROWS[40:60]]
    with pytest.warns(CurveWarning, match="20 earlier losses are left out, at the steps 820, 840") as caught:
        run = LossRun.read([*ROWS[:40], *diverged, *ROWS[40:]], CURVE, PEAK)
    assert len(caught) == 1
    assert run.steps.tolist() == STEPS
