"""`optax_schedule` and `multiplier` match NumPy's bits in every mode of JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP, SMALLEST_NORMAL
from support.examples import examples
from support.jax.jax_cases import (
    STEPS,
    assert_equal_bits,
    assert_equal_rates,
    both_searches,
    every_shape,
    in_one_of_two_forms,
    product,
    x64_both_ways,
)
from support.numerics.borders import steps_at_borders

from plateau_jax import PlateauCurve, multiplier, optax_schedule, stack

SIZE = 48
LARGEST_PEAK = float(np.finfo(np.float32).max)

# Few table lengths, since each is compiled, on both sides of 40 rows, at which the search changes.
counts = 0, 1, 2, 18, 19, 30
cases = descriptions_and_steps(counts, SIZE, scaled=True)

peaks = st.one_of(
    st.floats(SMALLEST_NORMAL, LARGEST_PEAK),
    st.integers(-126, 127).map(lambda exponent: 2.0**exponent),
    st.sampled_from((0, 1, 3e-4, 1.5 * SMALLEST_NORMAL)),
)


def curve_and_steps(case):
    description, steps = case
    return build(description), np.array(steps, np.int32)


def every_mode(of_step, steps):
    """Return the function's values at the steps in each way that JAX can run it."""

    def count(state):
        index, values = state
        return index + 1, values.at[index].set(of_step(steps[index]))

    first = of_step(steps[0])
    return {
        "whole": of_step(steps),
        "shaped": of_step(steps.reshape(2, 3, -1)).ravel(),
        "vmap": jax.vmap(of_step)(steps),
        "vmap twice": jax.vmap(jax.vmap(of_step))(steps.reshape(6, -1)).ravel(),
        "scan": jax.lax.scan(lambda carry, step: (carry, of_step(step)), None, steps)[1],
        "map": jax.lax.map(of_step, steps),
        "while": jax.lax.while_loop(
            lambda state: state[0] < len(steps), count, (0, jnp.zeros(len(steps), first.dtype))
        )[1],
        "cond": jax.lax.cond(steps[0] < 0, lambda: of_step(steps), lambda: of_step(steps + 0)),
        "remat": jax.checkpoint(of_step)(steps),
        "grad": jax.grad(lambda one: (one * of_step(steps)).sum())(jnp.ones(len(steps), first.dtype)),
    }


@jax.jit
def every_mode_of_a_traced_table(table, steps):
    return every_mode(partial(multiplier, table), steps)


@pytest.mark.slow
@x64_both_ways
@examples(40)
@given(cases)
def test_traced_table_matches_numpy_bits_in_every_mode(x64, case):
    curve, steps = curve_and_steps(case)
    # Every mode is compiled for two tables, one for each search.
    table = in_one_of_two_forms(curve)
    with jax.enable_x64(x64):
        for values in every_mode_of_a_traced_table(table, steps).values():
            assert_equal_bits(values, curve(steps))


@examples(50)
@given(steps_at_borders())
def test_values_near_rounding_borders_match_numpy_bits(case):
    description, step = case
    curve, steps = build(description), np.clip(step + np.arange(SIZE) - SIZE // 2, 0, MAX_STEP)
    assert_equal_bits(multiplier(in_one_of_two_forms(curve), steps), curve(steps))


@pytest.mark.slow
@examples(8)
@given(st.booleans(), cases)
def test_constant_table_matches_numpy_bits_in_every_mode(x64, case):
    curve, steps = curve_and_steps(case)
    with jax.enable_x64(x64):
        of_step = partial(multiplier, curve.segments)
        modes = jax.jit(lambda steps: every_mode(of_step, steps))(steps)
        modes["eager"], modes["constant steps"] = of_step(steps), jax.jit(lambda: of_step(jnp.array(steps)))()
        for values in modes.values():
            assert_equal_bits(values, curve(steps))


@pytest.mark.slow
@x64_both_ways
@both_searches
def test_uncompiled_calls_match_numpy_bits(x64, curve):
    of_step = partial(multiplier, curve.segments)
    with jax.enable_x64(x64), jax.disable_jit():
        assert_equal_bits(of_step(STEPS), curve(STEPS))
        assert_equal_bits(jax.vmap(of_step)(STEPS), curve(STEPS))


@x64_both_ways
@both_searches
def test_every_step_of_a_curve_matches_numpy(x64, curve):
    with jax.enable_x64(x64):
        assert_equal_bits(multiplier(curve.segments, STEPS), curve(STEPS))
        assert_equal_bits(optax_schedule(curve, 1.0)(STEPS).astype("float32"), curve(STEPS))
        of_traced_peak = jax.jit(lambda peak: optax_schedule(curve, peak)(STEPS))
        assert_equal_bits(of_traced_peak(0.1), product(curve, 0.1, STEPS, x64))


@pytest.mark.slow
@examples(8)
@given(st.booleans(), cases, peaks)
def test_learning_rate_is_product_of_two_float32(x64, case, peak):
    curve, steps = curve_and_steps(case)
    with jax.enable_x64(x64):
        schedule = optax_schedule(curve, peak)

        @jax.jit
        def rates(steps_, peak_, weak_peak):
            return (
                # Peak and table are constants that the compiler may fold.
                schedule(steps_),
                schedule(steps),
                optax_schedule(curve, peak_)(steps_),
                optax_schedule(curve, weak_peak)(steps_),
            )

        rounded = np.float32(peak)
        for actual in (schedule(steps), *rates(steps, rounded, float(rounded))):
            assert_equal_rates(actual, product(curve, peak, steps, x64))


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize("peak", [SMALLEST_NORMAL, 1.75 * SMALLEST_NORMAL, 2.0**-110, 1e-30, 2.0**-63])
def test_tiny_constant_peaks_survive_outer_jit(x64, peak):
    curve = PlateauCurve(
        2**20, warmup_steps=2**10, plateaus=[(0, 10), (50, 20)], min_lr_ratio=0.5, init_lr_ratio=1
    )
    steps = np.arange(0, 2**20, 1009, dtype=np.int32)
    with jax.enable_x64(x64):
        schedule = optax_schedule(curve, peak)
        assert_equal_rates(jax.jit(schedule)(steps), product(curve, peak, steps, x64))
        assert_equal_rates(jax.jit(lambda: schedule(steps))(), product(curve, peak, steps, x64))


@pytest.mark.slow
@examples(8)
@given(st.booleans(), cases, peaks)
def test_gradient_by_peak_is_the_multiplier(x64, case, peak):
    curve, steps = curve_and_steps(case)
    with jax.enable_x64(x64):
        slope = jax.jacfwd(lambda peak: optax_schedule(curve, peak)(steps))
        assert_equal_bits(slope(np.float32(peak)).astype("float32"), curve(steps))


@jax.jit
def of_each_table(tables, steps):
    return jax.vmap(multiplier, in_axes=(0, None))(tables, steps)


@examples(10)
@given(
    descriptions_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), min_size=4, max_size=4),
)
def test_stack_under_vmap_matches_each_curve(case, others):
    first, steps = curve_and_steps(case)
    # The last is the longest and has every shape, so that all stacks have the same columns and lengths.
    curves = [first, *(build(description) for description in others), every_shape(39)]
    values = of_each_table(stack(curves), steps)
    assert_equal_bits(values, np.stack([curve(steps) for curve in curves]))
    each_its_own = jax.vmap(multiplier)(stack(curves), steps[:6])
    assert_equal_bits(
        each_its_own, np.array([curve(step) for curve, step in zip(curves, steps, strict=False)], np.float32)
    )


@x64_both_ways
@pytest.mark.parametrize("empty", [[], range(0), np.zeros((0, 3)), jnp.zeros((0, 3), int)], ids=repr)
def test_empty_steps_give_empty_values(x64, empty):
    curve = every_shape(39)
    with jax.enable_x64(x64):
        for values in (
            multiplier(curve.segments, empty),
            jax.jit(optax_schedule(curve, 0.5))(jnp.array(empty, int)),
        ):
            assert_equal_bits(values.astype("float32"), np.zeros(np.shape(empty), np.float32))


@pytest.mark.filterwarnings("ignore:min_lr_ratio:plateau_jax.CurveWarning")
@pytest.mark.gpu("jax")
@x64_both_ways
@both_searches
def test_accelerator_matches_numpy_bits(x64, curve):
    largest = PlateauCurve(MAX_STEP, warmup_steps=10**6, plateaus=[(30, 20)], min_lr_ratio=1e-12)
    steps = np.linspace(0, MAX_STEP, 100_000).astype(np.int32)
    with jax.enable_x64(x64):
        assert_equal_bits(multiplier(largest.segments, steps), largest(steps))
        for values in every_mode_of_a_traced_table(curve.segments, STEPS[: SIZE * 20]).values():
            assert_equal_bits(values, curve(STEPS[: SIZE * 20]))
        for peak in (0.1, 3e-4, SMALLEST_NORMAL):
            schedule = optax_schedule(curve, peak)
            assert_equal_rates(schedule(STEPS), product(curve, peak, STEPS, x64))
            assert_equal_rates(jax.jit(lambda: schedule(STEPS))(), product(curve, peak, STEPS, x64))  # noqa: B023 - called before the next turn
