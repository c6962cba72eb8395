"""Curves in optax's wrappers, as in the page's programs: only applied updates move the curve."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.jax.jax_cases import assert_equal_bits, product
from support.jax.jax_trainers import assert_rejected_if_longer, assert_resumed, watched
from support.trainers.trainers import CURVE, PAGE_CURVE, PEAK, run_and_resume

from plateau_jax import PlateauCurve, StagedCurve, optax_schedule

pytestmark = pytest.mark.slow

OTHER = PlateauCurve(24, plateaus=[(50, 30)], decay_shape="linear")
RAMP = StagedCurve([(50, 1.0)])
"""The page's ramp of the decay."""


def through_bytes(tree):
    """Copy the arrays through NumPy, like a save and a load."""
    return jax.tree.map(lambda leaf: jnp.array(np.array(leaf)), tree)


def test_resume_matches_uninterrupted_run(tmp_path):
    # The checkpoint after 200 micro-batches, one of which was skipped, lies between two updates.
    heading, at = "optax: MultiSteps and apply_if_finite", 99
    names = assert_resumed(heading, tmp_path, lambda names: [names["params"], names["opt_state"]], at)
    assert int(names["opt_state"].total_notfinite) == 1


def test_resume_with_two_curves_and_averaged_weights(tmp_path):
    heading = "optax: partition and weight averaging"
    linear = PlateauCurve(200, warmup_steps=20, decay_shape="linear")
    (uninterrupted, given), (resumed, given_later) = run_and_resume(heading, tmp_path, watched)
    for record, counts in ((given, range(200)), (given_later, range(100, 200))):
        record.assert_given(PAGE_CURVE, 2e-2, counts)
        record.assert_given(linear, 1e-2, counts)
        record.assert_given(RAMP, 0.95, counts)
    jax.tree.map(np.testing.assert_array_equal, resumed.names["state"], uninterrupted.names["state"])
    for curve in ("curve", "linear"):
        assert_rejected_if_longer(heading, tmp_path, curve)

    # The average by its definition, starting from the initial weights, which are 0.
    params, _, opt_state = uninterrupted.names["state"]
    params = jax.tree.map(jnp.zeros_like, params)
    state, expected = (params, params, jax.tree.map(jnp.zeros_like, opt_state)), 0.0
    for count in range(12):
        inputs = np.random.default_rng(count).normal(size=(256, 8)).astype(np.float32)
        state, _ = uninterrupted.names["train"](*state, inputs, count)
        decay = float(product(RAMP, 0.95, np.array([count]), False)[0])
        expected = decay * expected + (1 - decay) * np.asarray(state[0]["weights"])
        np.testing.assert_allclose(state[1]["weights"], expected, rtol=1e-5)


def parameter_moves(tx, gradients):
    """Return how far each gradient moves a parameter, computed by one compiled program."""
    update = jax.jit(tx.update)
    params = jnp.zeros(())
    state, moved = tx.init(params), []
    for gradient in gradients:
        updates, state = update(jnp.float32(gradient), state, params)
        moved.append(updates)
    return np.array(moved)


def descent(steps):
    """Return the updates of stochastic gradient descent at these steps, for gradients of 1."""
    return -product(CURVE, PEAK, np.array(steps), False)


SGD = optax.sgd(optax_schedule(CURVE, PEAK))


def test_multi_steps_moves_once_per_accumulation():
    moved = parameter_moves(optax.MultiSteps(SGD, every_k_schedule=3), [1.0] * 36)
    assert_equal_bits(moved[2::3], descent(range(12)))
    assert not np.any(np.delete(moved, np.s_[2::3]))


def test_apply_if_finite_does_not_move_the_curve():
    gradients = np.where(np.isin(np.arange(15), (2, 7, 8)), np.nan, 1)
    moved = parameter_moves(optax.apply_if_finite(SGD, 5), gradients)
    assert_equal_bits(moved[np.isfinite(gradients)], descent(range(12)))
    assert not np.any(moved[np.isnan(gradients)])


def test_multi_steps_inside_apply_if_finite():
    """The other way round, `apply_if_finite` would act too late: 0 · NaN is NaN, so the sum keeps a NaN."""
    accumulated = optax.MultiSteps(SGD, every_k_schedule=2).gradient_transformation()
    gradients = np.where(np.isin(np.arange(27), (4, 11, 12)), np.nan, 1)
    moved = parameter_moves(optax.apply_if_finite(accumulated, 5), gradients)
    assert_equal_bits(moved[np.isfinite(gradients)][1::2], descent(range(12)))
    assert np.count_nonzero(moved) == np.count_nonzero(descent(range(12)))


def test_chain_with_clipping_follows_the_curve():
    assert_equal_bits(
        parameter_moves(optax.chain(optax.clip_by_global_norm(1.0), SGD), [4.0] * 14), descent(range(14))
    )


def test_partition_with_one_curve_per_label():
    tx = optax.partition(
        {"curve": SGD, "other": optax.sgd(optax_schedule(OTHER, 0.5))}, {"a": "curve", "b": "other"}
    )
    params = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(14):
        updates, state = update({"a": jnp.ones(()), "b": jnp.ones(())}, state, params)
        assert updates["a"] == descent([step])
        assert updates["b"] == -product(OTHER, 0.5, np.array([step]), False)


def test_injected_hyperparams_follow_curves_and_resume():
    def build():
        return optax.inject_hyperparams(optax.adamw)(
            optax_schedule(CURVE, PEAK), weight_decay=optax_schedule(OTHER, 0.1)
        )

    params = jnp.linspace(-1, 1, 5)
    state, update = build().init(params), jax.jit(build().update)
    for step in range(14):
        if step == 6:
            state, update = through_bytes(state), jax.jit(build().update)
        updates, state = update(params, state, params)
        params = optax.apply_updates(params, updates)
        for name, curve, peak in (("learning_rate", CURVE, PEAK), ("weight_decay", OTHER, 0.1)):
            assert_equal_bits(state.hyperparams[name][None], product(curve, peak, np.array([step]), False))


def test_ema_decay_follows_a_curve():
    tx = optax.inject_hyperparams(optax.ema)(decay=optax_schedule(RAMP, 0.999), debias=False)
    state, update, expected = tx.init(jnp.zeros(())), jax.jit(tx.update), 0.0
    for step in range(12):
        moved, state = update(jnp.float32(step), state)
        decay = product(RAMP, 0.999, np.array([step]), False)[0]
        assert_equal_bits(state.hyperparams["decay"][None], decay[None])
        expected = float(decay) * expected + (1 - float(decay)) * step
        np.testing.assert_allclose(moved, expected, rtol=1e-5)
