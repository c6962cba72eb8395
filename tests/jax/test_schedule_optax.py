"""`optax_schedule` inside optax, and `cosine_plateau_schedule` in optax's convention."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st
from support.curves.strategies import ratios
from support.examples import examples
from support.jax.jax_cases import CURVE, MANY, STEPS, assert_equal_bits, product, x64_both_ways

from plateau_jax import PlateauCurve, cosine_plateau_schedule, optax_schedule


def updates_of(optimizer, count, params, grads):
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for _ in range(count):
        updates, state = update(grads, state, params)
        yield updates, state


@x64_both_ways
def test_sgd_scales_by_the_schedule(x64):
    with jax.enable_x64(x64):
        one, rates = jnp.ones(()), product(CURVE, 0.1, np.arange(150), x64)
        scheduled = updates_of(optax.sgd(optax_schedule(CURVE, 0.1)), 150, one, one)
        assert [-update for update, _ in scheduled] == rates.tolist()


@pytest.mark.slow
@x64_both_ways
def test_inside_inject_hyperparams(x64):
    with jax.enable_x64(x64):
        optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=optax_schedule(CURVE, 3e-3))
        rates = product(CURVE, 3e-3, np.arange(120), x64)
        for rate, (_, state) in zip(rates, updates_of(optimizer, 120, jnp.ones(3), jnp.ones(3)), strict=True):
            assert_equal_bits(state.hyperparams["learning_rate"], rate)


@pytest.mark.slow
def test_inside_join_schedules():
    joined = optax.join_schedules([optax_schedule(CURVE, 0.1), optax_schedule(MANY, 0.2)], [1200])
    steps = np.arange(0, 2400)
    wanted = np.where(
        steps < 1200, product(CURVE, 0.1, steps, False), product(MANY, 0.2, steps - 1200, False)
    )
    assert_equal_bits(joined(jnp.array(steps)), wanted)
    assert_equal_bits(jax.jit(jax.vmap(joined))(steps), wanted)
    for step in (0, 1199, 1200, 2300):
        assert_equal_bits(joined(step), wanted[step])


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_value": 0.2}, "init_value = 0.2 .*0.1"),
        ({"init_value": -0.1}, "init_value = -0.1"),
        ({"end_value": 0.2}, "end_value = 0.2 .*0.1"),
        ({"end_value": -1e-9}, "end_value = -1e-09"),
        ({"end_value": float("nan")}, "end_value = nan"),
        ({"peak_value": 1e-40}, "peak_value = 1e-40"),
        ({"peak_value": float("inf")}, "peak_value = inf"),
        ({"peak_value": 0.0, "end_value": 0.1}, "end_value = 0.1"),
        ({"warmup_steps": 100}, "^warmup_steps = 100 must lie in 0 … decay_steps - 1"),
        ({"decay_steps": 0}, "^decay_steps = 0"),
        ({"plateaus": [(50, 60)]}, r"\(50, 60\)"),
    ],
    ids=str,
)
def test_optax_convention_rejects_wrong_arguments(changes, message):
    arguments = {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 10, "decay_steps": 100} | changes
    with pytest.raises(ValueError, match=message):
        cosine_plateau_schedule(**arguments)


def test_zero_peak_gives_zero_learning_rates():
    schedule = cosine_plateau_schedule(0.0, 0.0, 10, 100)
    assert not np.any(schedule(np.arange(-3, 120)))
