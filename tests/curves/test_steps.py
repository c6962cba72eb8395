"""Steps of any type and shape, and learning rates at them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, curves_and_steps, descriptions
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.schedulers.runs import learning_rate, peaks

from plateau_jax import PlateauCurve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(20, 10), (60, 30)], min_lr_ratio=0.1)


class Step(int):
    """A subclass of int, as some counters are."""


@examples(50)
@given(curves_and_steps((0, 1, 2, 18, 30), 9, scaled=True), peaks)
def test_single_steps_agree(case, peak):
    curve, steps = case
    for step, value in zip(steps.tolist(), curve(steps), strict=True):
        expected_lr = learning_rate(peak, curve, step)
        for form in (step, np.int64(step), Step(step)):
            multiplier = curve(form)
            assert type(multiplier) is float
            assert multiplier == value
            lr = curve.learning_rate(form, peak)
            assert type(lr) is float
            assert lr == expected_lr


@given(curves_and_steps(), peaks)
def test_arrays_of_steps_agree(case, peak):
    curve, steps = case
    values = curve(steps.tolist())
    assert values.dtype == np.float32
    cube = steps.reshape(2, 3, -1)
    of_cube = values.reshape(cube.shape)
    np.testing.assert_array_equal(curve(cube), of_cube)
    np.testing.assert_array_equal(curve(cube[::-1, :, ::2]), of_cube[::-1, :, ::2])
    lrs = curve.learning_rate(cube, np.float64(peak))
    assert lrs.dtype == np.float32
    assert lrs.shape == cube.shape
    expected_lrs = [learning_rate(peak, curve, step) for step in steps.tolist()]
    assert lrs.ravel().tolist() == expected_lrs
    first = np.array(steps[0])
    assert type(curve(first)) is np.float32
    assert curve.learning_rate(first, peak) == expected_lrs[0]


@examples(50)
@given(curves_and_steps())
def test_integers_of_any_dtype_agree(case):
    curve, steps = case
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64):
        limits = np.iinfo(dtype)
        least = int(limits.min)
        largest = int(limits.max)
        fitting = [step for step in steps.tolist() if least <= step <= largest]
        fitting += [least, largest]
        values = curve(np.array(fitting, dtype))
        np.testing.assert_array_equal(values, curve(fitting))
        assert curve(dtype(largest)) == curve(largest)


@examples(50)
@given(descriptions(), st.lists(st.integers(), min_size=3))
def test_curve_is_constant_before_the_start_and_past_the_end(description, integers):
    """Steps may be integers of any size."""
    curve = build(description)
    array = np.array(integers, object)
    clipped = array.clip(0, MAX_STEP)
    values = curve(clipped.astype(np.int64))
    for steps in (integers, tuple(integers), array):
        np.testing.assert_array_equal(curve(steps), values)
    assert [curve(step) for step in integers] == values.tolist()
    distance = abs(integers[0])
    last = curve.total_steps
    assert curve(-1 - distance) == curve(0)
    assert curve(last + distance) == curve(last)


@pytest.mark.parametrize(
    "empty",
    [[], (), range(0), np.zeros(0), np.zeros((0, 3)), np.zeros((2, 0), int)],
    ids=repr,
)
def test_empty_steps_give_empty_values(empty):
    values = CURVE(empty)
    assert values.shape == np.shape(empty)
    assert values.dtype == np.float32


@pytest.mark.parametrize("call", [CURVE, jax.jit(CURVE)], ids=["array", "traced"])
def test_error_for_jax_step_names_jax_function(call):
    with pytest.raises(TypeError, match=r"optax_schedule\(curve, peak_value\), or multiplier"):
        call(jnp.int32(3))


def test_torch_and_numpy_integers_are_steps_with_jax_loaded():
    assert CURVE(torch.tensor(3)) == CURVE(3)
    assert CURVE(torch.arange(9))[3] == CURVE(3)
    assert CURVE(np.array(3)) == CURVE(3)


def test_peak_of_minus_0_is_0():
    assert str(CURVE.learning_rate(3, -0.0)) == "0.0"
