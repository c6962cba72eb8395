"""`multiplier` and `optax_schedule` have NumPy's bits in every way that JAX can run them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import curves_and_steps
from support.examples import examples
from support.jax.jax_cases import (
    STEPS,
    assert_equal_bits,
    few_and_many_rows,
    in_one_of_two_sizes,
    product,
    x64_both_ways,
)

from plateau_jax import PlateauCurve, multiplier, optax_schedule

SIZE = 48
SMALLEST_NORMAL = 2.0**-126
LARGEST_PEAK = float(np.finfo(np.float32).max)

# Few table lengths, since each is compiled.
numbers_of_plateaus = (0, 1, 2, 30)
cases = curves_and_steps(numbers_of_plateaus, SIZE, scaled=True)
cases_of_updates = curves_and_steps(numbers_of_plateaus, SIZE)
"""Of curves whose steps are updates, as `optax_schedule` takes them."""

peaks = st.one_of(
    st.floats(SMALLEST_NORMAL, LARGEST_PEAK),
    st.integers(-126, 127).map(lambda exponent: 2.0**exponent),
    st.sampled_from((0, 1, 3e-4, 1.5 * SMALLEST_NORMAL)),
)


def every_mode(of_step, steps):
    """Return the function's values at the steps in each way that JAX can run it."""
    dtype = of_step(steps[0]).dtype

    def scanned(carry, step):
        return carry, of_step(step)

    def is_left(state):
        index, _ = state
        return index < len(steps)

    def set_next(state):
        index, values = state
        return index + 1, values.at[index].set(of_step(steps[index]))

    def weighted_sum(weights):
        return (weights * of_step(steps)).sum()

    def one_branch():
        return of_step(steps)

    def other_branch():
        return of_step(steps + 0)

    _, by_scan = jax.lax.scan(scanned, None, steps)
    nothing_set = 0, jnp.zeros(len(steps), dtype)
    _, by_while = jax.lax.while_loop(is_left, set_next, nothing_set)
    by_vmap = jax.vmap(of_step)
    by_vmap_twice = jax.vmap(by_vmap)
    return {
        "whole": of_step(steps),
        "shaped": of_step(steps.reshape(2, 3, -1)).ravel(),
        "vmap": by_vmap(steps),
        "vmap twice": by_vmap_twice(steps.reshape(6, -1)).ravel(),
        "scan": by_scan,
        "map": jax.lax.map(of_step, steps),
        "while": by_while,
        "cond": jax.lax.cond(steps[0] < 0, one_branch, other_branch),
        "remat": jax.checkpoint(of_step)(steps),
        "grad": jax.grad(weighted_sum)(jnp.ones(len(steps), dtype)),
    }


@jax.jit
def every_mode_of_a_traced_table(table, steps):
    return every_mode(partial(multiplier, table), steps)


@pytest.mark.slow
@x64_both_ways
@examples(40)
@given(cases)
def test_traced_table_matches_numpy_bits_in_every_mode(x64, case):
    curve, steps = case
    # Every mode is compiled for two tables, one for each search.
    table = in_one_of_two_sizes(curve)
    with jax.enable_x64(x64):
        modes = every_mode_of_a_traced_table(table, steps)
    for values in modes.values():
        assert_equal_bits(values, curve(steps))


LONG_CURVE = PlateauCurve(2**20, warmup_steps=2**10, min_lr_ratio=0.5)
OVER_THE_LONG_CURVE = np.arange(0, 2**20, 2**20 // SIZE + 1, dtype=np.int32)


def assert_equal_learning_rates(actual, expected):
    # XLA flushes float32 below 2⁻¹²⁶ to zero, so these are not compared.
    compared = (expected == 0) | (expected >= SMALLEST_NORMAL)
    assert_equal_bits(np.asarray(actual)[compared], expected[compared])


@pytest.mark.slow
@examples(8)
@given(st.booleans(), cases_of_updates, peaks)
@example(False, (LONG_CURVE, OVER_THE_LONG_CURVE), 1.75 * SMALLEST_NORMAL)
@example(True, (LONG_CURVE, OVER_THE_LONG_CURVE), 2.0**-110)
def test_constant_table_matches_numpy_bits_in_every_mode(x64, case, peak):
    """And learning rates are the product of two float32, also if the compiler folds the peak."""
    curve, steps = case
    of_step = partial(multiplier, curve.table)
    schedule = optax_schedule(curve, peak)

    @jax.jit
    def compiled(traced_steps, traced_peak, weakly_typed_peak):
        multipliers = every_mode(of_step, traced_steps)
        multipliers["constant steps"] = of_step(jnp.array(steps))
        lrs = {
            "constant peak": schedule(traced_steps),
            "constant peak and steps": schedule(steps),
            "traced peak": optax_schedule(curve, traced_peak)(traced_steps),
            "weakly typed peak": optax_schedule(curve, weakly_typed_peak)(traced_steps),
        }
        return multipliers, lrs

    def of_peak(peak):
        return optax_schedule(curve, peak)(steps)

    rounded = np.float32(peak)
    with jax.enable_x64(x64):
        assert_equal_bits(of_step(steps), curve(steps))
        assert_equal_learning_rates(schedule(steps), product(curve, peak, steps))
        multipliers, lrs = compiled(steps, rounded, float(rounded))
        for values in multipliers.values():
            assert_equal_bits(values, curve(steps))
        expected = product(curve, peak, steps)
        for values in lrs.values():
            assert_equal_learning_rates(values, expected)
        slope = jax.jacfwd(of_peak)(rounded)
        assert_equal_bits(slope.astype("float32"), curve(steps))


@pytest.mark.slow
@x64_both_ways
@few_and_many_rows
def test_uncompiled_calls_match_numpy_bits(x64, curve):
    of_step = partial(multiplier, curve.table)
    by_vmap = jax.vmap(of_step)
    with jax.enable_x64(x64), jax.disable_jit():
        assert_equal_bits(of_step(STEPS), curve(STEPS))
        assert_equal_bits(by_vmap(STEPS), curve(STEPS))
