"""The segments of a curve in exact numbers, and what can be decided from them."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from plateau_jax.numerics.exact import nearest_float32
from plateau_jax.numerics.levels import Level, between, fixed224, scaled


class ExactSegment(NamedTuple):
    """A segment: from `start` at step `begin` to `end`, `length` steps later; the next may begin earlier."""

    kind: str
    begin: int
    length: int
    start: Level
    end: Level
    shape: str | None
    """None where the segment was described as one that holds."""

    @property
    def holds(self) -> bool:
        return self.shape is None or self.start == self.end

    def at(self, step: int) -> Level:
        """The exact level at a step of the segment, or at its end."""
        if self.holds or self.shape is None:
            return self.start
        return between(self.shape, self.start, self.end, Fraction(step - self.begin, self.length))

    def shifted(self, steps: int, scale: Fraction) -> "ExactSegment":
        """The segment so many steps later, with its levels times `scale`."""
        levels = scaled(self.start, scale), scaled(self.end, scale)
        return ExactSegment(self.kind, self.begin + steps, self.length, *levels, self.shape)


def flat_segment(kind: str, begin: int, length: int, level: Level) -> ExactSegment:
    """A segment at one level."""
    return ExactSegment(kind, begin, length, level, level, None)


def nonempty_segments(rows: Sequence[ExactSegment]) -> Iterator[tuple[ExactSegment, int | None]]:
    """Each segment that is not empty, with the first step after it; None after the last."""
    for row, after in pairwise(rows):
        if row.begin < after.begin:
            yield row, after.begin
    yield rows[-1], None


def describe_segments(
    rows: Sequence[ExactSegment], peak: np.float32 | None = None
) -> list[tuple[str, str, str, str, str]]:
    """The segments in words: a header, and a line for each segment that is not empty.

    With a peak, levels are shown as rates.
    """
    start, end = ("from", "to") if peak is None else ("rate from", "rate to")
    found = [("first step", "last step", "kind", start, end)]
    for row, after in nonempty_segments(rows):
        kind = row.kind if row.shape is None else f"{row.shape} {row.kind}"
        last = "…" if after is None else str(after - 1)
        ends = row.start, row.start if after is None else row.at(after)
        start, end = (_shown(level, peak) for level in ends)
        found.append((str(row.begin), last, kind, start, end))
    return found


def _shown(level: Level, peak: np.float32 | None) -> str:
    found = nearest_float32(fixed224(level))
    return f"{found if peak is None else peak * found:.6g}"


def as_text(rows: Sequence[ExactSegment], peak: np.float32 | None = None) -> str:
    """The table of `describe_segments`, in columns."""
    table = describe_segments(rows, peak)
    width = max(13, *(len(what) for _, _, what, _, _ in table))
    return "\n".join(
        f"{first:>10} {last:>10}  {what:{width}} {start:>11} {end:>11}"
        for first, last, what, start, end in table
    )


def segment_at(rows: Sequence[ExactSegment], step: int) -> ExactSegment:
    """The segment that a step lies in."""
    return next(row for row in reversed(rows) if row.begin <= step)


def flat_starts(rows: Sequence[ExactSegment]) -> Iterator[int]:
    """The first step of each maximal run of segments at one level; the last segment, the end, is left out."""
    level: Level | None = None
    for row, after in nonempty_segments(rows):
        if after is None:
            return
        if row.holds and row.start != level:
            yield row.begin
        level = row.start if row.holds else None


def differences(
    rows: Sequence[ExactSegment], others: Sequence[ExactSegment]
) -> Iterator[tuple[int, int | None]]:
    """Runs of steps, (first, first after it), that the two describe differently."""
    pieces, other_pieces = dict(_pieces(rows)), dict(_pieces(others))
    found = other_found = None
    begins = sorted(pieces.keys() | other_pieces.keys())
    for begin, after in zip(begins, [*begins[1:], None], strict=True):
        found, other_found = pieces.get(begin, found), other_pieces.get(begin, other_found)
        if found != other_found:
            yield begin, after


def _pieces(rows: Sequence[ExactSegment]) -> Iterator[tuple[int, Level | ExactSegment]]:
    """(first step, what decides the values from there on): a level that is held, or a segment that moves.

    At its first step a segment that moves is at its start level, whatever its length and shape: those count
    from the next step on.
    """
    last: Level | ExactSegment | None = None
    for row, after in nonempty_segments(rows):
        pieces: list[tuple[int, Level | ExactSegment]] = [(row.begin, row.start)]
        if not row.holds and row.begin + 1 != after:
            pieces.append((row.begin + 1, row._replace(kind="")))
        for begin, what in pieces:
            if what != last:
                yield begin, what
            last = what
