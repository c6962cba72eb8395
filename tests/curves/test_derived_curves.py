"""Cooldowns, continuations and parts: their checks, descriptions, and nesting depth."""

import copy
import json
import math
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
from support.curves.strategies import MAX_STEP

from plateau_jax import Curve, PlateauCurve, StagedCurve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)


LONG = PlateauCurve(2**30)
NO_INTEGERS, NO_NUMBERS = (True, 1.0, "1", None), (True, "0.5", None)


def cooldown(at=5, steps=5, **more):
    return lambda: CURVE.cooldown(at, steps, **more)


def then(other=CURVE, **more):
    return lambda: CURVE.then(other, **more)


def part(*steps):
    return lambda: CURVE.part(*steps)


REJECTED = [
    *((TypeError, cooldown(at=at), f"at = {at!r} must be an integer") for at in NO_INTEGERS),
    *((TypeError, cooldown(steps=steps), f"steps = {steps!r} must be an integer") for steps in NO_INTEGERS),
    (ValueError, cooldown(-1), "at = -1 must be at least 0"),
    (ValueError, cooldown(steps=0), "steps = 0 must be at least 1"),
    (ValueError, cooldown(MAX_STEP, 1), f"at + steps = {MAX_STEP + 1} must be at most 2**31 - 1"),
    (ValueError, cooldown(10**30, 1), f"at + steps = {10**30 + 1} must be at most"),
    *(
        (ValueError, cooldown(at, to=to), f"to = {to!r} must")
        for at, to in [(0, 1e-300), (50, 0.6), (100, 1.5), (550, 0.8), (2000, 0.1000001), (5, -0.1)]
    ),
    *((ValueError, cooldown(shape=shape), "shape = ") for shape in ("sqrt", None, "Linear", ["linear"])),
    (ValueError, cooldown(500, shape="exponential"), "shape = 'exponential': an exponential cooldown from"),
    *((TypeError, then(other), "other = ") for other in (None, 3, "curve", CURVE.to_dict())),
    *(
        (ValueError, then(scale=scale), f"scale = {scale!r} must")
        for scale in (0, 0.0, -0.5, 1.0000000000000002, float("nan"), float("inf"))
    ),
    *((TypeError, then(scale=scale), f"scale = {scale!r} must be a number") for scale in NO_NUMBERS),
    *((TypeError, part(start), f"start = {start!r} must be an integer") for start in NO_INTEGERS),
    *((TypeError, part(0, stop), f"stop = {stop!r} must be an integer") for stop in NO_INTEGERS[:-1]),
    (ValueError, part(-1), "start = -1 must be at least 0"),
    (ValueError, part(0, 0), "stop = 0 must be at least 1"),
    (ValueError, part(5, 5), "start = 5 must be below stop = 5"),
    (ValueError, part(1000), "start = 1000 must be below stop = 1000"),
    (ValueError, part(5, 1001), "stop = 1001 must be at most the curve's total_steps = 1000"),
    (ValueError, lambda: LONG.then(LONG), f"total_steps = {2**30} + {2**30} must be at most"),
    (TypeError, lambda: CURVE.same_until(None, 5), "other = None must be a Curve"),
    (ValueError, lambda: CURVE.same_until(CURVE, -1), "step = -1 must be"),
    *(
        (TypeError, lambda step=step: CURVE.same_until(CURVE, step), f"step = {step!r} must be")
        for step in (1.0, True, None)
    ),
]


@pytest.mark.parametrize(("error", "call", "message"), REJECTED)
def test_invalid_derivation_is_rejected(error, call, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


def test_cooldown_to_current_level_holds_it():
    branch = CURVE.cooldown(2000, 5, to=0.1)
    assert branch.same_until(CURVE, 10**9)
    assert branch.total_steps == 2005
    assert StagedCurve([(4, 0.5)]).cooldown(2, 5, to=0.25)(range(2, 9)).tolist() == [0.25] * 7


@pytest.mark.parametrize("least", [0, 0.015, 0.024, 0.027, 0.2, 0.999])
def test_rational_level_may_come_from_irrational_ones(least):
    # (1 + r)/2 + (1 - r)/√8 at a quarter of the cosine, and from there √½ of the way to r.
    level = float((1 + 3 * Fraction(repr(least))) / 4)
    twice = PlateauCurve(400, min_lr_ratio=least).cooldown(100, 40, to=least)
    branch = twice.cooldown(120, 5, to=level)
    assert branch([120, 124, 125]).tolist() == [np.float32(level)] * 3
    assert branch.flat_starts == (120,)
    assert branch.same_until(twice, 120)
    with pytest.raises(ValueError, match=r"must not lie above the level at step 120"):
        twice.cooldown(120, 5, to=math.nextafter(level, 1))


def test_describe_names_cooldown_and_continuation():
    end = StagedCurve([(10, 0.5)], start=1.0)
    curve = PlateauCurve(100, warmup_steps=10, min_lr_ratio=0.5).cooldown(120, 10).then(end)
    assert curve.describe().splitlines() == [
        "first step  last step  kind                   from          to",
        "         0          9  linear warmup             0           1",
        "        10         99  cosine decay              1         0.5",
        "       100        119  hold                    0.5         0.5",
        "       120        129  1-sqrt cooldown         0.5           0",
        "       130        139  linear stage              1         0.5",
        "       140          …  end                     0.5         0.5",
    ]


def test_description_of_shortened_segment_ends_at_its_last_step():
    lines = PlateauCurve(100, decay_shape="linear").cooldown(50, 10).describe().splitlines()
    assert lines[1].split() == ["0", "49", "linear", "decay", "1", "0.5"]


def test_nesting_stops_at_depth_64():
    curve = PlateauCurve(1000)
    for index in range(64):
        curve = curve.cooldown(900 - index, 1000)
    for copied in (copy.copy(curve), copy.deepcopy(curve), pickle.loads(pickle.dumps(curve))):
        assert copied == curve
        assert hash(copied) == hash(curve)
    assert eval(repr(curve)) == curve
    assert Curve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    for deeper in (
        lambda: curve.cooldown(5, 5),
        lambda: curve.part(5),
        lambda: curve.then(CURVE),
        lambda: CURVE.then(curve),
    ):
        with pytest.raises(ValueError, match="nested 65 deep"):
            deeper()
    deeper = {"kind": "cooldown", "curve": curve.to_dict(), "at": 5, "steps": 5, "to": 0.0, "shape": "linear"}
    with pytest.raises(ValueError, match="deep"):
        Curve.from_dict(deeper)


def test_json_nested_beyond_recursion_limit_is_refused():
    arguments = CURVE.to_dict()
    for _ in range(10_000):
        arguments = {"kind": "then", "curve": CURVE.to_dict(), "other": arguments, "scale": 1.0}
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        Curve.from_dict(arguments)


@pytest.mark.parametrize("kind", ["plateau", "Staged", None, 5, ["staged"], {}], ids=str)
def test_unknown_kind_is_refused(kind):
    with pytest.raises(
        ValueError,
        match=r"^kind = .* must be one of 'cooldown', 'then', 'part', 'scaled', 'staged', or left out",
    ):
        Curve.from_dict({"kind": kind, "stages": [], "start": 0})


def test_each_kind_is_read_by_its_class_alone():
    curves = [CURVE, StagedCurve([(5, 1)]), CURVE.cooldown(5, 5), CURVE.then(CURVE), CURVE.part(5)]
    for curve in curves:
        assert Curve.from_dict(curve.to_dict()) == curve
        for kind in map(type, curves):
            if isinstance(curve, kind):
                assert kind.from_dict(curve.to_dict()) == curve
            else:
                with pytest.raises(
                    ValueError, match=f"of a {type(curve).__name__}, not of a {kind.__name__}"
                ):
                    kind.from_dict(curve.to_dict())


def test_flat_part_is_run_at_one_level_before_the_end():
    assert CURVE.flat_starts == (550,)
    # Plateaus that touch share a level, and so does a hold after a plateau.
    assert PlateauCurve(100, plateaus=[(50, 10), (60, 10), (90, 5)]).flat_starts == (50, 90)
    stairs = StagedCurve([(5,), (5, 0.0), (5, 0.5), (5,), (0, 0.3), (5,), (0, 0.5)])
    assert stairs.flat_starts == (0, 15, 20)
    assert PlateauCurve(10, min_lr_ratio=1).flat_starts == (0,)
    assert PlateauCurve(10).flat_starts == ()
    assert PlateauCurve(10, min_lr_ratio=0.5).cooldown(15, 5).flat_starts == (10,)
    assert stairs.then(stairs, scale=0.5).flat_starts == (0, 15, 20, 25, 40, 45)


@pytest.mark.parametrize(("shape", "gone"), [("linear", 18_000), ("cosine", 16_000), ("1-sqrt", 13_500)])
def test_rational_levels_are_equal_however_computed(shape, gone):
    # 1 - 3/4, (1 + cos 2π/3)/2 and 1 - √(9/16).
    curve = PlateauCurve(48_000, decay_shape=shape, absolute_plateaus=[(gone, 24_000)])
    quarter = StagedCurve([(gone,), (24_000, None)], start=0.25)
    assert curve.rows[2].start == quarter.rows[1].start


def test_rational_power_gives_rational_level():
    tenth = StagedCurve([(10, 0.01, "exponential")], start=1.0).cooldown(5, 1)
    assert tenth.rows[-2].start == StagedCurve([(1,)], start=0.1).rows[0].start


def test_shared_past_is_found_however_described():
    warmup = PlateauCurve(1000, warmup_steps=100, plateaus=[(0, 90)])
    staged = StagedCurve([(100, 1.0), (600,), (0, 1.0), (200, 1.0, "cosine"), (10,), (10, 0.5)])
    assert warmup.same_until(staged, 910)
    assert warmup.same_until(staged, 911)  # both start to fall from 1
    assert not warmup.same_until(staged, 912)
    assert warmup.first_difference(staged) == staged.first_difference(warmup) == 911
    assert CURVE.first_difference(PlateauCurve.from_dict(CURVE.to_dict())) is None


def test_exact_levels_with_same_float32_differ():
    one, other = (StagedCurve([(5, level)], start=level) for level in (0.1, 0.10000000000000002))
    assert one(range(9)).tolist() == other(range(9)).tolist()
    assert one.same_until(other, 0)
    assert not one.same_until(other, 1)
    scaled = StagedCurve([(5,)], start=1.0)
    once = PlateauCurve(1).then(scaled, scale=0.3).rows[-1].start
    assert once == StagedCurve([(1,)], start=0.3).rows[-1].start
