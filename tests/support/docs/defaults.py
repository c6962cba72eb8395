"""The sections that make JAX match PyTorch, next to each other on a page."""

# pyright: reportMissingTypeStubs=false

from inspect import signature
from typing import Any, NamedTuple

import optax
from support.docs.pages import program_named, sections

ACCUMULATES_IN_FLOAT32 = "accumulator_dtype" in signature(optax.MultiSteps).parameters
"""True from optax 0.2.8 on; older versions accumulate in the dtype of the gradients."""


class Difference(NamedTuple):
    """The blocks of a section, and the page's first block, which sets the names that they use."""

    introduction: str
    blocks: tuple[str, ...]

    def run(self, index: int = 0, **names: Any) -> dict[str, Any]:
        """Run a block, with these values for names of the page's first block, and return its names."""
        namespace: dict[str, Any] = {}
        exec(self.introduction, namespace)
        assert names.keys() <= namespace.keys()
        namespace |= names
        exec(self.blocks[index], namespace)
        return namespace


def differences() -> dict[str, Difference]:
    """Return the sections, by heading, of the page that clips gradients as torch does."""
    introduction, *rest = sections(program_named("Clipping gradients").page)
    return {
        section.heading: Difference(
            introduction.python(),
            tuple(block.code for block in section.blocks if block.language.startswith("py")),
        )
        for section in rest
    }
