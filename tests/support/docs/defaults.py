"""The sections of docs/pytorch_and_jax.md, and one optimizer's updates in torch and in optax."""

# pyright: reportMissingTypeStubs=false

import re
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import optax
import torch
from numpy.typing import NDArray
from support.docs.pages import ROOT, sections
from torch import nn
from torch.optim import Optimizer

PAGE = ROOT / "docs" / "pytorch_and_jax.md"
ACCUMULATES_IN_FLOAT32 = "accumulator_dtype" in signature(optax.MultiSteps).parameters
"""From optax 0.2.8 on; before, in the gradients' own dtype."""
Array = NDArray[np.float64]


class Difference(NamedTuple):
    """A section of the page: the figures of both frameworks, and the blocks that make JAX as PyTorch."""

    torch: list[float]
    jax: list[float]
    blocks: list[str]

    def run(self, index: int = 0, **names: Any) -> dict[str, Any]:
        """What a block sets, with these values for names of the page's first block."""
        found: dict[str, Any] = {}
        exec(next(sections(PAGE)).python(), found)
        assert names.keys() <= found.keys()
        found |= names
        exec(self.blocks[index], found)
        return found


def differences() -> dict[str, Difference]:
    """The sections of the page by their headings, without the first, of what is equal."""
    _, _, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {heading: _difference(body) for heading, _, body in (part.partition("\n") for part in parts)}


def _difference(body: str) -> Difference:
    of_torch, of_jax = re.findall(r"^- \*\*(?:PyTorch|JAX)\*\*: (.+)$", body, re.MULTILINE)
    blocks = re.findall(r"^```py\w*\n(.+?)^```", body, re.DOTALL | re.MULTILINE)
    return Difference(_figures(of_torch), _figures(of_jax), blocks)


def _figures(words: str) -> list[float]:
    """The numbers that are written with a point or an exponent, but those in code, and versions."""
    words = re.sub(r"`.*?`|optax [\d.]+", "", words)
    return [float(figure) for figure in re.findall(r"\d+e-\d+|\d+\.\d+(?:e-\d+)?", words)]


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
