"""Steps of any type and shape, learning rates at them, and values between two numbers."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.schedulers.runs import learning_rate, peaks

from plateau_jax import PlateauCurve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(20, 10), (60, 30)], min_lr_ratio=0.1)


class Step(int):
    """A subclass of int, as some counters are."""


@examples(50)
@given(descriptions_and_steps(size=9), peaks)
def test_single_steps_agree(case, peak):
    description, steps = case
    curve = build(description)
    for step, value in zip(steps, curve(steps), strict=True):
        lr = learning_rate(peak, curve, step)
        for form in (int(step), np.int64(step), Step(step)):
            assert type(curve(form)) is float
            assert curve(form) == value
            assert type(curve.learning_rate(form, peak)) is float
            assert curve.learning_rate(form, peak) == lr


@given(descriptions_and_steps(), peaks)
def test_arrays_of_steps_agree(case, peak):
    description, steps = case
    curve = build(description)
    values = curve(steps)
    assert values.dtype == np.float32
    assert type(curve(np.array(steps[0]))) is np.float32
    assert curve.learning_rate(np.array(steps[0]), peak) == learning_rate(peak, curve, steps[0])
    cube = np.array(steps).reshape(2, 3, -1)
    of_cube = values.reshape(cube.shape)
    np.testing.assert_array_equal(curve(cube), of_cube)
    np.testing.assert_array_equal(curve(cube[::-1, :, ::2]), of_cube[::-1, :, ::2])
    lrs = curve.learning_rate(cube, np.float64(peak))
    assert lrs.dtype == np.float32
    assert lrs.shape == cube.shape
    assert lrs.ravel().tolist() == [learning_rate(peak, curve, step) for step in steps]


@examples(50)
@given(descriptions_and_steps())
def test_integers_of_any_dtype_agree(case):
    description, steps = case
    curve = build(description)
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64):
        limits = np.iinfo(dtype)
        fitting = [step for step in steps if limits.min <= step <= limits.max]
        fitting += [int(limits.min), int(limits.max)]
        np.testing.assert_array_equal(curve(np.array(fitting, dtype)), curve(fitting))
        assert curve(dtype(limits.max)) == curve(int(limits.max))


@examples(50)
@given(descriptions(), st.lists(st.integers(), min_size=3))
def test_curve_is_constant_before_the_start_and_past_the_end(description, integers):
    """Steps may be integers of any size."""
    curve = build(description)
    values = curve(np.clip(np.array(integers, object), 0, MAX_STEP).astype(np.int64))
    np.testing.assert_array_equal(curve(integers), values)
    np.testing.assert_array_equal(curve(tuple(integers)), values)
    np.testing.assert_array_equal(curve(np.array(integers, object)), values)
    assert [curve(step) for step in integers] == values.tolist()
    assert curve(-1 - abs(integers[0])) == curve(0)
    assert curve(curve.total_steps + abs(integers[0])) == curve(curve.total_steps)


@pytest.mark.parametrize(
    "empty",
    [[], (), range(0), np.zeros(0), np.zeros((0, 3)), np.zeros((2, 0), int)],
    ids=repr,
)
def test_empty_steps_give_empty_values(empty):
    values = CURVE(empty)
    assert values.shape == np.shape(empty)
    assert values.dtype == np.float32


@pytest.mark.parametrize(
    "step", [jnp.int32(3), jnp.arange(3), jnp.float32(3)], ids=["int", "array", "float"]
)
@pytest.mark.parametrize(
    "call", [CURVE, jax.jit(CURVE), jax.vmap(CURVE, axis_size=1, in_axes=None)]
)
def test_error_for_jax_step_names_jax_function(step, call):
    with pytest.raises(TypeError, match=r"optax_schedule\(curve, peak_value\), or multiplier"):
        call(step)


def test_torch_and_numpy_integers_are_steps_with_jax_loaded():
    assert CURVE(torch.tensor(3)) == CURVE(3)
    assert CURVE(torch.arange(9))[3] == CURVE(3)
    assert CURVE(np.array(3)) == CURVE(3)


def test_peak_of_minus_0_is_0():
    assert str(CURVE.learning_rate(3, -0.0)) == "0.0"


# Values that are not learning rates.

numbers = st.one_of(st.integers(-9, 9), st.floats(-3e38, 3e38), st.floats(-2, 2, width=32))


@examples(200)
@given(descriptions_and_steps(size=8), numbers, numbers)
@example(({"stages": [(3, 1.0, "linear")], "start": 0.0}, [1]), -1.0, 2.0)
@example(({"stages": [(2, 1.0, "linear")], "start": 0.0}, [1]), 3.4028234663852886e38, 3.4e38)
@example(({"stages": [(2, 1.0, "linear")], "start": 0.0}, [1]), 1.0, 1 + 2.0**-23)
@example(({"stages": [(2, 1.0, "linear")], "start": 0.0}, [1]), 2.0**-149, -(2.0**-149))
def test_value_between_two_numbers_is_rounded_once(case, low, high):
    description, steps = case
    curve = build(description)
    values = curve.between(steps, low, high)
    assert values.dtype == np.float32
    for step, value in zip(steps, values, strict=True):
        multiplier = Fraction(curve(step))
        exact_value = Fraction(low) * (1 - multiplier) + Fraction(high) * multiplier
        error = abs(Fraction(float(value)) - exact_value)
        for direction in (np.float32(-np.inf), np.float32(np.inf)):
            neighbor = np.nextafter(value, direction)
            if np.isfinite(neighbor):
                assert error <= abs(Fraction(float(neighbor)) - exact_value)
        assert curve.between(step, low, high) == value


def test_values_between_have_the_shape_of_the_steps():
    curve = PlateauCurve(10)
    assert curve.between([[0, 5], [10, 11]], 1, 0).tolist() == [[0.0, 0.5], [1.0, 1.0]]
    assert isinstance(curve.between(np.int64(5), 1, 0), float)
    assert isinstance(curve.between(np.array(5), 1, 0), np.float32)
    assert curve.between([], 1, 0).shape == (0,)
