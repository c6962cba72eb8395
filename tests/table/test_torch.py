"""`multiplier` and `tensors`: NumPy's bits in every mode and on a GPU, copies, stacks, errors."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, curves_and_steps, descriptions
from support.examples import examples
from support.jax.jax_cases import CURVE, MANY, NESTED, STEPS, assert_equal_bits
from support.raises import raises
from support.training.cuda_graphs.graphs import no_waiting
from torch.torch_version import TorchVersion

from plateau_jax import PlateauCurve, stack
from plateau_jax.table.evaluation import Table
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
def test_empty_steps_give_empty_values(curve):
    empty = torch.zeros(0, 3, dtype=torch.int32)
    values = multiplier(tensors(curve.table), empty)
    assert values.shape == empty.shape
    assert values.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_step_may_have_any_common_integer_dtype(dtype):
    limits = np.iinfo(dtype)
    fitting = [limits.min, limits.max]
    fitting.extend(
        step
        for step in (-1, 0, 1, 100, 101, 500, 999, 1000, MAX_STEP - 1, 2**31, 2**32 + 5)
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


# Copies and stacks.

STACKED = stack([CURVE, NESTED])


@pytest.mark.parametrize("original", [CURVE.table, STACKED], ids=["one", "stack"])
def test_tensors_copies_every_column(original):
    table = tensors(original)
    assert table._fields == original._fields
    for column, copied in zip(table, original, strict=True):
        assert column.dtype == torch.int32
        np.testing.assert_array_equal(column.numpy(), copied)
        assert not copied.flags.writeable
        column.zero_()
    assert original.high.any()
    copied_again = tensors(table)
    assert copied_again.begin.data_ptr() != table.begin.data_ptr()


@examples(20)
@given(
    curves_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), max_size=4),
    st.sampled_from(([], [MANY])),
    st.sampled_from(((), (1,), (3, 2))),
)
def test_stack_adds_leading_axis_of_curves(case, more_descriptions, longest, shape):
    first, steps = case
    curves = [first, *map(build, more_descriptions), *longest]
    steps = np.resize(steps, shape)
    expected = np.stack([curve(steps) for curve in curves])
    table = tensors(stack(curves))
    steps = torch.from_numpy(steps)
    assert_equal_bits(multiplier(table, steps), expected)
    # An earlier torch has no vmap of a view as a different dtype.
    if TorchVersion(torch.__version__) >= "2.13":
        first_axis = Table(*(0 for _ in table))
        over_curves = torch.func.vmap(multiplier, in_dims=(first_axis, None))
        assert_equal_bits(over_curves(table, steps), expected)


# Errors.

TABLE = tensors(CURVE.table)
STEP = torch.tensor(3)


def test_wrong_step():
    for dtype in (torch.bool, torch.uint64, torch.float32):
        with raises(TypeError, "step = tensor", "must be a tensor of integers"):
            multiplier(TABLE, torch.ones(3, dtype=dtype))
    with raises(TypeError, "step = 3 must be a tensor of integers"):
        multiplier(TABLE, 3)


def test_wrong_table():
    for table in (CURVE, CURVE.table):
        with raises(TypeError, "table = ", "must be what tensors(curve.table, device) returns"):
            multiplier(table, STEP)
