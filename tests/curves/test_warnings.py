"""`CurveWarning` about a curve: when it is given, at which line, and how often."""

import copy
import dataclasses
import json
import pickle
import warnings
from fractions import Fraction
from types import FunctionType

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.schedulers.runs import optimizer_with

from plateau_jax import Curve, CurveWarning, PlateauCurve, StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings
from torch_bridge import lambda_lr


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
def test_end_like_learning_rate_warns(ratio):
    messages = warnings_of(PlateauCurve, 100, warmup_steps=10, min_lr_ratio=ratio)
    assert len(messages) == (0 < ratio < 1e-4 * (1 - 1e-9))
    for message in messages:
        assert message.startswith(f"min_lr_ratio = {ratio!r} looks like a learning rate, but is a fraction")
        assert message.endswith(f"write min_lr_ratio={ratio!r} / peak")


@given(st.floats(1e-12, 10).map(np.float32).map(float))
def test_end_may_be_a_rounded_quotient(peak):
    assert warnings_of(PlateauCurve, 100, min_lr_ratio=1e-4 * peak / peak) == []


@given(st.integers(0, 100), st.floats(0, 1))
@example(100, 1e-5)
def test_curve_may_start_at_any_fraction(warmup, ratio):
    """Recipes warm up from 1e-8 to 1e-3, and (step + 1)/W starts at 1/W, which is small if W is large."""
    assert warnings_of(PlateauCurve, 1000, warmup_steps=warmup, init_lr_ratio=ratio) == []
    assert warnings_of(StagedCurve, [(warmup, 1.0), (100, 0.0)], start=ratio) == []


_levels = st.one_of(st.none(), st.sampled_from((0, 0.01, 3e-4)), st.floats(0, 0.02), st.floats(0, 1))


@given(_levels.map(lambda level: level or 0.0), st.lists(_levels, min_size=1, max_size=4))
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
    assert len(messages) == (highest < 0.01)
    parts = "look like learning rates", f"up to {highest!r}", "fractions of the peak", "learning rate / peak"
    for message in messages:
        assert all(part in message for part in (parts if highest else ("0 at every step", "write start=1.0")))


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


# Programs, with the beginning of each warning; a curve that is derived from another one does not repeat it.
FRACTIONS = "plateaus = [(0.5, 0.3)] look like frac"
LEVELS, ZERO = "stages have levels that", "start = 0 and no"
PROGRAMS = [
    (lambda: PlateauCurve(100, plateaus=[(0.5, 0.3)]).cooldown(50, 10).then(PlateauCurve(9), scale=0.5),
     FRACTIONS),
    (lambda: PlateauCurve(100, plateaus=[(0.5, 0.3)], min_lr_ratio=1e-5), FRACTIONS, "min_lr_ratio = 1e-05"),
    (lambda: PlateauCurve(100, warmup_steps="0.9%"),
     "warmup_steps = '0.9%' of 100 steps rounds down to 0 steps"),
    (lambda: PlateauCurve(100, warmup_steps="0%"),),
    (lambda: StagedCurve([("0.9%", 1.0), ("rest",)], total_steps=100),
     "stages[0].steps = '0.9%' of 100 steps rounds"),
    (lambda: StagedCurve([("0%", 1.0), ("rest",)], total_steps=100),),
    (lambda: StagedCurve.wsd(100, warmup_steps="0.9%", decay_steps="0.5%", min_lr_ratio=1e-5),
     "warmup_steps = '0.9%' of 100", "decay_steps = '0.5%' of 100", "min_lr_ratio = 1e-05 looks"),
    (lambda: StagedCurve.wsd(100, warmup_steps=0, decay_steps="0%", min_lr_ratio=1e-4),),
    (lambda: StagedCurve.through([(0, 0.0), (9, 3e-4)]).cooldown(5, 10), "points have levels that"),
    (lambda: StagedCurve.through([(0, 0.0), (9, 0.01)]),),
    (lambda: StagedCurve.through([(0, 0), (9, 0)]), "points have no level above 0"),
    (lambda: StagedCurve([(9, 3e-4)]).cooldown(5, 10).then(PlateauCurve(9), scale=0.5), LEVELS),
    (lambda: StagedCurve([(9,), (9, 0.0)]).then(PlateauCurve(9)), ZERO),
    (lambda: PlateauCurve(9).cooldown(9, 10).cooldown(5, 10).then(PlateauCurve(9)),
     "at = 9: the learning rate is 0"),
    (lambda: dataclasses.replace(PlateauCurve(100, plateaus=[(50, 30)]), plateaus=[(0.5, 0.3)]), FRACTIONS),
]  # fmt: skip
# What a configuration file says; from a dictionary that `to_dict` wrote, the same curve is silent.
STAGED = {"stages": [[5, 1.0]]}
FILES = [
    ({"total_steps": 100, "min_lr_ratio": 1e-5}, "min_lr_ratio = 1e-05 looks like a learning rate"),
    ({"total_steps": 100, "plateaus": [[0.5, 0.3]]}, FRACTIONS),
    ({"total_steps": 100, "warmup_steps": "0.5%"}, "warmup_steps = '0.5%' of 100 steps rounds down to 0"),
    ({"total_steps": 100, "stages": [["0.5%", 1.0], ["rest"]]}, "stages[0].steps = '0.5%' of 100 steps"),
    ({"total_steps": 100, "stages": [[5, 3e-4], ["rest"]], "start": 0}, LEVELS),
    ({"kind": "cooldown", "curve": {"total_steps": 9}, "at": 9, "steps": 5},
     "at = 9: the learning rate is 0"),
    ({"kind": "then", "curve": STAGED, "other": {"stages": [[5]]}}, ZERO),
]  # fmt: skip


NAMES = {"PlateauCurve": PlateauCurve, "StagedCurve": StagedCurve, "dataclasses": dataclasses}


@pytest.mark.parametrize("row", [*PROGRAMS, *FILES], ids=range(len(PROGRAMS) + len(FILES)))
def test_each_mistake_warns_once_at_users_line(row):
    program, *beginnings = row
    names = dict(NAMES)  # and no `__name__` of a module
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(program, dict):
            curve = Curve.from_dict(program)
        else:
            curve = FunctionType(program.__code__, names)()
    assert {(warning.category, warning.filename) for warning in caught} <= {(CurveWarning, __file__)}
    if not isinstance(program, dict):
        assert {warning.lineno for warning in caught} <= {program.__code__.co_firstlineno}
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == len(beginnings), messages
    for message, beginning in zip(messages, beginnings, strict=True):
        assert message.startswith(beginning)
    if isinstance(program, dict):
        assert warnings_of(Curve.from_dict, json.loads(json.dumps(curve.to_dict()))) == []


def test_copies_pickles_and_saved_curves_stay_silent():
    with suppress_warnings():
        stages = StagedCurve([(9, 3e-4)])
        curve = PlateauCurve(100, plateaus=[(0.5, 0.3)], min_lr_ratio=1e-5)
    branch = curve.cooldown(50, 10).then(curve)
    for each in (curve, branch, stages, stages.then(curve)):
        again = (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each)))
        assert all(other == each for other in (*again, Curve.from_dict(each.to_dict())))
    scheduler = lambda_lr(optimizer_with([0.1, 0.2]), [curve, branch])
    scheduler.load_state_dict(scheduler.state_dict())
    with pytest.raises(CurveWarning):  # a new construction warns as before
        PlateauCurve(100, plateaus=[(0.5, 0.3)])


def test_message_stays_short():
    many = [(index / 1000, 0.0001) for index in range(900)]
    (message,) = warnings_of(PlateauCurve, 10**7, plateaus=many)
    assert len(message) < 500
