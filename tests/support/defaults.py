"""The README's table of defaults, and one optimizer's updates in torch and in optax."""

# pyright: reportMissingTypeStubs=false

import re
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from numpy.typing import NDArray
from support.readme import README, rows
from torch import nn
from torch.optim import Optimizer

ACCUMULATES_IN_FLOAT32 = "accumulator_dtype" in signature(optax.MultiSteps).parameters
"""From optax 0.2.8 on; before, in the gradients' own dtype."""
Array = NDArray[np.float64]


class Row(NamedTuple):
    """A row of the table: the figures of both frameworks, and the lines that make JAX as PyTorch."""

    torch: list[float]
    jax: list[float]
    lines: list[str]

    def line(self, index: int = 0, **names: Any) -> Any:
        """What a line gives where optax, flax, JAX and these names are known."""
        known = {"jax": jax, "jnp": jnp, "nnx": nnx, "optax": optax}
        return eval(compile(self.lines[index], str(README), "eval"), known | names)


def table() -> list[Row]:
    """The rows of the table, from top to bottom."""
    return [
        Row(_figures(of_torch), _figures(of_jax), re.findall(r"`(.*?)`", same))
        for _, of_torch, of_jax, same in rows("Moving a recipe between PyTorch and JAX")
    ]


def _figures(cell: str) -> list[float]:
    """The numbers of a cell that are written with a point or an exponent."""
    return [float(figure) for figure in re.findall(r"\d+e-\d+|\d+\.\d+(?:e-\d+)?", cell)]


def by_torch(
    optimizer: Callable[[list[nn.Parameter]], Optimizer], weights: Array, gradients: Sequence[Array]
) -> Array:
    """The weights after an update by each of these gradients."""
    parameter = nn.Parameter(torch.tensor(weights))
    made = optimizer([parameter])
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        made.step()
    return parameter.detach().numpy()


def by_optax(tx: optax.GradientTransformation, weights: Array, gradients: Sequence[Array]) -> Array:
    """The weights after an update by each of these gradients."""
    state, changed = tx.init(weights), weights
    for gradient in gradients:
        changes, state = tx.update(gradient, state, changed)
        changed = optax.apply_updates(changed, changes)
    return np.asarray(changed)
