"""Flax variables as steps and peaks, and states of `scale_by_curve` saved by Orbax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from orbax import checkpoint
from support.clocks import holds
from support.jax.jax_cases import CURVE, STEPS, assert_equal_bits, product, x64_both_ways

from plateau_jax import (
    DataClock,
    multiplier,
    optax_schedule,
    scale_by_curve,
)

pytestmark = pytest.mark.slow


def at_variables(step, peak):
    """Return the learning rate and the multiplier at a step."""
    return optax_schedule(CURVE, peak)(step), multiplier(CURVE.table, step)


@x64_both_ways
@pytest.mark.parametrize("kind", [nnx.Variable, nnx.Param])
def test_flax_variables_are_steps_and_peaks(x64, kind):
    with jax.enable_x64(x64):
        for value in (3, STEPS):
            step = kind(jnp.asarray(value))
            peak = kind(jnp.float32(0.1))
            for call in (at_variables, nnx.jit(at_variables)):
                lrs, multipliers = call(step, peak)
                assert_equal_bits(lrs, product(CURVE, 0.1, value))
                assert_equal_bits(multipliers, np.float32(CURVE(value)))


@pytest.mark.parametrize(
    ("clock", "name", "values"),
    [
        (None, "value", holds.WORST[4]),
        ([holds.UNTIL, holds.BELOW], "value", holds.WORST[4]),
        (DataClock(24), "count", np.resize([8, 8, 16], 60)),
    ],
)
def test_run_resumed_by_orbax_equals_uninterrupted(tmp_path, clock, name, values):
    optimizer = scale_by_curve(holds.STAIRS, holds.PEAK, clock)
    update = jax.jit(optimizer.update)
    gradients = jnp.ones(2)
    uninterrupted = optimizer.init(None)
    for value in values[:20]:
        _, uninterrupted = update(gradients, uninterrupted, **{name: value})
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", uninterrupted)
        saver.wait_until_finished()
        resumed = saver.restore(tmp_path / "state", optimizer.init(None))
    assert jax.tree.structure(resumed) == jax.tree.structure(uninterrupted)
    for value in values[20:]:
        _, uninterrupted = update(gradients, uninterrupted, **{name: value})
        _, resumed = update(gradients, resumed, **{name: value})
        expected = jax.tree.map(np.asarray, uninterrupted)
        jax.tree.map(assert_equal_bits, resumed, expected)
