"""The segments of a curve as data: `Curve.segments`."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from plateau_jax.numerics import nearest_float32, rounded
from plateau_jax.table.exact_segments import ExactSegment


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


def list_segments(
    exact_segments: Sequence[ExactSegment], values_at: Callable[[Any], Any]
) -> tuple[Segment, ...]:
    """Return the segments as users see them.

    Args:
        exact_segments: The segments in exact numbers.
        values_at: The curve as a function from an array of steps to an array of multipliers.
    """
    starts: list[float] = values_at([segment.begin for segment in exact_segments]).tolist()
    segments: list[Segment] = []
    neighbors = zip(pairwise(exact_segments), pairwise(starts), strict=True)
    for (segment, following), (start, end) in neighbors:
        after = following.begin
        level = segment.at(after)
        if rounded(level) != rounded(following.at(after)):  # the curve jumps
            end = nearest_float32(level)
        segments.append(Segment(segment.begin, after - 1, _kind_of(segment), start, end))
    last = exact_segments[-1]
    segments.append(Segment(last.begin, None, _kind_of(last), starts[-1], starts[-1]))
    return tuple(segments)


def _kind_of(segment: ExactSegment) -> str:
    return segment.name if segment.shape is None else f"{segment.shape} {segment.name}"
