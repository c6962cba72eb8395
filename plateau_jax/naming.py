"""What several curves are called, side by side."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plateau_jax.curve import Curve


def labels(curves: "Sequence[Curve]") -> list[str]:
    """What sets each curve apart from the others; its whole description, where nothing does."""
    described = [
        # The other phrases of a cooldown, or of a continuation, say where it ends.
        [*([] if curve.depth else [f"{curve.total_steps} steps"]), *curve._phrases()]
        for curve in curves
    ]
    shared = set(described[0]).intersection(*described)
    found = [", ".join([part for part in parts if part not in shared] or parts) for parts in described]
    found = [textwrap.shorten(label, 80, placeholder=" …") for label in found]
    return [
        f"{number}: {label}" if found.count(label) > 1 else label
        for number, label in enumerate(found, start=1)
    ]
