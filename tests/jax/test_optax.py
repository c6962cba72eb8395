"""`scale_by_curve` inside optax's chains and wrappers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.clocks.hold_cases import PEAK, STAIRS, UNTIL, WORST, rates_by_words
from support.jax.jax_cases import assert_equal_bits, mostly_x64, product, x64_both_ways

from plateau_jax import DataClock, StagedCurve, check_resume, optax_schedule, resume_record, scale_by_curve

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


OLD = StagedCurve([(5, 1.0), (20,), (10, 0.0, "linear")])
NEW = StagedCurve([(3, 0.5), (1,), (10, 0.1, "cosine")], start=0.25)
OLD_PEAK, NEW_PEAK, COUNT, GRADIENTS = 0.1, 0.03, 11, jnp.array([1.0, -2.0])

SCHEDULED = {
    "chain": lambda build: optax.chain(optax.clip_by_global_norm(1.0), build(NEW_PEAK)),
    "injected peak": lambda build: optax.inject_hyperparams(build)(peak=NEW_PEAK),
    "MultiSteps": lambda build: optax.MultiSteps(build(NEW_PEAK), 1).gradient_transformation(),
}
"""How to wrap `build(peak)`, an Adam with a schedule."""


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize("wrapper", SCHEDULED)
def test_old_moments_continue_under_a_new_curve_and_peak(wrapper, x64):
    """Whether the new curve is appended to the old one, or the schedule's count starts at 0."""

    def updates_under(curve, peak, state, number):
        optimizer = SCHEDULED[wrapper](lambda peak: optax.adam(optax_schedule(curve, peak)))
        update, made = jax.jit(optimizer.update), []
        if state is None:
            state = optimizer.init(GRADIENTS)
        if wrapper == "injected peak":
            state = optax.tree.set(state, peak=jnp.float32(peak))
        for _ in range(number):
            updates, state = update(GRADIENTS, state, GRADIENTS)
            made.append(updates)
        return np.stack(made), state

    with jax.enable_x64(x64):
        _, saved = updates_under(OLD, OLD_PEAK, None, COUNT)
        count = optax.tree.get(saved, "ScaleByScheduleState").count
        assert count == COUNT
        continued = OLD.part(0, int(count)).then(NEW)
        check_resume(resume_record(OLD, OLD_PEAK), resume_record(continued), count)
        reset = optax.tree.set(saved, ScaleByScheduleState=optax.ScaleByScheduleState(jnp.int32(0)))
        assert optax.tree.get(reset, "ScaleByAdamState").count == COUNT
        appended, _ = updates_under(continued, NEW_PEAK, saved, 15)
        restarted, state = updates_under(NEW, NEW_PEAK, reset, 15)
        record = resume_record(NEW, NEW_PEAK)
        check_resume(record, record, optax.tree.get(state, "ScaleByScheduleState").count)
        assert_equal_bits(restarted, appended)
        # Under constant gradients Adam's direction is their sign.
        expected = -np.outer(product(NEW, NEW_PEAK, np.arange(15), x64), np.sign(GRADIENTS))
        np.testing.assert_allclose(restarted, expected, rtol=1e-5)


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize(
    ("clock", "given"),
    [(None, {}), (DataClock(8), {"count": 12}), (DataClock(8, count=12), {}), (UNTIL, {"value": 0.5})],
    ids=str,
)
def test_old_moments_continue_after_the_curve_restarts(clock, given, x64):
    def optimizer(curve, peak):
        return optax.chain(optax.scale_by_adam(), scale_by_curve(curve, peak, clock))

    def learning_rates(optimizer, state):
        update, rates = jax.jit(optimizer.update), []
        for _ in range(20):
            _, state = update(GRADIENTS, state, GRADIENTS, **given)
            rates.append(state[-1].learning_rate)
        return np.stack(rates), state

    with jax.enable_x64(x64):
        old, new = optimizer(OLD, OLD_PEAK), optimizer(NEW, NEW_PEAK)
        _, saved = learning_rates(old, old.init(GRADIENTS))
        step = int(optax.tree.get(saved, "curve_step"))
        used = step + 1 if clock else step
        continued = resume_record(OLD.part(0, used).then(NEW), clock=clock)
        check_resume(resume_record(OLD, OLD_PEAK, clock), continued, step)
        reset = (*saved[:-1], new.init(GRADIENTS)[-1])
        rates, state = learning_rates(new, reset)
        fresh, _ = learning_rates(new, new.init(GRADIENTS))
        assert_equal_bits(rates, fresh)
        assert state[0].count == 40
