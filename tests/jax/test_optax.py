"""Schedules and transformations inside optax's optimizers, wrappers and chains."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st
from support.curves.strategies import ratios
from support.examples import examples
from support.holds.hold_cases import PEAK, STAIRS, UNTIL, WORST, rates_by_words
from support.jax.jax_cases import STEPS, assert_equal_bits, product

from plateau_jax import PlateauCurve, cosine_plateau_schedule, scale_by_curve


@pytest.mark.slow
@examples(12)
@given(
    st.floats(1e-6, 1e3),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(2, 10**6).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total - 1))),
    st.data(),
)
def test_without_plateaus_schedule_follows_optax(peak, initial, end, total_and_warmup, data):
    total, warmup = total_and_warmup
    given = {"init_value": initial * peak, "peak_value": peak, "warmup_steps": warmup, "decay_steps": total}
    steps = np.array(data.draw(st.lists(st.integers(0, total + 5), min_size=48, max_size=48)), np.int32)
    ours = cosine_plateau_schedule(**given, end_value=end * peak)
    theirs = optax.warmup_cosine_decay_schedule(**given, end_value=end * peak)
    # optax computes in float32: a few roundings of numbers up to the peak.
    np.testing.assert_allclose(ours(steps), theirs(jnp.array(steps)), rtol=0, atol=peak * 8 * 2.0**-23)


@pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning")
@examples(10)
@given(st.lists(st.integers(0, 99), min_size=2, max_size=2, unique=True), ratios, ratios)
def test_optax_convention_with_plateaus_matches_the_curve(cuts, initial, end):
    start, stop = sorted(cuts)
    plateaus = [(start, stop - start)]
    schedule = cosine_plateau_schedule(initial, 1.0, 100, 1000, end, plateaus)
    curve = PlateauCurve(1000, warmup_steps=100, plateaus=plateaus, min_lr_ratio=end, init_lr_ratio=initial)
    assert_equal_bits(schedule(STEPS), curve(STEPS))


def test_small_values_and_a_peak_of_zero_do_not_warn():
    """As ratios of the peak they look like learning rates, about which a curve would warn."""
    schedule = cosine_plateau_schedule(2.0**-17, 0.125, 10, 100, 2.0**-20)
    assert schedule(np.array([0, 10, 100])).tolist() == [2.0**-17, 0.125, 2.0**-20]
    assert not np.any(cosine_plateau_schedule(0.0, 0.0, 10, 100)(np.arange(-3, 120)))


COUNTS = np.array([5, 0, 17, 8, 64, 3] * 4)
CLOCKS = {
    "hold": ({"hold": UNTIL}, "value", WORST[1], rates_by_words([UNTIL], WORST[1])),
    "unit": ({"unit": 8}, "count", COUNTS, product(STAIRS, PEAK, (np.cumsum(COUNTS) - COUNTS) // 8, False)),
}
"""The options of a clock, the argument that moves it, its values, and the learning rate of each update."""

# How to wrap `build(peak)`, and where its state is then.
WRAPPERS = {
    "chain": (
        lambda build: optax.chain(optax.scale_by_adam(), build(PEAK)),
        lambda state: state[-1],
    ),
    "injected peak": (
        lambda build: optax.inject_hyperparams(build)(peak=PEAK),
        lambda state: state.inner_state,
    ),
    "apply_if_finite": (
        lambda build: optax.apply_if_finite(build(PEAK), 100),
        lambda state: state.inner_state,
    ),
    "MultiSteps": (
        lambda build: optax.MultiSteps(build(PEAK), every_k_schedule=3),
        lambda state: state.inner_opt_state,
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("clock", CLOCKS)
def test_wrapped_clock_gives_the_same_learning_rates(clock, wrapper):
    """A skipped update changes nothing, and only the argument of the last micro-batch counts."""
    options, name, values, expected = CLOCKS[clock]
    wrap, inner = WRAPPERS[wrapper]
    optimizer = wrap(lambda peak: scale_by_curve(STAIRS, peak, **options))
    state, update = optimizer.init(jnp.ones(2)), jax.jit(optimizer.update)
    rates = []
    for value in values:
        ignored = {"apply_if_finite": [jnp.array([1, jnp.nan])], "MultiSteps": [jnp.ones(2)] * 2}
        for gradients in ignored.get(wrapper, []):
            before = jax.tree.map(np.asarray, inner(state))
            _, state = update(gradients, state, jnp.ones(2), **{name: values.dtype.type(100)})
            jax.tree.map(assert_equal_bits, inner(state), before)
        _, state = update(jnp.ones(2), state, jnp.ones(2), **{name: value})
        rates.append(inner(state).learning_rate)
    assert_equal_bits(rates, expected)
