"""Questions to the design page: valid ones, and ones in which any JSON value was changed."""

import json
import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve

_STABLE = PlateauCurve(1000, warmup_steps=50, plateaus=[(0, 70)], min_lr_ratio=0.1)
_STAGED = StagedCurve([(50, 1.0), (600,), (0, 0.5), (350, 0.1, "exponential")])
_STEPS = list(range(20, 1001, 20))
_LOSSES = [2.5 + 2 / math.sqrt(step) for step in _STEPS]


def _run(curve: dict[str, Any], lrs_from: int | None) -> dict[str, Any]:
    """Return the values of a run, which a question has as JSON text."""
    losses = np.round(np.array(_LOSSES) + 0.1 * _STABLE(_STEPS), 5).tolist()
    arguments = {"curve": curve, "peak": 1e-3, "steps": _STEPS, "losses": losses}
    return {"name": "log.csv", "lrs_from": lrs_from, **arguments}


_CURVES: list[dict[str, Any]] = [
    {"total_steps": "1e3", "warmup_steps": "5%", "plateaus": [[10, 20]], "decay_shape": "1-x^2"},
    {**_STABLE.to_dict()},
    {**_STAGED.to_dict()},
    {**_STABLE.cooldown(500, 100, to=0.01).then(_STAGED.part(10, 800), scale=0.5).to_dict()},
    {**BatchPlan([(0, 8), (800, 16)]).scale(_STAGED, 4, reference=16).to_dict()},
]
_ENTRIES: list[dict[str, Any]] = [{"curve": curve, "peak": "1e-3"} for curve in _CURVES]
RUN = _run(_CURVES[1], None)
"""The values of a run that can be fitted."""
_CSV = "step,loss,lr\n" + "".join(f"{step},{4 - step / 1000},{1 / step}\n" for step in _STEPS)
_JSON_LINES = '{"step": 0, "loss": 0, "lr": [1.0]}\n{"step": 9, "loss": 3, "lr": [0.5]}\n'
_COLUMNS = {"step": "step", "loss": "loss", "lr": "lr"}

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("/page", {"curves": [entry], "describe": True, "step": 5, "runs": []}) for entry in _ENTRIES),
    ("/page", {"curves": [_ENTRIES[1], _ENTRIES[2]], "describe": False, "runs": [RUN, _run(_CURVES[0], 20)]}),
    ("/page", {"curves": [_ENTRIES[0]], "step": None, "runs": [RUN]}),
    ("/log", {"name": "log.csv", "text": _CSV, "columns": _COLUMNS, "curve": None, "peak": None}),
    ("/log", {"name": "log.jsonl", "text": _JSON_LINES}),
    *(("/log", {"name": "log.csv", "text": _CSV, "columns": {}, **entry}) for entry in _ENTRIES),
]
"""The path and the values of valid questions. Their runs are still to be written as JSON text."""


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"curve": [value]}
    return value


def _series(scale: float) -> list[float]:
    """Return as many numbers as a run has losses."""
    return [scale * (1 + 1 / step) for step in _STEPS]


_NUMBERS = [0, -1, 1, 2**31 - 1, 2**31, 2**63, 10**400, -(10**400), 1e300, -1e300, 5e-324, 1e-38]
_NOT_FINITE = [math.nan, math.inf, -math.inf]
_TEXTS = ["", "5%", "rest", "1e400", "1e-99999", "-0", "nan", "\ud800", "\0", "9" * 5000, "x\n" * 50_000]
_SHAPES = ["linear", "exponential", "1-x^2", "t^-0.5", "t^-1e9", "1-x^" + "9" * 5000]
_KINDS = ["staged", "cooldown", "then", "part", "scaled", "oval"]
_NAMES = ["kind", "curve", "other", "stages", "total_steps", "peak", "steps", "lr", "x", ""]
_LEAVES = st.one_of(
    st.sampled_from([None, True, False]),
    st.sampled_from(_NUMBERS) | st.sampled_from(_NOT_FINITE),
    st.integers() | st.floats() | st.integers(0, 2000) | st.floats(0, 1),
    st.sampled_from(_TEXTS) | st.sampled_from(_SHAPES) | st.sampled_from(_KINDS),
    st.text(st.characters(exclude_categories=())),
)
_VALUES = st.one_of(
    _LEAVES,
    st.just(()).map(list[Any]),
    st.just(()).map(dict[str, Any]),
    st.lists(_LEAVES, max_size=4),
    st.lists(st.lists(_LEAVES, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(_NAMES) | st.text(), _LEAVES, max_size=4),
    st.integers(1, 100).map(_nested),
    st.sampled_from([5e-324, 1e-300, 1e-30, 1e30, 1e154, 1e300, 1.5e308]).map(_series),
    st.sampled_from([1, 2, 40_000_000]).map(lambda factor: [factor * step for step in _STEPS]),
    st.integers(60, 6000).map(lambda count: [[1, 0.5] for _ in range(count)]),
)


@dataclass(frozen=True)
class _Place:
    """A key of an object, or an index of a list."""

    holder: Any
    key: Any


def _place_in(draw: st.DrawFn, question: dict[str, Any]) -> _Place:
    """Draw a place at any depth; in an empty object or list, a new one."""
    value: Any = question
    while True:
        place = _Place(value, draw(st.sampled_from(_keys_of(value))))
        if not _is_container(place) or draw(st.integers(0, 3)) == 0:
            return place
        value = value[place.key]


def _keys_of(holder: Any) -> list[Any]:
    if isinstance(holder, dict):
        return list(cast("dict[str, Any]", holder)) or ["x"]
    return list(range(len(holder))) or [0]


def _is_container(place: _Place) -> bool:
    """Return True if the value at a place is an object or a list."""
    if not place.holder:
        return False
    value: Any = place.holder[place.key]
    return isinstance(value, dict | list)


def _change(draw: st.DrawFn, place: _Place) -> None:
    """Replace the value at a place, delete it, or add one next to it."""
    holder = place.holder
    action = draw(st.sampled_from(["replace", "delete", "add"]))
    if action == "delete" and holder:
        del holder[place.key]
    elif action == "replace" and holder:
        holder[place.key] = draw(_VALUES)
    elif isinstance(holder, list):
        holder.insert(place.key, draw(_VALUES))
    else:
        holder[draw(st.sampled_from(_NAMES) | st.text())] = draw(_VALUES)


@st.composite
def changed_questions(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw the path and the body of a question with one to three changes, also in its runs."""
    path, valid = draw(st.sampled_from(QUESTIONS))
    question = json.loads(json.dumps(valid))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        _change(draw, _place_in(draw, question))
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
