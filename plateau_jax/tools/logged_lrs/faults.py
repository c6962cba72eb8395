"""Faults that explain why logged learning rates leave a curve.

Most are a formula: row n shows the learning rate at step f(n, k) of the curve, with one unknown
number k. Each row rules out some numbers, and a fault explains the log if one remains.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.table.exact_segments import with_stops
from plateau_jax.tools.logged_lrs.printed import Floats, Mask, PrintedLrs, Steps, simplest_between

_MIN_ROWS = 3
"""One row finds the unknown number of a fault. At least two more must confirm it."""

_MAX_STEPS = 2**22
"""For longer curves and logs, faults with a formula are not tried."""

_MAX_RANGES = 8
_TRIED = 5
"""Numbers that are tried in each range that remains: its ends, and some between."""

_MIN_OVERLAP = 0.05

_ROUNDED = 0.5
"""Steps by which a curve whose lengths are rounded to whole updates is away from a formula."""

_MAX_CALLERS = 1024
_MAX_SKIPPED = 32
_MAX_SKIPPED_LATER = 4
_UPDATES_PER_SKIP = 100
_MAX_TIMES_LONGER = 4

_SUPERSEDED_BY = {
    "resumed": {"late", "early"},
    "skipped": {"late"},
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
        least, most: The limits of its number: of updates, or of a learning rate.
    """

    name: str
    text: str
    least: float
    most: float


def lrs_at(steps: Steps, curve: Curve, peak: float) -> Floats:
    """Return the learning rate at each step, as float64; steps may lie outside of the curve."""
    return curve.learning_rate(steps, peak).astype(np.float64)


def find_faults(logged: PrintedLrs, expected: Floats, curve: Curve, peak: float) -> list[Fault]:
    """Return each fault that explains every learning rate.

    Past the end, the learning rates may be any: no cause is sought for them.

    Args:
        logged: The learning rates of the log.
        expected: Those of the curve at the same steps.
        curve: The curve that the run should follow.
        peak: Its peak.
    """
    is_off = ~logged.contain(expected)
    faults = _past_the_end(logged, curve, is_off)
    # Zeros such as 0.0000 may be any small numbers.
    if not faults and logged.digits != 0 and np.count_nonzero(is_off) >= _MIN_ROWS:
        faults += _of_peak(logged, expected, peak)
        faults += _of_clipping(logged, expected, is_off)
        if max(curve.total_steps, logged.steps[-1]) <= _MAX_STEPS:
            lrs = lrs_at(np.arange(curve.total_steps + 1), curve, peak)
            first_off = int(np.argmax(is_off))
            faults += _of_floor(logged, expected, lrs)
            faults += _of_skipped_updates(logged, lrs, first_off)
            for formula in _formulas(logged.steps, curve, first_off):
                faults += _of_formula(formula, logged, lrs, first_off)
    faults = list(dict.fromkeys(faults))
    return [fault for fault in faults if not any(_says_more(other, fault) for other in faults)]


def _says_more(fault: Fault, other: Fault) -> bool:
    if fault.name == "restarted" and other.name == "resumed":
        return fault.least <= other.least <= other.most <= fault.most
    return fault.name in _SUPERSEDED_BY.get(other.name, set())


# A number of updates.

_ORDER = "the scheduler steps before the optimizer"
_FROM_ONE = "the log counts from 1"
_SKIPPED = "fp16 skipped updates"
_CALLERS = "the scheduler steps {times} per update (for each process or micro-batch)"

_LARGEST = {_ORDER: 1, _FROM_ONE: 1, _SKIPPED: _MAX_SKIPPED, _CALLERS: _MAX_CALLERS}
"""The largest number that a cause can have."""

_SENTENCES = {
    "late": ("the learning rates are {updates} late", _FROM_ONE, _SKIPPED, "a late start"),
    "early": ("the learning rates are {updates} early", _ORDER, "the log begins at a checkpoint"),
    "too fast": (
        "the learning rates move {times} too fast",
        _CALLERS,
        "the curve of the run is {times} shorter",
        "a step of the log is {updates}",
    ),
    "too slow": (
        "the learning rates move {times} too slowly",
        "the scheduler steps once in {updates}",
        "the curve of the run is {times} longer",
        "an update is {steps} of the log",
    ),
    "stopped": (
        "the learning rate stands still from {place} on",
        "the scheduler does not step, or steps for a different optimizer",
    ),
    "restarted": ("the curve starts again at {place}", "a resumed run did not load its state"),
    "resumed/late": (
        "the learning rates are {updates} late from update {planned} on, or earlier",
        "the run resumed at a wrong step",
        _SKIPPED,
    ),
    "resumed/early": (
        "the learning rates are {updates} early from update {planned} on, or earlier",
        "the run resumed at a wrong step",
    ),
    "plateau/later": (
        "the plateau ends {updates} later than at update {planned}",
        "the curve of the run is longer",
    ),
    "plateau/after the log": (
        "the log ends on the plateau, {updates} after update {planned}, its planned end",
        "the curve of the run is longer",
        "the scheduler has stopped",
    ),
    "plateau/earlier": (
        "the plateau ends {updates} earlier than at update {planned}",
        "the curve of the run is shorter",
    ),
    "total": (
        "the curve of the run takes {updates} instead of {planned}",
        "the total is different, and everything else is right",
    ),
    "no warmup": ("there is no warmup", "it takes {updates} instead of {planned}"),
    "warmup": (
        "the warmup takes {updates} instead of {planned}",
        "a different length",
        "one of the two is counted in micro-batches",
    ),
}
"""For each formula, what the rows show, and its usual causes."""

_Step = Callable[[Steps, Steps], NDArray[Any]]
"""From n and k, of which either may be an array, to a step of the curve."""


@dataclass(frozen=True)
class _Formula:
    """A fault under which row n shows the learning rate at step(n, k) of the curve.

    Attributes:
        name: The name of the fault, with a slash before a variant that has its own sentence.
        numbers: Each k that can be.
        step: The formula, for arrays of n or of k.
        planned: A number of updates for the sentence.
        slack: Steps by which the curve of the run may be away from the formula, because it rounds
            its lengths to whole updates.
    """

    name: str
    numbers: range
    step: _Step
    planned: int = 0
    slack: float = 0.0


def _formulas(steps: Steps, curve: Curve, first_off: int) -> Iterator[_Formula]:
    """Yield the table of faults, for a log with these steps, and its first row off the curve."""
    last = int(steps[-1])
    total = curve.total_steps
    yield _Formula("late", range(1, last), lambda n, k: n - k)
    yield _Formula("early", range(1, total + 1), lambda n, k: n + k)
    yield _Formula("too fast", range(2, total + 1), lambda n, k: n * k)
    yield _Formula("too slow", range(2, last + 1), lambda n, k: n // k)
    yield _Formula("stopped", range(last), np.minimum)
    if first_off > 1:  # after a single row, a restart cannot be distinguished from a late start
        places = range(int(steps[1]) + 1, last + 1)
        yield _Formula("restarted", places, lambda n, k: n - k * (n >= k))
        begin = int(steps[first_off])
        shifts = range(1, last)
        yield _Formula("resumed/late", shifts, lambda n, k: n - k * (n >= begin), begin)
        shifts = range(1, total + 1)
        yield _Formula("resumed/early", shifts, lambda n, k: n + k * (n >= begin), begin)
    segments = [
        (segment, after)
        for segment, after in with_stops(curve._exact_segments)
        if after is not None
    ]
    plateaus = [(segment.begin, after) for segment, after in segments if segment.is_flat]
    for first, after in plateaus:
        yield from _formulas_of_plateau(first, after, last)
    segment, after = segments[0]
    has_warmup = after == segment.length < total and segment.start < segment.end
    warmup = 0
    if has_warmup:
        warmup = after
    yield from _formulas_of_total(total, warmup, plateaus)
    if has_warmup:
        yield from _formulas_of_warmup(total, warmup)


def _formulas_of_plateau(first: int, after: int, last: int) -> Iterator[_Formula]:
    end = after - 1
    later = range(1, last - end + 1)
    yield _Formula("plateau/later", later, lambda n, k: np.maximum(np.minimum(n, end), n - k), end)
    earlier = range(1, after - first + 1)
    yield _Formula("plateau/earlier", earlier, lambda n, k: n + k * (n >= after - k), end)


def _formulas_of_total(
    total: int, warmup: int, plateaus: Sequence[tuple[int, int]]
) -> Iterator[_Formula]:
    """Yield formulas for k updates, with the same warmup or the same fraction of it."""
    totals = range(warmup + 1, _MAX_TIMES_LONGER * total)

    def in_proportion(n: Steps, k: Steps) -> NDArray[Any]:
        return n * total / k

    def after_warmup(n: Steps, k: Steps) -> NDArray[Any]:
        return np.where(n < warmup, n, warmup + (n - warmup) * (total - warmup) / (k - warmup))

    def after_plateau(n: Steps, k: Steps) -> NDArray[Any]:
        _, after = plateaus[0]
        return np.where(n < warmup, n, np.maximum(np.minimum(n, after), n * total / k))

    yield _Formula("total", totals, in_proportion, total, _ROUNDED)
    yield _Formula("total", totals, after_warmup, total, _ROUNDED)
    if plateaus:
        yield _Formula("total", totals, after_plateau, total, _ROUNDED)


def _formulas_of_warmup(total: int, warmup: int) -> Iterator[_Formula]:
    """Yield formulas for a warmup of k updates; without rows in it, it may be 0."""
    lengths = range(total)

    def before_shorter_decay(n: Steps, k: Steps) -> NDArray[Any]:
        return warmup + (n - k) * (total - warmup) / (total - k)

    def before_same_decay(n: Steps, k: Steps) -> NDArray[Any]:
        return warmup + n - k

    def before_shorter_plateau(n: Steps, k: Steps) -> NDArray[Any]:
        return np.maximum(n, warmup) + 0 * k

    for after in (before_shorter_decay, before_same_decay, before_shorter_plateau):

        def step(n: Steps, k: Steps, after: _Step = after) -> NDArray[Any]:
            return np.where(n < k, n * warmup / np.maximum(k, 1), after(n, k))

        yield _Formula("warmup", lengths, step, warmup, _ROUNDED)


def _of_formula(
    formula: _Formula, logged: PrintedLrs, lrs: Floats, first_off: int
) -> Iterator[Fault]:
    """Find the numbers that explain all rows, in at most `_MAX_RANGES` ranges."""
    numbers = np.array(formula.numbers, np.int64)
    row: int | None = first_off
    ranges: list[tuple[int, int]] = []
    while row is not None:
        numbers = numbers[_misses(formula, logged, lrs, row, numbers) <= 0]
        # Two ranges are two answers, such as one update late and fifteen early.
        breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
        parts = [part for part in np.split(numbers, breaks)[:_MAX_RANGES] if part.size]
        ranges = [(int(part[0]), int(part[-1])) for part in parts]
        row = _unexplained_row(formula, logged, lrs, ranges)
    for least, most in ranges:
        is_open = most == formula.numbers[-1]
        # A log that does not show the end of the curve does not show a total.
        if not (is_open and formula.name == "total"):
            name = formula.name
            if name == "plateau/later" and is_open:
                name = "plateau/after the log"
            elif name == "warmup" and least <= 1:
                name = "no warmup"
            text = _sentence(name, formula.planned, least, most, is_open=is_open)
            yield Fault(name.partition("/")[0], text, least, most)


def _unexplained_row(
    formula: _Formula, logged: PrintedLrs, lrs: Floats, ranges: Sequence[tuple[int, int]]
) -> int | None:
    """Return the row that the first number that fails misses by most; None if none fails."""
    for least, most in ranges:
        for k in np.linspace(least, most, _TRIED, dtype=np.int64).tolist():
            misses = _misses(formula, logged, lrs, slice(None), k)
            row = len(logged) - 1 - int(np.argmax(misses[::-1]))  # the last rules out the most
            if misses[row] > 0:
                return row
    return None


def _misses(formula: _Formula, logged: PrintedLrs, lrs: Floats, rows: Any, numbers: Any) -> Floats:
    """Return how far the learning rates of a formula are from those of rows; within, 0 or less."""
    steps: Floats = formula.step(logged.steps[rows], numbers)
    near: Floats = lrs[np.clip(steps, 0, len(lrs) - 1).astype(np.int64)][None]
    if formula.slack:
        grid = np.arange(len(lrs))
        around = (steps - formula.slack, steps, steps + formula.slack)
        near = np.array([np.interp(some, grid, lrs) for some in around])
    return np.maximum(logged.low[rows] - near.max(0), near.min(0) - logged.high[rows])


def _sentence(name: str, planned: int, least: int, most: int, *, is_open: bool) -> str:
    place = f"update {least}" if least == most else f"an update between {least} and {most}"
    units = {"place": place, "planned": planned}
    for unit in ("update", "time", "step"):
        number = f"{least}" if least == most else f"{least} to {most}"
        if is_open:
            number = f"{least} or more"
        units[f"{unit}s"] = f"{number} {unit}" if number == "1" else f"{number} {unit}s"
    shows, *causes = _SENTENCES[name]
    possible = [cause for cause in causes if least <= _LARGEST.get(cause, most)]
    return f"{shows}: {', or '.join(possible)}".format(**units)


def _of_skipped_updates(logged: PrintedLrs, lrs: Floats, first_off: int) -> Iterator[Fault]:
    """Find how many updates each row is late, if this never falls and grows slowly."""
    counts: list[int] = []
    previous = 0
    steps: list[int] = logged.steps.tolist()
    for row, step in enumerate(steps):
        least = 0
        if counts:
            least = counts[-1]
        most = _MAX_SKIPPED  # while the first loss scale is too large
        since = step
        if row > first_off:
            most = counts[first_off] + _MAX_SKIPPED_LATER
            since = step - steps[first_off]
        most = min(most + since // _UPDATES_PER_SKIP, least + step - previous)
        possible = np.arange(least, most + 1)
        late_lrs = lrs[np.clip(step - possible, 0, len(lrs) - 1)]
        fits = (logged.low[row] <= late_lrs) & (late_lrs <= logged.high[row])
        if not fits.any():
            return
        counts.append(int(possible[np.argmax(fits)]))
        previous = step
    least, most = counts[first_off], counts[-1]
    grows = f"the learning rates are late by a number that grows from {least} to {most} updates"
    yield Fault("skipped", f"{grows}: fp16 skipped updates", least, most)


# A number that is a learning rate, or the place of a group.


def _limits(logged: PrintedLrs, constant: Any, factor: Floats) -> tuple[float, float] | None:
    """Return the least and the greatest x, from 0 on, with which constant + factor·x explains all.

    None if there is none, or if no row depends on x.
    """
    rows = factor > 0
    fixed = np.broadcast_to(constant, factor.shape)
    if not rows.any() or not logged.contain(fixed)[~rows].all():
        return None
    least = float(np.max((logged.low - fixed)[rows] / factor[rows]))
    most = float(np.min((logged.high - fixed)[rows] / factor[rows]))
    if max(least, 0) > most:
        return None
    return max(least, 0.0), most


def peak_limits(logged: PrintedLrs, expected: Floats, given: float) -> tuple[float, float] | None:
    """Return the least and the greatest peak that explain all rows; None if there is none."""
    limits = _limits(logged, 0.0, expected / given)
    if limits is None or limits[0] == 0:
        return None
    return limits


def _of_peak(logged: PrintedLrs, expected: Floats, given: float) -> Iterator[Fault]:
    limits = peak_limits(logged, expected, given)
    if limits is None:
        return
    peak = simplest_between(*limits)
    factor = f"{peak / given:.4g}"
    if factor == "1":
        factor = f"{peak / given:.7g}"
    times = f"{factor} times the given one"
    text = f"the peak is {peak!r}, {times}: a different peak, or a different group"
    yield Fault("peak", text, *limits)


def _of_clipping(logged: PrintedLrs, expected: Floats, is_off: Mask) -> Iterator[Fault]:
    """Find a floor below which the learning rate does not fall."""
    limits = _limits(logged, np.where(is_off, 0.0, expected), is_off.astype(np.float64))
    if limits is None:
        return
    low, high = limits
    # Neighboring intervals meet at their ends.
    least_width = _MIN_OVERLAP * float((logged.high - logged.low)[is_off].min())
    if not 0 < low <= high - least_width < expected.max():
        return
    floor = simplest_between(low, high)
    is_later = np.maximum.accumulate(is_off)  # a warmup may begin below the floor
    if logged.contain(np.where(is_later, np.maximum(expected, floor), expected)).all():
        text = f"the learning rate does not fall below {floor!r}: a floor was added"
        yield Fault("floor", text, low, high)


def _of_floor(logged: PrintedLrs, expected: Floats, lrs: Floats) -> Iterator[Fault]:
    """Find the last learning rate of a curve that falls in the same way, but less or more."""
    top = int(np.argmax(lrs))
    peak, end = float(lrs[top]), float(lrs[-1])
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
    cause = "the floor is ignored"
    if floor > end:
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
