"""Values of every kind of curve against the exact formulas."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import SHAPES, build, descriptions, descriptions_and_steps
from support.curves.strategies import arguments
from support.examples import examples
from support.numerics.borders import steps_at_borders
from support.numerics.oracle import Oracle, are_equal, as_written, exactly, is_nearest_float32

from plateau_jax import PlateauCurve

MAX_STEP = 2**31 - 1


class Step(int):
    """A subclass of int, as some counters are."""


@examples(300)
@given(st.one_of(descriptions_and_steps(), descriptions_and_steps(scaled=True)))
def test_values_are_within_half_ulp_plus_2_to_minus_58(case):
    description, steps = case
    curve, oracle = build(description), Oracle(description)
    for step, found in zip(steps, curve(steps), strict=True):
        assert abs(exactly(float(found)) - oracle(step)) <= oracle.largest_error(step), step


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_values_near_rounding_borders_are_exact_and_monotone(shape, data):
    description, step = data.draw(steps_at_borders((shape,)))
    curve, oracle = build(description), Oracle(description)
    value = oracle(step)
    for found in (curve(step), *curve([step])):
        assert abs(exactly(float(found)) - value) <= oracle.largest_error(step)
    begin, end, part = next(span for span in oracle.spans() if span[0] <= step < span[1])
    _assert_one_way(curve(np.clip(step + np.arange(-300, 300), begin, end - 1)), part)


@given(st.floats(5e-324, 1e-30), st.floats(1e-3, 1), st.integers(2, 3000), st.booleans(), st.data())
def test_exponential_between_tiny_levels_is_as_exact(low, high, length, rises, data):
    """Like ExponentialLR over many steps, with a cooldown to even smaller levels."""
    start, end = (low, high) if rises else (high, low)
    stage = {"stages": [(length, end, "exponential")], "start": start}
    at = data.draw(st.integers(1, length))
    further = {"cooldown": stage, "at": at, "steps": 50, "to": low / 16 or low, "shape": "exponential"}
    for description in (stage, stage if rises and low / 16 == 0 else further):
        curve, oracle = build(description), Oracle(description)
        steps = range(0, length + 50, 1 + length // 40)
        for step, found in zip(steps, curve(steps), strict=True):
            assert abs(exactly(float(found)) - oracle(step)) <= oracle.largest_error(step), step


@given(descriptions(scaled=True))
def test_first_step_of_every_segment_is_nearest_float32(description):
    curve, oracle = build(description), Oracle(description)
    for border in oracle.borders:
        if not oracle.part_at(border).skipped:
            assert is_nearest_float32(curve(border), oracle(border)), border


@given(steps_at_borders(least=Fraction(1, 2**62)))
def test_cooldown_starts_at_nearest_float32_near_borders(case):
    parent, at = case
    cooldown = {"cooldown": parent, "at": at, "steps": 1, "to": 0.0, "shape": "1-sqrt"}
    assert is_nearest_float32(build(cooldown)(at), Oracle(cooldown)(at))


@given(arguments())
def test_ends_equal_the_arguments(chosen):
    curve = build(chosen)
    assert curve(chosen["warmup_steps"]) == 1 or chosen["warmup_steps"] == chosen["total_steps"]
    assert is_nearest_float32(curve(chosen["total_steps"]), as_written(chosen["min_lr_ratio"]))
    if chosen["warmup_steps"]:
        assert is_nearest_float32(curve(0), as_written(chosen["init_lr_ratio"]))


@given(descriptions_and_steps(size=8, scaled=True))
def test_flat_parts_are_flat(case):
    description, steps = case
    curve, flat = build(description), Oracle(description).flat_runs()
    assert curve.flat_starts == tuple(begin for begin, _ in flat)
    for begin, length in flat:
        inside = [begin, begin + length - 1, *(begin + step % length for step in steps)]
        assert np.unique(curve(inside)).size == 1


def _assert_one_way(values, part):
    changes = np.diff(values)
    assert (changes <= 0).all() if part.end <= part.start else (changes >= 0).all()


@examples(200)
@given(descriptions(scaled=True), st.randoms())
def test_stages_are_monotone_and_within_0_and_1(description, random):
    curve, oracle = build(description), Oracle(description)
    for begin, end, part in oracle.spans():
        # Unless a stage is cut short or followed by a jump, its values end at the next stage's first level.
        whole = end == part.begin + part.length - part.skipped and are_equal(oracle(end), part.end)
        last = end if whole else end - 1
        centres = begin, last, (begin + last) // 2, random.randint(begin, last), random.randint(begin, last)
        steps = np.array(centres)[:, None] + np.arange(-100, 100)
        values = curve(np.clip(steps, begin, last))
        _assert_one_way(values, part)
        assert ((values >= 0) & (values <= 1)).all()


@given(descriptions(), st.integers(1))
def test_curve_is_constant_before_start_and_past_end(description, far):
    curve = build(description)
    assert curve.total_steps == Oracle(description).total_steps
    assert curve(-far) == curve(0)
    assert curve(curve.total_steps + far) == curve(curve.total_steps)


@given(descriptions_and_steps())
def test_scalars_arrays_and_every_integer_type_agree(case):
    description, steps = case
    curve = build(description)
    values = curve(steps)
    assert values.dtype == np.float32
    assert [curve(step) for step in steps] == values.tolist()
    assert all(type(curve(kind(step))) is float for step in steps[:3] for kind in (int, np.int64, Step))
    assert [curve(np.int64(step)) for step in steps] == values.tolist()
    assert type(curve(np.array(steps[0]))) is np.float32
    cube = np.array(steps).reshape(2, 3, -1)
    np.testing.assert_array_equal(curve(cube), values.reshape(cube.shape))
    np.testing.assert_array_equal(curve(cube[::-1, :, ::2]), values.reshape(cube.shape)[::-1, :, ::2])
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64, object):
        fitting = np.array([step for step in steps if dtype is object or _fits(step, dtype)], dtype)
        np.testing.assert_array_equal(curve(fitting), curve(fitting.astype(np.int64)))


def _fits(step: int, dtype: Any) -> bool:
    return np.iinfo(dtype).min <= step <= np.iinfo(dtype).max


@given(descriptions(), st.lists(st.integers()))
def test_integers_of_any_size(description, steps):
    curve = build(description)
    clamped = [min(max(step, 0), MAX_STEP) for step in steps]
    np.testing.assert_array_equal(curve(steps), curve(np.array(clamped, np.int64)))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_limits_of_64_bit_integers_are_clamped(dtype):
    curve = PlateauCurve(10, min_lr_ratio=0.25)
    limits = np.iinfo(dtype)
    np.testing.assert_array_equal(curve(np.array([limits.min, limits.max], dtype)), np.float32([1, 0.25]))
    assert curve(10**30) == curve(dtype(limits.max)) == 0.25
    assert curve(-(10**30)) == curve(dtype(limits.min)) == 1


@pytest.mark.parametrize(
    "empty", [[], (), range(0), *map(np.zeros, (0, (0, 3))), np.zeros((2, 0), int)], ids=repr
)
def test_empty_steps_give_empty_values(empty):
    values = PlateauCurve(10)(empty)
    assert (values.shape, values.dtype) == (np.shape(empty), np.float32)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.parametrize(
    ("numbers", "decimals"),
    [
        ({"plateaus": [(32.3, 10)]}, (323, 100)),
        ({"plateaus": [(0.1, 0.7)]}, (1, 7)),
        ({"plateaus": [(np.float32(32.3), np.float64(0.7))]}, (323, 7)),
    ],
)
def test_percentages_are_read_as_decimals(numbers, decimals):
    start, length = decimals
    curve = PlateauCurve(1000, **numbers)
    assert curve == PlateauCurve(
        1000, plateaus=[tuple(float(str(number)) for number in numbers["plateaus"][0])]
    )
    np.testing.assert_array_equal(
        curve(range(1001)), PlateauCurve(1000, absolute_plateaus=[(start, length)])(range(1001))
    )


def test_plateaus_may_touch():
    touching = PlateauCurve(100, plateaus=[(10, 20)], absolute_plateaus=[(30, 10), (30, 0), (40, 0)])
    values = touching(range(10, 41))
    assert np.unique(values[:-1]).size == 1
    assert values[-1] == values[0]


@pytest.mark.parametrize("warmup", [0, 1, 99])
def test_single_step_may_be_left_to_decay(warmup):
    curve = PlateauCurve(
        100, warmup_steps=warmup, absolute_plateaus=[(warmup + 1, 99 - warmup)], min_lr_ratio=0.1
    )
    np.testing.assert_array_equal(curve([warmup, warmup + 1, 100]), np.float32([1, 0.1, 0.1]))
