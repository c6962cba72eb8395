"""Messages of the design page: the constructors' own, in the page's words, next to their field."""

import copy
import re
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.design.answers import describe_curve, open_curves

PEAK = 3e-4
PLATEAUS = PlateauCurve(1_000, warmup_steps=100, plateaus=[(10, 30)], absolute_plateaus=[(700, 50)])
STAGED = StagedCurve([(100, 1.0), (800,), (100, 0.1, "1-sqrt")])
CURVES = [PLATEAUS, STAGED, PLATEAUS.cooldown(600, 100), STAGED.then(PLATEAUS, scale=0.5)]

PYTHON = re.compile(
    r"\w_\w|\*\*|//|=\S|\S=|\]\s=|\(\d|'|\b(None|True|False|nan|inf|tuple|argument|integer|sequence|mapping|"
    r"float|float32|to_dict|[A-Z]\w*Curve)\b"
)
"""What only Python users write."""

_controls = "".join(
    file.read_text() for file in (files("plateau_jax.design") / "page").iterdir() if file.name.endswith(".js")
)
(_labels,) = re.findall(r"const LABELS = \{(.*?)\};", _controls, re.DOTALL)
LABELS = set(re.findall(r"(\w+): \"", _labels))


def assert_in_page_words(text: str) -> None:
    assert set(re.findall(r"\{(\w+)\}", text)) <= LABELS, text
    plain = re.sub(r"\{\w+\}|“.*?”", "", text)  # what the user typed stays
    assert not PYTHON.search(plain), text


# What the fields of the page can hold: numbers, other text, or nothing.
_typed = (
    st.none()
    | st.integers(-5, 2**33)
    | st.floats(-2, 1e12, allow_nan=False).map(lambda value: int(value) if value.is_integer() else value)
    | st.sampled_from(["abc", "it's", "5%", "-1%", "rest", "1e999", "1-x^50", "1-x^", "exponential", "t^-9"])
)


@given(st.sampled_from(CURVES), st.data())
def test_typed_values_get_page_words(curve, data):
    question: Any = {"curve": copy.deepcopy(curve.to_dict()), "peak": PEAK}
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = question, "curve"
        while isinstance(holder[key], dict | list) and holder[key]:
            holder = holder[key]
            names = (
                [name for name in holder if name != "kind"]
                if isinstance(holder, dict)
                else range(len(holder))
            )
            key = data.draw(st.sampled_from(names))
        holder[key] = data.draw(_typed)
    answer = describe_curve(question)
    messages = answer.get("advice", [answer.get("fault")])
    for message in messages:
        assert_in_page_words(message["message"])
        curve_of_field = question["curve"]
        for name in message["path"]:
            curve_of_field = curve_of_field[name]
        assert message["field"] is None or message["field"] in {**curve_of_field, "peak": PEAK}


SHARE = {"total_steps": 9, "min_lr_ratio": 3e-5}
START = {"total_steps": 9, "warmup_steps": 3, "init_lr_ratio": 3e-5}
LOW, ZERO = {"stages": [[9, 3e-4], [9, 0]]}, {"stages": [[9], [9, 0]]}
FRACTIONS = {"total_steps": 1000, "plateaus": [[0, 0.5]]}
SHORT = {"total_steps": 1000, "plateaus": [[10, 0.01]]}
LATE = {"kind": "cooldown", "curve": {"total_steps": 9}, "at": 20, "steps": 5}
PERCENT = {"total_steps": 100, "warmup_steps": "0.1%"}


@pytest.mark.parametrize(
    ("arguments", "field", "begin", "end"),
    [
        (SHARE, "min_lr_ratio", "{min_lr_ratio}: 3e-05 looks like", "final learning rate of 3e-05 type 0.1"),
        (START, "init_lr_ratio", "{init_lr_ratio}: 3e-05 looks", "initial learning rate of 3e-05 type 0.1"),
        (LOW, "stages", "The levels look like learning rates", "fractions of the peak. For 0.0003 type 1"),
        (ZERO, "start", "The curve is 0 at every step", "To begin at the peak type 1"),
        (FRACTIONS, "plateaus", "The plateaus look like", "For fractions type start 0, length 50"),
        (SHORT, "plateaus", "The plateaus have lengths", "or a plateau in steps: start 100, length 1"),
        (LATE, "at", "The cooldown at step 20", "Begin it at a step at which the curve is above 0"),
        (PERCENT, "warmup_steps", "{warmup_steps}: “0.1%” of 100 steps", "or a number of steps"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_warnings_stand_at_their_field(arguments, field, begin, end, is_nested):
    path = ()
    if is_nested and arguments is not PERCENT:
        arguments, path = {"kind": "then", "curve": PLATEAUS.to_dict(), "other": arguments}, ("other",)
    (advice,) = describe_curve({"curve": arguments, "peak": PEAK})["advice"]
    message = advice.pop("message")
    assert advice == {"path": path, "field": field, "index": None, "cell": None}
    assert message.startswith(begin)
    assert message.endswith(end)
    assert_in_page_words(message)


@pytest.mark.parametrize(
    ("cells", "cell", "message"),
    [
        ([None, 5], 0, "Start is empty: it must be a number"),
        ([5, None], 1, "Length is empty: it must be a number"),
        ([5, "x"], 1, "Length: “x” must be a number"),
        ([5, 200], None, "Start and length must lie between 0 and 100 %; in steps: start 5, length 200"),
        ([1e99, 20], None, "Start and length must lie between 0 and 100 %"),
    ],
)
def test_fault_of_a_row_names_its_cell(cells, cell, message):
    fault = describe_curve({"curve": {"total_steps": 9, "plateaus": [cells]}, "peak": PEAK})["fault"]
    expected = {"message": message, "path": (), "field": "plateaus", "index": 0, "cell": cell}
    assert fault == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", "{}", '{"kind": "oval"}', '{"total_steps": null}', '{"total_steps": true}'),
        *('{"total_step": 3}', '{"total_steps": 600.5}', '{"total_steps": 9, "warmup_steps": 0.5}'),
        *('{"total_steps": 9, "plateaus": 5}', '{"total_steps": 9, "plateaus": [[3, 200]]}'),
        *('{"total_steps": 9, "plateaus": [50, 30]}', '{"stages": 5}', '{"stages": [[1, 2]]}'),
        *('{"stages": [["50%", 1]]}', '{"stages": [5]}', '{"total_steps": 9, "derived": 5}'),
    ],
)
def test_opened_text_gets_words_of_json(text):
    message = open_curves({"text": text})["fault"]
    assert not PYTHON.search(re.sub(r"“.*?”", "", message)), message


def test_python_messages_are_as_before():
    with pytest.raises(ValueError, match=r"^warmup_steps = 9 must lie in 0 … total_steps - 1 = 8"):
        Curve.from_dict({"total_steps": 9, "warmup_steps": 9})
