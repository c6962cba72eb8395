"""`multiplier` of traced and stacked tables: NumPy's bits, and no further compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.jax.jax_cases import STEPS, assert_equal_bits, every_shape, in_one_of_two_forms
from support.numerics.borders import steps_at_borders

from plateau_jax import PlateauCurve, StagedCurve, multiplier, stack


@pytest.mark.slow
@examples(50)
@given(steps_at_borders())
def test_values_near_rounding_borders_match_numpy_bits(case):
    description, step = case
    curve = build(description)
    steps = np.clip(step + np.arange(-24, 24), 0, MAX_STEP)
    assert_equal_bits(multiplier(in_one_of_two_forms(curve), steps), curve(steps))


@jax.jit
def at_all_steps(tables, steps):
    return jax.vmap(multiplier, in_axes=(0, None))(tables, steps)


@jax.jit
def at_one_step_each(tables, steps):
    return jax.vmap(multiplier)(tables, steps)


@pytest.mark.slow
@examples(30)
@given(
    descriptions_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), min_size=4, max_size=4),
)
def test_stack_under_vmap_matches_each_curve(case, more_descriptions):
    description, drawn_steps = case
    steps = np.array(drawn_steps, np.int32)
    curves = [build(drawn) for drawn in (description, *more_descriptions)]
    # The last is the longest and has every shape, so all stacks have the same columns and lengths.
    curves.append(every_shape(39))
    tables = stack(curves)
    expected = np.stack([curve(steps) for curve in curves])
    assert_equal_bits(at_all_steps(tables, steps), expected)
    expected = [curve(step) for curve, step in zip(curves, steps[:6], strict=True)]
    assert_equal_bits(at_one_step_each(tables, steps[:6]), np.array(expected, np.float32))


def test_numpy_table_that_jax_narrows_is_accepted():
    curve = PlateauCurve(1000, warmup_steps=100)
    wide = jax.tree.map(np.int64, curve.table)
    with jax.enable_x64(False):
        assert_equal_bits(multiplier(wide, jnp.asarray(STEPS)), curve(STEPS))


def with_plateaus(count):
    curves = []
    for shift in range(3):
        pairs = [(30 * index + shift, shift) for index in range(1, count + 1)]
        curves.append(PlateauCurve(1000, warmup_steps=shift, absolute_plateaus=pairs))
    return curves


def with_cooldowns():
    curves = []
    for middle in (20, 1, 99):
        for level in (0.5, 0.25, 1.0, 1e-20):
            stages = [(100 - middle, 1), (middle, level, "exponential"), (50, 0, "1-sqrt")]
            curve = StagedCurve(stages)
            curves += [curve.cooldown(at, 20) for at in (1, middle, 120, 149)]
    return curves


@pytest.mark.parametrize(
    "curves",
    [with_plateaus(2), with_plateaus(30), with_cooldowns()],
    ids=["2 plateaus", "30 plateaus", "cooldowns"],
)
def test_traced_tables_change_without_recompilation(curves):
    traces = []

    @jax.jit
    def of_table(table, step):
        traces.append(step)
        return multiplier(table, step)

    for curve in curves:
        assert_equal_bits(of_table(curve.table, STEPS), curve(STEPS))
    assert len(traces) == 1
    values = jax.vmap(of_table, in_axes=(0, None))(stack(curves), STEPS)
    assert_equal_bits(values, np.stack([curve(STEPS) for curve in curves]))
