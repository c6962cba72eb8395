"""Curves written in other ways: percentages, `"rest"`, points, files, spellings, number types."""

import dataclasses
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
from curves.text_counts import text_and_integers
from hypothesis import given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions
from support.curves.strategies import (
    MAX_STEP,
    draw_magnitude,
    draw_ratio,
    draw_shape,
    magnitudes,
    randoms,
)
from support.examples import examples
from support.numerics.oracle import as_written, is_nearest_float32
from support.numerics.shapes import SHAPES_ALLOWING_ZERO, WITH_POWER

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve
from plateau_jax.curves.staged_curve import Stage
from plateau_jax.shapes.known_shapes import SHAPES


def assert_same(curve, *rewritten):
    for other in rewritten:
        assert type(other) is type(curve)
        assert other == curve
        assert hash(other) == hash(curve)
        assert repr(other) == repr(curve)
        assert other.to_dict() == curve.to_dict()
        assert other.describe() == curve.describe()
        assert other.same_until(curve, 2**31)
        np.testing.assert_equal(other.table, curve.table)


# Percentages and "rest".


def percentage_of(steps, total, random):
    """Return a percentage that rounds down to these steps."""
    with localcontext(prec=200):
        least = Decimal(100) * steps / total
        above = Decimal(100) * (steps + 1) / total
        if random.random() < 0.5:
            digits = random.randrange(10, 20)
            thousandths = random.randrange(1000)
        else:
            digits = 70
            thousandths = 1000 - Decimal("1e-50")
        inside = least + (above - least) * random.choice([0, thousandths]) / 1000
        unit = Decimal(1).scaleb(-digits)
        number = min(inside.quantize(unit, ROUND_CEILING), Decimal(100))
        assert least <= number < above
        texts = [str(number), f"{number:f}", f"{number:e}", str(number.normalize())]
    text = random.choice(texts)
    return random.choice([f"{text}%", f"{text} %", f" {text}% ", f"+{text}%"])


def in_percent(stages, total, random):
    """Return the same stages; the lengths of some are percentages, and one may be the rest."""
    rewritten = []
    for steps, *level in stages:
        if random.random() < 0.5:
            steps = percentage_of(steps, total, random)
        stage = (steps, *level)
        rewritten.append(random.choice([stage, list(stage), Stage(*stage)]))
    if random.random() < 0.7:
        index = random.randrange(len(stages))
        rewritten[index] = ("rest", *stages[index][1:])
    return rewritten


@given(descriptions(kind="staged"), randoms)
def test_stages_in_shares_are_those_in_steps(description, random):
    start = description["start"]
    stages = description["stages"]
    total = sum(steps for steps, *_ in stages)
    sequence = random.choice([list, tuple, iter])
    rewritten = sequence(in_percent(stages, total, random))
    saved = description | {"stages": in_percent(stages, total, random), "total_steps": total}
    with ignore_curve_warnings():  # about the drawn levels
        curve = StagedCurve(rewritten, start=start, total_steps=total)
    assert_same(build(description), curve, build(saved))


@given(descriptions(range(4), depth=0, kind="plateau"), randoms)
def test_warmup_in_percent_is_that_in_steps(chosen, random):
    percentage = percentage_of(chosen["warmup_steps"], chosen["total_steps"], random)
    assert_same(build(chosen), build({**chosen, "warmup_steps": percentage}))


@given(magnitudes(2, MAX_STEP), st.decimals(0, 100, places=9))
def test_percentages_are_rounded_down(total, percentage):
    with localcontext(prec=200):
        steps = int((percentage * total / 100).to_integral_value(ROUND_FLOOR))
    share = f"{percentage}%"
    with ignore_curve_warnings():
        staged = StagedCurve([(share, 1.0), ("rest",)], start=0.5, total_steps=total)
        assert [stage.steps for stage in staged.stages] == [steps, total - steps]
        if steps < total:
            curve = PlateauCurve(total, warmup_steps=share)
            assert curve.warmup_steps == steps


SHARES = [("2%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]
STEPS = StagedCurve([(200, 1.0), (7800,), (2000, 0.0, "1-sqrt")])


def test_replaced_curve_keeps_its_steps():
    curve = StagedCurve(SHARES, total_steps=10_000)
    assert_same(STEPS, curve, dataclasses.replace(curve))
    longer = dataclasses.replace(curve, stages=[(5, 1.0), (20_000,)])
    assert longer.total_steps == 20_005
    rewritten = dataclasses.replace(curve, stages=SHARES, total_steps=20_000)
    assert rewritten.stages[0].steps == 400
    shorter = dataclasses.replace(PlateauCurve(10_000, warmup_steps="2%"), total_steps=500)
    assert shorter.warmup_steps == 200


# Letters.


def in_letters(count, random):
    """Return a number of steps, samples or tokens as text such as "1500000" or "1.5M"."""
    letter, zeros = random.choice([("", 0), ("k", 3), ("M", 6), ("B", 9)])
    number = f"{Decimal(count).scaleb(-zeros):f}"
    return random.choice([f"{number}{letter}", f" {number} {letter}"])


def with_letters(chosen, random):
    """Return the description of a PlateauCurve with text for its numbers of steps."""
    rewritten = dict(chosen)
    for name in ("total_steps", "warmup_steps"):
        rewritten[name] = in_letters(chosen[name], random)
    plateaus = []
    for start, length in chosen["absolute_plateaus"]:
        plateaus.append((in_letters(start, random), in_letters(length, random)))
    return {**rewritten, "absolute_plateaus": plateaus}


@given(descriptions(range(4), depth=0, kind="plateau"), randoms)
def test_steps_with_letters_are_those_without(chosen, random):
    assert_same(build(chosen), build(with_letters(chosen, random)))


def test_text_and_integers_are_equal():
    for with_text, with_integers in text_and_integers():
        assert with_text == with_integers


PLAN = BatchPlan([(0, 500_000), (2 * 10**9, 4_000_000)])


def test_text_is_read_alike_in_files_and_in_python():
    pairs = [["0", "5e5"], ["2e9", "4_000_000"]]
    assert BatchPlan.from_dict({"kind": "batch_plan", "pairs": pairs}) == PLAN
    assert BatchPlan(pairs) == PLAN


# Warmup, stable, decay.


@given(randoms)
def test_wsd_is_its_three_stages(random):
    total = draw_magnitude(random, 1, MAX_STEP)
    warmup = random.choice((0, total, draw_magnitude(random, 0, total)))
    decay = random.choice((0, total - warmup, draw_magnitude(random, 0, total - warmup)))
    lowest = draw_ratio(random)
    start = random.choice((0.0, draw_ratio(random)))
    shape = draw_shape(random, SHAPES)
    if lowest == 0 and shape not in SHAPES_ALLOWING_ZERO:
        shape = "1-sqrt"
    stages = [(warmup, 1.0), (total - warmup - decay,), (decay, lowest, shape)]
    expected = build({"kind": "staged", "stages": stages, "start": start})
    options = {
        "total_steps": total,
        "warmup_steps": warmup,
        "decay_steps": decay,
        "decay_shape": shape,
        "min_lr_ratio": lowest,
        "start": start,
    }
    check_wsd(expected, options)
    options["warmup_steps"] = percentage_of(warmup, total, random)
    options["decay_steps"] = percentage_of(decay, total, random)
    check_wsd(expected, options)


def check_wsd(expected, options):
    with ignore_curve_warnings():  # about the drawn ratio
        assert_same(expected, StagedCurve.wsd(**options))


# Points.


def draw_points(random):
    """Draw points with levels of every magnitude, of which some are equal, and with jumps."""
    points = [(0, float(draw_ratio(random)))]
    for _ in range(random.randint(1, 60)):
        step, level = points[-1]
        kind = random.randrange(4)
        if kind != 0:
            most = min(MAX_STEP - step - 1, 10 ** random.randrange(10))
            step += draw_magnitude(random, 0, most)
        if kind != 1:
            level = float(draw_ratio(random))
        points.append((step, level))
    last = points[-1][0] + 1
    points.append((last, float(draw_ratio(random))))
    if random.random() < 0.5:
        points.append((last, float(draw_ratio(random))))
    return points


def stages_through(points):
    stages = []
    for (step, level), (following, to) in pairwise(points):
        if to == level:
            stages.append((following - step, None))
        else:
            stages.append((following - step, to))
    return {"kind": "staged", "stages": stages, "start": points[0][1]}


POINTS = randoms.map(draw_points)


@given(POINTS)
def test_curve_through_points_is_exact_at_them(points):
    with ignore_curve_warnings():  # about the drawn levels
        curve = StagedCurve.through(points)
    staged = build(stages_through(points))
    assert_same(staged, curve)
    for step, level in dict(points).items():  # the last of several at one step
        multiplier = np.float32(curve(step))
        assert is_nearest_float32(multiplier, as_written(level))


@examples(16)
@given(POINTS)
def test_points_may_be_arrays_and_iterators(points):
    steps, levels = zip(*points, strict=True)
    forms = [
        tuple(points),
        iter(points),
        zip(steps, levels, strict=True),
        map(list, points),
        np.array(points),
        np.array(points, object),
        list(np.array(points)),
        [(np.int64(step), np.float64(level)) for step, level in points],
        zip(np.array(steps), np.array(levels), strict=True),
    ]
    with ignore_curve_warnings():
        curve = StagedCurve.through(points)
        assert_same(curve, *map(StagedCurve.through, forms))


def test_points_may_be_float32():
    points = np.array([(0, 0.1), (2**20 + 1, 0.7)], np.float32)
    expected = StagedCurve([(2**20 + 1, 0.7)], start=0.1)
    assert StagedCurve.through(points) == expected


# Types of numbers.


class ParsedInteger(int):
    """A subclass, as parsers that keep comments have them."""

    def __add__(self, _):
        return self


class ParsedFloat(float):
    def __add__(self, _):
        return self


def test_numbers_become_plain():
    arguments = {
        "kind": "staged",
        "stages": [
            [ParsedInteger(5), ParsedFloat(0.5)],
            [np.int64(5), np.float32(0.1)],
        ],
        "start": ParsedFloat(0.25),
        "total_steps": ParsedInteger(10),
    }
    curve = Curve.from_dict(arguments)
    assert curve == StagedCurve([(5, 0.5), (5, 0.1)], start=0.25)
    assert type(curve.start) is float
    for stage in curve.stages:
        assert type(stage) is Stage
        assert type(stage.steps) is int
        assert type(stage.to) is float
    assert curve == StagedCurve(iter(curve.stages), start=0.25)


def test_numbers_of_float32_become_decimals():
    curve = PlateauCurve(
        1000,
        plateaus=[np.array([32.3, 0.7], np.float32)],
        min_lr_ratio=ParsedFloat(-0.0),
        init_lr_ratio=np.array(0.1, np.float32),
    )
    assert curve.flat_starts == (323,)  # floats give 322
    assert curve.plateaus == ((32.3, 0.7),)
    assert curve.init_lr_ratio == 0.1
    assert str(curve.min_lr_ratio) == "0.0"
    assert type(curve.min_lr_ratio) is float


# Spellings of a shape.


def staged(shape):
    return StagedCurve([(50, 0.1, shape), (30, 0.3, shape)], start=0.9)


def cooled(shape):
    return StagedCurve([(10, 1.0)]).cooldown(5, 20, to=0.1, shape=shape)


def decayed(shape):
    return PlateauCurve(90, plateaus=[(30, 20)], decay_shape=shape)


@pytest.mark.parametrize(
    ("spelling", "shape"),
    [
        ("1-x^0.5", "1-sqrt"),
        ("1-x^.5", "1-sqrt"),
        ("1-x^0.500", "1-sqrt"),
        ("1-x^1", "linear"),
        ("(1-x)^1", "linear"),
        ("(1-x)^1.000", "linear"),
        ("1-x^2.0", "1-x^2"),
        ("1-x^2.", "1-x^2"),
        ("1-x^02.50", "1-x^2.5"),
        ("(1-x)^.5", "(1-x)^0.5"),
        ("(1-x)^20.0", "(1-x)^20"),
        ("t^-1.0", "t^-1"),
        ("t^-.25", "t^-0.25"),
    ],
)
def test_spellings_of_one_power_are_equal(spelling, shape):
    assert_same(staged(spelling), staged(shape))
    assert_same(cooled(spelling), cooled(shape))
    if not shape.startswith("t"):
        assert_same(decayed(spelling), decayed(shape))


@pytest.mark.parametrize("formula", WITH_POWER)
@examples(60)
@given(power=st.floats(0.25, 4))
def test_printed_floats_are_powers_and_named(formula, power):
    written = formula.replace("P", str(power))
    with_a_0 = formula.replace("P", f"{Decimal(repr(power)):f}0")
    curve = staged(written)
    shape = curve.stages[0].shape
    assert_same(curve, staged(with_a_0), staged(shape))
    assert f"{shape} stage" in curve.describe()
    assert shape in curve._repr_html_()
    cooldown = cooled(written)
    assert Curve.from_dict(cooldown.to_dict()) == cooldown
    if formula in SHAPES_ALLOWING_ZERO:
        decay = decayed(written)
        assert Curve.from_dict(decay.to_dict()) == decay
