"""Questions to the design page: a wrong value gives a message with its path."""

import json
import math
import re
from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.damage import damage, removed, replaced_by
from support.design.design import request, served

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve
from plateau_jax.tools.design.answers import answer_request

# Valid questions.

_STABLE = PlateauCurve(1000, warmup_steps=50, plateaus=[(0, 70)], min_lr_ratio=0.1)
_STAGED = StagedCurve([(50, 1.0), (600,), (0, 0.5), (350, 0.1, "exponential")])
_BATCH_PLAN = BatchPlan([(0, 8), (800, 16)])
_STEPS = list(range(20, 1001, 20))


def _run(curve, lrs_from):
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


_WRITTEN = {
    "kind": "plateau",
    "total_steps": "1e3",
    "warmup_steps": "5%",
    "plateaus": [[10, 20]],
    "decay_shape": "1-x^2",
}
_DERIVED = _STABLE.cooldown(500, 100, to=0.01).then(_STAGED.part(10, 800), scale=0.5)
_SCALED = _BATCH_PLAN.scale(_STAGED, 4, reference=16)
_CURVES = [
    _WRITTEN,
    {**_STABLE.to_dict()},
    {**_STAGED.to_dict()},
    {**_DERIVED.to_dict()},
    {**_SCALED.to_dict()},
]
_ENTRIES = [{"curve": curve, "peak": "1e-3"} for curve in _CURVES]
RUN = _run(_CURVES[1], None)
"""The values of a run that can be fitted."""


def in_base64(text):
    """Return the content of a log, as the page sends it."""
    return b64encode(text.encode()).decode()


def _csv():
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


def _questions():
    page = {"curves": [_ENTRIES[0]], "step": None, "runs": [RUN]}
    undescribed = {
        "curves": [_ENTRIES[1], _ENTRIES[2]],
        "describe": False,
        "runs": [RUN, _run(_CURVES[0], 20)],
    }
    columns = {"step": "step", "loss": "loss", "lr": "lr"}
    questions = [
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


def body_of(question):
    """Return the body of a request, with each run as JSON text."""
    runs = question.get("runs")
    if isinstance(runs, list):
        texts = []
        for run in runs:
            if isinstance(run, dict):
                run = json.dumps(run)
            texts.append(run)
        question = {**question, "runs": texts}
    return json.dumps(question).encode()


@pytest.fixture(scope="module")
def server():
    with served() as server:
        yield server


@pytest.mark.parametrize(("path", "question"), QUESTIONS)
def test_questions_are_answered(path, question):
    assert '"fault":' not in json.dumps(answer_request(path, body_of(question)))


# Wrong values are named by their path.


def check_rejected(server, path, question, message):
    reply = request(server, "POST", path, body_of(question))
    assert reply.status == 400
    assert reply.json["error"].startswith(message)


@pytest.fixture(autouse=True)
def silence(capfd):
    """Check that nothing is printed in the terminal."""
    yield
    assert capfd.readouterr() == ("", "")


def deep_list():
    """Return 100 lists, one in the other."""
    nested = []
    for _ in range(100):
        nested = [nested]
    return nested


def stages(count):
    return {"kind": "staged", "stages": [[1, 0.5]] * count}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"curves": None}, "curves is missing"),
        ({"curves": 5}, "curves = 5 must be a list"),
        ({"curves": {}}, "curves = {} must be a list"),
        ({"curves": [{}, 5]}, "curves[1] = 5 must be an object"),
        ({"curves": [{}] * 13}, "curves has 13 items; the page takes at most 12"),
        ({"curves": [{"curve": deep_list()}]}, "this is nested more than 100 deep"),
        ({"describe": "no"}, "describe = 'no' must be true or false"),
        ({"step": 0.5}, "step = 0.5 must be an integer"),
        ({"step": True}, "step = True must be an integer"),
        ({"step": -1}, "step = -1 must be at least 0"),
        ({"step": "5\n" * 10_000}, "step = '5\\n5\\n5\\n"),
        ({"runs": 5}, "runs = 5 must be a list"),
        ({"runs": [None]}, "runs[0] = None must be a string"),
        ({"runs": ["{"]}, "runs[0]: this is not JSON: "),
        ({"runs": ["[" * 200_000]}, "runs[0]: this is not JSON: maximum recursion depth"),
        ({"runs": ["3"]}, "runs[0]: this must be a JSON object"),
        ({"runs": ["{}"]}, "runs[0].name is missing"),
        ({"runs": ["{}"] * 65}, "runs has 65 items; the page takes at most 64"),
    ],
)
def test_wrong_values_of_a_page(server, fields, message):
    check_rejected(server, "/page", {"curves": [], **fields}, message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": 5}, ".name = 5 must be a string"),
        ({"name": deep_list()}, ": this is nested more than 100 deep"),
        ({"curve": None}, ".curve is missing"),
        ({"curve": []}, ".curve = [] must be an object"),
        ({"curve": {}}, ".curve.kind is missing"),
        (
            {"curve": {"kind": "staged", "stages": [[9, 5]]}},
            ".curve.stages[0].to = 5 must lie in [0, 1]",
        ),
        ({"curve": stages(100_003)}, ".curve: this curve has 100003 stages"),
        ({"peak": "high"}, ".peak = 'high' must be a number"),
        ({"steps": "1"}, ".steps = '1' must be a list"),
        ({"steps": []}, ": there are no logged losses"),
        ({"steps": [1]}, ": steps has length 1, and losses 50"),
        ({"steps": [[1], 2]}, ".steps = [[1], 2] must be a sequence of integers"),
        ({"losses": [3.0, True]}, ".losses[1] = True must be a number"),
        ({"losses": [3.0, float("nan")]}, ".losses[1] = nan must be finite and positive"),
        ({"losses": [3.0, 1e300]}, ".losses[1] = 1e+300 must be finite and positive"),
        ({"lrs_from": 0.5}, ".lrs_from = 0.5 must be an integer"),
    ],
)
def test_wrong_values_of_a_run(server, values, message):
    """The second of two runs has them."""
    question = {"curves": [], "runs": [RUN, {**RUN, **values}]}
    check_rejected(server, "/page", question, f"runs[1]{message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 5}, "name = 5 must be a string"),
        ({"content": ["step"]}, "content = ['step'] must be a string"),
        ({"columns": 5}, "columns = 5 must be an object"),
        ({"columns": {"loss": 5}}, "columns.loss = 5 must be a string"),
        ({"curve": "curve"}, "curve = 'curve' must be an object"),
        ({"curve": {"kind": "plateau", "total_steps": 0}}, "curve.total_steps = 0 must lie in 1"),
        (
            {"curve": {"kind": "plateau", "total_step": 5}},
            "curve: 'total_step' is not an argument of PlateauCurve",
        ),
        (
            {"curve": stages(5001)},
            "curve: this curve has 5001 stages, plateaus and batches; this page takes at most 5000",
        ),
        ({"curve": {"kind": "plateau", "total_steps": 5}}, "peak = None must be a number"),
    ],
)
def test_wrong_values_of_a_log(server, fields, message):
    log = {"name": "log.csv", "content": in_base64("step,loss\n1,3\n")}
    check_rejected(server, "/log", {**log, **fields}, message)


def test_log_without_a_name(server):
    check_rejected(server, "/log", {"content": ""}, "name is missing")


# Any change of a valid question.


def _nested(depth):
    value = 1
    for _ in range(depth):
        value = {"curve": [value]}
    return value


def _losses_of_scale(scale):
    """Return as many numbers as a run has losses."""
    return [scale * (1 + 1 / step) for step in _STEPS]


def _steps_times(factor):
    return [factor * step for step in _STEPS]


def _stages(count):
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


def _added(name, value):
    """Return the change that adds an entry to an object, or an item to a list."""

    def added(holder):
        if isinstance(holder, dict):
            return {**holder, name: value}
        return [value, *holder]

    return added


_changes = st.one_of(_values.map(replaced_by), st.just(removed), st.builds(_added, _names, _values))


@st.composite
def changed_questions(draw):
    """Draw the path and the body of a question with one to three changes, also in its runs."""
    path, valid = draw(st.sampled_from(QUESTIONS))
    question = json.loads(json.dumps(valid))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        damage(draw, question, _changes)
    return path, body_of(question)


BEGINNINGS = {
    "/page": r"(curves|describe|step|runs)\b|this is nested",
    "/log": r"(name|content|curve|peak|columns)\b|this is nested",
}
"""How a message begins: with a field of the question, which may be nested too deeply."""


@given(changed_questions())
def test_any_change_is_answered_or_rejected(changed):
    path, body = changed
    try:
        answer = answer_request(path, body)
    except (TypeError, ValueError) as error:
        message = str(error)
        assert re.match(BEGINNINGS[path], message), message
        assert message.isprintable()
        assert len(message) < 1000
    else:
        json.dumps(answer, allow_nan=False)
