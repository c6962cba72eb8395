"""Questions to the design page: valid ones, and ones in which any JSON value was changed."""

import json
import math
from base64 import b64encode
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st
from support.damage import Change, damage, removed, replaced_by

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve

_STABLE = PlateauCurve(1000, warmup_steps=50, plateaus=[(0, 70)], min_lr_ratio=0.1)
_STAGED = StagedCurve([(50, 1.0), (600,), (0, 0.5), (350, 0.1, "exponential")])
_BATCH_PLAN = BatchPlan([(0, 8), (800, 16)])
_STEPS = list(range(20, 1001, 20))


def _run(curve: dict[str, Any], lrs_from: int | None) -> dict[str, Any]:
    """Return the values of a run, which a question has as JSON text."""
    losses = 2.5 + 2 / np.sqrt(_STEPS) + 0.1 * _STABLE(_STEPS)
    return {
        "name": "log.csv",
        "lrs_from": lrs_from,
        "curve": curve,
        "peak": 1e-3,
        "steps": _STEPS,
        "losses": np.round(losses, 5).tolist(),
    }


_WRITTEN: dict[str, Any] = {
    "total_steps": "1e3",
    "warmup_steps": "5%",
    "plateaus": [[10, 20]],
    "decay_shape": "1-x^2",
}
_DERIVED = _STABLE.cooldown(500, 100, to=0.01).then(_STAGED.part(10, 800), scale=0.5)
_SCALED = _BATCH_PLAN.scale(_STAGED, 4, reference=16)
_CURVES: list[dict[str, Any]] = [
    _WRITTEN,
    {**_STABLE.to_dict()},
    {**_STAGED.to_dict()},
    {**_DERIVED.to_dict()},
    {**_SCALED.to_dict()},
]
_ENTRIES: list[dict[str, Any]] = [{"curve": curve, "peak": "1e-3"} for curve in _CURVES]
RUN = _run(_CURVES[1], None)
"""The values of a run that can be fitted."""


def in_base64(text: str) -> str:
    """Return the content of a log, as the page sends it."""
    return b64encode(text.encode()).decode()


def _csv() -> str:
    lines = ["step,loss,lr\n"]
    for step in _STEPS:
        loss = 4 - step / 1000
        lines.append(f"{step},{loss},{1 / step}\n")
    return "".join(lines)


_CSV_LOG = {"name": "log.csv", "content": in_base64(_csv())}
_JSON_LINES = """\
{"step": 0, "loss": 0, "lr": [1.0]}
{"step": 9, "loss": 3, "lr": [0.5]}
"""
_JSON_LOG = {"name": "log.jsonl", "content": in_base64(_JSON_LINES)}


def _questions() -> list[tuple[str, dict[str, Any]]]:
    page: dict[str, Any] = {"curves": [_ENTRIES[0]], "step": None, "runs": [RUN]}
    undescribed: dict[str, Any] = {
        "curves": [_ENTRIES[1], _ENTRIES[2]],
        "describe": False,
        "runs": [RUN, _run(_CURVES[0], 20)],
    }
    columns = {"step": "step", "loss": "loss", "lr": "lr"}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("/page", page),
        ("/page", undescribed),
        ("/log", {**_CSV_LOG, "columns": columns, "curve": None, "peak": None}),
        ("/log", _JSON_LOG),
    ]
    for entry in _ENTRIES:
        described = {"curves": [entry], "describe": True, "step": 5, "runs": []}
        questions.append(("/page", described))
        questions.append(("/log", {**_CSV_LOG, "columns": {}, **entry}))
    return questions


QUESTIONS = _questions()
"""The path and the values of valid questions. Their runs are still to be written as JSON text."""


# Values to put into a question.


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"curve": [value]}
    return value


def _losses_of_scale(scale: float) -> list[float]:
    """Return as many numbers as a run has losses."""
    return [scale * (1 + 1 / step) for step in _STEPS]


def _steps_times(factor: int) -> list[int]:
    return [factor * step for step in _STEPS]


def _stages(count: int) -> list[list[float]]:
    return [[1, 0.5] for _ in range(count)]


_INTEGERS = [0, -1, 1, 2**31 - 1, 2**31, 2**63, 10**400, -(10**400)]
_FLOATS = [1e300, -1e300, 5e-324, 1e-38, math.nan, math.inf, -math.inf]
_SCALES = [5e-324, 1e-300, 1e-30, 1e30, 1e154, 1e300, 1.5e308]
_TEXTS = ["", "5%", "rest", "1e400", "1e-99999", "-0", "nan", "\ud800", "\0"]
_LONG_TEXTS = ["9" * 5000, "x\n" * 50_000]
_SHAPES = ["linear", "exponential", "1-x^2", "t^-0.5", "t^-1e9", "1-x^" + "9" * 5000]
_KINDS = ["staged", "cooldown", "then", "part", "scaled", "oval"]
_NAMES = ["kind", "curve", "other", "stages", "total_steps", "peak", "steps", "lr", "x", ""]
_any_text = st.text(st.characters(exclude_categories=()))
_names = st.sampled_from(_NAMES) | st.text()
_scalars = st.one_of(
    st.sampled_from([None, True, False]),
    st.sampled_from(_INTEGERS),
    st.sampled_from(_FLOATS),
    st.integers(),
    st.floats(),
    st.integers(0, 2000),
    st.floats(0, 1),
    st.sampled_from(_TEXTS),
    st.sampled_from(_LONG_TEXTS),
    st.sampled_from(_SHAPES),
    st.sampled_from(_KINDS),
    _any_text,
)
_lists = st.lists(_scalars, max_size=4)
_tables = st.lists(st.lists(_scalars, max_size=3), max_size=3)
_objects = st.dictionaries(_names, _scalars, max_size=4)
_values = st.one_of(
    _scalars,
    st.builds(list[Any]),
    st.builds(dict[str, Any]),
    _lists,
    _tables,
    _objects,
    st.integers(1, 100).map(_nested),
    st.sampled_from(_SCALES).map(_losses_of_scale),
    st.sampled_from([1, 2, 40_000_000]).map(_steps_times),
    st.integers(60, 6000).map(_stages),
)


def _added(name: str, value: Any) -> Change:
    """Return the change that adds an entry to an object, or an item to a list."""

    def added(holder: Any) -> Any:
        if isinstance(holder, dict):
            return {**cast("dict[str, Any]", holder), name: value}
        return [value, *holder]

    return added


_changes = st.one_of(_values.map(replaced_by), st.just(removed), st.builds(_added, _names, _values))


@st.composite
def changed_questions(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw the path and the body of a question with one to three changes, also in its runs."""
    path, valid = draw(st.sampled_from(QUESTIONS))
    question = json.loads(json.dumps(valid))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        damage(draw, question, _changes)
    return path, body_of(question)


def body_of(question: dict[str, Any]) -> bytes:
    """Return the body of a request, with each run as JSON text."""
    runs: Any = question.get("runs")
    if isinstance(runs, list):
        texts: list[Any] = []
        for run in cast("list[Any]", runs):
            if isinstance(run, dict):
                run = json.dumps(run)
            texts.append(run)
        question = {**question, "runs": texts}
    return json.dumps(question).encode()
