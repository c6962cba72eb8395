"""Tables as tensors: copies, stacks, and wrong tables or steps."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, curves_and_steps, descriptions
from support.examples import examples
from support.jax.jax_cases import CURVE, MANY, NESTED, assert_equal_bits
from support.raises import raises
from torch.torch_version import TorchVersion

from plateau_jax import stack
from plateau_jax.table.evaluation import Table
from torch_bridge import multiplier, tensors

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


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@raises(TypeError, "step ", "{dtype}")
def test_steps_that_are_not_integers(dtype):
    multiplier(TABLE, torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("step", [3, np.arange(3)])
@raises(TypeError, "step = ", "must be a tensor of integers; write")
def test_step_that_is_not_a_tensor(step):
    multiplier(TABLE, step)


@raises(TypeError, "table = ", "must be a table")
def test_multiplier_of_a_curve():
    multiplier(CURVE, STEP)


@raises(TypeError, "table.begin", "int32", "write tensors")
def test_table_of_numpy_arrays():
    multiplier(CURVE.table, STEP)
