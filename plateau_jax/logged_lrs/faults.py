"""Faults that explain why logged learning rates leave a curve.

Most faults are about the step: the log has the learning rate of a different step of the curve,
which follows from the number of the update and one unknown integer. Each row allows some values of
this integer, and a fault explains the log if one value remains for all rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.staged_curve import Stage, StagedCurve
from plateau_jax.logged_lrs.printed import Floats, PrintedLrs, Steps, simplest_between
from plateau_jax.logged_lrs.step_ranges import (
    CurveLrs,
    Range,
    Ranges,
    intersect,
    lrs_at,
    nonempty,
)
from plateau_jax.table.exact_segments import nonempty_segments

_FEWEST_ROWS = 3
"""One row finds the unknown number of a fault. At least two more must confirm it."""

_MOST_CUTS = 100
_MOST_RANGES = 8
_TRIED = 5
"""Numbers that are tried in each range that remains: its ends, and some between."""
_MOST_FACTOR = 64
_SAMPLE = 24


class Fault(NamedTuple):
    """A fault that explains every learning rate of a log.

    Attributes:
        name: `"late"`, `"early"`, `"too fast"`, `"too slow"`, `"restarted"`, `"stopped"`, `"peak"`,
            `"group"`, `"warmup"` or `"past the end"`.
        text: A sentence about it.
        least, most: The limits of its number: of updates, of the update at which it happened, of
            the peak, or the place of the group.
    """

    name: str
    text: str
    least: float
    most: float


class _Displacement(ABC):
    """The curve is at a different step, which depends on the update n and an integer k."""

    @abstractmethod
    def positions(self, steps: Steps, k: int) -> Steps:
        """Return the step of the curve at each update."""

    @abstractmethod
    def values_for(self, step: int, first: int, last: int) -> list[Range]:
        """Return each k for which the step of the curve at an update lies in first … last."""

    @abstractmethod
    def domain(self, logged: PrintedLrs) -> Ranges:
        """Return each k that the log can show."""

    @abstractmethod
    def fault(self, least: int, most: int) -> Fault:
        """Describe the fault for the k that remain."""


class _Shift(_Displacement):
    """n + k."""

    def positions(self, steps: Steps, k: int) -> Steps:
        return np.minimum(steps + k, MAX_STEP)

    def values_for(self, step: int, first: int, last: int) -> list[Range]:
        return [Range(first - step, _unless_at_the_end(last, last - step))]

    def domain(self, logged: PrintedLrs) -> Ranges:
        # Later by more, all rows would be at step 0.
        return [*nonempty(1 - int(logged.steps[-1]), -1), Range(1, MAX_STEP)]

    def fault(self, least: int, most: int) -> Fault:
        if most < 0:
            count = _count(-most, -least, "update")
            text = (
                f"the learning rates are {count} late: the scheduler starts late or restarts, or "
                "the log does not count from 0 as the curve does"
            )
            return Fault("late", text, -most, -least)
        count = _count(least, most, "update")
        text = (
            f"the learning rates are {count} early: the scheduler steps before the optimizer, or "
            "the log begins at a checkpoint"
        )
        return Fault("early", text, least, most)


class _Multiple(_Displacement):
    """k·n."""

    def positions(self, steps: Steps, k: int) -> Steps:
        return np.minimum(steps * k, MAX_STEP)

    def values_for(self, step: int, first: int, last: int) -> list[Range]:
        if step == 0:
            if first <= 0 <= last:
                return [Range(2, MAX_STEP)]
            return []
        return nonempty(-(-first // step), _unless_at_the_end(last, last // step))

    def domain(self, logged: PrintedLrs) -> Ranges:
        return [Range(2, MAX_STEP)]

    def fault(self, least: int, most: int) -> Fault:
        times = _count(least, most, "time")
        updates = _count(least, most, "update")
        text = (
            f"the scheduler steps {times} per update (once for each process, micro-batch or "
            f"caller), the curve of the run is {times} shorter, or a step of the log is {updates}"
        )
        return Fault("too fast", text, least, most)


class _Quotient(_Displacement):
    """n // k."""

    def positions(self, steps: Steps, k: int) -> Steps:
        return steps // k

    def values_for(self, step: int, first: int, last: int) -> list[Range]:
        most = MAX_STEP
        if first > 0:
            most = step // first
        if last < 0:
            return []
        return nonempty(step // (last + 1) + 1, most)

    def domain(self, logged: PrintedLrs) -> Ranges:
        return nonempty(2, int(logged.steps[-1]))

    def fault(self, least: int, most: int) -> Fault:
        updates = _count(least, most, "update")
        times = _count(least, most, "time")
        steps = _count(least, most, "step")
        text = (
            f"the scheduler steps once in {updates} (once per epoch, or with a wrong condition), "
            f"the curve of the run is {times} longer, or an update is {steps} of the log"
        )
        return Fault("too slow", text, least, most)


class _Restart(_Displacement):
    """n before update k, then n - k."""

    def positions(self, steps: Steps, k: int) -> Steps:
        return np.where(steps < k, steps, steps - k)

    def values_for(self, step: int, first: int, last: int) -> list[Range]:
        values = nonempty(max(1, step - last), min(step, step - first))
        if first <= step <= last:
            values += nonempty(step + 1, MAX_STEP)
        return values

    def domain(self, logged: PrintedLrs) -> Ranges:
        # After a single row, a restart cannot be distinguished from a late start.
        return nonempty(int(logged.steps[1]) + 1, int(logged.steps[-1]))

    def fault(self, least: int, most: int) -> Fault:
        place = _place(least, most)
        text = f"the curve starts again at {place}, as if a resumed run had not loaded its state"
        return Fault("restarted", text, least, most)


class _Stop(_Displacement):
    """n before update k, then k."""

    def positions(self, steps: Steps, k: int) -> Steps:
        return np.minimum(steps, k)

    def values_for(self, step: int, first: int, last: int) -> list[Range]:
        if first <= step <= last:
            return nonempty(max(0, first), MAX_STEP)
        if last < step:
            return nonempty(max(0, first), last)
        return []

    def domain(self, logged: PrintedLrs) -> Ranges:
        return nonempty(0, int(logged.steps[-1]) - 1)

    def fault(self, least: int, most: int) -> Fault:
        text = f"the learning rate stands still from {_place(least, most)} on"
        if most == 0:
            text = "the learning rate never leaves its first value"
        text += ", as if the scheduler did not step, or stepped for a different optimizer"
        return Fault("stopped", text, least, most)


def _unless_at_the_end(last: int, most: int) -> int:
    """Return the greatest k: `most`, or no limit if the steps up to `last` have no end."""
    if last == MAX_STEP:
        return MAX_STEP
    return most


def _count(least: int, most: int, thing: str) -> str:
    if least == most == 1:
        return f"1 {thing}"
    if least == most:
        return f"{least} {thing}s"
    if most == MAX_STEP:
        return f"{least} or more {thing}s"
    return f"{least} to {most} {thing}s"


def _place(least: int, most: int) -> str:
    if least == most:
        return f"update {least}"
    return f"an update between {least} and {most}"


@dataclass(frozen=True)
class Group:
    """The curve of a different parameter group, and its peak."""

    curve: Curve
    peak: float


def find_faults(
    logged: PrintedLrs, expected: Floats, curve: Curve, peak: float, groups: Sequence[Group] = ()
) -> list[Fault]:
    """Return each fault that explains every learning rate, with at most `_MOST_RANGES` ranges.

    Past the end, the learning rates may be any, so that this counts only if nothing else explains
    them.

    Args:
        logged: The learning rates of the log.
        expected: Those of the curve at the same steps.
        curve: The curve that the run should follow.
        peak: Its peak.
        groups: The other parameter groups of the run.
    """
    is_off = ~logged.contain(expected)
    if np.count_nonzero(is_off) < _FEWEST_ROWS:
        return _past_the_end(logged, curve, is_off)
    curve_lrs = CurveLrs(curve, peak)
    faults = [*_of_groups(logged, groups), *_of_peak(logged, expected, peak)]
    for displacement in (_Shift(), _Multiple(), _Quotient(), _Restart(), _Stop()):
        faults += _of_displacement(displacement, logged, curve_lrs, is_off)
    faults += _of_warmup(logged, curve, peak)
    return faults or _past_the_end(logged, curve, is_off)


def _past_the_end(logged: PrintedLrs, curve: Curve, is_off: np.ndarray) -> list[Fault]:
    """Explain rows that differ only from the curve's end on."""
    end = curve.total_steps
    last = int(logged.steps[-1])
    if last <= end or np.any(is_off & (logged.steps < end)):
        return []
    text = (
        f"the log continues to update {last}, past the end of the curve at {end}; all rows before "
        "the end are on the curve"
    )
    return [Fault("past the end", text, last - end, last - end)]


def _of_groups(logged: PrintedLrs, groups: Sequence[Group]) -> Iterator[Fault]:
    for place, group in enumerate(groups):
        if logged.contain(lrs_at(logged.steps, group.curve, group.peak)).all():
            text = f"the learning rates are those of groups[{place}]"
            yield Fault("group", text, place, place)


def _of_peak(logged: PrintedLrs, expected: Floats, given: float) -> Iterator[Fault]:
    limits = factor_limits(logged, expected)
    if limits is None:
        return
    low, high = limits
    peak = simplest_between(low * given, high * given)
    factor = f"{peak / given:.4g}"
    if factor == "1":
        factor = f"{peak / given:.7g}"
    times = f"{factor} times the given one"
    text = f"the peak is {peak!r}, {times}: a different peak, or a different group"
    yield Fault("peak", text, low * given, high * given)


def factor_limits(logged: PrintedLrs, values: np.ndarray) -> tuple[float, float] | None:
    """Return the least and the greatest factor between values and the logged learning rates.

    None if no factor above 0 explains all rows.
    """
    is_zero = values == 0
    if not logged.part(is_zero.nonzero()[0]).contain(values[is_zero]).all() or is_zero.all():
        return None
    low = float(np.max(logged.low[~is_zero] / values[~is_zero]))
    high = float(np.min(logged.high[~is_zero] / values[~is_zero]))
    if not 0 < low <= high:
        return None
    return low, high


def _of_displacement(
    displacement: _Displacement,
    logged: PrintedLrs,
    curve_lrs: CurveLrs,
    is_off: np.ndarray,
) -> Iterator[Fault]:
    """Find the values of k that explain all rows: each row removes the k that it does not allow."""
    remaining = displacement.domain(logged)
    row = int(np.argmax(is_off))
    for _ in range(_MOST_CUTS):
        allowed: list[Range] = []
        for first, last in curve_lrs.between(logged.low[row], logged.high[row]):
            allowed += displacement.values_for(int(logged.steps[row]), first, last)
        remaining = intersect(remaining, sorted(allowed))
        if not remaining:
            return
        tried: list[int] = []
        for first, last in remaining[:_MOST_RANGES]:
            tried += np.linspace(first, last, _TRIED, dtype=np.int64).tolist()
        unexplained = _unexplained_row(displacement, tried, logged, curve_lrs)
        if unexplained is None:
            # Two ranges are two answers, such as one update late and fifteen early.
            for first, last in remaining[:_MOST_RANGES]:
                yield displacement.fault(first, last)
            return
        row = unexplained


def _unexplained_row(
    displacement: _Displacement,
    numbers: Sequence[int],
    logged: PrintedLrs,
    curve_lrs: CurveLrs,
) -> int | None:
    """Return the row that the first k that fails misses by most; None if each k explains all."""
    for k in numbers:
        values = curve_lrs(displacement.positions(logged.steps, k))
        excess = logged.excess(values)
        row = len(excess) - 1 - int(np.argmax(excess[::-1]))  # the last: it removes the most
        if excess[row] > 0:
            return row
    return None


def _of_warmup(logged: PrintedLrs, curve: Curve, peak: float) -> Iterator[Fault]:
    """Find the factor by which the warmup of the run is longer or shorter."""
    warmup, after = next(nonempty_segments(curve._exact_segments))
    length = warmup.length
    is_whole = after == length < curve.total_steps
    if not is_whole or not warmup.start < warmup.end:
        return
    for steps in _lengths_in_micro_batches(length):
        changed_warmup = StagedCurve([_warmup_stage(curve, steps)], start=float(warmup.start))
        if not _explains(changed_warmup, peak, logged.part(logged.steps < steps)):
            continue  # before a whole curve is built
        if any(_explains(changed, peak, logged) for changed in _with_warmup(curve, steps)):
            takes = f"the warmup takes {steps} updates instead of {length}"
            text = f"{takes}, as if one of the two were counted in micro-batches"
            yield Fault("warmup", text, steps, steps)


def _lengths_in_micro_batches(length: int) -> Iterator[int]:
    for factor in range(2, _MOST_FACTOR + 1):
        yield factor * length
        if length % factor == 0:
            yield length // factor


def _explains(curve: Curve, peak: float, logged: PrintedLrs) -> bool:
    # First at some rows, because most curves fail there.
    rows = np.linspace(0, len(logged) - 1, min(_SAMPLE, len(logged))).astype(np.int64)
    sample = logged.part(rows)
    if not sample.contain(lrs_at(sample.steps, curve, peak)).all():
        return False
    return bool(logged.contain(lrs_at(logged.steps, curve, peak)).all())


def _with_warmup(curve: Curve, steps: int) -> Iterator[Curve]:
    """Yield the curve with a different warmup, in each way in which programs change it."""
    for change_warmup in (_with_a_shift, _with_a_shorter_decay, _with_a_shorter_stage):
        with suppress_warnings():
            try:
                changed = change_warmup(curve, steps)
            except ValueError:
                continue  # a plateau may start within the new warmup, for example
        if changed is not None:
            yield changed


def _warmup_stage(curve: Curve, steps: int) -> Stage:
    warmup, _ = next(nonempty_segments(curve._exact_segments))
    return Stage(steps, float(warmup.end), warmup.shape or "linear")


def _with_a_shift(curve: Curve, steps: int) -> Curve | None:
    """Move everything after the warmup."""
    warmup, after = next(nonempty_segments(curve._exact_segments))
    if after is None or steps + curve.total_steps > MAX_STEP:
        return None
    changed = StagedCurve([_warmup_stage(curve, steps)], start=float(warmup.start))
    return changed.then(curve.part(after))


def _with_a_shorter_decay(curve: Curve, steps: int) -> Curve | None:
    """Keep the total: the decay becomes shorter, or longer."""
    if not isinstance(curve, PlateauCurve) or steps >= curve.total_steps:
        return None
    return replace(curve, warmup_steps=steps)


def _with_a_shorter_stage(curve: Curve, steps: int) -> Curve | None:
    """Keep the total: the second stage becomes shorter, or longer."""
    if not isinstance(curve, StagedCurve):
        return None
    stages = list(cast("tuple[Stage, ...]", curve.stages))
    places = [place for place, stage in enumerate(stages) if stage.steps]
    first, second = places[:2]
    rest = stages[first].steps + stages[second].steps - steps
    if rest <= 0:
        return None
    stages[first] = _warmup_stage(curve, steps)
    stages[second] = stages[second]._replace(steps=rest)
    return replace(curve, stages=stages)
