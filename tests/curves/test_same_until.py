"""`same_until`: True is a proof of equal bits, and equal curves are recognized."""

import numpy as np
import pytest
from hypothesis import given
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions, descriptions_and_steps, draw_steps
from support.curves.strategies import MAX_STEP, draw_magnitude, randoms
from support.examples import examples
from support.numerics.oracle import Oracle, complete_stage

from plateau_jax import PlateauCurve, StagedCurve


def curves_in(description):
    """Return the curves from which a curve is derived, by their names."""
    return {name: value for name, value in description.items() if isinstance(value, dict)}


# The same curve, described in another way.


def rewrite(description, random):
    match description["kind"]:
        case "staged":
            stages = rewrite_stages(description["stages"], description["start"], random)
            return description | {"stages": stages}
        case "plateau":
            return split_plateaus(description, random)
        case _:
            curves = curves_in(description)
            return description | {name: rewrite(curves[name], random) for name in curves}


def rewrite_stages(stages, level, random):
    """Split stages that hold in two, or let them end with a jump to their level."""
    rewritten = [(0, level)] * random.randrange(2)
    for steps, to, shape in map(complete_stage, stages):
        if to is None or to == level:
            begun = draw_magnitude(random, 0, steps)
            rewritten += random.choice(
                (
                    [(begun,), (steps - begun, level, "cosine")],
                    [(steps,), (0, level)],
                )
            )
        else:
            rewritten.append((steps, to, shape))
            level = to
    return rewritten


def split_plateaus(description, random):
    """Split each plateau into two that touch; one of them may be empty."""
    first_halves = []
    second_halves = []
    for start, length in description["absolute_plateaus"]:
        begun = draw_magnitude(random, 0, length)
        first_halves.append((start, begun))
        second_halves.append((start + begun, length - begun))
    return description | {"absolute_plateaus": second_halves + first_halves}


# A curve of the same length that may differ from some step on.


def change(description, random):
    match description["kind"]:
        case "staged":
            return description | {"stages": change_stages(description["stages"], random)}
        case "plateau":
            changes = {
                "min_lr_ratio": 0.1,
                "init_lr_ratio": 0.1,
                "decay_shape": "linear",
                "warmup_shape": "cosine",
            }
            name = random.choice(list(changes))
            return description | {name: changes[name]}
        case "cooldown":
            return change_cooldown(description, random)
        case _:
            name, curve = random.choice(list(curves_in(description).items()))
            return description | {name: change(curve, random)}


def change_stages(stages, random):
    index = random.randrange(len(stages))
    steps, to, shape = complete_stage(stages[index])
    # A different level, possibly with the same float32.
    near = 0.1
    if to is not None:
        near = to * (1 - 2.0**-40)
    level = random.choice((0.1, 0.5, near))
    # A jump stays a jump: the level before it may be 0, and an exponential may follow.
    shorter = [(0, level)]
    if steps:
        shorter = [(steps - 1, to, shape), (1, None)]
    instead = random.choice(
        (
            [(0, level), stages[index]],
            [(steps, level)],
            [(steps, level, "cosine")],
            shorter,
        )
    )
    return [*stages[:index], *instead, *stages[index + 1 :]]


def change_cooldown(description, random):
    changed = description | {"to": 0.0, "shape": "linear"}
    if random.random() < 0.5:
        changed["curve"] = change(description["curve"], random)
    elif description["at"] > 0:
        changed["at"] -= 1
        changed["steps"] += 1
    return changed


@examples(200)
@given(descriptions_and_steps(size=16), randoms)
def test_same_until_true_is_a_proof(case, random):
    description, steps = case
    changed = change(description, random)
    curve = build(description)
    changed_curve = build(changed)
    steps = sorted({max(step, 0) for step in [*steps, *draw_steps(random, changed, 16)]})
    answers = [curve.same_until(changed_curve, step) for step in steps]
    assert answers == [changed_curve.same_until(curve, step) for step in steps]
    assert answers == sorted(answers, reverse=True)
    assert curve.same_until(changed_curve, 0)
    first_difference = curve.first_difference(changed_curve)
    assert changed_curve.first_difference(curve) == first_difference
    for step, is_same_until_later in zip(steps[:-1], answers[1:], strict=True):
        if is_same_until_later:
            assert curve(step) == changed_curve(step)


@examples(200)
@given(descriptions_and_steps(size=4), randoms)
def test_curve_described_differently_is_same_at_every_step(case, random):
    description, steps = case
    curve = build(description)
    rewritten = build(rewrite(description, random))
    assert curve.first_difference(rewritten) is None
    assert rewritten.first_difference(curve) is None
    assert curve.same_until(rewritten, MAX_STEP)
    np.testing.assert_array_equal(curve(steps), rewritten(steps))


@given(descriptions())
def test_plateau_continues_at_its_multiplier(description):
    """As when a longer plateau is planned from `curve(step)`, whose exact level may differ."""
    curve = build(description)
    for begin, length in Oracle(description).flat_runs():
        if begin + length == MAX_STEP:
            continue  # a curve with one more step would be too long
        with ignore_curve_warnings():  # a low level looks like a learning rate
            plateau = StagedCurve([(length,)], start=curve(begin))
        continued = curve.part(0, begin + 1).then(plateau)
        assert continued.same_until(curve, begin + length)
        assert curve.same_until(continued, begin + length)
        is_before = [start <= begin for start in curve.flat_starts]
        assert continued.flat_starts == curve.flat_starts[: sum(is_before)]


def hold(level):
    return build({"kind": "staged", "stages": [(10,)], "start": level})


@pytest.mark.parametrize(
    ("curve", "other", "first"),
    [
        # Levels with the same float32, from which curves move
        (
            PlateauCurve(100, min_lr_ratio=0.1),
            PlateauCurve(100, min_lr_ratio=0.10000000000000002),
            1,
        ),
        (PlateauCurve(100), PlateauCurve(100).then(PlateauCurve(9), scale=1e-30), 100),
        (hold(0.3), hold(0.3).cooldown(5, 5, to=0.29999999999999993), 6),
        # Both start to fall from 1 at step 910.
        (
            PlateauCurve(1000, warmup_steps=100, plateaus=[(0, 90)]),
            StagedCurve([(100, 1.0), (600,), (0, 1.0), (200, 1.0, "cosine"), (10,), (10, 0.5)]),
            911,
        ),
        # Levels that agree to 60 digits are equal: after one of 10⁹ steps, x^20 is 10⁻¹⁸⁰, and
        # x^6 is 10⁻⁵⁴.
        (
            StagedCurve([(10**9, 0, "1-x^20")], start=1.0),
            StagedCurve([(10**9,)], start=1.0),
            2,
        ),
        (
            StagedCurve([(10**9, 0, "1-x^6")], start=1.0),
            StagedCurve([(10**9,)], start=1.0),
            1,
        ),
    ],
)
def test_curves_differ_from_first_step_on(curve, other, first):
    assert curve.first_difference(other) == first
    assert other.first_difference(curve) == first
    assert curve.same_until(other, first)
    assert not curve.same_until(other, first + 1)
    assert not curve.same_until(other, MAX_STEP)


@pytest.mark.parametrize(
    "other",
    [
        hold(float(np.float32(0.1))),
        hold(3e-5 / 3e-4),
        StagedCurve([(5,), (0, 0.1), (5,)], start=0.10000000000000002),
        # Computed as 0.125 and 10⁻¹⁰⁰
        PlateauCurve(110, decay_shape="(1-x)^3", absolute_plateaus=[(50, 10)]).part(50, 60),
        PlateauCurve(5, min_lr_ratio=1).then(hold(1)).cooldown(0, 3, to=1.0),
        PlateauCurve(1, min_lr_ratio=0.3).then(hold(1.0), scale=0.3).part(1),
    ],
)
def test_same_level_is_equal_however_held(other):
    flat = hold(round(other(0), 6))
    assert flat.first_difference(other) is None
    assert other.first_difference(flat) is None
