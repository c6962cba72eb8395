"""Requests that are not questions to the design page: a message with the path of the wrong value."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from support.design.design import request, served
from support.design.questions import QUESTIONS, RUN, body_of, changed_questions

from plateau_jax.design.answers import answer_request
from plateau_jax.design.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.mark.parametrize(("path", "question"), QUESTIONS)
def test_questions_are_answered(path, question) -> None:
    assert "fault" not in json.dumps(answer_request(path, body_of(question)))


def page(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/page", {"curves": [], **fields}


def run(**values: Any) -> tuple[str, dict[str, Any]]:
    """Return a question about two runs; the second one has these values."""
    return page(runs=[RUN, {**RUN, **values}])


def log(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/log", {"name": "log.csv", "text": "step,loss\n1,3\n", **fields}


def stages(count: int) -> dict[str, Any]:
    return {"stages": [[1, 0.5]] * count}


DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]
# A question, and its message.
REJECTED: list[tuple[tuple[str, dict[str, Any]], str]] = [
    (("/page", {}), "curves is missing"),
    (page(curves=None), "curves is missing"),
    (page(curves=5), "curves = 5 must be a list"),
    (page(curves={}), "curves = {} must be a list"),
    (page(curves=[{}, 5]), "curves[1] = 5 must be an object"),
    (page(curves=[{}] * 13), "curves has 13 items; the page takes at most 12"),
    (page(curves=[{"curve": DEEP}]), "this is nested more than 100 deep"),
    (page(describe="no"), "describe = 'no' must be true or false"),
    (page(step=0.5), "step = 0.5 must be an integer"),
    (page(step=True), "step = True must be an integer"),
    (page(step=-1), "step = -1 must be at least 0"),
    (page(step="5\n" * 10_000), "step = '5\\n5\\n5\\n"),
    (page(runs=5), "runs = 5 must be a list"),
    (page(runs=[None]), "runs[0] = None must be a string"),
    (page(runs=["{"]), "runs[0]: this is not JSON: "),
    (page(runs=["[" * 200_000]), "runs[0]: this is not JSON: maximum recursion depth"),
    (page(runs=["3"]), "runs[0]: this must be a JSON object"),
    (page(runs=["{}"]), "runs[0].name is missing"),
    (page(runs=["{}"] * 65), "runs has 65 items; the page takes at most 64"),
    (run(name=5), "runs[1].name = 5 must be a string"),
    (run(name=DEEP), "runs[1]: this is nested more than 100 deep"),
    (run(curve=None), "runs[1].curve is missing"),
    (run(curve=[]), "runs[1].curve = [] must be an object"),
    (run(curve={}), "runs[1].curve.total_steps is missing"),
    (run(curve={"stages": [[9, 5]]}), "runs[1].curve.stages[0].to = 5 must lie in [0, 1]"),
    (run(curve=stages(100_003)), "runs[1].curve: this curve has 100003 stages"),
    (run(peak="high"), "runs[1].peak = 'high' must be a number"),
    (run(steps="1"), "runs[1].steps = '1' must be a list"),
    (run(steps=[]), "runs[1]: there are no logged losses"),
    (run(steps=[1]), "runs[1]: steps has 1 items and losses has 50"),
    (run(steps=[[1], 2]), "runs[1].steps = [[1], 2] must be a sequence of integers"),
    (run(losses=[3.0, True]), "runs[1].losses[1] = True must be a number"),
    (run(losses=[3.0, float("nan")]), "runs[1].losses[1] = nan must be finite and positive"),
    (run(losses=[3.0, 1e300]), "runs[1].losses[1] = 1e+300 must be finite and positive"),
    (run(lrs_from=0.5), "runs[1].lrs_from = 0.5 must be an integer"),
    (("/log", {"text": ""}), "name is missing"),
    (("/log", {"name": ""}), "text is missing"),
    (log(name=5), "name = 5 must be a string"),
    (log(text=["step"]), "text = ['step'] must be a string"),
    (log(columns=5), "columns = 5 must be an object"),
    (log(columns={"loss": 5}), "columns.loss = 5 must be a string"),
    (log(curve="curve"), "curve = 'curve' must be an object"),
    (log(curve={"total_steps": 0}), "curve.total_steps = 0 must lie in 1"),
    (log(curve={"total_step": 5}), "curve: 'total_step' is not an argument of PlateauCurve"),
    (
        log(curve=stages(5001)),
        "curve: this curve has 5001 stages, plateaus and batches; this page takes at most 5000",
    ),
    (log(curve={"total_steps": 5}), "peak = None must be a number"),
]


@pytest.mark.parametrize(("question", "message"), REJECTED)
def test_wrong_values_are_named_by_their_path(question, message, server, capfd) -> None:
    path, values = question
    reply = request(server, "POST", path, body_of(values))
    assert reply.status == 400
    assert reply.json["error"].startswith(message)
    assert capfd.readouterr() == ("", "")


# How a message begins: with a field of the question, which may be nested too deeply.
BEGIN = {
    "/page": r"(curves|describe|step|runs)\b|this is nested",
    "/log": r"(name|text|curve|peak|columns)\b|this is nested",
}


@given(changed_questions())
def test_any_change_is_answered_or_rejected(changed) -> None:
    path, body = changed
    try:
        answer = answer_request(path, body)
    except (TypeError, ValueError) as error:
        message = str(error)
        assert re.match(BEGIN[path], message), message
        assert message.isprintable()
        assert len(message) < 1000
    else:
        json.dumps(answer, allow_nan=False)


@given(changed_questions())
def test_server_survives_any_change(server, changed) -> None:
    reply = request(server, "POST", *changed)
    status = 200
    try:
        answer = answer_request(*changed)
    except (TypeError, ValueError) as error:
        status = 400
        answer = {"error": str(error)}
    assert (reply.status, reply.json) == (status, json.loads(json.dumps(answer)))
