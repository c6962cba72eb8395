"""Positions in a segment, of which a proof knows some numbers."""

from typing import Any

from plateau_jax.shapes.shape import SegmentPosition


def position(**known: Any) -> SegmentPosition:
    """Return a position with these numbers. The others are None, so any use of them fails."""
    return SegmentPosition(**{name: known.get(name) for name in SegmentPosition._fields})
