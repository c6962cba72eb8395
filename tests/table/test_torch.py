"""`multiplier` in torch: NumPy's bits in every mode and on a GPU, dtypes of steps, compilations."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from support.curves.descriptions import curves_and_steps
from support.examples import examples
from support.jax.jax_cases import CURVE, MANY, NESTED, STEPS, assert_equal_bits
from support.training.cuda_graphs.graphs import no_waiting

from plateau_jax import PlateauCurve, stack
from torch_bridge import multiplier, tensors

MAX_STEP = 2**31 - 1
cases = curves_and_steps((0, 1, 2, 18, 19, 30), scaled=True)
_every_curve = pytest.mark.parametrize(
    "curve", [CURVE, MANY, NESTED], ids=["curve", "many", "nested"]
)
_cuda = pytest.param("cuda", marks=pytest.mark.gpu)
_devices = pytest.mark.parametrize("device", ["cpu", _cuda])


def every_mode(of_step, steps):
    """Return the function's values at the steps, in each mode of torch that does not compile."""
    rows = steps.reshape(6, -1)
    by_vmap = torch.func.vmap(of_step)
    by_vmap_twice = torch.func.vmap(by_vmap)
    by_columns = torch.func.vmap(of_step, in_dims=1, out_dims=1)
    without_gradients = torch.inference_mode()(of_step)
    return {
        "whole": of_step(steps),
        "shaped": of_step(rows.reshape(2, 3, -1)).ravel(),
        "transposed": of_step(rows.T).T.ravel(),
        "one by one": torch.stack([of_step(step) for step in steps]),
        "vmap": by_vmap(steps),
        "vmap twice": by_vmap_twice(rows).ravel(),
        "vmap over columns": by_columns(rows).ravel(),
        "inference": without_gradients(steps),
    }


@_devices
@examples(20)
@given(cases)
def test_table_matches_numpy_bits_in_every_mode(device, case):
    curve, steps = case
    table = tensors(curve.table, device)
    of_step = partial(multiplier, table)
    modes = every_mode(of_step, torch.from_numpy(steps).to(device))
    for values in modes.values():
        assert_equal_bits(values.cpu(), curve(steps))


@_every_curve
@pytest.mark.parametrize("empty", [torch.zeros(0, 3, dtype=torch.int32), torch.tensor([])])
def test_empty_steps_give_empty_values(curve, empty):
    values = multiplier(tensors(curve.table), empty)
    assert values.shape == empty.shape
    assert values.dtype == torch.float32


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
)
def test_step_may_have_any_integer_dtype(dtype):
    limits = np.iinfo(dtype)
    fitting = [limits.min, limits.max]
    fitting.extend(
        step
        for step in (-1, 0, 1, 100, 101, 500, 999, 1000, MAX_STEP - 1, 2**31, 2**32 + 5, 2**63)
        if limits.min <= step <= limits.max
    )
    steps = np.array(fitting, dtype)
    on_device = torch.from_numpy(steps)
    for curve in (CURVE, PlateauCurve(MAX_STEP)):
        table = tensors(curve.table)
        assert_equal_bits(multiplier(table, on_device), curve(steps))
        for step, scalar in zip(fitting, on_device, strict=True):
            value = multiplier(table, scalar)
            assert_equal_bits(value, np.float32(curve(int(step))))


@pytest.mark.gpu
def test_multiplier_does_not_synchronize():
    table = tensors(stack([CURVE, NESTED]), "cuda")
    steps = torch.from_numpy(STEPS).cuda()
    with no_waiting():
        values = multiplier(table, steps)
    expected = np.stack([CURVE(STEPS), NESTED(STEPS)])
    assert_equal_bits(values.cpu(), expected)
