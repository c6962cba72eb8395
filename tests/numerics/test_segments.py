"""The table: its rows, its words, and several tables stacked."""

import itertools
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import arguments
from support.numerics.oracle import Oracle, are_equal, exactly, is_nearest_float32, power_of

from plateau_jax import StagedCurve, multiplier, stack
from plateau_jax.numerics import fixed_point
from plateau_jax.numerics.arithmetic import NUMPY
from plateau_jax.numerics.segments import Segments, decode_table
from plateau_jax.shapes.known_shapes import KINDS


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


# The level of its plateau is 0.1 + 0.9 · 13/18 = 3/4, which 62 bits hold; the 224-bit value lies just below.
LEVEL_OF_FEW_BITS = {"total_steps": 19, "absolute_plateaus": [(5, 1)], "min_lr_ratio": 0.1}


@example(LEVEL_OF_FEW_BITS | {"decay_shape": "linear"})
@given(arguments())
def test_row_encodes_exact_segment(chosen):
    curve, oracle = build(chosen), Oracle(chosen)
    for index, segment in enumerate(oracle.parts):
        row = curve.table.map(lambda column, index=index: int(column[index]))
        # If no number of 62 bits lies between two levels, the row is flat.
        low, high = sorted((segment.start, segment.end))
        if not curve.rows[index].holds and (are_equal(low, high) or 0 < low < 2.0**-220):
            continue  # far down a power neither 300 bits nor the 224 of a level distinguish all levels
        moves = segment.length > 0 and low < high and int(high * 2**62) >= low * 2**62
        assert row.length == (segment.length if moves else 0)
        inverse = _joined_words(row.inverse_high, row.inverse_middle) << 31 | row.inverse_low
        assert inverse == (2**93 // segment.length if moves else 0)
        shape = curve.rows[index].shape or "linear"
        formula, power = power_of(shape)
        name = f"{formula}P" if formula else shape
        assert row.kind == (KINDS[name] if moves else 0)
        for other, limbs in row.parameters.items():
            assert other == name or not any(limbs)
        if row.kind and formula:
            rate_limbs, power_limbs = row.parameters[name][:4], row.parameters[name][4:]
            assert abs(_joined_limbs(power_limbs) - power * 2**62) <= exactly(Fraction(1, 2))
            assert 0 <= power * 2**93 / segment.length - _joined_limbs(rate_limbs) < 1
        assert is_nearest_float32(np.int32(row.start_float32).view(np.float32), segment.start)
        start, end = _joined_words(row.start_high, row.start_low), _joined_words(row.end_high, row.end_low)
        # One unit, and a little more, because the last of a level's 224 bits may be wrong.
        unit, least = exactly(Fraction(1, 2**62)), exactly(Fraction(1, 2**220))
        assert abs(start * unit - segment.start) < unit + least
        assert abs(end * unit - segment.end) < unit + least
        # Rounded inwards: no value between the two encoded levels lies beyond an exact one.
        if moves:
            assert low - least <= min(start, end) * unit <= max(start, end) * unit <= high + least


def _joined_words(high, low):
    return high << 32 | low & 0xFFFF_FFFF


def _joined_limbs(limbs):
    return sum(limb << 31 * place for place, limb in enumerate(reversed(limbs)))


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


def _branches():
    for middle, level in itertools.product((20, 1, 99), (0.5, 0.25, 1.0, 1e-20)):
        curve = StagedCurve([(100 - middle, 1), (middle, level, "exponential"), (50, 0, "1-sqrt")])
        for at in (1, middle, 120, 149):
            yield curve.cooldown(at, 20)


def _powers():
    for first, second, third in (("0.3", "2", "0.5"), ("20", "0.05", "4"), ("1.7", "0.5", "0.25")):
        for last in (0.1, 0.7 + 1e-9):  # nearly equal levels take another code path
            stages = [(40, 0.3, f"1-x^{first}"), (40, 0.7, f"(1-x)^{second}"), (40, last, f"t^-{third}")]
            yield StagedCurve(stages, start=1.0)


@pytest.mark.parametrize("curves", [_branches, _powers])
def test_traced_tables_change_without_recompilation(curves):
    compiled, steps = [], np.arange(300, dtype=np.int32)

    @jax.jit
    def values(table, steps):
        compiled.append(1)
        return multiplier(table, steps)

    for curve in curves():
        np.testing.assert_array_equal(values(curve.table, steps), curve(steps))
    assert len(compiled) == 1
