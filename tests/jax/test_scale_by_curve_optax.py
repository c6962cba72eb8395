"""`scale_by_curve` inside what optax and orbax offer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax import checkpoint  # which flax brings
from support.hold_cases import BELOW, PEAK, STAIRS, UNTIL, WORST, rates_by_words
from support.jax_cases import assert_equal_bits

from plateau_jax import scale_by_curve


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
        for value in (np.float32(0), metric):  # what counts is the metric given with the last micro-batch
            _, state = update(jnp.ones(2), state, jnp.ones(2), value=value)
        rates.append(state.inner_opt_state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[2]))


def test_what_apply_if_finite_skips_changes_nothing():
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


@pytest.mark.parametrize("hold", [None, [UNTIL, BELOW]])
def test_orbax_saves_it(tmp_path, hold):
    optimizer = scale_by_curve(STAIRS, PEAK, hold=hold)
    update = jax.jit(optimizer.update)
    state = optimizer.init(None)
    for metric in WORST[4][:20]:
        _, state = update(jnp.ones(2), state, value=metric)
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        restored = saver.restore(tmp_path / "state", optimizer.init(None))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for metric in WORST[4][20:]:
        _, state = update(jnp.ones(2), state, value=metric)
        _, restored = update(jnp.ones(2), restored, value=metric)
        jax.tree.map(assert_equal_bits, restored, jax.tree.map(np.asarray, state))
