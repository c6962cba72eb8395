"""The table of a curve: its rows and its columns."""

import numpy as np
from hypothesis import given
from support.curves.descriptions import build
from support.curves.strategies import arguments
from support.numerics.oracle import Oracle

from plateau_jax import StagedCurve


@given(arguments())
def test_table_has_a_row_for_each_segment(chosen):
    table = build(chosen).table
    assert table.begin.tolist() == Oracle(chosen).borders
    for column in table.columns().values():
        assert (column.shape, column.dtype) == (table.begin.shape, np.int32)
        assert not column.flags.writeable


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
