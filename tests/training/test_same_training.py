"""One recipe trained in torch and in JAX: learning rates of the same bits, and finally the same weights."""

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from jax import numpy as jnp
from support.docs.defaults import ACCUMULATES_IN_FLOAT32, differences
from support.trainers.trainers import record_lrs
from torch import nn
from torch.nn.utils import clip_grad_norm_

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import TrainStep, lambda_lr

pytestmark = pytest.mark.slow

UPDATES, MICRO_BATCHES = 200, 3
CURVE = PlateauCurve(UPDATES, warmup_steps=20, plateaus=[(30, 20), (70, 15)], min_lr_ratio=0.1)
PEAK, DECAY, MAX_NORM = 1e-3, 0.1, 1.0
CLIPPING = differences()["Clipping gradients"].run()["clip_as_torch"](MAX_NORM)
BOUNDS = {"float64": 1e-12, "float32": 5e-6}
WIDTH, CLASSES = 8, 5


def weights(dtype: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes: dict[str, Any] = {"hidden": (WIDTH, WIDTH), "out": (WIDTH, CLASSES), "bias": (CLASSES,)}
    return {name: random.normal(size=shape).astype(dtype) * 0.4 for name, shape in shapes.items()}


def loss_of(xp: Any, weights: Any, inputs: Any, classes: Any) -> Any:
    """Return the cross-entropy after an MLP; `xp` is torch or jax.numpy."""
    hidden = inputs + xp.tanh(xp.matmul(inputs, weights["hidden"]))
    logits = xp.matmul(hidden, weights["out"]) + weights["bias"]
    return (xp.log(xp.exp(logits).sum(-1)) - (logits * classes).sum(-1)).mean()


def data(dtype: str) -> tuple[Any, Any]:
    """Return inputs, and as 0 and 1 the class of each: the index of its largest first number."""
    inputs = np.random.default_rng(1).normal(size=(UPDATES * MICRO_BATCHES, 24, WIDTH))
    return inputs.astype(dtype), np.eye(CLASSES)[inputs[..., :CLASSES].argmax(-1)].astype(dtype)


def torch_loss(model: Any, batch: Any) -> Any:
    return loss_of(torch, dict(model.named_parameters()), *batch)


def loop(model: Any, optimizer: Any, updates: Any) -> list[float]:
    """Update as in torch's documentation; return the norms before clipping."""
    scheduler = lambda_lr(optimizer, CURVE)
    norms = []
    for update in updates:
        for batch in update:
            (torch_loss(model, batch) / MICRO_BATCHES).backward()
        norms.append(float(clip_grad_norm_(model.parameters(), MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return norms


def train_step(model: Any, optimizer: Any, updates: Any) -> list[float]:
    step = TrainStep(model, optimizer, torch_loss, CURVE, max_norm=MAX_NORM)
    return [float(step(*update).grad_norm) for update in updates]


def in_torch(dtype: str, train: Any) -> tuple[Any, Any, Any]:
    """Return the weights after the updates, and the learning rates and gradient norms of the updates."""
    model = nn.ParameterDict({name: torch.tensor(array) for name, array in weights(dtype).items()})
    # The learning rate of a fused optimizer under TrainStep is a float32 tensor.
    fused = train is train_step and dtype == "float32"
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, weight_decay=DECAY, fused=fused)
    batches = zip(*map(torch.tensor, data(dtype)), strict=True)
    with record_lrs() as used:
        norms = train(model, optimizer, zip(*[batches] * MICRO_BATCHES, strict=True))
    after = {name: parameter.detach().numpy() for name, parameter in model.items()}
    return after, np.array(used).astype(dtype)[:, 0], np.array(norms)


@cache
def in_jax(dtype: str) -> tuple[Any, Any]:
    """Return the weights after the updates, and the learning rate of each."""
    with jax.enable_x64(dtype == "float64"):
        # The other hyperparameters stay Python floats, as in torch.
        adamw = optax.inject_hyperparams(optax.adamw, static_args=("b1", "b2", "eps", "eps_root"))
        tx = optax.chain(CLIPPING, adamw(optax_schedule(CURVE, PEAK), weight_decay=DECAY))
        accumulator = {"accumulator_dtype": dtype} if ACCUMULATES_IN_FLOAT32 else {}
        tx = optax.MultiSteps(tx, MICRO_BATCHES, **accumulator)

        def micro_batch(carry: Any, batch: Any) -> Any:
            weights, state = carry
            gradients = jax.grad(lambda weights: loss_of(jnp, weights, *batch))(weights)
            changes, state = tx.update(gradients, state, weights)
            rate = state.inner_opt_state[1].hyperparams["learning_rate"]
            return (optax.apply_updates(weights, changes), state), rate

        before = weights(dtype)
        train = jax.jit(
            lambda weights, batches: jax.lax.scan(micro_batch, (weights, tx.init(weights)), batches)
        )
        (after, _), rates = train(before, data(dtype))
        return jax.tree.map(np.asarray, after), np.asarray(rates)[MICRO_BATCHES - 1 :: MICRO_BATCHES]


def distance(one: Any, other: Any) -> float:
    """Return the largest difference between two trees of weights."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.parametrize("train", [loop, train_step])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_torch_and_jax_train_to_the_same_weights(dtype: str, train: Any) -> None:
    after, rates, norms = in_torch(dtype, train)
    jax_after, jax_rates = in_jax(dtype)
    assert jax_rates.dtype == dtype
    assert rates.tolist() == jax_rates.tolist()
    assert len(rates) == UPDATES
    assert 20 < np.count_nonzero(norms > MAX_NORM) < 180
    assert distance(after, jax_after) < BOUNDS[dtype]
    assert distance(after, weights(dtype)) > 0.05
