"""The steps of a curve at which its learning rate lies in an interval, as ranges."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.curves.curve import Curve
from plateau_jax.logged_lrs.printed import Floats, Steps
from plateau_jax.table.exact_segments import first_and_last_steps

_MOST_RANGES = 1000
"""A row that lies on more segments than this says little about a fault."""


class Range(NamedTuple):
    """The integers from `first` to `last`."""

    first: int
    last: int


Ranges = Sequence[Range]
"""Disjoint ranges, increasing."""

EVERYTHING = (Range(-MAX_STEP, MAX_STEP),)


def nonempty(first: int, last: int) -> list[Range]:
    """Return the range from `first` to `last`, if it is not empty."""
    if first <= last:
        return [Range(first, last)]
    return []


def join(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of ranges that may overlap."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1].last + 1:
            joined[-1] = Range(joined[-1].first, max(last, joined[-1].last))
        else:
            joined.append(Range(first, last))
    return joined


def intersect(ranges: Ranges, others: Ranges) -> list[Range]:
    """Return the integers that lie in both.

    >>> intersect([Range(0, 5), Range(8, 9)], [Range(4, 8)])
    [Range(first=4, last=5), Range(first=8, last=8)]
    """
    common: list[Range] = []
    i = 0
    j = 0
    while i < len(ranges) and j < len(others):
        first = max(ranges[i].first, others[j].first)
        last = min(ranges[i].last, others[j].last)
        common += nonempty(first, last)
        if ranges[i].last < others[j].last:
            i += 1
        else:
            j += 1
    return common


def lrs_at(steps: Steps, curve: Curve, peak: float) -> Floats:
    """Return the learning rate at each step, as float64; steps may lie outside of the curve."""
    return curve.learning_rate(steps, peak).astype(np.float64)


class CurveLrs:
    """The learning rates of a curve, and the steps at which they lie in an interval."""

    def __init__(self, curve: Curve, peak: float) -> None:
        self.curve = curve
        self.peak = peak
        spans = list(first_and_last_steps(curve._exact_segments))
        self._firsts = np.array([first for _, first, _ in spans], np.int64)
        self._lasts = np.array([last for _, _, last in spans], np.int64)
        at_firsts = self(self._firsts)
        at_lasts = self(self._lasts)
        self._lowest = np.minimum(at_firsts, at_lasts)
        self._highest = np.maximum(at_firsts, at_lasts)
        self._rises = at_firsts < at_lasts

    def __call__(self, steps: Steps) -> Floats:
        return lrs_at(steps, self.curve, self.peak)

    def between(self, low: float, high: float) -> Ranges:
        """Return the steps whose learning rate lies from `low` to `high`.

        Steps before 0 and after the end count too: there the curve has its first and last value.
        If there are too many ranges, all steps are returned.
        """
        segments = np.flatnonzero((self._lowest <= high) & (self._highest >= low)).tolist()
        if len(segments) > _MOST_RANGES:
            return EVERYTHING
        found: list[Range] = []
        for segment in segments:
            found += self._within(segment, low, high)
        return join(found)

    def _within(self, segment: int, low: float, high: float) -> list[Range]:
        """Return the steps of a segment, whose learning rates rise or fall, within an interval."""
        first = int(self._firsts[segment])
        last = int(self._lasts[segment])
        steps = range(first, last + 1)
        lr = self._lr_at
        if self._rises[segment]:
            begin = bisect_left(steps, True, key=lambda step: lr(step) >= low)
            after = bisect_left(steps, True, key=lambda step: lr(step) > high)
        else:
            begin = bisect_left(steps, True, key=lambda step: lr(step) <= high)
            after = bisect_left(steps, True, key=lambda step: lr(step) < low)
        if begin == after:
            return []
        begin += first
        end = first + after - 1
        if begin == 0:
            begin = -MAX_STEP
        if end == self.curve.total_steps:
            end = MAX_STEP
        return [Range(begin, end)]

    def _lr_at(self, step: int) -> float:
        return self.curve.learning_rate(step, self.peak)
