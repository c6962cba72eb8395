"""`scale_by_curve` inside optax's wrappers and chains."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.holds.hold_cases import PEAK, STAIRS, UNTIL, WORST, rates_by_words
from support.jax.jax_cases import assert_equal_bits

from plateau_jax import PlateauCurve, scale_by_curve


def test_inside_a_chain():
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), scale_by_curve(STAIRS, PEAK, hold=UNTIL)
    )
    named = optax.named_chain(
        ("adam", optax.scale_by_adam()), ("rate", scale_by_curve(STAIRS, PEAK, hold=UNTIL))
    )
    params = {"w": jnp.ones(3), "b": jnp.ones((), "bfloat16")}
    state, named_state = optimizer.init(params), named.init(params)
    rates, named_rates = [], []
    for metric in WORST[1]:
        updates, state = jax.jit(optimizer.update)(params, state, params, value=metric)
        _, named_state = jax.jit(named.update)(params, named_state, params, value=metric)
        rates.append(state[-1].learning_rate)
        named_rates.append(named_state["rate"].learning_rate)
        assert updates["b"].dtype == "bfloat16"
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[1]))
    assert_equal_bits(named_rates, rates_by_words([UNTIL], WORST[1]))


def test_inside_multi_steps_the_clock_counts_updates():
    optimizer = optax.MultiSteps(scale_by_curve(STAIRS, PEAK, hold=UNTIL), every_k_schedule=2)
    state = optimizer.init(jnp.ones(2))
    update = jax.jit(optimizer.update)
    rates = []
    for metric in WORST[2]:
        for value in (np.float32(0), metric):  # only the metric of the last micro-batch counts
            _, state = update(jnp.ones(2), state, jnp.ones(2), value=value)
        rates.append(state.inner_opt_state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[2]))


def test_updates_skipped_by_apply_if_finite_change_nothing():
    optimizer = optax.apply_if_finite(scale_by_curve(STAIRS, PEAK, hold=UNTIL), 100)
    state = optimizer.init(jnp.ones(2))
    update = jax.jit(optimizer.update)
    rates = []
    for metric in WORST[3]:
        _, skipped = update(jnp.array([1, jnp.nan]), state, value=np.float32(0))
        jax.tree.map(assert_equal_bits, skipped.inner_state, jax.tree.map(np.asarray, state.inner_state))
        _, state = update(jnp.ones(2), skipped, value=metric)
        rates.append(state.inner_state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[3]))


def test_two_curves_have_two_learning_rates():
    """The documented way to read one learning rate is ambiguous then; it works on the state of a label."""
    curve = PlateauCurve(10)
    rules = {"slow": scale_by_curve(curve, PEAK), "fast": scale_by_curve(curve, 2 * PEAK)}
    state = optax.partition(rules, {"a": "slow", "b": "fast"}).init({"a": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(KeyError, match="Found multiple values for 'learning_rate'"):
        optax.tree.get(state, "learning_rate")
    lrs = [optax.tree.get(state.inner_states[label], "learning_rate") for label in rules]
    assert lrs == [np.float32(PEAK), np.float32(2 * PEAK)]


def test_after_an_optimizer_with_a_sign_weights_climb():
    for optimizer, sign in ((optax.scale_by_adam(), -1), (optax.adam(0.1), 1)):
        tx = optax.chain(optimizer, scale_by_curve(STAIRS, PEAK))
        state = tx.init(jnp.ones(2))
        for _ in range(3):  # the first update has a learning rate of 0
            updates, state = tx.update(jnp.ones(2), state)
        assert (jnp.sign(updates) == sign).all()
