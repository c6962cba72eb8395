"""The segments of a curve in exact numbers, and what can be decided from them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from plateau_jax.numerics.exact import Level, from_decimal, nearest_float32, rounded, scaled
from plateau_jax.shapes.known_shapes import level_between


class ExactSegment(NamedTuple):
    """A segment from `start` to `end`, `length` steps later; the next may begin earlier.

    Its first `skipped` steps may be cut off: the level at `begin` is that of the whole segment,
    `skipped` steps after its start.
    """

    kind: str
    begin: int
    length: int
    start: Level
    end: Level
    shape: str | None
    """None if the segment was described as one that holds its level."""
    skipped: int = 0
    """Steps cut off before `begin`; 0 if the segment holds its level."""

    @property
    def holds(self) -> bool:
        return self.shape is None or self.start == self.end

    def at(self, step: int) -> Level:
        """Return the exact level at a step of the segment, or at its end."""
        if self.holds or self.shape is None:
            return self.start
        x = Fraction(self.skipped + step - self.begin, self.length)
        return level_between(self.shape, self.start, self.end, x)

    def rest(self, step: int) -> "ExactSegment":
        """Return the segment without its steps before `step`."""
        skipped = 0 if self.holds else self.skipped + step - self.begin
        return self._replace(begin=step, skipped=skipped)

    def shifted(self, steps: int, scale: Level) -> "ExactSegment":
        """Shift the segment by `steps` and multiply its levels by `scale`."""
        return self._replace(
            begin=self.begin + steps, start=scaled(self.start, scale), end=scaled(self.end, scale)
        )


def flat_segment(kind: str, begin: int, length: int, level: Level) -> ExactSegment:
    """Build a segment that holds one level."""
    return ExactSegment(kind, begin, length, start=level, end=level, shape=None)


def nonempty_segments(
    segments: Sequence[ExactSegment],
) -> Iterator[tuple[ExactSegment, int | None]]:
    """Yield each segment that is not empty, with the first step after it; None after the last."""
    for segment, following in pairwise(segments):
        if segment.begin < following.begin:
            yield segment, following.begin
    yield segments[-1], None


def first_and_last_steps(
    segments: Sequence[ExactSegment],
) -> Iterator[tuple[ExactSegment, int, int]]:
    """Yield each segment that is not empty, with its first and last step; the last segment is one step."""
    for segment, after in nonempty_segments(segments):
        yield segment, segment.begin, segment.begin if after is None else after - 1


def highest_level(segments: Sequence[ExactSegment]) -> Level:
    """Return the highest level at any step."""
    ends = [
        segment.at(step) for segment, *steps in first_and_last_steps(segments) for step in steps
    ]
    return max(ends)


def first_step_at_or_below(segments: Sequence[ExactSegment], level: Level) -> int | None:
    """Return the first step from which all levels stay at or below this one; None if the last is above."""

    def is_higher(segment: ExactSegment, step: int) -> bool:
        return rounded(segment.at(step)) > rounded(level)

    (end, begin, _), *others = reversed(list(first_and_last_steps(segments)))
    if is_higher(end, begin):
        return None
    for segment, first, last in others:
        if is_higher(segment, last):
            return last + 1
        if is_higher(
            segment, first
        ):  # The segment falls; search for its first step at or below the level.
            return first + bisect_left(
                range(first, last), True, key=lambda step: not is_higher(segment, step)
            )
    return 0


def cut_segments(segments: Sequence[ExactSegment], start: int, stop: int) -> Iterator[ExactSegment]:
    """Yield each segment but the last, cut to the steps start … stop - 1; those without a step are empty."""
    for segment, following in pairwise(segments):
        begin = max(segment.begin, start)
        if begin < min(following.begin, stop):
            yield segment.rest(begin)
        else:
            yield segment._replace(begin=min(begin, stop), skipped=0)


def describe_segments(
    segments: Sequence[ExactSegment], peak: np.float32 | None = None, most: int | None = None
) -> list[tuple[str, str, str, str, str]]:
    """Describe the segments in words: a header, and a line for each segment that is not empty.

    With a peak, levels are shown as learning rates; with `most`, only the first segments are
    described.
    """
    start, end = ("from", "to") if peak is None else ("lr from", "lr to")
    lines = [("first step", "last step", "kind", start, end)]
    for segment, after in islice(nonempty_segments(segments), most):
        kind = segment.kind if segment.shape is None else f"{segment.shape} {segment.kind}"
        last = "…" if after is None else str(after - 1)
        ends = segment.at(segment.begin), segment.start if after is None else segment.at(after)
        start, end = (_format_level(level, peak) for level in ends)
        lines.append((str(segment.begin), last, kind, start, end))
    return lines


def _format_level(level: Level, peak: np.float32 | None) -> str:
    multiplier = nearest_float32(from_decimal(level))
    return f"{multiplier if peak is None else peak * multiplier:.6g}"


def segment_at(segments: Sequence[ExactSegment], step: int) -> ExactSegment:
    """Return the segment that a step lies in."""
    return segments[bisect_right(segments, step, key=attrgetter("begin")) - 1]


def flat_starts(segments: Sequence[ExactSegment]) -> Iterator[int]:
    """Yield the first step of each maximal run of segments at one level, except for the last segment."""
    level: Level | None = None
    for segment, after in nonempty_segments(segments):
        if after is None:
            return
        start = rounded(segment.start)
        if segment.holds and start != level:
            yield segment.begin
        level = start if segment.holds else None


def end_of_rise(segments: Sequence[ExactSegment]) -> int:
    """Return the step at which the level first stops rising; steps of level 0 before it count as a rise."""
    return next(
        segment.begin
        for segment, after in nonempty_segments(segments)
        if after is None or not (segment.end > segment.start or segment.start == segment.end == 0)
    )


def differences(
    segments: Sequence[ExactSegment], others: Sequence[ExactSegment]
) -> Iterator[tuple[int, int | None]]:
    """Yield runs of steps, (first, first after it), for which the two sequences are described differently."""
    pieces, other_pieces = dict(_pieces(segments)), dict(_pieces(others))
    piece = other_piece = None
    begins = sorted(pieces.keys() | other_pieces.keys())
    for begin, after in zip(begins, [*begins[1:], None], strict=True):
        piece, other_piece = pieces.get(begin, piece), other_pieces.get(begin, other_piece)
        if piece != other_piece:
            yield begin, after


def _pieces(segments: Sequence[ExactSegment]) -> Iterator[tuple[int, Level | ExactSegment]]:
    """Yield (first step, what decides the values from there on): the level held, or the moving segment.

    At its first step a moving segment is at its start level, whatever its length and shape are. So
    that step is a piece that holds, and two curves that move differently from step s still agree at
    s:

        cosine from 1 at step 10  →  (10, 1), (11, the segment)
        linear from 1 at step 10  →  (10, 1), (11, another segment)

    A segment without its first steps is the piece that the whole segment would be.
    """
    last: Level | ExactSegment | None = None
    for segment, after in nonempty_segments(segments):
        pieces: list[tuple[int, Level | ExactSegment]] = []
        begin = segment.begin
        if not segment.skipped:
            pieces.append((begin, rounded(segment.start)))
            begin += 1
        if not segment.holds and begin != after:
            ends = rounded(segment.start), rounded(segment.end)
            begun = segment.begin - segment.skipped
            pieces.append((begin, ExactSegment("", begun, segment.length, *ends, segment.shape)))
        for begin, piece in pieces:
            if piece != last:
                yield begin, piece
            last = piece
