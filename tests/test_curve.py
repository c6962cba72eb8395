"""`PlateauCurve`: its values against the formulas, and its manners as a value."""

import copy
import dataclasses
import json
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle import Oracle, exactly, half_ulp, is_nearest_float32
from support.strategies import arguments, arguments_and_steps

from plateau_jax import PlateauCurve

MAX_STEP = 2**31 - 1


@settings(max_examples=200)
@given(arguments_and_steps())
def test_each_value_is_the_exact_one_to_half_an_ulp_and_2_to_the_minus_58(case):
    chosen, steps = case
    curve, oracle = PlateauCurve(**chosen), Oracle(**chosen)
    for step, found in zip(steps, curve(steps), strict=True):
        value = oracle(step)
        assert abs(exactly(float(found)) - value) <= half_ulp(value) + exactly(2.0**-58), step


@given(arguments())
def test_both_ends_of_every_segment_are_the_nearest_float32(chosen):
    curve, oracle = PlateauCurve(**chosen), Oracle(**chosen)
    for border in oracle.borders:
        assert is_nearest_float32(curve(border), oracle(border)), border


@given(arguments())
def test_ends_are_exactly_the_arguments(chosen):
    curve = PlateauCurve(**chosen)
    assert curve(chosen["warmup_steps"]) == 1 or chosen["warmup_steps"] == chosen["total_steps"]
    assert is_nearest_float32(curve(chosen["total_steps"]), exactly(Fraction(repr(chosen["min_lr_ratio"]))))
    if chosen["warmup_steps"]:
        assert is_nearest_float32(curve(0), exactly(Fraction(repr(chosen["init_lr_ratio"]))))


@given(arguments_and_steps())
def test_plateaus_are_flat(case):
    chosen, steps = case
    curve = PlateauCurve(**chosen)
    for begin, length in Oracle(**chosen).flat:
        inside = [begin, begin + length - 1, *(begin + step % length for step in steps)]
        assert np.unique(curve(inside)).size == 1


@settings(max_examples=200)
@given(arguments(), st.data())
def test_never_climbs_after_the_warmup(chosen, data):
    curve = PlateauCurve(**chosen)
    window = st.integers(chosen["warmup_steps"], chosen["total_steps"])
    centres = Oracle(**chosen).borders + data.draw(st.lists(window, max_size=8))
    windows = np.array(centres)[:, None] + np.arange(-300, 300)
    values = curve(np.clip(windows, chosen["warmup_steps"], MAX_STEP - 1))
    assert (np.diff(values) <= 0).all()


@given(arguments())
def test_never_falls_in_the_warmup_nor_leaves_0_to_1(chosen):
    curve = PlateauCurve(**chosen)
    warmup = chosen["warmup_steps"]
    for centre in (0, warmup // 2, warmup):
        values = curve(np.arange(max(centre - 300, 0), min(centre + 300, warmup) + 1))
        assert (np.diff(values) >= 0).all()
        assert ((values >= 0) & (values <= 1)).all()


@given(arguments(), st.integers(1))
def test_holds_before_the_start_and_past_the_end(chosen, far):
    curve = PlateauCurve(**chosen)
    assert curve(-far) == curve(0)
    assert curve(chosen["total_steps"] + far) == curve(chosen["total_steps"])


@given(arguments_and_steps())
def test_scalars_arrays_and_every_integer_type_agree(case):
    chosen, steps = case
    curve = PlateauCurve(**chosen)
    values = curve(steps)
    assert values.dtype == np.float32
    assert [curve(step) for step in steps] == values.tolist()
    assert all(type(curve(kind(step))) is float for step in steps[:3] for kind in (int, np.int64))
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


@given(arguments(), st.lists(st.integers()))
def test_integers_of_any_size(chosen, steps):
    curve = PlateauCurve(**chosen)
    clamped = [min(max(step, 0), MAX_STEP) for step in steps]
    np.testing.assert_array_equal(curve(steps), curve(np.array(clamped, np.int64)))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_the_ends_of_64_bits(dtype):
    curve = PlateauCurve(10, min_lr_ratio=0.25)
    limits = np.iinfo(dtype)
    np.testing.assert_array_equal(curve(np.array([limits.min, limits.max], dtype)), np.float32([1, 0.25]))
    assert curve(10**30) == curve(dtype(limits.max)) == 0.25
    assert curve(-(10**30)) == curve(dtype(limits.min)) == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_steps_no_values(shape):
    values = PlateauCurve(10)(np.zeros(shape, int))
    assert (values.shape, values.dtype) == (shape, np.float32)


@pytest.mark.parametrize(
    ("numbers", "decimals"),
    [
        ({"plateaus": [(32.3, 10)]}, (323, 100)),
        ({"plateaus": [(0.1, 0.7)]}, (1, 7)),
        ({"plateaus": [(np.float32(32.3), np.float64(0.7))]}, (323, 7)),
    ],
)
def test_percentages_are_decimals(numbers, decimals):
    start, length = decimals
    curve = PlateauCurve(1000, **numbers)
    assert curve == PlateauCurve(
        1000, plateaus=[tuple(float(str(number)) for number in numbers["plateaus"][0])]
    )
    np.testing.assert_array_equal(
        curve(range(1001)), PlateauCurve(1000, absolute_plateaus=[(start, length)])(range(1001))
    )


@given(arguments())
def test_repr_evaluates_to_itself(chosen):
    curve = PlateauCurve(**chosen)
    again = eval(repr(curve), {"PlateauCurve": PlateauCurve})
    assert again == curve
    assert repr(again) == repr(curve)


@given(arguments())
def test_json_both_ways(chosen):
    curve = PlateauCurve(**chosen)
    written = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert written.keys() == chosen.keys()
    assert PlateauCurve.from_dict(written) == curve
    assert PlateauCurve.from_dict(written).to_dict() == written


@given(arguments(), st.randoms())
def test_equal_whatever_the_order_and_the_kind_of_numbers(chosen, random):
    curve = PlateauCurve(**chosen)
    shuffled = {
        name: random.sample(chosen[name], len(chosen[name])) for name in ("plateaus", "absolute_plateaus")
    }
    other = PlateauCurve(
        np.int64(chosen["total_steps"]),
        warmup_steps=np.array(chosen["warmup_steps"]),
        plateaus=([np.float64(start), np.float64(duration)] for start, duration in shuffled["plateaus"]),
        absolute_plateaus=np.array(shuffled["absolute_plateaus"], int).reshape(-1, 2),
        min_lr_ratio=np.float64(chosen["min_lr_ratio"]),
        init_lr_ratio=float(chosen["init_lr_ratio"]),
        warmup=chosen["warmup"],
        decay=chosen["decay"],
    )
    assert other == curve
    assert hash(other) == hash(curve)
    assert json.dumps(other.to_dict())


def test_every_argument_tells_curves_apart():
    curve = PlateauCurve(100)
    changes = {
        "total_steps": 101,
        "warmup_steps": 1,
        "plateaus": [(50, 10)],
        "absolute_plateaus": [(50, 10)],
        "min_lr_ratio": 0.1,
        "init_lr_ratio": 0.1,
        "warmup": "cosine",
        "decay": "linear",
    }
    others = {dataclasses.replace(curve, **{name: value}) for name, value in changes.items()}
    assert len(others - {curve}) == len(changes) == len(dataclasses.fields(curve))
    assert curve != "PlateauCurve(100)"


@pytest.mark.parametrize("name", ["total_steps", "segments", "rows", "anything"])
def test_frozen(name):
    curve = PlateauCurve(100)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(curve, name, 5)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda curve: pickle.loads(pickle.dumps(curve))],
    ids=("copy", "deep", "pickle"),
)
@given(arguments())
def test_copies_are_equal_and_carry_no_table(copied, chosen):
    fresh = pickle.dumps(PlateauCurve(**chosen))
    curve = PlateauCurve(**chosen)
    value = curve(chosen["total_steps"] // 2)
    other = copied(curve)
    assert other == curve
    assert other(chosen["total_steps"] // 2) == value
    assert len(pickle.dumps(curve)) == len(fresh)


def test_replace_checks_again():
    with pytest.raises(ValueError, match="warmup_steps = 100"):
        dataclasses.replace(PlateauCurve(100), warmup_steps=100)


@given(arguments())
def test_describe_names_the_segments_that_are_not_empty(chosen):
    header, *lines = PlateauCurve(**chosen).describe().splitlines()
    assert len({len(line) for line in (header, *lines)}) == 1
    begins = sorted({border for border in Oracle(**chosen).borders if border <= chosen["total_steps"]})
    assert [int(line.split()[0]) for line in lines] == begins
    lasts = [str(begin - 1) for begin in begins[1:]] + ["…"]
    assert [line.split()[1] for line in lines] == lasts
    curve = PlateauCurve(**chosen)
    for line, begin in zip(lines, begins, strict=True):
        assert f"{curve(begin):.6g}" == line.split()[-2]


def test_each_pair_of_plateaus_may_touch():
    touching = PlateauCurve(100, plateaus=[(10, 20)], absolute_plateaus=[(30, 10), (30, 0), (40, 0)])
    values = touching(range(10, 41))
    assert np.unique(values[:-1]).size == 1
    assert values[-1] == values[0]


@pytest.mark.parametrize("warmup", [0, 1, 99])
def test_a_single_step_to_decay(warmup):
    curve = PlateauCurve(
        100, warmup_steps=warmup, absolute_plateaus=[(warmup + 1, 99 - warmup)], min_lr_ratio=0.1
    )
    np.testing.assert_array_equal(curve([warmup, warmup + 1, 100]), np.float32([1, 0.1, 0.1]))
