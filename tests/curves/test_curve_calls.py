"""Calls of a curve with single integers and with JAX arrays, which are rejected with a hint."""

import pickle
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from support.curves.descriptions import build, descriptions_and_steps
from support.jax.jax_cases import CURVE, x64_both_ways
from support.schedulers.runs import learning_rate, peaks

from plateau_jax import PlateauCurve


def test_calls_leave_no_state_in_curve():
    curve = PlateauCurve(10**6, warmup_steps=100, plateaus=[(50, 10)])
    before = pickle.dumps(vars(curve))
    for step in range(0, 10**6, 997):
        curve(step)
    assert pickle.dumps(vars(curve)) == before


@x64_both_ways
@pytest.mark.parametrize(
    "step",
    [jnp.int32(3), jnp.arange(3), jnp.float32(3)],
    ids=["integer", "array", "float"],
)
@pytest.mark.parametrize(
    "transform",
    [lambda call: call, jax.jit, partial(jax.vmap, axis_size=1, in_axes=None)],
    ids=["eager", "jit", "vmap"],
)
def test_error_for_jax_step_names_jax_function(x64, step, transform):
    with (
        jax.enable_x64(x64),
        pytest.raises(TypeError, match=r"optax_schedule\(curve, peak_value\), or multiplier"),
    ):
        transform(CURVE)(step)


def test_torch_and_numpy_integers_are_steps_with_jax_loaded():
    assert CURVE(torch.tensor(3)) == CURVE(torch.arange(9))[3] == CURVE(np.array(3)) == CURVE(3)


def test_a_call_does_not_import_jax():
    code = """
import sys
from plateau_jax import PlateauCurve
curve = PlateauCurve(10)
curve(3), curve([1, 2]), curve(range(3))
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@given(descriptions_and_steps(size=8), peaks)
def test_learning_rate_is_the_rounded_product(case, peak):
    description, steps = case
    curve = build(description)
    expected = [learning_rate(peak, curve, step) for step in steps]
    for form in (int, np.int64):
        lrs = [curve.learning_rate(form(step), peak) for step in steps]
        assert lrs == expected
        assert {type(lr) for lr in lrs} <= {float}
    for shape in ((-1,), (2, -1)):
        lrs = curve.learning_rate(np.array(steps).reshape(shape), np.float64(peak))
        assert lrs.dtype == np.float32
        assert lrs.ravel().tolist() == expected
        assert lrs.shape == np.reshape(steps, shape).shape
    assert curve.learning_rate(np.array(steps[0]), peak) == expected[0]


@pytest.mark.parametrize(
    ("step", "peak", "error", "message"),
    [
        (1.5, 0.1, TypeError, "step"),
        (True, 0.1, TypeError, "step"),
        (jnp.array(3), 0.1, TypeError, "optax_schedule"),
        (3, "0.1", TypeError, "peak_value = '0.1'"),
        (3, -0.1, ValueError, "peak_value = -0.1"),
        (3, 1e-39, ValueError, "peak_value = 1e-39"),
    ],
)
def test_learning_rate_rejects(step, peak, error, message):
    with pytest.raises(error, match=message):
        CURVE.learning_rate(step, peak)
