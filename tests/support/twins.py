"""Two small networks, each in torch and in flax, with the same weights and the same batches."""

# flax and JAX are typed in part:
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from flax import linen
from torch import Tensor, nn

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
    """Causal attention and an MLP, each on what LayerNorm makes of the sum so far, and added to it.

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
    """Of a row of the inputs."""


TWINS = {
    "MLP": Twin(TorchMLP, FlaxMLP(), (WIDTH,)),
    "transformer block": Twin(TorchBlock, FlaxBlock(), (POSITIONS, WIDTH)),
}


def flax_weights(module: nn.Module) -> dict[str, Any]:
    """A torch module's weights as flax has them: kernels transposed, a head's apart."""

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
    """Drawn inputs, of shape (count, 4, *shape), and which of the first numbers of each is the largest."""
    inputs = np.random.default_rng(1).normal(size=(count, 4, *shape)).astype(dtype)
    return inputs, inputs[..., :CLASSES].argmax(-1)


def distance(one: Any, other: Any) -> float:
    """The largest difference between two trees of weights."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)
