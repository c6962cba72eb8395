"""The table: its rows, its words, and several tables stacked."""

import numpy as np
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import arguments
from support.numerics.oracle import Oracle, power_of

from plateau_jax import StagedCurve, stack
from plateau_jax.numerics import fixed_point
from plateau_jax.numerics.arithmetic import NUMPY
from plateau_jax.numerics.segments import Segments, decode_table


@given(arguments())
def test_table_has_two_rows_per_plateau_and_three_more(chosen):
    curve = build(chosen)
    table = curve.table
    assert isinstance(table, Segments)
    formula, _ = power_of(curve.decay_shape)
    shapes = {chosen["warmup_shape"], f"{formula}P" if formula else curve.decay_shape}
    assert table.parameters.keys() == shapes - {"linear"}
    assert {name: len(limbs) for name, limbs in table.parameters.items() if limbs} == (
        {f"{formula}P": 7} if formula else {}
    )
    assert table.shift is None
    plateaus = len(chosen["plateaus"]) + len(chosen["absolute_plateaus"])
    for column in table.columns().values():
        assert column.shape == (2 * plateaus + 3,)
        assert column.dtype == np.int32
        assert not column.flags.writeable
    assert table.begin.tolist() == Oracle(chosen).borders


@given(
    st.lists(descriptions(range(6)), min_size=1, max_size=5), st.lists(st.integers(0, 2**31 - 1), min_size=1)
)
def test_stacked_table_evaluates_like_its_curve(several, steps):
    curves = [build(description) for description in several]
    stacked = stack(curves)
    steps = np.array(steps, np.int32)
    longest = max(len(curve.rows) for curve in curves)
    for column in stacked.columns().values():
        assert (column.shape, column.dtype) == ((len(curves), longest), np.int32)
        assert not column.flags.writeable
    for index, curve in enumerate(curves):
        table = decode_table(NUMPY, stacked.map(lambda column, index=index: column[index]))
        np.testing.assert_array_equal(fixed_point.evaluate(NUMPY, table, steps), curve(steps))


def test_table_has_row_per_stage_and_columns_of_its_shapes():
    linear = StagedCurve([(10, 1), (0, 0.5), (5,), (0, 0.2)])
    assert linear.table.begin.tolist() == [0, 10, 10, 15, 15]
    assert len(linear.table.columns()) == 12
    every = StagedCurve(
        [(9, 1, "cosine"), (9, 0.5, "1-sqrt"), (9, 0.1, "exponential"), (9, 0.2, "t^-2"), (9, 0, "1-x^2")]
    )
    assert linear.table.columns().keys() < every.table.columns().keys()
    assert {column.shape for column in every.table.columns().values()} == {(6,)}
    # A stage that holds or jumps adds no column; one between equal levels keeps those of its shape.
    curve = StagedCurve([(5, None, "exponential"), (0, 0.5, "exponential"), (0, 0, "exponential"), (5,)])
    assert not curve.table.parameters
    assert curve(range(10)).tolist() == [0] * 10
    flat = StagedCurve([(9, 1, shape) for _, _, shape in every.stages], start=1)
    assert flat.table.columns().keys() == every.table.columns().keys()
