"""Curves in optax's wrappers: only applied updates move the curve; orbax restores a run in any sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.jax.jax_cases import assert_equal_bits, product
from support.jax.jax_trainers import BATCHES, Watched
from support.trainers.trainers import CURVE, PEAK, train

from plateau_jax import PlateauCurve, StagedCurve, optax_schedule

pytestmark = pytest.mark.slow

OTHER = PlateauCurve(24, plateaus=[(50, 30)], decay_shape="linear")
SGD = optax.sgd(optax_schedule(CURVE, PEAK))
MULTI_STEPS = optax.MultiSteps(SGD, every_k_schedule=2)


def lrs(curve, peak, count):
    return product(curve, peak, np.arange(count), False)


# A transformation; the gradients, NaN where an update must be skipped; and the calls that move the parameter.
WRAPPED = {
    "MultiSteps": (MULTI_STEPS, np.ones(24), np.s_[1::2]),
    "apply_if_finite": (optax.apply_if_finite(SGD, 5), [1, 1, np.nan, 1, np.nan, np.nan, 1], [0, 1, 3, 6]),
    # The other way round, `apply_if_finite` would act too late: 0 · NaN is NaN, so the sum keeps a NaN.
    "MultiSteps inside apply_if_finite": (
        optax.apply_if_finite(MULTI_STEPS.gradient_transformation(), 5),
        [1, 1, 1, 1, np.nan, 1, 1, np.nan, np.nan, 1, 1],
        [1, 3, 6, 10],
    ),
    "a chain with clipping": (optax.chain(optax.clip_by_global_norm(1.0), SGD), np.full(14, 4), np.s_[:]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_only_applied_updates_move_the_curve(name):
    tx, gradients, applied = WRAPPED[name]
    update, params = jax.jit(tx.update), jnp.zeros(())
    state, moved = tx.init(params), []
    for gradient in gradients:
        updates, state = update(jnp.float32(gradient), state, params)
        moved.append(updates)
    moved = np.array(moved)
    assert_equal_bits(moved[applied], -lrs(CURVE, PEAK, len(moved[applied])))
    assert not np.any(np.delete(moved, applied))


def test_partition_has_one_curve_per_label():
    tx = optax.partition(
        {"curve": SGD, "other": optax.sgd(optax_schedule(OTHER, 0.5))}, {"a": "curve", "b": "other"}
    )
    params = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    state, update = tx.init(params), jax.jit(tx.update)
    for lr, other in zip(lrs(CURVE, PEAK, 14), lrs(OTHER, 0.5, 14), strict=True):
        updates, state = update({"a": jnp.ones(()), "b": jnp.ones(())}, state, params)
        assert (updates["a"], updates["b"]) == (-lr, -other)


def test_injected_hyperparams_follow_curves_and_resume():
    def build():
        return optax.inject_hyperparams(optax.adamw)(
            optax_schedule(CURVE, PEAK), weight_decay=optax_schedule(OTHER, 0.1)
        )

    params = jnp.linspace(-1, 1, 5)
    state, update, used = build().init(params), jax.jit(build().update), []
    for step in range(14):
        if step == 6:  # through NumPy, like a save and a load
            state = jax.tree.map(lambda leaf: jnp.array(np.array(leaf)), state)
            update = jax.jit(build().update)
        updates, state = update(params, state, params)
        params = optax.apply_updates(params, updates)
        used.append([state.hyperparams["learning_rate"], state.hyperparams["weight_decay"]])
    assert_equal_bits(np.array(used).T, np.array([lrs(CURVE, PEAK, 14), lrs(OTHER, 0.1, 14)]))


def test_ema_decay_follows_a_curve():
    ramp = StagedCurve([(50, 1.0)])
    tx = optax.inject_hyperparams(optax.ema)(decay=optax_schedule(ramp, 0.999), debias=False)
    state, update, expected = tx.init(jnp.zeros(())), jax.jit(tx.update), 0.0
    for step, decay in enumerate(lrs(ramp, 0.999, 12)):
        moved, state = update(jnp.float32(step), state)
        assert_equal_bits(state.hyperparams["decay"][None], decay[None])
        expected = float(decay) * expected + (1 - float(decay)) * step
        np.testing.assert_allclose(moved, expected, rtol=1e-5)


class Run:
    """A run whose matrices are sharded by rows over this number of devices."""

    def __init__(self, curve=CURVE, num_devices=4):
        self.watched, self.curve = Watched(), curve
        self.tx = tx = optax.adamw(self.watched(curve, PEAK))
        mesh = jax.make_mesh((num_devices,), ("rows",), devices=jax.devices()[:num_devices])
        params = {
            "first": jnp.linspace(-1, 1, 32).reshape(4, 8),
            "last": jnp.linspace(1, -1, 8).reshape(8, 1),
        }

        def place(leaf):
            return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*["rows"][: jnp.ndim(leaf) > 1])))

        self.state = jax.tree.map(place, (params, tx.init(params)))

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
        self.watched.assert_given(self.curve, PEAK, range(first, last))

    def load(self, page, manager):
        shardings = [leaf.sharding for leaf in jax.tree.leaves(self.state)]
        self.state = page["restore"](manager, 5, self.state, self.curve)
        assert [leaf.sharding for leaf in jax.tree.leaves(self.state)] == shardings


def test_orbax_restores_into_any_sharding_and_the_same_past(tmp_path):
    """The page's functions save after five updates on four devices."""
    (tmp_path / "page").mkdir()
    page = train("orbax", tmp_path / "page").names
    branch = CURVE.cooldown(6, 4)
    with ocp.CheckpointManager(tmp_path / "saved") as manager:
        interrupted, uninterrupted = Run(), Run()
        interrupted.train(0, 5)
        page["save"](manager, 5, interrupted.state, CURVE)
        manager.wait_until_finished()
        uninterrupted.train(0, 12)
        for resumed in (Run(), Run(num_devices=2), Run(branch)):
            resumed.load(page, manager)
            resumed.train(5, 12)
            if resumed.curve == branch:
                continue
            # On two devices, sums over rows are added in a different order.
            tolerance = 0 if resumed.state[0]["last"].sharding.num_devices == 4 else 1e-5
            for leaves in zip(*map(jax.tree.leaves, (resumed.state, uninterrupted.state)), strict=True):
                np.testing.assert_allclose(*leaves, rtol=tolerance, atol=tolerance / 100)
        with pytest.raises(ValueError, match="learning rates differ from step 0 on"):
            Run(PlateauCurve(12)).load(page, manager)
