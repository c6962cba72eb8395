"""Lengths as percentages of `total_steps`, and `"rest"`: the same curves as those written in steps."""

import copy
import dataclasses
import inspect
import pickle
import warnings
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import MAX_STEP, arguments, magnitudes
from support.rejections import rejects

from plateau_jax import Curve, CurveWarning, PlateauCurve, Stage, StagedCurve

randoms = st.randoms(use_true_random=False)


def _rounded_down(percentage, total):
    """Return the steps that a percentage is, in decimals of 200 digits."""
    with localcontext(prec=200):
        return int((Decimal(percentage) * total / 100).to_integral_value(ROUND_FLOOR))


def _percentage(steps, total, random):
    """Return a percentage that rounds down to these steps."""
    with localcontext(prec=200):
        least, above = (Decimal(100) * count / total for count in (steps, steps + 1))
        inside = least + (above - least) * random.choice([0, random.randrange(1000)]) / 1000
        digits = random.randrange(10, 20)
        number = min(inside.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING), Decimal(100))
        assert least <= number < above
        text = random.choice([str, "{:f}".format, "{:e}".format, lambda it: str(it.normalize())])(number)
    return random.choice(["{}%", "{} %", " {}% ", "+{}%"]).format(text)


def _as_shares(stages, total, random):
    """Return stages of the same lengths, some of them percentages, and at most one of them the rest."""
    written = list(stages)
    for index, (steps, *level) in enumerate(stages):
        if random.random() < 0.5:
            stage = (_percentage(steps, total, random), *level)
            written[index] = random.choice([tuple, list, lambda items: Stage(*items)])(stage)
    if random.random() < 0.7:
        index = random.randrange(len(stages))
        written[index] = ("rest", *stages[index][1:])
    return random.choice([list, tuple, iter])(written)


def _is_same(curve, other):
    assert type(curve) is type(other)
    assert curve == other
    assert (hash(curve), repr(curve), curve.to_dict()) == (hash(other), repr(other), other.to_dict())
    steps = np.linspace(0, curve.total_steps, 50).astype(np.int64)
    np.testing.assert_array_equal(curve(steps), other(steps), strict=True)
    for name, column in curve.segments.columns().items():
        np.testing.assert_array_equal(column, other.segments.columns()[name])


@given(descriptions(kind="stages"), randoms)
def test_stages_in_shares_are_those_in_steps(description, random):
    stages, start = description["stages"], description["start"]
    curve = build(description)
    total = sum(steps for steps, *_ in stages)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)  # about the drawn levels
        _is_same(StagedCurve(_as_shares(stages, total, random), start=start, total_steps=total), curve)
        written = {"stages": list(_as_shares(stages, total, random)), "total_steps": total, "start": start}
        _is_same(Curve.from_dict(written), curve)


@given(arguments(range(4)), randoms)
def test_warmup_in_percent_is_that_in_steps(chosen, random):
    curve = build(chosen)
    written = _percentage(chosen["warmup_steps"], chosen["total_steps"], random)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)  # about the drawn ratios
        _is_same(PlateauCurve(**{**chosen, "warmup_steps": written}), curve)
        _is_same(Curve.from_dict({**chosen, "warmup_steps": written}), curve)


@given(magnitudes(2, MAX_STEP), st.decimals(0, 100, places=9))
def test_percentages_are_rounded_down(total, percentage):
    steps = _rounded_down(percentage, total)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)
        curve = StagedCurve([(f"{percentage}%", 1.0), ("rest",)], start=0.5, total_steps=total)
        assert [stage.steps for stage in curve.stages] == [steps, total - steps]
        if steps < total:
            assert PlateauCurve(total, warmup_steps=f"{percentage}%").warmup_steps == steps


def test_decimals_are_exact():
    assert PlateauCurve(1000, warmup_steps="32.3%").warmup_steps == 323  # floats give 322
    third = "33." + 38 * "3" + "%"
    stages = [(third, 1.0), (third,), ("rest", 0.0)]
    assert [stage.steps for stage in StagedCurve(stages, total_steps=3000).stages] == [999, 999, 1002]


SHARES = [("2%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]


@pytest.mark.parametrize(
    ("stages", "total", "error", "parts"),
    [
        (SHARES, None, ValueError, ["stages[0].steps = '2%' is a fraction", "needs total_steps"]),
        ([(5, 1.0), ("rest",)], None, ValueError, ["stages[1].steps = 'rest' is a fraction"]),
        (SHARES, "100%", TypeError, ["total_steps = '100%' must be an integer"]),
        (SHARES, 0, ValueError, ["total_steps = 0 must lie in 1 …"]),
        (SHARES, np.inf, TypeError, ["total_steps = inf must be an integer"]),
        ("rest", 9, TypeError, ["stages = 'rest' must be a sequence of stages"]),
        (["rest"], 9, TypeError, ["stages[0] = 'rest' must be a stage"]),
        (SHARES[1:2] * 2, 9, ValueError, ["stages[1].steps = 'rest' may appear only once"]),
        ([(5, 1.0), (5,)], 9, ValueError, ["stages add up to 10 steps, not to total_steps = 9"]),
        (
            [(5, 1.0), (3,)],
            9,
            ValueError,
            ["add up to 8 steps, not to total_steps = 9: write 'rest' for one"],
        ),
        (
            [(8, 1.0), ("50%",), ("rest",)],
            9,
            ValueError,
            ["add up to 12 steps, not to total_steps = 9"],
        ),
        (
            [("50%", 1.0), ("50%",)],
            9,
            ValueError,
            ["add up to 8 steps, not to total_steps = 9: write 'rest'"],
        ),
        ([("Rest", 1.0)], 9, TypeError, ["steps = 'Rest' must be an integer", "'2%' or the word 'rest'"]),
        ([("5", 1.0)], 9, TypeError, ["steps = '5' must be an integer", "'2%' or the word 'rest'"]),
    ],
    ids=str,
)
def test_lengths_that_do_not_fit_are_rejected(stages, total, error, parts):
    rejects(error, *parts, call=StagedCurve, stages=stages, total_steps=total)


@pytest.mark.parametrize(
    "text",
    [
        "-1%",
        "100.0001%",
        "nan%",
        "inf%",
        "%",
        "2%%",
        "2 % 3",
        "1/2%",
        "2%\n.",
        f"{'9' * 5000}%",
    ],
)
def test_other_percentages_are_rejected(text):
    part = "must be a percentage from 0% to 100%, such as '2.5%'"
    stages = [(text, 1.0), ("rest",)]
    rejects(ValueError, "stages[0].steps = ", part, call=StagedCurve, stages=stages, total_steps=9)
    rejects(ValueError, "warmup_steps = ", part, call=PlateauCurve, total_steps=9, warmup_steps=text)


@pytest.mark.parametrize("warmup", ["100%", "rest", "half", "10", b"10%"], ids=str)
def test_warmup_without_decay_or_percentage_is_rejected(warmup):
    error = ValueError if warmup == "100%" else TypeError
    rejects(error, "warmup_steps = ", call=PlateauCurve, total_steps=9, warmup_steps=warmup)


@pytest.mark.parametrize(
    "call",
    [
        lambda text: PlateauCurve(100, warmup_steps=text),
        lambda text: StagedCurve([(text, 1.0), ("rest", 0.0)], total_steps=100),
    ],
)
def test_length_that_rounds_to_no_step_warns(call):
    with pytest.warns(
        CurveWarning, match=r" = '0\.9%' of 100 steps rounds down to 0 steps\. Write"
    ) as caught:
        call("0.9%")
    assert caught[0].filename == __file__
    call("0%")  # is meant


def test_curve_in_shares_is_replaced_and_copied():
    curve = StagedCurve(SHARES, total_steps=10_000)
    assert curve == StagedCurve([(200, 1.0), (7800,), (2000, 0.0, "1-sqrt")], total_steps=10_000)
    for copied in (copy.copy(curve), copy.deepcopy(curve), pickle.loads(pickle.dumps(curve))):
        _is_same(copied, curve)
    _is_same(dataclasses.replace(curve), curve)
    longer = dataclasses.replace(curve, stages=[(5, 1.0), (20_000,)])
    assert longer.total_steps == 20_005
    assert dataclasses.replace(curve, stages=SHARES, total_steps=20_000).stages[0].steps == 400
    assert dataclasses.replace(PlateauCurve(10_000, warmup_steps="2%"), total_steps=500).warmup_steps == 200


@pytest.mark.parametrize("cls", [PlateauCurve, StagedCurve])
def test_arguments_have_the_defaults_of_the_fields(cls):
    parameters = inspect.signature(cls).parameters
    for field in dataclasses.fields(cls):
        default = parameters[field.name].default
        assert default == (inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default)
