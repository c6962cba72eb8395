"""The parts common to all plots of curves: sampled steps, shaded spans, legend labels."""

import itertools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.numerics.exact_segments import ExactSegment, nonempty_segments

FILLS = {"warmup": "#f59e0b", "plateau": "#10b981"}
"""The colour of each kind of span, drawn with OPACITY, so that it suits white and dark
backgrounds."""

OPACITY = 0.25


MOST_SPANS = 200
"""The most warmups and plateaus that a plot shades: thousands would take minutes to draw."""


class CurveToDraw(NamedTuple):
    """The data of a curve that a plot needs."""

    rows: Sequence[ExactSegment]
    values_at: Callable[[Any], Any]
    """The curve as a function from an array of steps to an array of multipliers."""
    phrases: list[str]
    """The description of the curve, in parts."""
    name: str | None = None
    """The name that the user gave the curve, if any."""


def legend_labels(curves: Sequence[CurveToDraw]) -> list[str]:
    """Return a label per curve: its name, else the phrases that set it apart, or all if none does."""
    shared = set(curves[0].phrases).intersection(*(curve.phrases for curve in curves))
    labels = [
        ", ".join([phrase for phrase in curve.phrases if phrase not in shared] or curve.phrases)
        for curve in curves
    ]
    labels = [textwrap.shorten(label, 80, placeholder=" …") for label in labels]
    # Curves may still share a label: equal curves, or long labels that were shortened to the same
    # text.
    return [
        curve.name
        if curve.name is not None
        else f"{number}: {label}"
        if labels.count(label) > 1
        else label
        for number, (curve, label) in enumerate(zip(curves, labels, strict=True), start=1)
    ]


def steps_to_draw(rows: Sequence[ExactSegment]) -> np.ndarray:
    """Return both sides of every segment border, and enough steps between for a smooth line."""
    steps = [np.linspace(0, rows[-1].begin, 1001)]
    segments = list(nonempty_segments(rows))
    is_sampled = len(segments) <= 1000  # The borders of more segments are a smooth line already.
    for row, after in segments:
        if after is not None:
            last = after - 1
            steps.append(np.array([row.begin, last]))
            if last > row.begin and is_sampled:
                # Some shapes are steep at an end, so there are samples at every order of magnitude
                # from both.
                near = np.geomspace(1, last - row.begin, max(50, 2000 // len(segments)))
                steps += [row.begin + near, last - near]
    return np.unique(np.concatenate(steps).astype(np.int64))


def thin_out(steps: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the steps, evenly spread, with the first and the last."""
    if len(steps) <= most:
        return steps
    return steps[np.linspace(0, len(steps) - 1, most).astype(np.int64)]


def shaded_spans(rows: Sequence[ExactSegment]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first step, first step after it) of each warmup and plateau, up to `MOST_SPANS`."""
    return itertools.islice(_all_spans(rows), MOST_SPANS)


def _all_spans(rows: Sequence[ExactSegment]) -> Iterator[tuple[str, int, int]]:
    for row, after in nonempty_segments(rows):
        if after is None:
            return
        if row.kind == "warmup" or (row.begin == 0 and row.end > row.start):
            yield "warmup", row.begin, after
        elif row.kind in ("plateau", "hold"):
            yield "plateau", row.begin, after
