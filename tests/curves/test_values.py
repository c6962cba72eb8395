"""Values of every kind of curve against the exact formulas, for every kind of step."""

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import SHAPES, build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.jax.jax_cases import CURVE
from support.numerics.borders import steps_at_borders
from support.numerics.oracle import Oracle, are_equal, exactly, is_nearest_float32
from support.schedulers.runs import learning_rate, peaks

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings


class Step(int):
    """A subclass of int, as some counters are."""


def _assert_exact(description, steps):
    curve, oracle = build(description), Oracle(description)
    values = curve(steps)
    for step, value in zip(steps, values, strict=True):
        assert abs(exactly(float(value)) - oracle(step)) <= oracle.largest_error(step), step
        assert curve(step) == value


@examples(240)
@given(st.one_of(descriptions_and_steps(), descriptions_and_steps(scaled=True)))
def test_values_are_within_half_ulp_plus_2_to_minus_58(case):
    description, steps = case
    _assert_exact(description, steps)


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_values_near_rounding_borders_are_exact_and_monotone(shape, data):
    description, step = data.draw(steps_at_borders((shape,)))
    _assert_exact(description, [step])
    spans = Oracle(description).spans()
    begin, end, part = next(span for span in spans if span[0] <= step < span[1])
    _assert_one_way(build(description)(np.clip(step + np.arange(-300, 300), begin, end - 1)), part)


@given(st.floats(5e-324, 1e-30), st.floats(1e-3, 1), st.integers(2, 3000), st.booleans(), st.data())
def test_exponential_between_tiny_levels_is_as_exact(low, high, length, rises, data):
    """Like ExponentialLR over many steps, with a cooldown to even smaller levels."""
    start, end = (low, high) if rises else (high, low)
    stage = {"stages": [(length, end, "exponential")], "start": start}
    at = data.draw(st.integers(1, length))
    further = {"cooldown": stage, "at": at, "steps": 50, "to": low / 16 or low, "shape": "exponential"}
    for description in (stage, stage if rises and low / 16 == 0 else further):
        _assert_exact(description, range(0, length + 50, 1 + length // 40))


@given(descriptions(scaled=True))
def test_first_step_of_every_segment_is_nearest_float32(description):
    """The last segment is the end, so this holds for both ends of the curve too."""
    curve, oracle = build(description), Oracle(description)
    assert curve.total_steps == oracle.total_steps
    for border in oracle.borders:
        if not oracle.part_at(border).skipped:
            assert is_nearest_float32(curve(border), oracle(border)), border


@given(steps_at_borders(least=Fraction(1, 2**62)))
def test_cooldown_starts_at_nearest_float32_near_borders(case):
    parent, at = case
    cooldown = {"cooldown": parent, "at": at, "steps": 1, "to": 0.0, "shape": "1-sqrt"}
    assert is_nearest_float32(build(cooldown)(at), Oracle(cooldown)(at))


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


@examples(140)
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


POWERS = "1-x^0.05", "1-x^20", "(1-x)^0.05", "(1-x)^20", "t^-2", "t^-4"


@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt", "exponential", *POWERS])
@pytest.mark.parametrize("low", [1e-12, 1e-20, 2.0**-126])
def test_tiny_levels_are_monotone_in_both_directions(shape, low):
    high = {1e-12: 2e-12, 1e-20: 1.5e-19}.get(low, 2.0**-61)
    for length, start, end in ((1000, low, high), (10**6, high, low), (MAX_STEP, high, low)):
        with suppress_warnings():
            curve = StagedCurve([(length, end, shape)], start=start)
        for first in (0, length // 4, length // 2 - 500, length - 1000):
            values = curve(np.arange(first, first + 1001).clip(0, MAX_STEP))
            assert (np.sign(end - start) * np.diff(values) >= 0).all()
        assert curve([0, length]).tolist() == [np.float32(start), np.float32(end)]


def test_border_of_tiny_levels_does_not_rise():
    """The first stage ends where the second begins, to the last bit of both."""
    with suppress_warnings():
        curve = StagedCurve([(130, 2.034716295652536e-16), (130, 0.0)], start=2.182832815997069e-16)
    assert np.diff(curve(np.arange(261))).max() <= 0


@pytest.mark.parametrize("power", [1.5, 2, 3, 7, 12.5, 16, 20])
@pytest.mark.parametrize("length", [2**10, 2**14, 3 * 2**12, 10_000])
def test_powers_are_monotone_at_every_step(power, length):
    # At x = 2^-k, far below 2⁻⁶², an integer power is a power of two: its logarithm has no fraction.
    rising = StagedCurve([(length, 1.0, f"1-x^{power}")], start=0.0)(range(length + 1))
    falling = StagedCurve([(length, 0.0, f"(1-x)^{power}")], start=1.0)(range(length + 1))
    assert (np.diff(rising) >= 0).all()
    assert (np.diff(falling) <= 0).all()


@pytest.mark.parametrize("shape", ["exponential", "t^-0.25", "t^-1", "t^-4"])
def test_slow_stages_are_monotone(shape):
    # From one step to the next these move by about the error of the arithmetic.
    for low in (0.5, 0.75, 1 - 2.0**-23):
        for width in (1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 3e-7, 1e-6):
            for start, end in ((low, min(low + width, 1.0)), (min(low + width, 1.0), low)):
                curve = StagedCurve([(MAX_STEP, end, shape)], start=start)
                border = (Fraction(low) + Fraction(float(np.nextafter(np.float32(low), np.float32(1))))) / 2
                middle = int((border - Fraction(start)) / (Fraction(end) - Fraction(start)) * MAX_STEP)
                steps = np.clip(min(max(middle, 0), MAX_STEP) + np.arange(-3_000, 3_000), 0, MAX_STEP)
                values = curve(steps)
                assert (np.sign(end - start) * np.diff(values) >= 0).all()


@given(descriptions_and_steps(), st.lists(st.integers(), min_size=3), peaks)
def test_all_forms_of_steps_agree(case, integers, peak):
    description, steps = case
    curve = build(description)
    values = curve(steps)
    lrs = [learning_rate(peak, curve, step) for step in steps]
    assert values.dtype == np.float32
    for kind in (int, np.int64, Step):
        alone = [curve(kind(step)) for step in steps[:9]]
        assert alone == values[:9].tolist()
        its_lrs = [curve.learning_rate(kind(step), peak) for step in steps[:9]]
        assert its_lrs == lrs[:9]
        assert {*map(type, alone), *map(type, its_lrs)} == {float}
    assert type(curve(np.array(steps[0]))) is np.float32
    assert curve.learning_rate(np.array(steps[0]), peak) == lrs[0]
    cube = np.array(steps).reshape(2, 3, -1)
    np.testing.assert_array_equal(curve(cube), values.reshape(cube.shape))
    np.testing.assert_array_equal(curve(cube[::-1, :, ::2]), values.reshape(cube.shape)[::-1, :, ::2])
    of_cube = curve.learning_rate(cube, np.float64(peak))
    assert (of_cube.dtype, of_cube.shape, of_cube.ravel().tolist()) == (np.float32, cube.shape, lrs)
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        fitting = [low, *(step for step in steps if low <= step <= high), high]
        np.testing.assert_array_equal(curve(np.array(fitting, dtype)), curve(fitting))
        assert curve(dtype(high)) == curve(int(high))
    # Of any size: before the start and past the end the curve is constant.
    clamped = [min(max(step, 0), MAX_STEP) for step in integers]
    for form in (list, tuple, partial(np.array, dtype=object)):
        np.testing.assert_array_equal(curve(form(integers)), curve(np.array(clamped, np.int64)))
    assert [curve(step) for step in integers] == [curve(step) for step in clamped]
    assert curve(-1 - abs(integers[0])) == curve(0)
    assert curve(curve.total_steps + abs(integers[0])) == curve(curve.total_steps)


@pytest.mark.parametrize(
    "empty", [[], (), range(0), *map(np.zeros, (0, (0, 3))), np.zeros((2, 0), int)], ids=repr
)
def test_empty_steps_give_empty_values(empty):
    values = PlateauCurve(10)(empty)
    assert (values.shape, values.dtype) == (np.shape(empty), np.float32)


@pytest.mark.parametrize("step", [jnp.int32(3), jnp.arange(3), jnp.float32(3)], ids=["int", "array", "float"])
@pytest.mark.parametrize("call", [CURVE, jax.jit(CURVE), jax.vmap(CURVE, axis_size=1, in_axes=None)])
def test_error_for_jax_step_names_jax_function(step, call):
    with pytest.raises(TypeError, match=r"optax_schedule\(curve, peak_value\), or multiplier"):
        call(step)


def test_torch_and_numpy_integers_are_steps_with_jax_loaded():
    assert CURVE(torch.tensor(3)) == CURVE(torch.arange(9))[3] == CURVE(np.array(3)) == CURVE(3)


def test_peak_of_minus_0_is_0():
    assert str(CURVE.learning_rate(3, -0.0)) == "0.0"
