"""One recipe trained in torch and in JAX: learning rates of the same bits, and finally the same weights."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
import torch
from flax import linen
from support.docs.defaults import ACCUMULATES_IN_FLOAT32, differences
from support.trainers.trainers import record_lrs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import TrainStep, lambda_lr

WIDTH, CLASSES, POSITIONS = 8, 5, 6


class TorchMLP(nn.Module):
    """Two layers and an exact GELU."""

    def __init__(self, out: int = CLASSES) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, out)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(nn.functional.gelu(self.hidden(inputs)))


class FlaxMLP(linen.Module):
    out: int = CLASSES

    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        hidden = linen.gelu(linen.Dense(2 * WIDTH, name="hidden")(inputs), approximate=False)
        return linen.Dense(self.out, name="out")(hidden)


class TorchBlock(nn.Module):
    """Causal attention and an MLP, each applied to the normalized residual stream and added to it.

    Attention without biases: a key's has no effect, so its gradient is rounding alone, which Adam makes
    as large as any other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, bias=False, batch_first=True)
        self.second_norm = nn.LayerNorm(WIDTH)
        self.mlp = TorchMLP(WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        later = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
        normed = self.first_norm(inputs)
        total = inputs + self.attention(normed, normed, normed, attn_mask=later, need_weights=False)[0]
        total = total + self.mlp(self.second_norm(total))
        return self.classes(total)


class FlaxBlock(linen.Module):
    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        attention = linen.MultiHeadDotProductAttention(2, use_bias=False, name="attention")
        up_to_here = linen.make_causal_mask(np.ones(POSITIONS))
        total = inputs + attention(linen.LayerNorm(1e-5, name="first_norm")(inputs), mask=up_to_here)
        total = total + FlaxMLP(WIDTH, name="mlp")(linen.LayerNorm(1e-5, name="second_norm")(total))
        return linen.Dense(CLASSES, name="classes")(total)


class Twin(NamedTuple):
    torch: Callable[[], nn.Module]
    flax: linen.Module
    shape: tuple[int, ...]
    """The loss of a row of the inputs."""


TWINS = {
    "MLP": Twin(TorchMLP, FlaxMLP(), (WIDTH,)),
    "transformer block": Twin(TorchBlock, FlaxBlock(), (POSITIONS, WIDTH)),
}


def flax_weights(module: nn.Module) -> dict[str, Any]:
    """Convert a torch module's weights to flax's layout: kernels transposed, split by head."""

    def array(weight: Tensor) -> Any:
        return weight.detach().numpy().copy()

    match module:
        case nn.Linear():
            return {"kernel": array(module.weight.T), "bias": array(module.bias)}
        case nn.LayerNorm():
            return {"scale": array(module.weight), "bias": array(module.bias)}
        case nn.MultiheadAttention():
            assert module.in_proj_weight is not None
            heads = module.num_heads
            kernels = [array(kernel.T).reshape(WIDTH, heads, -1) for kernel in module.in_proj_weight.chunk(3)]
            out = array(module.out_proj.weight.T).reshape(heads, -1, WIDTH)
            names = "query", "key", "value", "out"
            return {name: {"kernel": kernel} for name, kernel in zip(names, [*kernels, out], strict=True)}
        case _:
            return {name: flax_weights(child) for name, child in module.named_children()}


def batches(shape: tuple[int, ...], dtype: str, count: int) -> tuple[Any, Any]:
    """Draw inputs of shape (count, 4, *shape); the class of each is the index of its largest first number."""
    inputs = np.random.default_rng(1).normal(size=(count, 4, *shape)).astype(dtype)
    return inputs, inputs[..., :CLASSES].argmax(-1)


def distance(one: Any, other: Any) -> float:
    """Return the largest difference between two trees of weights."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


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
    """Update as in torch's documentation; return the norms before clipping."""
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
    """Return the weights after the updates, and the learning rates and gradient norms of the updates."""
    model = untrained(name, dtype)
    # The learning rate of a fused optimizer under TrainStep is a float32 tensor.
    fused = train is train_step and dtype == "float32"
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, weight_decay=DECAY, fused=fused)
    inputs, classes = map(torch.tensor, batches(TWINS[name].shape, dtype, UPDATES * MICRO_BATCHES))
    updates = zip(*[zip(inputs, classes, strict=True)] * MICRO_BATCHES, strict=True)
    with record_lrs() as used:
        norms = train(model, optimizer, updates)
    return flax_weights(model), np.array(used).astype(dtype)[:, 0], np.array(norms)


@cache
def in_jax(name, dtype):
    """Return the weights after the updates, and the learning rate of each."""
    twin, before = TWINS[name], flax_weights(untrained(name, dtype))
    with jax.enable_x64(dtype == "float64"):
        # The other hyperparameters stay Python floats, as in torch.
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
def test_torch_and_jax_train_to_the_same_weights(name, dtype, train):
    after, rates, norms = in_torch(name, dtype, train)
    weights, jax_rates = in_jax(name, dtype)
    assert jax_rates.dtype == dtype
    assert rates.tolist() == jax_rates.tolist()
    assert len(rates) == UPDATES
    assert 20 < np.count_nonzero(norms > MAX_NORM) < 180
    assert distance(after, weights) < BOUNDS[dtype]
    assert distance(after, flax_weights(untrained(name, dtype))) > 0.05
