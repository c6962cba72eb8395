"""Faults that explain why logged learning rates leave a curve.

Most are a formula with one unknown number k: the row of update n shows the learning rate at step
f(n, k) of the curve. Each row rules out some numbers, and a fault explains the log if one remains.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.table.evaluation import evaluate_many
from plateau_jax.table.exact_segments import with_stops
from plateau_jax.table.fitting import build_table
from plateau_jax.tools.logged_lrs.printed import Floats, Mask, PrintedLrs, Steps

_MIN_ROWS = 3
"""One row finds the unknown number of a fault. At least two more must confirm it."""

_MAX_STEPS = 2**22
"""For longer curves and logs, faults with a formula are not tried."""

_MAX_FRACTIONS = 64
"""A stretched curve is evaluated between steps, to this fraction of one if the curve is short."""

_MAX_RANGES = 8
_TRIED = 5
"""Numbers that are tried in each range that remains: its ends, and some between."""

_ROUNDED = 0.5
"""Steps by which segments that are rounded to whole updates are away from a formula."""

_MAX_SKIPPED = 32
_MAX_SKIPPED_LATER = 4
_UPDATES_PER_SKIP = 100

_SUPERSEDED_BY = {
    "skipped": {"late"},
    "restarted": {"late"},
    "resumed": {"late", "early"},
    "stopped": {"plateau"},
    "total": {"too fast", "too slow"},
    "warmup": {"no warmup"},
}
"""Faults that are not named if one of these explains the log too: it says the same, or more."""


class Fault(NamedTuple):
    """A fault that explains every learning rate of a log.

    Attributes:
        name: `"late"`, `"early"`, `"skipped"`, `"too fast"`, `"too slow"`, `"restarted"`,
            `"resumed"`, `"stopped"`, `"plateau"`, `"total"`, `"no warmup"`, `"warmup"`, `"floor"`,
            `"peak"` or `"past the end"`.
        text: A sentence about it.
        least, most: The limits of its number: of updates, or of a learning rate. `most` is infinite
            if the log gives no upper limit.
    """

    name: str
    text: str
    least: float
    most: float


def find_faults(logged: PrintedLrs, expected: Floats, curve: Curve, peak: float) -> list[Fault]:
    """Return each fault that explains every learning rate; `expected` are those of the curve.

    Past the end, the learning rates may be any: no cause is sought for them.
    """
    is_off = ~logged.contain(expected)
    faults = _past_the_end(logged, curve, is_off)
    if not faults and np.count_nonzero(is_off) >= _MIN_ROWS:
        faults += _of_peak(logged, expected, peak)
        faults += _of_standing_still(logged, is_off)
        faults += _of_clipping(logged, expected, is_off)
        if max(curve.total_steps, logged.steps[-1]) <= _MAX_STEPS:
            plan = _plan_of(curve, peak, logged, int(np.argmax(is_off)))
            faults += _of_floor(logged, expected, plan)
            faults += _of_skipped_updates(logged, plan)
            for formula in _FORMULAS:
                faults += _of_formula(formula, logged, plan)
    faults = list(dict.fromkeys(faults))
    return [fault for fault in faults if not any(_says_more(other, fault) for other in faults)]


def _says_more(fault: Fault, other: Fault) -> bool:
    """Return True if a fault says what another one does, or more."""
    if (fault.name, other.name) == ("restarted", "resumed"):
        return fault.least <= other.least <= other.most <= fault.most
    return fault.name in _SUPERSEDED_BY.get(other.name, ())


# The table of formulas.

_ORDER = "the scheduler steps before the optimizer"
_FROM_ONE = "the log counts from 1"
_SKIPPED = "fp16 skipped updates"
_CALLERS = "the scheduler steps {times} per update (for each process or micro-batch)"

_LARGEST = {_ORDER: 1, _FROM_ONE: 1, _SKIPPED: _MAX_SKIPPED, _CALLERS: 1024}
"""The largest number that a cause can have."""

_SENTENCES = {
    "late": (
        "the learning rates are {updates} late",
        _FROM_ONE,
        _SKIPPED,
        "a late start or restart",
    ),
    "early": ("the learning rates are {updates} early", _ORDER, "the log begins at a checkpoint"),
    "restarted": ("the curve starts again at {place}", "a resumed run did not load its state"),
    "resumed": (
        "the learning rates are {updates} {word} from update {off} on, or earlier",
        "the run resumed at a wrong step",
    ),
    "too fast": (
        "the learning rates move {times} too fast",
        _CALLERS,
        "the curve of the run is shorter by this factor",
        "a step of the log is {updates}",
    ),
    "too slow": (
        "the learning rates move {times} too slowly",
        "the scheduler steps once in {updates}",
        "the curve of the run is longer by this factor",
        "an update is {steps} of the log",
    ),
    "plateau": (
        "the plateau ends {updates} {word} than at update {end}",
        "the run has a different length",
        "its scheduler stood still",
    ),
    "total": (
        "the curve of the run takes {updates} instead of {total}",
        "the total is different, and everything else is right",
    ),
    "no warmup": ("there is no warmup", "it takes {updates} instead of {warmup}"),
    "warmup": (
        "the warmup takes {updates} instead of {warmup}",
        "a different length, perhaps in micro-batches",
    ),
}
"""For each fault with a formula, what the rows show, and its usual causes."""


_Numbers = NDArray[Any]


@dataclass(frozen=True)
class _Plan:
    """What formulas know of the curve and of the log, in updates.

    Attributes:
        total: The steps of the curve.
        warmup: Those of its first segment, if that rises; else 0.
        plateau, end: The first step of the last plateau that begins before `off`, and its last one;
            without one, those of an empty plateau after the log.
        slack: How far rounding may move the segments after the warmup, if there are three or more.
        last: The update of the last row.
        off: The update of the first row that is not on the curve.
        has_begun: Two rows before `off` are on the curve: after one, a resumed run cannot be
            distinguished from a late start.
        steps, lrs: The learning rate at each fraction of a step, from 0 to `total`, and at -1.
    """

    total: int
    warmup: int
    plateau: int
    end: int
    slack: float
    last: int
    off: int
    has_begun: bool
    steps: Floats
    lrs: Floats

    def lrs_at(self, steps: _Numbers) -> Floats:
        """Return the learning rates at steps, which may be fractions, from -1 on."""
        return np.interp(steps, self.steps, self.lrs)


_Step = Callable[[_Numbers, _Numbers, _Plan], _Numbers]
_Stops = Sequence[tuple[_Numbers | int, _Numbers | int]]


@dataclass(frozen=True)
class _Formula:
    """A fault under which the row of update n shows the learning rate at step(n, k, plan)."""

    name: str
    step: _Step
    """Either n or k is an array."""
    numbers: Callable[[_Plan], range]
    """Each k that can be."""
    word: str = ""
    """The word of the sentence that depends on the formula."""
    stretches: bool = False
    """It stretches all that follows the warmup, which the run rounds to whole updates."""


def _moved(n: _Numbers, stops: _Stops) -> _Numbers:
    """Return the step of the plan that update n shows.

    Each stop is (an update of the run, the step of the plan that it shows); between two stops and
    after the last, the steps are equally far apart.
    """
    steps = n
    for (update, step), (next_update, next_step) in pairwise(stops):
        slope = (next_step - step) / np.maximum(next_update - update, 1)
        steps = np.where(n >= update, step + (n - update) * slope, steps)
    return steps


def _totals(p: _Plan, *, needs_plateau: bool) -> range:
    if needs_plateau and p.plateau > p.end:
        return range(0)
    return range(p.warmup + 1, 4 * p.total)


def _run_of_total(
    n: _Numbers, k: _Numbers, p: _Plan, *, warmup_plus: int | None, decay_plus: int | None
) -> _Numbers:
    """A curve of k updates, whose plateau makes up for the change, or all after the warmup.

    The warmup is the planned one, or its fraction of k, rounded down, plus a number; and so is the
    decay after the plateau.
    """
    warmup = p.warmup if warmup_plus is None else p.warmup * k // p.total + warmup_plus
    stops: list[Any] = [(0, 0), (warmup, p.warmup)]
    if decay_plus is not None:
        decay = (p.total - p.end - 1) * k // p.total + decay_plus
        stops += [(np.maximum(warmup, p.plateau), p.plateau), (k - decay, p.end + 1)]
    return _moved(n, [*stops, (k, p.total)])


def _warmups(p: _Plan, *, first: int) -> range:
    starts_at_zero = p.lrs_at(np.array(0)) == 0  # then it does not count from 1
    if p.warmup == 0 or (first == -1 and starts_at_zero):
        return range(0)
    return range(p.total)


def _run_of_warmup(n: _Numbers, k: _Numbers, p: _Plan, *, first: int, after: str) -> _Numbers:
    """A curve with a warmup of k updates, which begins at the step `first` of the plan.

    What follows is stretched to the same end, or moved, or its plateau is shorter.
    """
    later = np.maximum(k, p.warmup)
    stops = {
        "stretched": [(p.total, p.total)],
        "moved": [(p.total + k - p.warmup, p.total)],
        "shorter": [(later, p.warmup), (later, later), (p.total, p.total)],
    }
    return _moved(n, [(first, first), (k, p.warmup), *stops[after]])


_FORMULAS = (
    _Formula("late", lambda n, k, p: np.maximum(n - k, 0), lambda p: range(1, p.last)),
    _Formula("early", lambda n, k, p: n + k, lambda p: range(1, p.total + 1)),
    _Formula(
        "restarted", lambda n, k, p: n - k * (n >= k), lambda p: range(1, p.last * p.has_begun)
    ),
    _Formula(
        "resumed",
        lambda n, k, p: np.maximum(n - k * (n >= p.off), 0),
        lambda p: range(1, p.last * p.has_begun),
        "late",
    ),
    _Formula(
        "resumed",
        lambda n, k, p: n + k * (n >= p.off),
        lambda p: range(1, (p.total + 1) * p.has_begun),
        "early",
    ),
    _Formula("too fast", lambda n, k, p: n * k, lambda p: range(2, p.total + 1)),
    _Formula("too slow", lambda n, k, p: n // k, lambda p: range(2, p.last + 1)),
    _Formula(
        "plateau",
        lambda n, k, p: np.maximum(np.minimum(n, p.end), n - k),
        lambda p: range(1, p.last - p.end + 1),
        "later",
    ),
    _Formula(
        "plateau",
        lambda n, k, p: n + k * (n > p.end - k),
        lambda p: range(1, p.end - p.plateau + 2),
        "earlier",
    ),
    *(
        _Formula(
            "total",
            partial(_run_of_total, warmup_plus=warmup_plus, decay_plus=decay_plus),
            partial(_totals, needs_plateau=decay_plus is not None),
            stretches=decay_plus is None,
        )
        for warmup_plus in (None, 0, 1)
        for decay_plus in (None, 0, 1)
    ),
    *(
        _Formula(
            "warmup",
            # From the planned level, or from 1 / (k + 1), as in trainers that count from 1.
            partial(_run_of_warmup, first=first, after=after),
            partial(_warmups, first=first),
            stretches=after == "stretched",
        )
        for first in (0, -1)
        for after in ("stretched", "moved", "shorter")
    ),
)


# The search.


def _plan_of(curve: Curve, peak: float, logged: PrintedLrs, first_off: int) -> _Plan:
    total = curve.total_steps
    last = int(logged.steps[-1])
    off = int(logged.steps[first_off])
    segments = curve._exact_segments
    first = segments[0]
    warmup = 0
    if first.length == segments[1].begin < total and first.start < first.end:
        warmup = first.length
    plateau, end = last + 1, last
    for segment, after in with_stops(segments):
        if after is not None and segment.is_flat and segment.begin <= off:
            plateau, end = segment.begin, after - 1
    fractions = max(1, min(_MAX_FRACTIONS, _MAX_STEPS // total))
    finer = [
        segment._replace(
            begin=segment.begin * fractions,
            length=segment.length * fractions,
            skipped=segment.skipped * fractions,
        )
        for segment in segments
    ]
    places = np.arange(total * fractions + 1, dtype=np.int32)
    lrs = evaluate_many(build_table(finer), places) * np.float64(np.float32(peak))
    # A warmup that counts from 1 may begin one step below the planned one.
    below = min(max(0.0, 2 * lrs[0] - lrs[fractions]), lrs[0])
    is_rounded = len(segments) - 1 - (warmup > 0) >= 3
    return _Plan(
        total=total,
        warmup=warmup,
        plateau=plateau,
        end=end,
        slack=_ROUNDED if is_rounded else 0.0,
        last=last,
        off=off,
        has_begun=first_off > 1,
        steps=np.concatenate([[-1.0], places / fractions]),
        lrs=np.concatenate([[below], lrs]),
    )


def _of_formula(formula: _Formula, logged: PrintedLrs, plan: _Plan) -> Iterator[Fault]:
    """Find the numbers that explain all rows.

    Trying every number on every row would take too long. So numbers are tried on those rows that
    contradict some of them.
    """
    possible = formula.numbers(plan)
    numbers = np.array(possible, np.int64)
    ranges = _ranges(numbers)
    while (row := _unexplained_row(formula, logged, plan, ranges)) is not None:
        numbers = numbers[_misses(formula, logged, plan, row, numbers) <= 0]
        ranges = _ranges(numbers)
    for least, most in ranges:
        is_limit_of_search = most == possible[-1] and formula.word != "earlier"
        # A log that does not show the end of the curve does not show a total.
        if not (is_limit_of_search and formula.name == "total"):
            yield _fault(formula, plan, least, math.inf if is_limit_of_search else most)


def _ranges(numbers: _Numbers) -> list[tuple[int, int]]:
    """Return the ends of the first ranges of neighboring numbers.

    Two ranges are two answers, such as one update late and fifteen early.
    """
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    parts = [part for part in np.split(numbers, breaks)[:_MAX_RANGES] if part.size]
    return [(int(part[0]), int(part[-1])) for part in parts]


def _unexplained_row(
    formula: _Formula, logged: PrintedLrs, plan: _Plan, ranges: Sequence[tuple[int, int]]
) -> int | None:
    """Return the row that the first number that fails misses by most; None if none fails."""
    for least, most in ranges:
        for k in np.linspace(least, most, _TRIED, dtype=np.int64).tolist():
            misses = _misses(formula, logged, plan, slice(None), k)
            if misses.max() > 0:
                return len(logged) - 1 - int(np.argmax(misses[::-1]))  # the last rules out the most
    return None


def _misses(formula: _Formula, logged: PrintedLrs, plan: _Plan, rows: Any, numbers: Any) -> Floats:
    """Return how far the learning rates of a formula are from those of rows; within, 0 or less."""
    steps = formula.step(logged.steps[rows], numbers, plan)
    slack = np.where((steps > plan.warmup) & formula.stretches, plan.slack, 0.0)
    near = [plan.lrs_at(steps + moved) for moved in (-slack, 0.0, slack)]
    return np.maximum(logged.low[rows] - np.max(near, 0), np.min(near, 0) - logged.high[rows])


def _fault(formula: _Formula, plan: _Plan, least: int, most: float) -> Fault:
    name = formula.name
    if name == "warmup" and least <= 1:
        name = "no warmup"
    number = f"{least} to {most}"
    if least == most:
        number = f"{least}"
    elif most == math.inf:
        number = f"{least} or more"
    units = {"word": formula.word, "place": _place(least, most), **vars(plan)}
    for unit in ("update", "time", "step"):
        units[f"{unit}s"] = f"{number} {unit}" if number == "1" else f"{number} {unit}s"
    shows, *causes = _SENTENCES[name]
    possible = [cause for cause in causes if least <= _LARGEST.get(cause, least)]
    return Fault(name, f"{shows}: {', or '.join(possible)}".format(**units), least, most)


def _place(least: int, most: float) -> str:
    if least == most:
        return f"update {least}"
    if most == math.inf:
        return f"update {least} or later"
    return f"an update between {least} and {most}"


# Faults without a formula.


def _of_skipped_updates(logged: PrintedLrs, plan: _Plan) -> Iterator[Fault]:
    """Find how many updates each row is late, if this never falls and grows slowly."""
    late, previous, first_late = 0, 0, 0
    steps: list[int] = logged.steps.tolist()
    for row, step in enumerate(steps):
        most = _MAX_SKIPPED + step // _UPDATES_PER_SKIP  # while the first loss scale is too large
        if step > plan.off:
            most = first_late + _MAX_SKIPPED_LATER + (step - plan.off) // _UPDATES_PER_SKIP
        possible: Steps = np.arange(late, min(most, late + step - previous) + 1)
        late_lrs = plan.lrs_at(np.maximum(step - possible, 0))
        fits = (logged.low[row] <= late_lrs) & (late_lrs <= logged.high[row])
        if not fits.any():
            return
        late, previous = int(possible[np.argmax(fits)]), step
        if step == plan.off:
            first_late = late
    grows = (
        f"the learning rates are late by a number that grows from {first_late} to {late} updates"
    )
    yield Fault("skipped", f"{grows}: fp16 skipped updates", first_late, late)


def _of_standing_still(logged: PrintedLrs, is_off: Mask) -> Iterator[Fault]:
    """Find from which update on the learning rate is the same, on the curve or not."""
    least = 0
    changes = np.flatnonzero(np.diff(logged.values))
    if changes.size:
        least = int(logged.steps[changes[-1]]) + 1
    most = int(logged.steps[is_off][0])
    if least <= most:
        stands = f"stands still at {logged.values[-1]:.6g} from {_place(least, most)} on"
        cause = "the scheduler does not step, or steps for a different optimizer"
        yield Fault("stopped", f"the learning rate {stands}: {cause}", least, most)


# Faults whose number is a learning rate.


def _limits(logged: PrintedLrs, constant: Floats, factor: Floats) -> tuple[float, float] | None:
    """Return the least and the greatest x, from 0 on, with which constant + factor·x explains all.

    None if there is none, or if no row depends on x.
    """
    rows = factor > 0
    if not rows.any() or not logged.contain(constant)[~rows].all():
        return None
    least = float(np.max((logged.low - constant)[rows] / factor[rows]))
    most = float(np.min((logged.high - constant)[rows] / factor[rows]))
    if max(least, 0) > most:
        return None
    return max(least, 0.0), most


def _of_peak(logged: PrintedLrs, expected: Floats, given: float) -> Iterator[Fault]:
    limits = _limits(logged, np.zeros_like(expected), expected / given)
    if limits is None or limits[0] == 0:
        return
    peak = simplest_between(*limits)
    times = f"{peak / given:.7g} times the given one"
    text = f"the peak is {peak!r}, {times}: a different peak, or a different group"
    yield Fault("peak", text, *limits)


def _of_clipping(logged: PrintedLrs, expected: Floats, is_off: Mask) -> Iterator[Fault]:
    """Find a floor below which the learning rate does not fall. A warmup may begin below it."""
    first = int(np.argmax(is_off))
    floor, high = float(logged.values[first]), float(logged.high[first])
    is_constant = np.all(logged.values[is_off] == floor) and np.all(expected[is_off] < floor)
    if is_constant and floor <= logged.values[first:].min() and high < expected.max():
        text = f"the learning rate does not fall below {floor:.6g}: a floor was added"
        yield Fault("floor", text, float(logged.low[first]), high)


def _of_floor(logged: PrintedLrs, expected: Floats, plan: _Plan) -> Iterator[Fault]:
    """Find the last learning rate of a curve that falls in the same way, but less or more."""
    top = plan.steps[np.argmax(plan.lrs)]
    peak, end = float(plan.lrs.max()), float(plan.lrs[-1])
    if end == peak:
        return
    falls = (logged.steps > top) & (expected < peak)
    fallen = np.where(falls, (peak - expected) / (peak - end), 0.0)
    limits = _limits(logged, np.where(falls, peak - peak * fallen, expected), fallen)
    if limits is None or limits[1] >= peak:
        return
    low, high = limits
    floor = 0.0
    if low > 0:
        floor = simplest_between(low, high)
    cause = "a different floor"
    if floor == 0:
        cause = "the floor is ignored"
    elif end == 0:
        cause = "a floor was added"
    text = f"the learning rate falls towards {floor!r} instead of {end:.6g}: {cause}"
    yield Fault("floor", text, low, high)


def _past_the_end(logged: PrintedLrs, curve: Curve, is_off: Mask) -> list[Fault]:
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


def simplest_between(low: float, high: float) -> float:
    """Return the number with the fewest digits from `low` to `high`, both positive.

    Of several, it is the one nearest to the middle.

    >>> simplest_between(2.96e-4, 3.04e-4), simplest_between(0.123, 0.1249)
    (0.0003, 0.124)
    """
    middle = (low + high) / 2
    for digits in range(1, 17):
        candidate = float(f"{middle:.{digits - 1}e}")
        if low <= candidate <= high:
            return candidate
    return middle
