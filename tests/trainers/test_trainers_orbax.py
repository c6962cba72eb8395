"""The page's program for orbax, which saves and restores a training run in JAX with its curve."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.jax.jax_trainers import BATCHES, Watched, assert_resumed
from support.trainers.trainers import CURVE, PEAK, train

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow

BRANCH = CURVE.cooldown(6, 4)


def sharded(num_devices):
    """Return a function that shards the rows of matrices over this number of devices."""
    mesh = jax.make_mesh((num_devices,), ("rows",), devices=jax.devices()[:num_devices])

    def place(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*["rows"][: jnp.ndim(leaf) > 1])))

    return place


class Run:
    def __init__(self, curve=CURVE, num_devices=4):
        self.watched = Watched()
        self.curve = curve
        self.tx = tx = optax.adamw(self.watched(curve, PEAK))
        params = {
            "first": jnp.linspace(-1, 1, 32).reshape(4, 8),
            "last": jnp.linspace(1, -1, 8).reshape(8, 1),
        }
        self.state = jax.tree.map(sharded(num_devices), (params, tx.init(params)))

        @jax.jit
        def step(state, inputs, targets):
            def loss(params):
                return jnp.mean((jnp.tanh(inputs @ params["first"]) @ params["last"] - targets) ** 2)

            params, opt_state = state
            updates, opt_state = tx.update(jax.grad(loss)(params), opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        self.step = step

    def train(self, first, last):
        for batch in BATCHES[first:last]:
            self.state = self.step(self.state, *batch)

    def load(self, page, manager):
        shardings = [leaf.sharding for leaf in jax.tree.leaves(self.state)]
        self.state = page["restore"](manager, 5, self.state, self.curve)
        assert [leaf.sharding for leaf in jax.tree.leaves(self.state)] == shardings


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return train("orbax", tmp_path_factory.mktemp("page")).names


@pytest.fixture(scope="module")
def manager(page, tmp_path_factory):
    """Return the manager of a checkpoint saved after five updates on four devices."""
    with ocp.CheckpointManager(tmp_path_factory.mktemp("saved")) as manager:
        run = Run()
        run.train(0, 5)
        page["save"](manager, 5, run.state, run.curve)
        manager.wait_until_finished()
        yield manager


def test_resumed_program_matches_uninterrupted_run(tmp_path):
    assert_resumed("orbax", tmp_path, lambda names: names["state"])


@pytest.mark.parametrize("num_devices", [4, 2])
def test_resume_in_any_sharding_matches_whole_run(page, manager, num_devices):
    uninterrupted, resumed = Run(), Run(num_devices=num_devices)
    uninterrupted.train(0, 12)
    uninterrupted.watched.assert_given(CURVE, PEAK, range(12))
    resumed.load(page, manager)
    resumed.train(5, 12)
    resumed.watched.assert_given(CURVE, PEAK, range(5, 12))
    for actual, expected in zip(*map(jax.tree.leaves, (resumed.state, uninterrupted.state)), strict=True):
        if num_devices == 4:
            np.testing.assert_array_equal(actual, expected)
        else:  # sums over rows are added in a different order
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def test_resume_needs_a_curve_with_the_same_past(page, manager):
    run = Run(BRANCH)
    run.load(page, manager)
    run.train(5, 12)
    run.watched.assert_given(BRANCH, PEAK, range(5, 12))
    with pytest.raises(ValueError, match="learning rates differ from step 0 on"):
        Run(PlateauCurve(12)).load(page, manager)
