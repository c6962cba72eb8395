"""The segments of a curve as data: `Curve.segments`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plateau_jax.numerics import nearest_float32, rounded
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


def list_segments(
    exact_segments: Sequence[ExactSegment], values_at: Callable[[Any], Any]
) -> tuple[Segment, ...]:
    """Return the segments as users see them.

    Args:
        exact_segments: The segments in exact numbers.
        values_at: The curve as a function from an array of steps to an array of multipliers.
    """
    described = list(with_stops(exact_segments))
    begins = [segment.begin for segment, _ in described]
    starts: list[float] = values_at(begins).tolist()
    segments: list[Segment] = []
    for index, (exact_segment, after) in enumerate(described):
        kind = exact_segment.name
        if exact_segment.shape is not None:
            kind = f"{exact_segment.shape} {kind}"
        if after is None:
            segments.append(Segment(exact_segment.begin, None, kind, starts[index], starts[index]))
            continue
        level = exact_segment.at(after)
        following, _ = described[index + 1]
        end = starts[index + 1]
        if rounded(level) != rounded(following.at(after)):  # the curve jumps
            end = nearest_float32(level)
        segments.append(Segment(exact_segment.begin, after - 1, kind, starts[index], end))
    return tuple(segments)
