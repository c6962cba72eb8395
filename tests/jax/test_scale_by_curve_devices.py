"""The clock of a run on several devices: a single decision, the same as on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from support.jax.jax_cases import assert_equal_bits, product

from plateau_jax import HoldBelow, HoldUntilFlat, StagedCurve, scale_by_curve

pytestmark = pytest.mark.slow

CURVE = StagedCurve([(2, 1), (3,), (4, 0.5), (4,), (9, 0)])
RULES = [HoldUntilFlat(2, every=2, limit=9), HoldBelow(0.2, 3)]
SCALES = np.random.default_rng(5).random(30, np.float32)


def rates(given_params, loss_of):
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(CURVE, 0.3, hold=RULES))

    def update(state, scale):
        _, state = optimizer.update(given_params, state, given_params, value=loss_of(given_params * scale))
        return state, (state[1].clock, state[1].learning_rate)

    return jax.lax.scan(update, optimizer.init(given_params), SCALES)[1]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_loss_of_all_devices_decides(kind):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices("cpu")[:4])
    params = jnp.ones((8, 2))
    clocks, wanted = jax.jit(lambda params: rates(params, jnp.mean))(params)
    assert_equal_bits(wanted, product(CURVE, 0.3, np.append(0, clocks[:-1]), False))
    assert len(set(clocks.tolist())) < 25
    sharded = jax.device_put(params, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        _, actual = jax.jit(lambda params: rates(params, jnp.mean))(sharded)
    assert_equal_bits(actual, np.asarray(wanted))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
    def mapped(part):
        return rates(part, lambda part: jax.lax.pmean(part.mean(), "data"))[1]

    assert_equal_bits(mapped(sharded), np.asarray(wanted))
