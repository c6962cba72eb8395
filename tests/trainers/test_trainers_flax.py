"""The page's programs for flax: nnx's optimizer and linen's `TrainState`, resumed."""

import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from support.jax.jax_trainers import assert_resumed
from support.trainers.trainers import CURVE, PEAK

from plateau_jax import optax_schedule

pytestmark = pytest.mark.slow


def state_of_nnx(names):
    return nnx.to_pure_dict(nnx.state((names["model"], names["optimizer"])))


def state_of_linen(names):
    return names["state"].params, names["state"].opt_state, names["state"].step


@pytest.mark.parametrize(
    ("heading", "state"), [("flax nnx", state_of_nnx), ("flax linen", state_of_linen)], ids=["nnx", "linen"]
)
def test_resume_matches_uninterrupted_run(heading, state, tmp_path):
    assert_resumed(heading, tmp_path, state)


def test_flax_counts_calls_and_the_curve_counts_updates():
    tx = optax.MultiSteps(optax.sgd(optax_schedule(CURVE, PEAK)), every_k_schedule=4)
    model, params = nnx.Linear(4, 1, rngs=nnx.Rngs(0)), {"w": jnp.ones(3)}
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    trained = TrainState.create(apply_fn=None, params=params, tx=tx)
    for _ in range(9):
        optimizer.update(model, nnx.state(model, nnx.Param))
        trained = trained.apply_gradients(grads=params)
    of_nnx = nnx.to_pure_dict(nnx.state(optimizer))
    assert of_nnx["step"] == trained.step == 9
    for state in (of_nnx["opt_state"], trained.opt_state):
        counts = optax.tree_utils.tree_get_all_with_path(state, "count")
        assert [int(count) for _, count in counts] == [2]
