"""The segments of a curve in exact numbers, and questions that they answer exactly."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from plateau_jax.numerics import Level, nearest_float32, rounded, scaled
from plateau_jax.shapes.known_shapes import level_between


class ExactSegment(NamedTuple):
    """A segment of a curve: the whole segment goes from `start` to `end` in `length` steps.

    Its first `skipped` steps may be cut off: then `begin` is the step `skipped` steps after the
    start level. Its last steps are cut off if the next segment begins earlier than its end.
    """

    name: str
    """A word such as "warmup"."""
    begin: int
    """First step."""
    length: int
    """Steps from `start` to `end`, including those that are cut off."""
    start: Level
    """Level at the beginning of the whole segment."""
    end: Level
    """Level at the end of the whole segment."""
    shape: str | None
    """None if the segment was built flat."""
    skipped: int = 0
    """Steps cut off before `begin`; 0 if the segment is flat."""

    @property
    def is_flat(self) -> bool:
        return self.shape is None or self.start == self.end

    def at(self, step: int) -> Level:
        """Return the exact level at a step of the segment, or at its end."""
        if self.shape is None:
            return self.start
        elapsed = self.skipped + step - self.begin
        return level_between(self.shape, self.start, self.end, elapsed, self.length)

    def from_step(self, step: int) -> "ExactSegment":
        """Return the segment without its steps before `step`."""
        skipped = 0 if self.is_flat else self.skipped + step - self.begin
        return self._replace(begin=step, skipped=skipped)

    def shifted(self, steps: int, scale: Level) -> "ExactSegment":
        """Shift the segment by `steps` and multiply its levels by `scale`."""
        return self._replace(
            begin=self.begin + steps, start=scaled(self.start, scale), end=scaled(self.end, scale)
        )


def flat_segment(name: str, begin: int, length: int, level: Level) -> ExactSegment:
    """Build a segment of one level."""
    return ExactSegment(name, begin, length, start=level, end=level, shape=None)


def drop_empty(segments: Sequence[ExactSegment]) -> Iterator[ExactSegment]:
    """Yield each segment that has a step. The last one is the end."""
    for segment, following in pairwise(segments):
        if segment.begin < following.begin:
            yield segment
    yield segments[-1]


def with_stops(segments: Sequence[ExactSegment]) -> Iterator[tuple[ExactSegment, int | None]]:
    """Yield each segment, with the first step after it; None after the last."""
    for segment, following in pairwise(segments):
        yield segment, following.begin
    yield segments[-1], None


def cut_segments(segments: Sequence[ExactSegment], begin: int, stop: int) -> Iterator[ExactSegment]:
    """Yield each segment that has one of the steps begin … stop - 1, cut to these.

    A segment that is cut keeps its length, so its values keep their bits. The end is a plateau.
    """
    *moving, end = segments
    for segment, after in with_stops([*moving, end._replace(name="plateau")]):
        first = max(segment.begin, begin)
        if first < stop and (after is None or first < after):
            yield segment if first == segment.begin else segment.from_step(first)


def segment_at(segments: Sequence[ExactSegment], step: int) -> ExactSegment:
    """Return the segment that contains a step."""
    return segments[bisect_right(segments, step, key=attrgetter("begin")) - 1]


def flat_starts(segments: Sequence[ExactSegment]) -> Iterator[int]:
    """Yield the first step of each maximal run of flat segments that have one multiplier.

    The end is not part of a run.
    """
    multiplier: float | None = None
    for segment, after in with_stops(segments):
        if after is None:
            return
        if not segment.is_flat:
            multiplier = None
            continue
        start = nearest_float32(segment.start)
        if start != multiplier:
            yield segment.begin
            multiplier = start


def differences(
    segments: Sequence[ExactSegment], others: Sequence[ExactSegment]
) -> Iterator[tuple[int, int | None, bool]]:
    """Yield (first step, first step after it, is constant) of each interval that differs."""
    by_begin = dict(_normal_forms(segments))
    others_by_begin = dict(_normal_forms(others))
    form = None
    other_form = None
    begins = sorted(by_begin.keys() | others_by_begin.keys())
    for begin, after in zip(begins, [*begins[1:], None], strict=True):
        form = by_begin.get(begin, form)
        other_form = others_by_begin.get(begin, other_form)
        if form != other_form:
            is_constant = isinstance(form, Level) and isinstance(other_form, Level)
            yield begin, after, is_constant


def _normal_forms(segments: Sequence[ExactSegment]) -> Iterator[tuple[int, Level | ExactSegment]]:
    """Yield (first step, normal form) of each interval: a level, or a segment that moves.

    At its first step a moving segment is at its start level, whatever its length and shape. So this
    step is an interval of its own, and two curves that move differently from step s on still
    agree at s:

        cosine from 1 at step 10  →  (10, 1), (11, the segment)
        linear from 1 at step 10  →  (10, 1), (11, a different segment)

    A segment whose first steps are cut off has the same normal form as the whole segment.
    """
    last: Level | ExactSegment | None = None
    for segment, after in with_stops(segments):
        forms: list[tuple[int, Level | ExactSegment]] = []
        start = rounded(segment.start)
        begin = segment.begin
        if not segment.skipped:
            forms.append((begin, start))
            begin += 1
        if not segment.is_flat and begin != after:
            whole = segment._replace(
                name="",
                begin=segment.begin - segment.skipped,
                start=start,
                end=rounded(segment.end),
                skipped=0,
            )
            forms.append((begin, whole))
        for first, form in forms:
            if form != last:
                yield first, form
            last = form
