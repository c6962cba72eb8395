"""What pictures of curves share: the steps that they draw, warmups and plateaus, labels."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.numerics.exact_segments import ExactSegment, nonempty_segments
from plateau_jax.numerics.levels import is_above
from plateau_jax.numerics.shapes import parse_formula

FILLS = {"warmup": "#f59e0b", "plateau": "#10b981"}
"""The colour of each kind of span; OPACITY lets the background, white or dark, shine through."""

OPACITY = 0.25


class CurveToDraw(NamedTuple):
    """A curve, as a picture needs it."""

    rows: Sequence[ExactSegment]
    values_at: Callable[[Any], Any]
    """An array of steps in, an array of multipliers out."""
    phrases: list[str]
    """Its description, in parts."""


def legend_labels(curves: Sequence[CurveToDraw]) -> list[str]:
    """The phrases that set each curve apart from the others; all of them if none does."""
    shared = set(curves[0].phrases).intersection(*(curve.phrases for curve in curves))
    found = [
        ", ".join([phrase for phrase in curve.phrases if phrase not in shared] or curve.phrases)
        for curve in curves
    ]
    found = [textwrap.shorten(label, 80, placeholder=" …") for label in found]
    return [
        f"{number}: {label}" if found.count(label) > 1 else label
        for number, label in enumerate(found, start=1)
    ]


def steps_to_draw(rows: Sequence[ExactSegment]) -> np.ndarray:
    """Both sides of every border, where a curve may jump, and enough steps between for a smooth line."""
    found = [np.linspace(0, rows[-1].begin, 1001)]
    segments = list(nonempty_segments(rows))
    # Closer together at both ends: a square root is steep at its start, a rising exponential at its end. A
    # power may be so steep that it needs steps at every order of magnitude.
    shares = (1 - np.cos(np.linspace(0, np.pi, max(50, 3000 // len(segments))))) / 2
    for row, after in segments:
        if after is not None:
            last = after - 1
            found += [row.begin + shares * (last - row.begin)]
            if parse_formula(row.shape) and last > row.begin:
                near = np.geomspace(1, last - row.begin, 200)
                found += [row.begin + near, last - near]
    return np.unique(np.concatenate(found).astype(np.int64))


def shaded_spans(rows: Sequence[ExactSegment]) -> Iterator[tuple[str, int, int]]:
    """(what it is, first step, first step after it) of each warmup and plateau."""
    for row, after in nonempty_segments(rows):
        if after is None:
            return
        if row.kind == "warmup" or (row.begin == 0 and is_above(row.end, row.start)):
            yield "warmup", row.begin, after
        elif row.kind in ("plateau", "hold"):
            yield "plateau", row.begin, after
