"""Requests that are not questions to the design page: a message with the path of the value."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from support.design.design import request, served
from support.design.questions import QUESTIONS, RUN, body_of, changed_questions, in_base64

from plateau_jax.design.answers import answer_request
from plateau_jax.design.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.mark.parametrize(("path", "question"), QUESTIONS)
def test_questions_are_answered(path: str, question: dict[str, Any]) -> None:
    assert "fault" not in json.dumps(answer_request(path, body_of(question)))


# Wrong values are named by their path.


def check_rejected(server: Server, path: str, question: dict[str, Any], message: str) -> None:
    reply = request(server, "POST", path, body_of(question))
    assert reply.status == 400
    assert reply.json["error"].startswith(message)


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Check that nothing is printed in the terminal."""
    yield
    assert capfd.readouterr() == ("", "")


def deep_list() -> list[Any]:
    """Return 100 lists, one in the other."""
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    return nested


def stages(count: int) -> dict[str, Any]:
    return {"stages": [[1, 0.5]] * count}


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
def test_wrong_values_of_a_page(server: Server, fields: dict[str, Any], message: str) -> None:
    check_rejected(server, "/page", {"curves": [], **fields}, message)


def test_page_without_curves(server: Server) -> None:
    check_rejected(server, "/page", {}, "curves is missing")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": 5}, ".name = 5 must be a string"),
        ({"name": deep_list()}, ": this is nested more than 100 deep"),
        ({"curve": None}, ".curve is missing"),
        ({"curve": []}, ".curve = [] must be an object"),
        ({"curve": {}}, ".curve.total_steps is missing"),
        ({"curve": {"stages": [[9, 5]]}}, ".curve.stages[0].to = 5 must lie in [0, 1]"),
        ({"curve": stages(100_003)}, ".curve: this curve has 100003 stages"),
        ({"peak": "high"}, ".peak = 'high' must be a number"),
        ({"steps": "1"}, ".steps = '1' must be a list"),
        ({"steps": []}, ": there are no logged losses"),
        ({"steps": [1]}, ": steps has 1 items and losses has 50"),
        ({"steps": [[1], 2]}, ".steps = [[1], 2] must be a sequence of integers"),
        ({"losses": [3.0, True]}, ".losses[1] = True must be a number"),
        ({"losses": [3.0, float("nan")]}, ".losses[1] = nan must be finite and positive"),
        ({"losses": [3.0, 1e300]}, ".losses[1] = 1e+300 must be finite and positive"),
        ({"lrs_from": 0.5}, ".lrs_from = 0.5 must be an integer"),
    ],
)
def test_wrong_values_of_a_run(server: Server, values: dict[str, Any], message: str) -> None:
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
        ({"curve": {"total_steps": 0}}, "curve.total_steps = 0 must lie in 1"),
        (
            {"curve": {"total_step": 5}},
            "curve: 'total_step' is not an argument of PlateauCurve",
        ),
        (
            {"curve": stages(5001)},
            "curve: this curve has 5001 stages, plateaus and batches; this page takes at most 5000",
        ),
        ({"curve": {"total_steps": 5}}, "peak = None must be a number"),
    ],
)
def test_wrong_values_of_a_log(server: Server, fields: dict[str, Any], message: str) -> None:
    log = {"name": "log.csv", "content": in_base64("step,loss\n1,3\n")}
    check_rejected(server, "/log", {**log, **fields}, message)


def test_log_without_a_name(server: Server) -> None:
    check_rejected(server, "/log", {"content": ""}, "name is missing")


def test_log_without_content(server: Server) -> None:
    check_rejected(server, "/log", {"name": ""}, "content is missing")


# Any change of a valid question.

BEGINNINGS = {
    "/page": r"(curves|describe|step|runs)\b|this is nested",
    "/log": r"(name|content|curve|peak|columns)\b|this is nested",
}
"""How a message begins: with a field of the question, which may be nested too deeply."""


@given(changed_questions())
def test_any_change_is_answered_or_rejected(changed: tuple[str, bytes]) -> None:
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


@given(changed_questions())
def test_server_survives_any_change(server: Server, changed: tuple[str, bytes]) -> None:
    path, body = changed
    reply = request(server, "POST", path, body)
    try:
        expected = answer_request(path, body)
    except (TypeError, ValueError) as error:
        assert reply.status == 400
        expected = {"error": str(error)}
    else:
        assert reply.status == 200
    assert reply.json == json.loads(json.dumps(expected))
