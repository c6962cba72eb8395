"""One recipe trained in torch and in JAX: the same rates to the bit, in the end the same weights."""

from functools import cache

import jax
import numpy as np
import optax
import pytest
import torch
from support.defaults import ACCUMULATES_IN_FLOAT32, differences
from support.trainers import rates_used
from support.twins import TWINS, batches, distance, flax_weights
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import TrainStep, lambda_lr

UPDATES, MICRO_BATCHES = 200, 3
CURVE = PlateauCurve(UPDATES, warmup_steps=20, plateaus=[(30, 20), (70, 15)], min_lr_ratio=0.1)
PEAK, DECAY, MAX_NORM = 1e-3, 0.1, 0.65
CLIPPING = differences()["Clipping gradients"].run()["clip_as_torch"](MAX_NORM)
BOUNDS = {"float64": 1e-12, "float32": 5e-6}

pytestmark = pytest.mark.slow


def loss_of(model, batch):
    inputs, classes = batch
    return cross_entropy(model(inputs).flatten(0, -2), classes.flatten())


def loop(model, optimizer, updates):
    """The update as torch's documentation writes it; the norms before clipping."""
    scheduler = lambda_lr(optimizer, CURVE)
    norms = []
    for update in updates:
        for batch in update:
            (loss_of(model, batch) / MICRO_BATCHES).backward()
        norms.append(float(clip_grad_norm_(model.parameters(), MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return norms


def train_step(model, optimizer, updates):
    step = TrainStep(model, optimizer, loss_of, CURVE, max_norm=MAX_NORM)
    return [float(step(*update).grad_norm) for update in updates]


def untrained(name, dtype):
    torch.manual_seed(0)
    return TWINS[name].torch().to(getattr(torch, dtype))


def in_torch(name, dtype, train):
    """Weights after the updates, the rate of each, and the norms of its gradients."""
    model = untrained(name, dtype)
    # The rate of a fused optimizer under TrainStep is a float32 tensor.
    fused = train is train_step and dtype == "float32"
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, weight_decay=DECAY, fused=fused)
    inputs, classes = map(torch.tensor, batches(TWINS[name].shape, dtype, UPDATES * MICRO_BATCHES))
    updates = zip(*[zip(inputs, classes, strict=True)] * MICRO_BATCHES, strict=True)
    with rates_used() as used:
        norms = train(model, optimizer, updates)
    return flax_weights(model), np.array(used).astype(dtype)[:, 0], np.array(norms)


@cache
def in_jax(name, dtype):
    """Weights after the updates, and the rate of each."""
    twin, before = TWINS[name], flax_weights(untrained(name, dtype))
    with jax.enable_x64(dtype == "float64"):
        # The other hyperparameters stay Python floats, as torch's are.
        adamw = optax.inject_hyperparams(optax.adamw, static_args=("b1", "b2", "eps", "eps_root"))
        tx = optax.chain(CLIPPING, adamw(optax_schedule(CURVE, PEAK), weight_decay=DECAY))
        accumulator = {"accumulator_dtype": dtype} if ACCUMULATES_IN_FLOAT32 else {}
        tx = optax.MultiSteps(tx, MICRO_BATCHES, **accumulator)

        def loss_of(weights, inputs, classes):
            logits = twin.flax.apply({"params": weights}, inputs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, classes).mean()

        @jax.jit
        def train(weights, inputs, classes):
            def micro_batch(carry, batch):
                weights, state = carry
                changes, state = tx.update(jax.grad(loss_of)(weights, *batch), state, weights)
                rate = state.inner_opt_state[1].hyperparams["learning_rate"]
                return (optax.apply_updates(weights, changes), state), rate

            return jax.lax.scan(micro_batch, (weights, tx.init(weights)), (inputs, classes))

        (weights, _), rates = train(before, *batches(twin.shape, dtype, UPDATES * MICRO_BATCHES))
        return jax.tree.map(np.asarray, weights), np.asarray(rates)[MICRO_BATCHES - 1 :: MICRO_BATCHES]


@pytest.mark.parametrize("train", [loop, train_step])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", TWINS)
def test_same_rates_and_weights(name, dtype, train):
    after, rates, norms = in_torch(name, dtype, train)
    weights, jax_rates = in_jax(name, dtype)
    assert jax_rates.dtype == dtype
    assert rates.tolist() == jax_rates.tolist()
    assert len(rates) == UPDATES
    assert 20 < np.count_nonzero(norms > MAX_NORM) < 180
    assert distance(after, weights) < BOUNDS[dtype]
    assert distance(after, flax_weights(untrained(name, dtype))) > 0.05
