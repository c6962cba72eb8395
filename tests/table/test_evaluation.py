"""The evaluation of a table: the same integers and bits in Python, NumPy, JAX and torch."""

from collections import Counter
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from jax.extend.core import ClosedJaxpr
from support.curves.descriptions import curves_and_steps
from support.jax.jax_cases import NESTED, STEPS, assert_equal_bits
from torch.utils._python_dispatch import TorchDispatchMode

from plateau_jax import multiplier, optax_schedule
from plateau_jax.numerics import round_to_float32
from plateau_jax.table.evaluation import (
    NUMPY,
    PYTHON,
    WideTable,
    evaluate,
    in_int32,
)
from torch_bridge import multiplier as torch_multiplier, tensors

COEFFICIENT = st.integers(-(2**61), 2**61)
MAX_STEP = 2**31 - 1


@given(COEFFICIENT, COEFFICIENT, st.integers(0, MAX_STEP), st.integers(0, 31))
def test_product_by_halves_is_rounded_down_once(a, b, offset, shift):
    """One piece of degree 1: its value is b + floor(a·t/2³¹), with an exact place t."""
    table = WideTable([0], [shift], [0], [0] * 2, None)
    unrounded = PYTHON._replace(
        coefficients=lambda table, piece: (a, b), to_float32=lambda value, exponent, piece: value
    )
    offset %= 1 << shift
    place = Fraction(offset, 1 << shift) - Fraction(1, 2)
    expected = b + (a * place).__floor__()
    assert evaluate(unrounded, table, offset) == expected
    in_numpy = NUMPY._replace(
        coefficients=lambda table, piece: (np.int64(a), np.int64(b)),
        to_float32=lambda value, exponent, piece: value,
    )
    columns = WideTable(*(np.array(column, np.int32) for column in table[:4]), None)
    assert evaluate(in_numpy, columns, np.int32(offset)) == expected


def next_to_a_border(digits, order, distance):
    """Return an integer next to the middle between two float32."""
    return max(((2 * digits + 1) << order) + distance, 2**54)


VALUES = st.integers(2**54, 2**62 - 1) | st.builds(
    next_to_a_border,
    digits=st.integers(2**23, 2**24 - 1),
    order=st.integers(30, 36),
    distance=st.integers(-2, 2),
)


def in_numpy(table, steps):
    return evaluate(NUMPY, table, steps)


def in_torch(table, steps):
    return torch_multiplier(tensors(in_int32(table)), torch.from_numpy(steps))


def in_torch_on_a_gpu(table, steps):
    on_gpu = tensors(in_int32(table), "cuda")
    return torch_multiplier(on_gpu, torch.from_numpy(steps).cuda()).cpu()


compiled = jax.jit(multiplier)


def in_jax(table, steps):
    return compiled(in_int32(table), steps)


@jax.enable_x64(True)
def in_jax_with_x64(table, steps):
    return multiplier(in_int32(table), steps)


@pytest.mark.parametrize(
    "function",
    [
        in_numpy,
        in_torch,
        pytest.param(in_torch_on_a_gpu, marks=pytest.mark.gpu),
        in_jax,
        in_jax_with_x64,
    ],
)
@given(st.lists(st.tuples(st.just(0) | VALUES, st.integers(61, 200)), min_size=64, max_size=64))
@example([(2**61 + 2**37 + 1, exponent) for exponent in (62, 126, 127, 187, 188, 189)])
@example([(2**61 - 2**37, 187)])  # its nearest float32 is subnormal: 0, not 2⁻¹²⁶
def test_every_library_rounds_as_python_does(function, pairs):
    """Each step has a separate, constant piece."""
    values, exponents = map(list, zip(*pairs, strict=True))
    coefficients = np.array([[0] * len(values), values], np.int64)
    zeros = np.zeros(1, np.int32)
    table = WideTable(zeros, zeros, zeros, np.array(exponents, np.int32), coefficients)
    expected = np.float32([round_to_float32(*pair) for pair in pairs])
    assert_equal_bits(function(table, np.arange(len(pairs), dtype=np.int32)), expected)


@given(curves_and_steps((0, 1, 2, 18), 8, scaled=True))
def test_table_in_words_is_padded_to_powers_of_two(case):
    curve, _ = case
    wide = curve._wide_table
    table = in_int32(wide)
    rows = len(table.begin)
    pieces = len(table.exponent)
    assert rows.bit_count() == pieces.bit_count() == 1
    assert max(len(wide.begin), 16) <= rows < max(2 * len(wide.begin), 17)
    assert max(len(wide.exponent), 32) <= pieces < max(2 * len(wide.exponent), 33)
    assert table.high.shape == table.low.shape == (len(wide.coefficients), pieces)
    for column in table:
        assert column.dtype == np.int32
        assert not column.flags.writeable
    joined = (table.high.astype(np.int64) << 31) | table.low
    np.testing.assert_array_equal(joined[:, : len(wide.exponent)], wide.coefficients)
    assert (joined[:, len(wide.exponent) :] == joined[:, -1:]).all()
    for column, padded in zip(wide[:3], table[:3], strict=True):
        np.testing.assert_array_equal(padded[: len(column)], column)
        assert (padded[len(column) :] == column[-1]).all()


# Only integers: one conversion to float32 is the last step.

INTEGER_DTYPES = {"bool", "int32", "int64"}

MOVES = {"bitcast_convert_type", "detach", "index_select", "scalar_tensor", "view", "where"}
"""They move or select floats, or change the type of bits."""


def results_of_jax(jaxpr):
    """Yield the name of each primitive, and the dtype of its result."""
    for equation in jaxpr.eqns:
        inner = [
            value.jaxpr for value in equation.params.values() if isinstance(value, ClosedJaxpr)
        ]
        for function in inner:
            yield from results_of_jax(function)
        if not inner:
            yield equation.primitive.name, str(equation.outvars[0].aval.dtype)


class Recorder(TorchDispatchMode):
    """Records the operators that run, and the dtypes of their results."""

    def __init__(self):
        super().__init__()
        self.operators: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for tensor in result if isinstance(result, list) else [result]:
            self.operators.append((name, str(tensor.dtype).removeprefix("torch.")))
        return result


def of_a_schedule():
    schedule = optax_schedule(NESTED, 1e-3)
    return [*results_of_jax(jax.make_jaxpr(schedule)(jnp.asarray(STEPS)).jaxpr)]


def of_a_traced_table():
    return [*results_of_jax(jax.make_jaxpr(multiplier)(NESTED.table, jnp.asarray(STEPS)).jaxpr)]


def of_torch():
    with Recorder() as recorder:
        torch_multiplier(tensors(NESTED.table), torch.from_numpy(STEPS))
    return recorder.operators


@pytest.mark.parametrize(
    ("record", "conversion", "products"),
    [
        (of_a_traced_table, "convert_element_type", 0),
        (of_a_schedule, "convert_element_type", 1),
        (of_torch, "_to_copy", 2),
    ],
    ids=["traced table", "schedule", "torch"],
)
def test_all_but_the_last_operations_are_of_integers(record, conversion, products):
    """The product of a schedule is that with the peak. Those of torch are with powers of two."""
    operations = record()
    of_floats = Counter(name for name, dtype in operations if dtype not in INTEGER_DTYPES)
    assert of_floats.pop(conversion) == 1
    assert of_floats.pop("mul", 0) == products
    assert of_floats.keys() <= MOVES
    assert not {"div", "rem", "floor_divide"} & {name for name, _ in operations}
