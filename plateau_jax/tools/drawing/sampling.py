"""The parts common to all plots of curves: sampled steps and shaded spans."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from plateau_jax.table.exact_segments import ExactSegment, with_stops

MAX_SPANS = 200
"""The most warmups and plateaus that a plot shades: thousands would take minutes to draw."""


def steps_to_draw(segments: Sequence[ExactSegment]) -> np.ndarray:
    """Return both sides of every segment border, and enough steps between for a smooth line."""
    steps = [np.linspace(0, segments[-1].begin, 1001)]
    drawn = list(with_stops(segments))
    samples = max(50, 2000 // len(drawn))
    are_sampled = len(drawn) <= 1000  # with more segments, their borders are smooth enough
    for segment, after in drawn:
        if after is None:
            continue
        last = after - 1
        steps.append(np.array([segment.begin, last]))
        if last > segment.begin and are_sampled:
            # Some shapes are steep at an end, so samples lie at every order of magnitude of the
            # distance to both ends.
            distances = np.geomspace(1, last - segment.begin, samples)
            steps.append(segment.begin + distances)
            steps.append(last - distances)
    return np.unique(np.concatenate(steps).astype(np.int64))


def shaded_spans(segments: Sequence[ExactSegment]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first step, first step after it) of each warmup and plateau.

    Only the first `MAX_SPANS` are yielded.
    """
    return itertools.islice(_all_spans(segments), MAX_SPANS)


def _all_spans(segments: Sequence[ExactSegment]) -> Iterator[tuple[str, int, int]]:
    for segment, after in with_stops(segments):
        if after is None:
            return
        rises_at_once = segment.begin == 0 and segment.end > segment.start
        if segment.name == "warmup" or rises_at_once:
            yield "warmup", segment.begin, after
        elif segment.name == "plateau":
            yield "plateau", segment.begin, after
