"""The parts common to all plots of curves: sampled steps and shaded spans."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from plateau_jax.table.exact_segments import ExactSegment

MAX_SPANS = 200
"""The most warmups and plateaus that a plot shades: thousands would take minutes to draw."""


def steps_to_draw(segments: Sequence[ExactSegment]) -> np.ndarray:
    """Return both sides of every segment border, and enough steps between for a smooth line."""
    steps = [np.linspace(0, segments[-1].begin, 1001)]
    samples = max(50, 2000 // len(segments))
    are_sampled = len(segments) <= 1000  # with more segments, their borders are smooth enough
    for segment, following in pairwise(segments):
        last = following.begin - 1
        steps.append(np.array([segment.begin, last]))
        if last > segment.begin and are_sampled:
            # Some shapes are steep at an end, so samples lie at every order of magnitude of the
            # distance to both ends.
            distances = np.geomspace(1, last - segment.begin, samples)
            steps.append(segment.begin + distances)
            steps.append(last - distances)
    return np.unique(np.concatenate(steps).astype(np.int64))


def shaded_spans(segments: Sequence[ExactSegment]) -> list[tuple[str, int, int]]:
    """Return (name, first step, first step after it) of the first warmups and plateaus."""
    spans: list[tuple[str, int, int]] = []
    for segment, following in pairwise(segments):
        rises_at_once = segment.begin == 0 and segment.end > segment.start
        if segment.name == "warmup" or rises_at_once:
            spans.append(("warmup", segment.begin, following.begin))
        elif segment.name == "plateau":
            spans.append(("plateau", segment.begin, following.begin))
    return spans[:MAX_SPANS]
