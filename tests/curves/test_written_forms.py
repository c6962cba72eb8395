"""Curves written in other ways: percentages, `"rest"`, points, files, spellings of a shape, number types."""

import dataclasses
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import SHAPES, build, descriptions
from support.curves.strategies import MAX_STEP, Words, arguments, magnitudes, shape_of, words
from support.examples import examples
from support.numerics.oracle import as_written, is_nearest_float32

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.curves.staged_curve import Stage
from plateau_jax.validation.curve_warning import suppress_warnings

randoms = st.randoms(use_true_random=False)


def _percentage(steps, total, random):
    """Return a percentage that rounds down to these steps."""
    with localcontext(prec=200):
        least, above = (Decimal(100) * count / total for count in (steps, steps + 1))
        digits = random.choice([random.randrange(10, 20), 70])
        last = 1000 - Decimal("1e-50") if digits == 70 else random.randrange(1000)
        inside = least + (above - least) * random.choice([0, last]) / 1000
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


def _assert_same(curve, *others):
    for other in others:
        assert type(other) is type(curve)
        assert (other, hash(other), repr(other)) == (curve, hash(curve), repr(curve))
        assert (other.to_dict(), other.describe()) == (curve.to_dict(), curve.describe())
        assert other.same_until(curve, 2**31)
        np.testing.assert_equal(other.table.columns(), curve.table.columns())


@given(descriptions(kind="stages"), randoms)
def test_stages_in_shares_are_those_in_steps(description, random):
    stages, start = description["stages"], description["start"]
    total = sum(steps for steps, *_ in stages)
    with suppress_warnings():  # about the drawn levels
        curve = StagedCurve(_as_shares(stages, total, random), start=start, total_steps=total)
        written = {"stages": list(_as_shares(stages, total, random)), "total_steps": total, "start": start}
        _assert_same(build(description), curve, Curve.from_dict(written))


@given(arguments(range(4)), randoms)
def test_warmup_in_percent_is_that_in_steps(chosen, random):
    written = {**chosen, "warmup_steps": _percentage(chosen["warmup_steps"], chosen["total_steps"], random)}
    with suppress_warnings():  # about the drawn ratios
        _assert_same(build(chosen), PlateauCurve(**written), Curve.from_dict(written))


@given(magnitudes(2, MAX_STEP), st.decimals(0, 100, places=9))
def test_percentages_are_rounded_down(total, percentage):
    with localcontext(prec=200):
        steps = int((percentage * total / 100).to_integral_value(ROUND_FLOOR))
    with suppress_warnings():
        curve = StagedCurve([(f"{percentage}%", 1.0), ("rest",)], start=0.5, total_steps=total)
        assert [stage.steps for stage in curve.stages] == [steps, total - steps]
        if steps < total:
            assert PlateauCurve(total, warmup_steps=f"{percentage}%").warmup_steps == steps


@given(words(8), randoms)
def test_wsd_is_its_three_stages(drawn, random):
    read = Words(drawn)
    total = read.magnitude(1, MAX_STEP)
    warmup = read.one_of((0, total, read.magnitude(0, total)))
    decay = read.one_of((0, total - warmup, read.magnitude(0, total - warmup)))
    lowest, shape = read.ratio(), shape_of(read, SHAPES)
    if lowest < 2.0**-15 and shape.startswith(("t", "e")):
        shape = "1-sqrt"  # these levels are too far apart for the shape
    stages = [(warmup, 1.0), (total - warmup - decay,), (decay, lowest, shape)]
    same = build({"stages": stages, "start": 0.0})
    lengths = {"warmup_steps": warmup, "decay_steps": decay}
    shares = {name: _percentage(steps, total, random) for name, steps in lengths.items()}
    with suppress_warnings():  # about the drawn ratio
        for written in (lengths, shares):
            options = {"total_steps": total, **written, "decay_shape": shape, "min_lr_ratio": lowest}
            as_text = {name: str(value) for name, value in options.items()}
            _assert_same(
                same,
                StagedCurve.wsd(**options),
                Curve.from_dict({"kind": "wsd", **options}),
                StagedCurve.from_dict({"kind": "wsd", **as_text}),
            )


def test_wsd_decays_to_0_along_1_sqrt_by_default():
    assert StagedCurve.wsd(10_000, warmup_steps="2%", decay_steps="20%") == SHARES


def _read_points(drawn):
    """Return points with levels of every magnitude, of which some are equal, and with jumps."""
    read = Words(drawn)
    points = [(0, float(read.ratio()))]
    for _ in range(1 + read.below(60)):
        step, level = points[-1]
        kind = read.below(4)
        length = 0 if kind == 0 else read.magnitude(0, min(MAX_STEP - step - 1, 10 ** read.below(10)))
        points.append((step + length, level if kind == 1 else float(read.ratio())))
    last = points[-1][0] + 1
    jump = [(last, float(read.ratio()))] * read.below(2)
    return [*points, (last, float(read.ratio())), *jump]


def _stages_through(points):
    stages = []
    for (step, level), (after, to) in pairwise(points):
        stages.append((after - step, None if to == level else to))
    return {"stages": stages, "start": points[0][1]}


POINTS = words(250).map(_read_points)


@given(POINTS)
def test_curve_through_points_is_exact_at_them(points):
    with suppress_warnings():  # about the drawn levels
        curve = StagedCurve.through(points)
    _assert_same(build(_stages_through(points)), curve)
    assert len(curve.table.begin) == len(points)
    for step, level in dict(points).items():  # the last of several at one step
        assert is_nearest_float32(np.float32(curve(step)), as_written(level))


def _in_every_form(points):
    steps, levels = zip(*points, strict=True)
    yield from (points, tuple(points), iter(points), zip(steps, levels, strict=True), map(list, points))
    yield from (np.array(points), np.array(points, object), list(np.array(points)))
    yield [(np.int64(step), np.float64(level)) for step, level in points]
    yield zip(np.array(steps), np.array(levels), strict=True)


@examples(16)
@given(POINTS)
def test_points_may_be_arrays_and_iterators(points):
    written = [[str(step), level] for step, level in points]  # YAML reads 2e5 as a text
    with suppress_warnings():
        first, *others = map(StagedCurve.through, _in_every_form(points))
        of_lists = Curve.from_dict({"kind": "through", "points": points})
        of_text = StagedCurve.from_dict({"kind": "through", "points": written})
    _assert_same(first, *others, of_lists, of_text)


LEFT_OUT = [
    ({"total_steps": 9, "warmup_steps": None, "plateaus": None, "decay_shape": None}, PlateauCurve(9)),
    ({"kind": None, "total_steps": 9}, PlateauCurve(9)),
    (
        {"kind": "staged", "stages": [[9, None]], "start": 1, "total_steps": None},
        StagedCurve([(9,)], start=1),
    ),
    ({"kind": "part", "curve": {"total_steps": 9}, "start": None, "stop": None}, PlateauCurve(9).part()),
    (
        {"kind": "wsd", "total_steps": 9, "warmup_steps": 2, "decay_steps": 3, "decay_shape": None},
        StagedCurve.wsd(9, warmup_steps=2, decay_steps=3),
    ),
    (
        {"kind": "cooldown", "curve": {"total_steps": 9, "kind": None}, "at": 3, "steps": 4, "to": None},
        PlateauCurve(9).cooldown(3, 4),
    ),
]


@pytest.mark.parametrize(("written", "curve"), LEFT_OUT)
def test_null_is_a_value_that_was_left_out(written, curve):
    _assert_same(curve, Curve.from_dict(written))


def test_points_may_be_integers_or_float32():
    assert StagedCurve.through(np.array([(0, 1), (9, 0)], np.uint8)) == StagedCurve([(9, 0)], start=1)
    masked = np.ma.array([(0, 0.0), (5, 1.0), (9, 0.5)], mask=[(0, 0), (0, 1), (1, 0)])
    assert StagedCurve.through(masked) == StagedCurve.through(masked.data)
    points = np.array([(0, 0.1), (2**20 + 1, 0.7)], np.float32)
    assert StagedCurve.through(points) == StagedCurve([(2**20 + 1, 0.7)], start=0.1)


SHARES = StagedCurve([(200, 1.0), (7800,), (2000, 0.0, "1-sqrt")])
STAGES = [("2%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]


def test_replaced_curve_keeps_its_steps():
    curve = StagedCurve(STAGES, total_steps=10_000)
    _assert_same(SHARES, curve, dataclasses.replace(curve))
    longer = dataclasses.replace(curve, stages=[(5, 1.0), (20_000,)])
    assert longer.total_steps == 20_005
    assert dataclasses.replace(curve, stages=STAGES, total_steps=20_000).stages[0].steps == 400
    assert dataclasses.replace(PlateauCurve(10_000, warmup_steps="2%"), total_steps=500).warmup_steps == 200


def test_numbers_become_plain():
    # Subclasses, as parsers that keep comments have them.
    integer, real = (type("Parsed", (kind,), {"__add__": lambda self, _: self}) for kind in (int, float))
    stages = [[integer(5), real(0.5)], [np.int64(5), np.float32(0.1)]]
    curve = Curve.from_dict({"stages": stages, "start": real(0.25), "total_steps": integer(10)})
    assert curve == StagedCurve([(5, 0.5), (5, 0.1)], start=0.25)
    numbers = [number for stage in curve.stages for number in stage[:2]]
    assert {type(number) for number in (*numbers, curve.start)} == {int, float}
    assert {type(stage) for stage in curve.stages} == {Stage}
    assert curve == StagedCurve(iter(curve.stages), start=0.25)
    pair, scalar = np.array([32.3, 0.7], np.float32), np.array(0.1, np.float32)
    curve = PlateauCurve(1000, plateaus=[pair], min_lr_ratio=real(-0.0), init_lr_ratio=scalar)
    assert curve.flat_starts == (323,)  # floats give 322
    assert (curve.plateaus, curve.init_lr_ratio, str(curve.min_lr_ratio)) == (((32.3, 0.7),), 0.1, "0.0")
    assert type(curve.min_lr_ratio) is float


SPELLINGS = [
    *("1-x^0.5 1-sqrt", "1-x^.5 1-sqrt", "1-x^0.500 1-sqrt", "1-x^1 linear", "(1-x)^1 linear"),
    *("(1-x)^1.000 linear", "1-x^2.0 1-x^2", "1-x^2. 1-x^2", "1-x^02.50 1-x^2.5", "(1-x)^.5 (1-x)^0.5"),
    *("(1-x)^20.0 (1-x)^20", "t^-1.0 t^-1", "t^-.25 t^-0.25"),
]


def _curves_with(shape):
    """Return a curve for each way to use a shape."""
    staged = StagedCurve([(50, 0.1, shape), (30, 0.3, shape)], start=0.9)
    cooled = StagedCurve([(10, 1.0)]).cooldown(5, 20, to=0.1, shape=shape)
    if shape.startswith("t"):
        return [staged, cooled]
    return [staged, cooled, PlateauCurve(90, plateaus=[(30, 20)], decay_shape=shape)]


@pytest.mark.parametrize("both", SPELLINGS)
def test_spellings_of_one_power_are_equal(both):
    shape, same = both.split()
    for one, other in zip(_curves_with(shape), _curves_with(same), strict=True):
        _assert_same(one, other)


@examples(60)
@given(st.floats(0.25, 4))
def test_printed_floats_are_powers_and_named(power):
    for name in ("1-x^", "(1-x)^", "t^-"):
        curve, *others = _curves_with(f"{name}{power}")
        shape = curve.stages[0].shape
        _assert_same(curve, _curves_with(f"{name}{Decimal(repr(power)):f}0")[0], _curves_with(shape)[0])
        assert f"{shape} stage" in curve.describe()
        assert f"{shape} to 0.1 in 50" in curve._legend_phrases()
        assert shape in curve._repr_html_()
        assert all(Curve.from_dict(other.to_dict()) == other for other in others)
