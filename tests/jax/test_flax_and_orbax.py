"""Flax variables as steps and peaks, and states of `scale_by_curve` saved by Orbax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, serialization
from orbax import checkpoint
from support.holds.hold_cases import BELOW, PEAK, STAIRS, UNTIL, WORST
from support.jax.jax_cases import CURVE, STEPS, assert_equal_bits, product, x64_both_ways

from plateau_jax import (
    BatchPlan,
    StagedCurve,
    check_resume,
    multiplier,
    optax_schedule,
    resume_record,
    scale_by_curve,
)

pytestmark = pytest.mark.slow


@x64_both_ways
@pytest.mark.parametrize("kind", [nnx.Variable, nnx.Param])
def test_flax_variables_are_steps_and_peaks(x64, kind):
    with jax.enable_x64(x64):
        for value in (3, STEPS):
            step, peak = kind(jnp.asarray(value)), kind(jnp.float32(0.1))

            def both(step, peak):
                return optax_schedule(CURVE, peak)(step), multiplier(CURVE.segments, step)

            for call in (both, nnx.jit(both)):
                rates, multipliers = call(step, peak)
                assert_equal_bits(rates, product(CURVE, 0.1, value, x64))
                assert_equal_bits(multipliers, np.float32(CURVE(value)))


def test_flax_variables_are_checked_as_arrays():
    with pytest.raises(TypeError, match="step must be an integer"):
        optax_schedule(CURVE, 1.0)(nnx.Variable(jnp.float32(3)))
    with pytest.raises(ValueError, match="peak_value = "):
        optax_schedule(CURVE, nnx.Variable(jnp.float32(-1)))


def test_curve_called_with_flax_variable_names_jax_function():
    with pytest.raises(TypeError, match="optax_schedule"):
        CURVE(nnx.Variable(jnp.int32(3)))


@pytest.mark.parametrize("hold", [None, [UNTIL, BELOW]])
def test_orbax_restores_saved_state(tmp_path, hold):
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


def test_record_survives_orbax_and_flax(tmp_path):
    record = resume_record(STAIRS, hold=[UNTIL, BELOW])
    with checkpoint.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=checkpoint.args.Composite(record=checkpoint.args.JsonSave(record)))
        manager.wait_until_finished()
        by_orbax = manager.restore(1, args=checkpoint.args.Composite(record=checkpoint.args.JsonRestore()))
    for saved in (by_orbax.record, serialization.msgpack_restore(serialization.to_bytes(record))):
        check_resume(saved, STAIRS, jnp.int32(12), hold=[UNTIL, BELOW])
        with pytest.raises(ValueError, match="saved with hold = "):
            check_resume(saved, STAIRS, jnp.int32(12), hold=[UNTIL])


def test_orbax_saves_clock_within_a_unit(tmp_path):
    curve = StagedCurve([(10, 1.0, "linear"), (130,), (40, 0.0, "linear")], start=0.0)
    plan = BatchPlan([(0, 8), (160, 16)])
    transformation = scale_by_curve(curve, PEAK, unit=24)
    update = jax.jit(transformation.update)
    state = transformation.init(None)
    for updates in range(17):
        _, state = update(jnp.ones(()), state, count=plan(plan.consumed(updates)))
    consumed = plan.consumed(17)
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        restored = saver.restore(tmp_path / "state", transformation.init(None))
    assert (restored.clock, restored.rest) == divmod(consumed, 24)
    schedule = jax.jit(optax_schedule(curve, PEAK))
    for _ in range(300):
        _, restored = update(jnp.ones(()), restored, count=4)
        assert restored.learning_rate == schedule(consumed // 24)
        consumed += 4
