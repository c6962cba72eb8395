"""`multiplier` of traced and stacked tables: NumPy's bits, and no further compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, curves_and_steps, descriptions
from support.examples import examples
from support.jax.jax_cases import STEPS, assert_equal_bits, in_one_form

from plateau_jax import PlateauCurve, StagedCurve, multiplier, stack


@jax.jit
def at_all_steps(tables, steps):
    return jax.vmap(multiplier, in_axes=(0, None))(tables, steps)


@jax.jit
def at_one_step_each(tables, steps):
    return jax.vmap(multiplier)(tables, steps)


@pytest.mark.slow
@examples(30)
@given(
    curves_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), min_size=4, max_size=4),
)
def test_stack_under_vmap_matches_each_curve(case, more_descriptions):
    first, steps = case
    curves = [first, *map(build, more_descriptions)]
    tables = jax.tree.map(lambda *columns: np.stack(columns), *in_one_form(curves))
    values = at_all_steps(tables, steps)
    for of_curve, curve in zip(values, curves, strict=True):
        assert_equal_bits(of_curve, curve(steps))
    steps_of_curves = np.resize(steps, len(curves))
    values = at_one_step_each(tables, steps_of_curves)
    for value, curve, step in zip(values, curves, steps_of_curves, strict=True):
        assert_equal_bits(value, np.float32(curve(step)))


def test_numpy_table_that_jax_narrows_is_accepted():
    curve = PlateauCurve(1000, warmup_steps=100)
    wide = jax.tree.map(np.int64, curve.table)
    with jax.enable_x64(False):
        assert_equal_bits(multiplier(wide, jnp.asarray(STEPS)), curve(STEPS))


def with_cooldowns():
    curves = []
    for middle in (20, 1, 99):
        for level in (0.5, 0.25, 1.0, 1e-20):
            curve = StagedCurve(
                [
                    (100 - middle, 1),
                    (middle, level, "exponential"),
                    (50, 0, "1-sqrt"),
                ]
            )
            curves.extend(curve.cooldown(at, 20) for at in (1, middle, 120, 149))
    return curves


def test_traced_tables_of_one_shape_are_compiled_once():
    traces = []
    curves = with_cooldowns()

    @jax.jit
    def of_table(table, step):
        traces.append(step)
        return multiplier(table, step)

    for curve in curves:
        assert_equal_bits(of_table(curve.table, STEPS), curve(STEPS))
    shapes = {tuple(column.shape for column in curve.table) for curve in curves}
    assert len(traces) == len(shapes) <= 4
    of_tables = jax.vmap(of_table, in_axes=(0, None))
    expected = np.stack([curve(STEPS) for curve in curves])
    assert_equal_bits(of_tables(stack(curves), STEPS), expected)
