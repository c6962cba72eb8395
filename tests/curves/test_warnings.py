"""`CurveWarning` about a curve: when it is given, at which line, and how often."""

import dataclasses
import linecache
import warnings
from code import InteractiveInterpreter
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.schedulers.runs import optimizer_with

from plateau_jax import Curve, CurveWarning, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr


def warnings_of(call, *arguments, **named):
    """Return the messages of a call's warnings, each a `CurveWarning` at a line of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments, **named)
    for warning in caught:
        assert warning.category is CurveWarning
        assert warning.filename == __file__
    return [str(warning.message) for warning in caught]


numbers = st.one_of(st.sampled_from((0, 1, 0.0, 1.0)), st.floats(0.001, 0.999), st.floats(0.01, 3))
pairs = st.one_of(
    st.tuples(numbers, numbers),
    st.tuples(st.integers(0, 89), st.sampled_from((0, 0.004, 0.4, 9))),
)


def rounds_down_to_0(duration, decaying):
    return duration > 0 and int(decaying * Fraction(str(duration)) / 100) == 0


def look_like_fractions(plateaus):
    """Return True if no number exceeds 1, and one of them is neither 0 nor 1."""
    numbers = {number for pair in plateaus for number in pair}
    return max(numbers, default=0) <= 1 and not numbers <= {0, 1}


@given(st.sampled_from((1, 9, 120, 10**5)), st.integers(0, 2), st.lists(pairs, max_size=3))
@example(1000, 0, [(0, 1)])
@example(1000, 0, [(0, 1), (2, 0.5)])
@example(1000, 0, [(0.5, 1)])
@example(10**6, 0, [(0, 0.5)])
def test_only_fractions_and_lost_plateaus_warn(decaying, warmup, plateaus):
    is_lost = any(rounds_down_to_0(duration, decaying) for _, duration in plateaus)
    arguments = {"warmup_steps": warmup, "plateaus": plateaus}
    try:
        messages = warnings_of(PlateauCurve, decaying + warmup, **arguments)
    except ValueError:  # the plateaus overlap, or leave no step to decay
        return
    if look_like_fractions(plateaus):
        (message,) = messages
        assert "look like fractions" in message
        assert "rounds down to 0" not in message
    elif is_lost:
        (message,) = messages
        assert "rounds down to 0" in message
        assert "look like fractions" not in message
    else:
        assert messages == []


@given(st.floats(0, 1))
@example(0.0)
@example(1e-4)
@example(9.99e-5)
@example(5e-324)
def test_end_like_learning_rate_warns(ratio):
    messages = warnings_of(PlateauCurve, 100, warmup_steps=10, min_lr_ratio=ratio)
    assert len(messages) == (0 < ratio < 1e-4 * (1 - 1e-9))
    for message in messages:
        expected = f"min_lr_ratio = {ratio!r} looks like a learning rate, but is a fraction"
        assert message.startswith(expected)
        assert f"write min_lr_ratio={ratio!r} / peak;" in message


@given(st.floats(0, 1))
@example(9.99e-5)
@example(1e-6)
def test_cooldown_to_a_learning_rate_warns(ratio):
    stable = StagedCurve([(10, 1.0), (90,)])
    messages = warnings_of(stable.cooldown, 50, 10, to=ratio)
    assert len(messages) == (1e-6 <= ratio < 1e-4 * (1 - 1e-9))
    for message in messages:
        assert message.startswith(f"to = {ratio!r} looks like a learning rate")
        assert f"write to={ratio!r} / peak;" in message


@given(st.floats(0, 1, exclude_min=True))
@example(1e-3)
@example(9.99e-4)
@example(1e-6)
def test_scale_like_learning_rate_warns(scale):
    curve = PlateauCurve(100)
    messages = warnings_of(curve.then, curve, scale=scale)
    assert len(messages) == (1e-6 <= scale < 1e-3)
    for message in messages:
        assert message.startswith(f"scale = {scale!r} looks like a learning rate")
        assert f"write {scale!r} / peak;" in message


@given(st.floats(1e-12, 10).map(np.float32).map(float))
def test_end_may_be_a_rounded_quotient(peak):
    assert warnings_of(PlateauCurve, 100, min_lr_ratio=1e-4 * peak / peak) == []


@given(st.integers(0, 100), st.floats(0, 1))
@example(100, 1e-5)
def test_curve_may_start_at_any_fraction(warmup, ratio):
    """Recipes warm up from 1e-8 to 1e-3, and (step + 1)/W starts at 1/W, which may be small."""
    assert warnings_of(PlateauCurve, 1000, warmup_steps=warmup, init_lr_ratio=ratio) == []
    assert warnings_of(StagedCurve, [(warmup, 1.0), (100, 0.0)], start=ratio) == []


levels = st.one_of(st.none(), st.sampled_from((0, 0.01, 3e-4)), st.floats(0, 0.02), st.floats(0, 1))


@given(levels.map(lambda level: level or 0.0), st.lists(levels, min_size=1, max_size=4))
@example(0.0, [None])
@example(0.0, [3e-4, None, 3e-5])
@example(3e-4, [None])
@example(0.0, [float(np.nextafter(0.01, 0))])
@example(0.0, [0.01, None])
@example(0.01, [None])
@example(0.0, [1.0, None, 0.001])
def test_stage_levels_like_learning_rates_warn(start, levels):
    highest = max([start, *(level for level in levels if level is not None)])
    messages = warnings_of(StagedCurve, [(5, level) for level in levels], start=start)
    if highest >= 0.01:
        assert messages == []
    elif highest:
        (message,) = messages
        assert "look like learning rates" in message
        assert f"up to {highest!r}" in message
        assert "fractions of the peak" in message
        assert "learning rate / peak" in message
    else:
        (message,) = messages
        assert "0 at every step" in message
        assert "write start=1.0" in message


@given(
    st.integers(0, 200),
    st.sampled_from((0.0, 1e-3)),
    st.sampled_from(("linear", "1-sqrt", "(1-x)^2")),
)
@example(0, 0.0, "linear")
@example(99, 0.0, "linear")
@example(100, 0.0, "linear")
def test_only_cooldown_from_0_warns(at, floor, shape):
    curve = PlateauCurve(100, warmup_steps=10, min_lr_ratio=floor)
    messages = warnings_of(curve.cooldown, at, 10, shape=shape)
    assert len(messages) == (curve(at) == 0)
    for message in messages:
        assert message.startswith(f"at = {at}: the learning rate is 0 there already")


# Programs that warn; a curve that is derived from another one does not repeat the warning.


@contextmanager
def warns(*beginnings):
    """Check that the block warns once about each mistake, at its own line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        assert warning.category is CurveWarning
        assert warning.filename == __file__
        assert "  # warns" in linecache.getline(__file__, warning.lineno)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == len(beginnings), messages
    for message, beginning in zip(messages, beginnings, strict=True):
        assert message.startswith(beginning)


def test_plateaus_like_fractions():
    with warns("plateaus = [(0.5, 0.3)] look like frac"):
        curve = PlateauCurve(100, plateaus=[(0.5, 0.3)])  # warns
        curve.cooldown(50, 10).then(PlateauCurve(9), scale=0.5)


def test_three_mistakes_of_one_curve():
    with warns(
        "warmup_steps = '0.9%' of 100",
        "decay_steps = '0.5%' of 100",
        "min_lr_ratio = 1e-05 looks",
    ):
        StagedCurve.wsd(100, warmup_steps="0.9%", decay_steps="0.5%", min_lr_ratio=1e-5)  # warns


def test_zeros_are_no_mistakes():
    with warns():
        PlateauCurve(100, warmup_steps="0%")
        StagedCurve([("0%", 1.0), ("rest",)], total_steps=100)
        StagedCurve.wsd(100, warmup_steps=0, decay_steps="0%", min_lr_ratio=1e-4)
        StagedCurve.through([(0, 0.0), (9, 0.01)])


def test_points():
    with warns("points have levels that", "points have no level above 0"):
        curve = StagedCurve.through([(0, 0.0), (9, 3e-4)])  # warns
        curve.cooldown(5, 10)
        StagedCurve.through([(0, 0), (9, 0)])  # warns


def test_replaced_argument():
    curve = PlateauCurve(100, plateaus=[(50, 30)])
    with warns("plateaus = [(0.5, 0.3)] look like frac"):
        dataclasses.replace(curve, plateaus=[(0.5, 0.3)])  # warns


def test_warning_in_a_console():
    """Its namespace has no `__name__`."""
    console = InteractiveInterpreter({"PlateauCurve": PlateauCurve})
    with pytest.warns(CurveWarning) as caught:
        console.runsource("curve = PlateauCurve(100, plateaus=[(0.5, 0.3)])", "<console>")
    assert [warning.filename for warning in caught] == ["<console>"]


def test_mistakes_in_a_file():
    """Also in a curve within a curve."""
    cooled = {"kind": "cooldown", "curve": {"kind": "plateau", "total_steps": 9}}
    with warns("plateaus = [(0.5, 0.3)] look like frac", "at = 9: the learning rate is 0"):
        Curve.from_dict({"kind": "plateau", "total_steps": 100, "plateaus": [[0.5, 0.3]]})  # warns
        Curve.from_dict({**cooled, "at": 9, "steps": 5})  # warns
    rise = {"kind": "staged", "stages": [[5, 1.0]]}
    zero = {"kind": "staged", "stages": [[5]]}
    with warns("start = 0 and no"):
        Curve.from_dict({"kind": "then", "curve": rise, "other": zero})  # warns


def test_saved_curves_stay_silent():
    with ignore_curve_warnings():
        curve = PlateauCurve(100, plateaus=[(0.5, 0.3)], min_lr_ratio=1e-5)
    branch = curve.cooldown(50, 10).then(StagedCurve([(9, 1.0)]))
    scheduler = lambda_lr(optimizer_with([0.1, 0.2]), [curve, branch])
    scheduler.load_state_dict(scheduler.state_dict())
