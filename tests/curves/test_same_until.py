"""`same_until`: True is a proof of equal bits, and equal curves are recognized."""

import numpy as np
import pytest
from hypothesis import assume, given
from support.curves.descriptions import build, descriptions_and_steps, steps_of
from support.curves.strategies import MAX_STEP, Words, words
from support.examples import examples
from support.numerics.oracle import Oracle, are_equal, complete_stage

from plateau_jax import PlateauCurve, StagedCurve


def _otherwise(description, read):
    """Describe the same curve in another way."""
    match description:
        case {"stages": stages, "start": level}:
            written = [(0, level)] * read.below(2)
            for steps, to, shape in map(complete_stage, stages):
                goal = level if to is None else to
                if goal == level:
                    part = read.magnitude(0, steps)
                    held = [(part,), (steps - part, level, "cosine")], [(steps,), (0, level)]
                    written += read.one_of(held)
                else:
                    written.append((steps, to, shape))
                level = goal
            return {"stages": written, "start": description["start"]}
        case {"cooldown": parent}:
            return {**description, "cooldown": _otherwise(parent, read)}
        case {"curve": first, "then": other}:
            return {**description, "curve": _otherwise(first, read), "then": _otherwise(other, read)}
        case {"part": parent}:
            return {**description, "part": _otherwise(parent, read)}
    # Each plateau becomes two that touch; one of them may be empty.
    absolute = description["absolute_plateaus"]
    split = [(start, read.magnitude(0, length)) for start, length in absolute]
    rest = [(start + part, length - part) for (start, length), (_, part) in zip(absolute, split, strict=True)]
    return {**description, "absolute_plateaus": [*rest, *split]}


def _changed(description, read):
    """Describe a curve of the same length that may differ from some step on."""
    match description:
        case {"stages": stages, "start": start}:
            index = read.below(len(stages))
            steps, before, shape = complete_stage(stages[index])
            # A different level, possibly with the same float32.
            to = read.one_of((0.1, 0.5, 0.1 if before is None else before * (1 - 2.0**-40)))
            # A jump stays a jump: the level before it may be 0, and an exponential may follow.
            earlier = [(steps - 1, before, shape), (1, None)] if steps else [(0, to)]
            more = read.one_of(([(0, to), stages[index]], [(steps, to)], [(steps, to, "cosine")], earlier))
            return {"stages": [*stages[:index], *more, *stages[index + 1 :]], "start": start}
        case {"cooldown": parent, "at": at}:
            if read.below(2):
                parent = _changed(parent, read)
            else:
                at = max(at - 1, 0)
            return {**description, "cooldown": parent, "at": at, "to": 0.0, "shape": "linear"}
        case {"curve": _, "then": _}:
            name = read.one_of(("curve", "then"))
            return {**description, name: _changed(description[name], read)}
        case {"part": parent, "start": start, "stop": stop}:
            changed = _changed(parent, read)
            stop = min(stop, Oracle(changed).total_steps)
            return {"part": changed, "start": start, "stop": stop} if start < stop else changed
    changes = {"min_lr_ratio": 0.1, "init_lr_ratio": 0.1, "decay_shape": "linear", "warmup_shape": "cosine"}
    name = read.one_of(list(changes))
    return {**description, name: changes[name]}


def _hold(level):
    return build({"stages": [(10,)], "start": level})


@examples(200)
@given(descriptions_and_steps(size=16), words(40))
def test_same_until_true_is_a_proof(case, drawn):
    description, steps = case
    changed = _changed(description, Words(drawn[16:]))
    one = build(description)
    try:
        other = build(changed)
    except ValueError as error:
        assume("too steep" not in str(error))  # a "t^-P" from another level
        raise
    exact, changed_exact = Oracle(description), Oracle(changed)
    steps = sorted({max(step, 0) for step in (*steps, *steps_of(changed, drawn[:16]))})
    answers = [one.same_until(other, step) for step in steps]
    assert answers == [other.same_until(one, step) for step in steps]
    assert answers == sorted(answers, reverse=True)
    assert one.same_until(other, 0)
    assert one.first_difference(other) == other.first_difference(one)
    for step, later in zip(steps, answers[1:], strict=False):
        if later:
            assert one(step) == other(step)
            # Exact levels that round to one float32 do not count as the same.
            assert are_equal(exact(step), changed_exact(step))


@examples(200)
@given(descriptions_and_steps(size=4), words(100))
def test_curve_described_differently_is_same_at_every_step(case, drawn):
    description, steps = case
    one, other = build(description), build(_otherwise(description, Words(drawn)))
    assert one.first_difference(other) is other.first_difference(one) is None
    assert one.same_until(other, MAX_STEP)
    np.testing.assert_array_equal(one(steps), other(steps))


LEVELS = 0.1, 0.10000000000000002
STAGED = StagedCurve([(100, 1.0), (600,), (0, 1.0), (200, 1.0, "cosine"), (10,), (10, 0.5)])
DIFFERENT = [
    # Levels with the same float32
    (_hold(LEVELS[0]), _hold(LEVELS[1]), 0),
    (*(PlateauCurve(100, min_lr_ratio=level) for level in LEVELS), 1),
    (StagedCurve([(10, 0.1), (5,)]), StagedCurve([(10, 0.1), (5,), (0, LEVELS[1])]), 15),
    (PlateauCurve(100), PlateauCurve(100).then(PlateauCurve(9), scale=1e-30), 100),
    (_hold(0.3), _hold(0.3).cooldown(5, 5, to=0.29999999999999993), 6),
    # Both start to fall from 1 at step 910.
    (PlateauCurve(1000, warmup_steps=100, plateaus=[(0, 90)]), STAGED, 911),
    # Levels that agree to 60 digits are equal: after one of 10⁹ steps, x^20 is 10⁻¹⁸⁰ and x^6 is 10⁻⁵⁴.
    (StagedCurve([(10**9, 0, "1-x^20")], start=1.0), StagedCurve([(10**9,)], start=1.0), 2),
    (StagedCurve([(10**9, 0, "1-x^6")], start=1.0), StagedCurve([(10**9,)], start=1.0), 1),
]


@pytest.mark.parametrize(("one", "other", "first"), DIFFERENT)
def test_curves_differ_from_first_step_on(one, other, first):
    assert one.first_difference(other) == other.first_difference(one) == first
    assert [one.same_until(other, step) for step in (first, first + 1, MAX_STEP)] == [True, False, False]


@pytest.mark.parametrize(
    "other",
    [
        # Computed as 0.125 and 10⁻¹⁰⁰
        PlateauCurve(110, decay_shape="(1-x)^3", absolute_plateaus=[(50, 10)]).part(50, 60),
        PlateauCurve(5, min_lr_ratio=1).then(_hold(1)).cooldown(0, 3, to=1.0),
        PlateauCurve(1, min_lr_ratio=0.3).then(_hold(1.0), scale=0.3).part(1),
    ],
)
def test_same_level_is_equal_however_held(other):
    hold = _hold(round(other(0), 6))
    assert hold.first_difference(other) is other.first_difference(hold) is None
