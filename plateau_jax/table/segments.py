"""The segments of a curve as data: `Curve.segments`."""

from collections.abc import Sequence
from typing import NamedTuple

from plateau_jax.numerics import nearest_float32
from plateau_jax.table.exact_segments import ExactSegment, with_stops


class Segment(NamedTuple):
    """A segment of a curve.

    >>> from plateau_jax import PlateauCurve
    >>> warmup, decay, end = PlateauCurve(1000, warmup_steps=100).segments
    >>> decay
    Segment(first_step=100, last_step=999, kind='cosine decay', start=1.0, end=0.0)
    """

    first_step: int
    last_step: int | None
    """None for the end, at which the curve stays."""
    kind: str
    """Its shape, if it has one, and a word such as "warmup", "decay", "plateau" or "end"."""
    start: float
    """The multiplier at `first_step`."""
    end: float
    """The multiplier that the segment leads to, one step after `last_step`. The next segment starts
    there, unless the curve jumps."""


def list_segments(exact_segments: Sequence[ExactSegment]) -> tuple[Segment, ...]:
    """Return the segments as users see them."""
    segments: list[Segment] = []
    for segment, after in with_stops(exact_segments):
        start = end = nearest_float32(segment.at(segment.begin))
        last_step = None
        if after is not None:
            end = nearest_float32(segment.at(after))
            last_step = after - 1
        segments.append(Segment(segment.begin, last_step, _kind_of(segment), start, end))
    return tuple(segments)


def _kind_of(segment: ExactSegment) -> str:
    return segment.name if segment.shape is None else f"{segment.shape} {segment.name}"
