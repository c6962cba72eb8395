"""flax under a curve, with the README's lines: nnx's optimizer and linen's `TrainState`, resumed."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx, serialization
from flax.training.train_state import TrainState
from support.jax_trainers import BATCHES, Watched
from support.trainers import CURVE, PEAK, execute, readme

from plateau_jax import optax_schedule

pytestmark = pytest.mark.slow

NNX, LINEN = readme("flax")


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, inputs):
        return self.last(jnp.tanh(self.first(inputs)))


class OfNNX:
    def __init__(self):
        self.watched = Watched()
        self.model = Net()
        names = {"nnx": nnx, "optax": optax, "model": self.model, "curve": CURVE}
        names["optax_schedule"] = self.watched
        execute([NNX], names)
        self.optimizer = names["optimizer"]

        @nnx.jit
        def step(model, optimizer, inputs, targets):
            grads = nnx.grad(lambda model: jnp.mean((model(inputs) - targets) ** 2))(model)
            optimizer.update(model, grads)

        self.step = step

    def train(self, first, last):
        for batch in BATCHES[first:last]:
            self.step(self.model, self.optimizer, *batch)

    def state(self):
        return nnx.to_pure_dict(nnx.state((self.model, self.optimizer)))

    def load(self, state):
        present = nnx.state((self.model, self.optimizer))
        nnx.replace_by_pure_dict(present, state)
        nnx.update((self.model, self.optimizer), present)


class OfLinen:
    def __init__(self):
        self.watched = Watched()
        model = linen.Sequential([linen.Dense(8), jnp.tanh, linen.Dense(1)])
        params = model.init(jax.random.key(0), BATCHES[0][0])
        names = {"TrainState": TrainState, "optax": optax, "model": model, "params": params, "curve": CURVE}
        names["optax_schedule"] = self.watched
        execute([LINEN], names)
        self.trained = names["state"]

        @jax.jit
        def step(state, inputs, targets):
            def loss(params):
                return jnp.mean((state.apply_fn(params, inputs) - targets) ** 2)

            return state.apply_gradients(grads=jax.grad(loss)(state.params))

        self.step = step

    def train(self, first, last):
        for batch in BATCHES[first:last]:
            self.trained = self.step(self.trained, *batch)

    def state(self):
        return serialization.to_bytes(self.trained)

    def load(self, state):
        self.trained = serialization.from_bytes(self.trained, state)


@pytest.mark.parametrize("kind", [OfNNX, OfLinen])
def test_resumed_it_is_as_uninterrupted(kind):
    whole, interrupted, resumed = kind(), kind(), kind()
    whole.train(0, 12)
    whole.watched.assert_given(CURVE, PEAK, range(12))
    interrupted.train(0, 5)
    resumed.load(interrupted.state())
    resumed.train(5, 12)
    resumed.watched.assert_given(CURVE, PEAK, range(5, 12))
    assert serialization.to_bytes(resumed.state()) == serialization.to_bytes(whole.state())


def test_the_steps_of_flax_count_calls_and_the_curve_counts_updates():
    tx = optax.MultiSteps(optax.sgd(optax_schedule(CURVE, PEAK)), every_k_schedule=4)
    model, params = Net(), {"w": jnp.ones(3)}
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
