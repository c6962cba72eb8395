"""The sections of docs/pytorch_and_jax.md."""

# pyright: reportMissingTypeStubs=false

import re
from inspect import signature
from typing import Any, NamedTuple

import optax
from support.docs.pages import ROOT, sections

PAGE = ROOT / "docs" / "pytorch_and_jax.md"
ACCUMULATES_IN_FLOAT32 = "accumulator_dtype" in signature(optax.MultiSteps).parameters
"""True from optax 0.2.8 on; older versions accumulate in the dtype of the gradients."""


class Difference(NamedTuple):
    """A section of the page: the figures of both frameworks, and the blocks that make JAX match PyTorch."""

    torch: list[float]
    jax: list[float]
    blocks: list[str]

    def run(self, index: int = 0, **names: Any) -> dict[str, Any]:
        """Run a block, with these values for names of the page's first block, and return its names."""
        namespace: dict[str, Any] = {}
        exec(next(sections(PAGE)).python(), namespace)
        assert names.keys() <= namespace.keys()
        namespace |= names
        exec(self.blocks[index], namespace)
        return namespace


def differences() -> dict[str, Difference]:
    """Return the sections of the page by heading, except the first, on defaults that agree."""
    _, _, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {heading: _parse_difference(body) for heading, _, body in (part.partition("\n") for part in parts)}


def _parse_difference(body: str) -> Difference:
    torch_bullet, jax_bullet = re.findall(r"^- \*\*(?:PyTorch|JAX)\*\*: (.+)$", body, re.MULTILINE)
    blocks = re.findall(r"^```py\w*\n(.+?)^```", body, re.DOTALL | re.MULTILINE)
    return Difference(_parse_figures(torch_bullet), _parse_figures(jax_bullet), blocks)


def _parse_figures(text: str) -> list[float]:
    """Return the numbers with a decimal point or an exponent, except versions and numbers in code."""
    text = re.sub(r"`.*?`|optax [\d.]+", "", text)
    return [float(figure) for figure in re.findall(r"\d+e-\d+|\d+\.\d+(?:e-\d+)?", text)]
