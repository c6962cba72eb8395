"""`scale_by_curve` inside optax's chains and wrappers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.clocks.hold_cases import PEAK, STAIRS, UNTIL, WORST, rates_by_words
from support.jax.jax_cases import assert_equal_bits, mostly_x64, product

from plateau_jax import DataClock, scale_by_curve

COUNTS = np.array([5, 0, 17, 8, 64, 3] * 4)
CLOCKS = {
    "rule": (UNTIL, "value", WORST[1], rates_by_words([UNTIL], WORST[1])),
    "data": (
        DataClock(8),
        "count",
        COUNTS,
        product(STAIRS, PEAK, (np.cumsum(COUNTS) - COUNTS) // 8, False),
    ),
}
"""A clock, the argument that moves it, its values, and the learning rate of each update."""

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


@mostly_x64
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", CLOCKS)
def test_wrapped_clock_gives_the_same_learning_rates(kind, wrapper, x64):
    """A skipped update changes nothing, and only the argument of the last micro-batch counts."""
    clock, name, values, expected = CLOCKS[kind]
    wrap, inner = WRAPPERS[wrapper]
    rates = []
    with jax.enable_x64(x64):
        optimizer = wrap(lambda peak: scale_by_curve(STAIRS, peak, clock))
        state, update = optimizer.init(jnp.ones(2)), jax.jit(optimizer.update)
        for value in values:
            ignored = {"apply_if_finite": [jnp.array([1, jnp.nan])], "MultiSteps": [jnp.ones(2)] * 2}
            for gradients in ignored.get(wrapper, []):
                before = jax.tree.map(np.asarray, inner(state))
                _, state = update(gradients, state, jnp.ones(2), **{name: values.dtype.type(100)})
                jax.tree.map(assert_equal_bits, inner(state), before)
            _, state = update(jnp.ones(2), state, jnp.ones(2), **{name: value})
            rates.append(inner(state).learning_rate)
    assert_equal_bits(rates, expected.astype("float64" if x64 else "float32"))
