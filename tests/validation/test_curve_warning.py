"""`CurveWarning` about a curve: when it is given, at which line, and how often."""

import copy
import dataclasses
import pickle
import warnings
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.schedulers.runs import optimizer_with

from plateau_jax import Curve, CurveWarning, PlateauCurve, StagedCurve, cosine_plateau_schedule
from plateau_jax.__main__ import main
from torch_bridge import get_cosine_plateau_schedule_with_warmup, lambda_lr

LIKE_FRACTIONS = [(0.5, 0.3)]


def warnings_of(call, *arguments, **named):
    """Return the warnings of a call; check that each is a `CurveWarning` that points into this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments, **named)
    assert {(warning.category, warning.filename) for warning in caught} <= {(CurveWarning, __file__)}
    return [str(warning.message) for warning in caught]


_small = st.one_of(st.sampled_from((0, 1, 0.0, 1.0)), st.floats(0.001, 0.999), st.floats(0.01, 3))
_pairs = st.one_of(
    st.tuples(_small, _small), st.tuples(st.integers(0, 89), st.sampled_from((0, 0.004, 0.4, 9)))
)


@given(st.sampled_from((1, 9, 120, 10**5)), st.integers(0, 2), st.lists(_pairs, max_size=3))
@example(1000, 0, [(0, 1)])
@example(1000, 0, [(0, 1), (2, 0.5)])
@example(10**6, 0, [(0, 0.5)])
def test_only_fractions_and_lost_plateaus_warn(decaying, warmup, plateaus):
    lengths = [int(decaying * Fraction(str(duration)) / 100) for _, duration in plateaus]
    lost = any(length == 0 and duration > 0 for length, (_, duration) in zip(lengths, plateaus, strict=True))
    numbers = [number for pair in plateaus for number in pair]
    fractions = bool(numbers) and max(numbers) <= 1 and any(number not in (0, 1) for number in numbers)
    try:
        messages = warnings_of(PlateauCurve, decaying + warmup, warmup_steps=warmup, plateaus=plateaus)
    except ValueError:  # the plateaus overlap, or leave no step to decay
        return
    assert len(messages) == (fractions or lost)
    if messages:
        assert ("look like fractions" in messages[0]) == fractions
        assert ("rounds down to 0" in messages[0]) == (not fractions)


@given(st.floats(0, 1))
@example(0.0)
@example(1e-4)
@example(9.99e-5)
@example(5e-324)
@pytest.mark.parametrize("name", ["min_lr_ratio", "init_lr_ratio"])
def test_ratio_like_learning_rate_warns(name, ratio):
    messages = warnings_of(PlateauCurve, 100, warmup_steps=10, **{name: ratio})
    assert len(messages) == (0 < ratio < 1e-4 * (1 - 1e-9))
    for message in messages:
        assert message.startswith(f"{name} = {ratio!r} looks like a learning rate, but is a fraction")
        assert message.endswith(f"write {name}={ratio!r} / peak")


@given(st.integers(1, 10**6))
@example(10**6)
def test_warmup_one_step_ahead_is_accepted(warmup):
    """(step + 1)/W, as docs/curves.md writes it, starts below 1e-4 if W is large."""
    ahead = partial(PlateauCurve, 2 * 10**6, warmup_steps=warmup - 1)
    assert warnings_of(ahead, init_lr_ratio=1 / warmup) == []
    assert len(warnings_of(ahead, init_lr_ratio=0.9e-6)) == (warmup > 1)


_levels = st.one_of(st.none(), st.sampled_from((0, 0.01, 3e-4)), st.floats(0, 0.02), st.floats(0, 1))


@given(_levels.map(lambda level: level or 0.0), st.lists(_levels, min_size=1, max_size=4))
@example(0.0, [None])
@example(0.0, [3e-4, None, 3e-5])
@example(3e-4, [None])
@example(0.0, [float(np.nextafter(0.01, 0))])
@example(0.0, [1.0, None, 0.001])
def test_stage_levels_like_learning_rates_warn(start, levels):
    highest = max([start, *(level for level in levels if level is not None)])
    messages = warnings_of(StagedCurve, [(5, level) for level in levels], start=start)
    assert len(messages) == (highest < 0.01)
    for message in messages:
        if highest == 0:
            assert "0 at every step" in message
            assert "write start=1.0" in message
            continue
        assert f"up to {highest!r}" in message
        assert "fractions of the peak" in message
        assert "Write each as learning rate / peak" in message


@given(st.integers(0, 200), st.sampled_from((0.0, 1e-3)), st.sampled_from(("linear", "1-sqrt", "(1-x)^2")))
@example(0, 0.0, "linear")
@example(99, 0.0, "linear")
@example(100, 0.0, "linear")
def test_only_cooldown_from_0_warns(at, floor, shape):
    curve = PlateauCurve(100, warmup_steps=10, min_lr_ratio=floor)
    messages = warnings_of(curve.cooldown, at, 10, shape=shape)
    assert len(messages) == (curve(at) == 0)
    for message in messages:
        assert message.startswith(f"at = {at}: the learning rate is 0 there already")


@given(st.floats(1e-12, 10).map(np.float32).map(float))
@example(0.1)
def test_floor_of_one_ten_thousandth_is_accepted(peak):
    assert warnings_of(PlateauCurve, 100, min_lr_ratio=1e-4 * peak / peak) == []


def test_each_mistake_warns():
    first, second = warnings_of(PlateauCurve, 100, plateaus=LIKE_FRACTIONS, min_lr_ratio=1e-5)
    assert "look like fractions" in first
    assert "looks like a learning rate" in second


def test_ratio_computed_from_learning_rates_is_accepted():
    def from_learning_rates():
        cosine_plateau_schedule(0.0, 0.1, 10, 100, end_value=1e-7)
        cosine_plateau_schedule(1e-7, 0.1, 10, 100, end_value=1e-7)
        for min_lr in (1e-7, 1e-6):
            optimizer = optimizer_with([0.1, 0.2])
            get_cosine_plateau_schedule_with_warmup(optimizer, 0, 100, min_lr=min_lr)

    assert warnings_of(from_learning_rates) == []
    build = get_cosine_plateau_schedule_with_warmup
    assert len(warnings_of(build, optimizer_with([0.1]), 0, 9, (), 1e-5)) == 1


def test_message_stays_short():
    many = [(index / 1000, 0.0001) for index in range(900)]
    (message,) = warnings_of(PlateauCurve, 10**7, plateaus=many)
    assert len(message) < 500


def _min_lr():
    optimizer = optimizer_with([0.1, 0.2, 0.3])
    get_cosine_plateau_schedule_with_warmup(optimizer, 0, 100, LIKE_FRACTIONS, min_lr=0.01)


@pytest.mark.parametrize(
    "construct",
    [
        lambda: PlateauCurve(100, plateaus=LIKE_FRACTIONS),
        lambda: PlateauCurve(100, plateaus=LIKE_FRACTIONS).cooldown(50, 10).then(PlateauCurve(9), scale=0.5),
        lambda: cosine_plateau_schedule(0.0, 0.1, 0, 100, plateaus=LIKE_FRACTIONS),
        lambda: cosine_plateau_schedule(0.0, 0.1, 0, 100, end_value=1e-7, plateaus=LIKE_FRACTIONS),
        lambda: PlateauCurve(100, min_lr_ratio=1e-5).cooldown(50, 10).then(PlateauCurve(9), scale=0.5),
        lambda: StagedCurve([(9, 3e-4)]).cooldown(5, 10).then(PlateauCurve(9), scale=0.5),
        lambda: StagedCurve([(9,), (9, 0.0)]).then(PlateauCurve(9)),
        lambda: PlateauCurve(9).cooldown(9, 10).cooldown(5, 10).then(PlateauCurve(9)),
        _min_lr,
    ],
    ids=(
        "PlateauCurve",
        "a branch of it",
        "cosine_plateau_schedule",
        "end_value",
        "a branch of a ratio",
        "a branch of stages",
        "stages at 0",
        "a cooldown from 0",
        "min_lr",
    ),
)
def test_construction_warns_once_at_users_line(construct):
    assert len(warnings_of(construct)) == 1


def test_replace_warns_again():
    curve = PlateauCurve(100, plateaus=[(50, 30)])
    assert len(warnings_of(dataclasses.replace, curve, plateaus=LIKE_FRACTIONS)) == 1


@pytest.mark.filterwarnings("error::plateau_jax.CurveWarning")
def test_copies_pickles_and_saved_curves_stay_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)
        curve = PlateauCurve(
            100, plateaus=LIKE_FRACTIONS, min_lr_ratio=1e-5, warmup_steps=9, init_lr_ratio=1e-6
        )
        stages = StagedCurve([(9, 3e-4)])
    branch = curve.cooldown(50, 10).then(curve)
    for each in (curve, branch, stages, stages.then(curve)):
        again = (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each)))
        assert all(other == each for other in (*again, Curve.from_dict(each.to_dict())))
    scheduler = lambda_lr(optimizer_with([0.1, 0.2]), [curve, branch])
    scheduler.load_state_dict(scheduler.state_dict())
    with pytest.raises(CurveWarning):  # a new construction warns as before
        PlateauCurve(100, plateaus=LIKE_FRACTIONS)


def test_warning_points_at_call_in_unnamed_module():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(
            compile("\n\nPlateauCurve(9, plateaus=[(0.5, 0)])", "users.py", "exec"),
            {"PlateauCurve": PlateauCurve},
        )
    assert [(warning.filename, warning.lineno) for warning in caught] == [("users.py", 3)]


def test_command_line_warns_too(capsys):
    with pytest.warns(CurveWarning, match="Multiply them by 100"):
        assert main(["100", "--plateau", "0.5", "0.3"]) == 0
    assert capsys.readouterr().out == PlateauCurve(100, absolute_plateaus=[(0, 0)]).describe() + "\n"


@given(st.integers(1, 10**6), st.lists(st.integers(0, 10**6), max_size=9))
@example(1, [0])
def test_warmup_from_first_step_above_zero(warmup, steps):
    """The docstring of `warmup_steps` explains how to write a warmup by (step + 1)/W."""
    curve = PlateauCurve(warmup + 10, warmup_steps=warmup - 1, init_lr_ratio=1 / warmup)
    for step in [0, *(step % warmup for step in steps)]:
        exact = Fraction(step + 1, warmup)
        nearest = np.float32(float(exact))
        assert abs(Fraction(curve(step)) - exact) <= Fraction(float(np.spacing(nearest))) * 501 / 1000
