"""Find the shortest curves that explain logged learning rates.

Stages are fitted from the left. Each begins where the one before it ends: at a logged row, with a
learning rate of few digits. States with the same number of stages are expanded together, so the
first curves that explain all rows have the fewest stages.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.logged_lrs.printed import Floats, PrintedLrs, Steps, simplest_between
from plateau_jax.logged_lrs.stage_families import (
    CLOSED_FAMILIES,
    LINE,
    OPEN_FAMILIES,
    ClosedFamily,
    OpenFamily,
    num_leading,
)

MOST_STAGES = 9
_MOST_STATES = 50
_MOST_PER_ROW = 3
_MOST_WORK = 17_000
"""The most rows that are fitted: a search ends after a second or two."""

_ALL_KNOTS = 40
_EXCESSES = 1e-4, 1e-3, 1e-2
_LONGEST = 256.0
_NUM_LENGTHS = 60
_NUM_BEGINS = 15

_FAMILIES: dict[str | None, OpenFamily | ClosedFamily] = {
    family.shape: family for family in (LINE, *OPEN_FAMILIES, *CLOSED_FAMILIES)
}


@dataclass(frozen=True)
class Knot:
    """The end of a stage.

    Attributes:
        step: The step at which it ends.
        value: The learning rate there.
        shape: The shape of the stage; None for a plateau or a jump.
    """

    step: int
    value: float
    shape: str | None = None


@dataclass(frozen=True)
class State:
    """Stages that explain the first rows.

    Attributes:
        knots: The start and the end of each stage.
        row: The first row that is not explained yet.
    """

    knots: tuple[Knot, ...]
    row: int

    @property
    def last(self) -> Knot:
        return self.knots[-1]

    @property
    def shapes(self) -> tuple[str | None, ...]:
        """The shape of each stage; None between equal levels, at which all shapes are plateaus."""
        shapes: list[str | None] = []
        for before, knot in pairwise(self.knots):
            if knot.value == before.value:
                shapes.append(None)
            else:
                shapes.append(knot.shape)
        return tuple(shapes)

    @property
    def key(self) -> tuple[int, int, float, str | None]:
        return self.row, self.last.step, self.last.value, self.last.shape

    def then(self, knot: Knot, row: int) -> "State":
        return State((*self.knots, knot), row)


def shortest_paths(logged: PrintedLrs) -> list[State]:
    """Return the states with the fewest stages that explain all rows; empty if none is found."""
    by_stages: defaultdict[int, dict[tuple[int, int, float, str | None], State]] = defaultdict(dict)
    for state in _starts(logged):
        by_stages[0][state.key] = state
    budget = _MOST_WORK // len(logged)
    for num_stages in range(MOST_STAGES + 1):
        states = by_stages[num_stages]
        complete = [state for state in states.values() if _stays_to_the_end(logged, state)]
        complete = [state for state in complete if len(state.knots) > 1]
        if complete:
            return sorted(complete, key=_num_digits)
        advanced = _most_advanced(states.values())[:budget]
        budget -= len(advanced)
        for state in advanced:
            for later in _expand(logged, state):
                by_stages[len(later.knots) - 1].setdefault(later.key, later)
    return []


def _num_digits(state: State) -> int:
    """Return the number of digits of all levels: simple levels are more likely to be meant."""
    return sum(len(f"{knot.value:.15g}".strip("0.")) for knot in state.knots if knot.value)


def _most_advanced(states: Iterable[State]) -> list[State]:
    """Return those that explain most rows, a few for each number of rows."""
    ordered = sorted(states, key=lambda state: (-state.row, _num_digits(state)))
    kept: list[State] = []
    rows: Counter[int] = Counter()
    for state in ordered:
        if rows[state.row] < _MOST_PER_ROW:
            rows[state.row] += 1
            kept.append(state)
    return kept[:_MOST_STATES]


def _stays_to_the_end(logged: PrintedLrs, state: State) -> bool:
    """Return True if all later rows are at the end of the last stage, at which a curve stays."""
    rest = logged.part(slice(state.row, None))
    return bool(rest.contain(state.last.value).all())


def _starts(logged: PrintedLrs) -> Iterator[State]:
    first = int(logged.steps[0])
    if first == 0:
        for value in _values(logged.low[0], logged.high[0], logged.values[0]):
            yield State((Knot(0, value),), 1)
        return
    values = {0.0, *_values(logged.low[0], logged.high[0], logged.values[0])}
    if len(logged) > 1:
        slope = (logged.values[1] - logged.values[0]) / (logged.steps[1] - first)
        start = float(logged.values[0] - slope * first)
        width = float(logged.high[0] - logged.low[0])
        if start - width > 0:
            values.add(simplest_between(start - width, start + width))
    for value in sorted(values):
        yield State((Knot(0, value),), 0)


def _values(low: float, high: float, printed: float | None = None) -> list[float]:
    """Return the values that a knot may have within an interval: those with few digits."""
    if low <= 0 <= high:
        return [0.0]
    if high < 0:
        return []
    values = [simplest_between(float(low), float(high))]
    if printed is not None and printed not in values:
        values.append(float(printed))
    return values


def _expand(logged: PrintedLrs, state: State) -> Iterator[State]:
    rest = logged.part(slice(state.row, None))
    yield from _plateaus(logged, rest, state)
    for family in (LINE, *OPEN_FAMILIES):
        yield from _open_stages(logged, rest, state, family)
    for family in CLOSED_FAMILIES:
        yield from _closed_stages(logged, rest, state, family)


def _plateaus(logged: PrintedLrs, rest: PrintedLrs, state: State) -> Iterator[State]:
    step, value = state.last.step, state.last.value
    reach = num_leading(rest.contain(value))
    for row in _knot_rows(rest, reach):
        yield state.then(Knot(int(rest.steps[row]), value), state.row + row + 1)
    for end in _round_ends(rest, step, reach):
        rows = int(np.searchsorted(rest.steps, end, "right"))
        yield state.then(Knot(end, value), state.row + rows)
    if reach < len(rest):
        yield from _stages_after_a_plateau(logged, rest, state, reach)
        # A plateau that ends in a jump at the next row.
        jump = int(rest.steps[reach])
        plateau = state
        if jump > step:
            plateau = state.then(Knot(jump, value), state.row + reach)
        if state.last.step < jump or state.row == reach:
            yield from _jumps(logged, plateau)


def _round_ends(rest: PrintedLrs, step: int, reach: int) -> set[int]:
    """Return round steps at which a plateau over `reach` rows may end, also between two rows.

    The first steps of a decay may print like its plateau, so the plateau may end long before.
    """
    if not 0 < reach < len(rest):
        return set()
    last = int(rest.steps[reach]) - 1
    ends: set[int] = set()
    window = 1
    while window < 2 * (last - step):
        ends.add(roundest(max(step + 1, last - window), last))
        window *= 2
    return ends


def _stages_after_a_plateau(
    logged: PrintedLrs, rest: PrintedLrs, state: State, reach: int
) -> Iterator[State]:
    """Yield plateaus that end between two rows, each with the stage that follows."""
    step, value = state.last.step, state.last.value
    for family in (LINE, *OPEN_FAMILIES):
        if family.needs_positive and value <= 0:
            continue
        first, last = family.begins(rest.part(slice(reach, None)), value)
        first = max(first, step + 1)
        last = min(last, int(rest.steps[reach]) - 1)
        if first <= last:
            begin = _best_begin(rest, value, family, first, last)
            rows = int(np.searchsorted(rest.steps, begin, "right"))
            plateau = state.then(Knot(begin, value), state.row + rows)
            yield from _open_stages(logged, rest.part(slice(rows, None)), plateau, family)


def _best_begin(rest: PrintedLrs, value: float, family: OpenFamily, first: int, last: int) -> int:
    """Return a step after which a stage explains as many rows as after any other that is tried.

    The roundest step is tried first, so that it wins a tie.
    """
    evenly_spaced = np.linspace(first, last, _NUM_BEGINS).astype(np.int64).tolist()
    reaches: dict[int, int] = {}
    for begin in (roundest(first, last), *evenly_spaced):
        rows = int(np.searchsorted(rest.steps, begin, "right"))
        low, high = family.limits(rest.part(slice(rows, None)), begin, value)
        reaches[begin] = rows + num_leading(low <= high)
    return max(reaches, key=lambda begin: reaches[begin])


def _jumps(logged: PrintedLrs, state: State) -> Iterator[State]:
    row = state.row
    if int(logged.steps[row]) != state.last.step:
        return
    for value in _values(logged.low[row], logged.high[row], logged.values[row]):
        yield state.then(Knot(state.last.step, value), row + 1)


def _knot_rows(rest: PrintedLrs, reach: int) -> list[int]:
    """Return the rows at which a stage that explains `reach` rows may end."""
    if reach == 0:
        return []
    if reach <= _ALL_KNOTS:
        return list(range(reach - 1, -1, -1))
    rows = {reach - 1, reach - 2, reach - 3}
    window = 4
    while window < 2 * reach:
        begin = max(0, reach - window)
        rows.add(begin + int(np.argmax(_roundness(rest.steps[begin:reach]))))
        window *= 2
    return sorted(rows, reverse=True)


def _roundness(steps: np.ndarray) -> np.ndarray:
    """Return how many times 10, then how many times 2 and 5 divide each step."""
    score = np.zeros(len(steps))
    for power in range(1, 10):
        score += steps % 10**power == 0
    score += 0.5 * (steps % (5 * 10 ** score.astype(np.int64)) == 0)
    return score


def _open_stages(
    logged: PrintedLrs, rest: PrintedLrs, state: State, family: OpenFamily
) -> Iterator[State]:
    step, value = state.last.step, state.last.value
    if not len(rest) or (family.needs_positive and value <= 0):
        return
    low, high = family.limits(rest, step, value)
    reach = num_leading(low <= high)
    if reach == 0:
        return
    for row in _knot_rows(rest, reach):
        length = int(rest.steps[row]) - step
        for end in _end_values(family, value, (float(low[row]), float(high[row])), length):
            yield state.then(Knot(step + length, end, family.shape), state.row + row + 1)
    yield from _ends_before_the_floor(rest, state, family)
    limits = float(low[reach - 1]), float(high[reach - 1])
    if family is LINE:
        yield from _corners(logged, rest, state, reach, limits)
    if reach == len(rest) and not family.needs_positive:
        yield from _falls_to_zero(rest, state, family, limits)
    if reach < len(rest):
        # It ends at the next row, at which the learning rate jumps.
        length = int(rest.steps[reach]) - step
        for end in _end_values(family, value, limits, length):
            ended = state.then(Knot(step + length, end, family.shape), state.row + reach)
            yield from _jumps(logged, ended)


def _end_values(
    family: OpenFamily, value: float, limits: tuple[float, float], length: int
) -> list[float]:
    """Return the values at which a stage may end, from the limits of c."""
    low, high = sorted(family.at(value, c, length) for c in limits)
    values = _values(low, high)
    if family.needs_positive:
        return [end for end in values if end > 0]
    return values


def _ends_before_the_floor(
    rest: PrintedLrs, state: State, family: OpenFamily | ClosedFamily
) -> Iterator[State]:
    """Yield stages that end between two rows, at the level that all later rows have."""
    low, high = rest.low[::-1], rest.high[::-1]
    is_constant = np.maximum.accumulate(low) <= np.minimum.accumulate(high)
    floor = len(rest) - num_leading(is_constant)
    if not 0 < floor < len(rest):
        return
    step, value = state.last.step, state.last.value
    before = rest.part(slice(0, floor))

    def limits(ends: Steps) -> tuple[Floats, Floats]:
        least, most = _end_levels(family, before, step, value, (ends - step).astype(np.float64))
        return np.maximum(least, rest.low[floor:].max()), np.minimum(most, rest.high[floor:].min())

    first = int(rest.steps[floor - 1]) + 1
    last = int(rest.steps[floor]) - 1
    if first > last:
        return
    evenly_spaced = np.linspace(first, last, 2 * _NUM_LENGTHS).astype(np.int64)
    between = np.union1d(evenly_spaced, roundest(first, last))
    least, most = limits(between)
    fits = between[least <= most]
    if not len(fits):
        return
    end = roundest(int(fits[0]), int(fits[-1]))
    least, most = limits(np.array([end]))
    if least[0] <= most[0]:
        for level in _values(float(least[0]), float(most[0])):
            yield state.then(Knot(end, level, family.shape), state.row + len(rest))


def _end_levels(
    family: OpenFamily | ClosedFamily, rest: PrintedLrs, step: int, value: float, lengths: Floats
) -> tuple[Floats, Floats]:
    """Return the limits of the end level for each length, by all rows."""
    if isinstance(family, ClosedFamily):
        return family.limits(rest, step, value, lengths)
    return family.ends(rest, step, value, lengths)


def _corners(
    logged: PrintedLrs, rest: PrintedLrs, state: State, reach: int, slopes: tuple[float, float]
) -> Iterator[State]:
    """Yield lines up to the peak that end between two rows."""
    if reach == len(rest) or slopes[0] <= 0:
        return
    step, value = state.last.step, state.last.value
    for peak in _peaks(logged):
        first = math.ceil((peak - value) / slopes[1])
        last = math.floor((peak - value) / slopes[0])
        first = max(first, int(rest.steps[reach - 1]) - step + 1)
        last = min(last, int(rest.steps[reach]) - step - 1)
        if first <= last:
            end = roundest(step + first, step + last)
            yield state.then(Knot(end, peak, LINE.shape), state.row + reach)


def _peaks(logged: PrintedLrs) -> list[float]:
    """Return peaks that may lie between two rows: numbers of few digits above the highest row."""
    top = int(np.argmax(logged.values))
    low = float(logged.low[top])
    peaks = set(_values(low, float(logged.high[top]), float(logged.values[top])))
    for excess in _EXCESSES:
        peaks.add(simplest_between(low, low * (1 + excess)))
    return sorted(peaks)


def _falls_to_zero(
    rest: PrintedLrs, state: State, family: OpenFamily, limits: tuple[float, float]
) -> Iterator[State]:
    """Yield a stage that reaches 0 after the log, if it does."""
    step, value = state.last.step, state.last.value
    if limits[1] >= 0:
        return
    first = math.ceil((value / -limits[0]) ** (1 / family.power))
    last = math.floor((value / -limits[1]) ** (1 / family.power))
    first = max(first, int(rest.steps[-1]) + 1 - step)
    if first <= last:
        end = roundest(step + first, step + last)
        yield state.then(Knot(end, 0.0, family.shape), state.row + len(rest))


def _closed_stages(
    logged: PrintedLrs, rest: PrintedLrs, state: State, family: ClosedFamily
) -> Iterator[State]:
    step, value = state.last.step, state.last.value
    if len(rest) < 2:
        return
    lengths = (rest.steps - step).astype(np.float64)
    low, high = family.limits(rest, step, value, lengths)
    for row in np.flatnonzero(low <= high)[::-1].tolist():
        for end in _values(float(low[row]), float(high[row])):
            knot = Knot(int(rest.steps[row]), end, family.shape)
            yield state.then(knot, state.row + row + 1)
    # Stages that end in a jump do not explain the row at their end.
    for row in _rows_before_jumps(rest):
        before = rest.part(slice(0, row))
        low, high = family.limits(before, step, value, lengths[row : row + 1])
        if low[0] <= high[0]:
            for end in _values(float(low[0]), float(high[0])):
                ended = state.then(Knot(int(rest.steps[row]), end, family.shape), state.row + row)
                yield from _jumps(logged, ended)
    yield from _ends_after_the_log(rest, state, family)
    yield from _ends_before_the_floor(rest, state, family)


def _rows_before_jumps(rest: PrintedLrs) -> list[int]:
    """Return the rows that may follow a jump: the change there is larger than both neighbors."""
    changes = np.abs(np.diff(rest.values))
    if len(changes) < 2:
        return []
    padded = np.pad(changes, 1)
    largest = (changes > padded[:-2]) & (changes > padded[2:])
    rows = np.flatnonzero(largest) + 1
    order = np.argsort(-changes[rows - 1], kind="stable")
    return [int(row) for row in rows[order][:8] if row >= 1]


def _ends_after_the_log(rest: PrintedLrs, state: State, family: ClosedFamily) -> Iterator[State]:
    step, value = state.last.step, state.last.value
    if rest.contain(value).all():
        return  # a plateau
    lengths = feasible_lengths(rest, step, value, family)
    if not len(lengths):
        return
    low, high = family.limits(rest, step, value, lengths)
    for chosen in (lengths[low <= 0], lengths):
        # An end at 0 comes first.
        if not len(chosen):
            continue
        end = roundest(step + int(chosen[0]), step + int(chosen[-1]))
        low, high = family.limits(rest, step, value, np.array([end - step], np.float64))
        if low[0] <= high[0]:
            for level in _values(max(0.0, float(low[0])), float(high[0])):
                yield state.then(Knot(end, level, family.shape), state.row + len(rest))


def feasible_lengths(rest: PrintedLrs, step: int, value: float, family: ClosedFamily) -> Floats:
    """Return lengths of a stage that ends after the log, and explains its rows; increasing."""
    least = int(rest.steps[-1]) - step + 1
    lengths = np.unique(np.rint(least * np.geomspace(1, _LONGEST, 2 * _NUM_LENGTHS)))

    def gaps(lengths: Floats) -> Floats:
        low, high = family.limits(rest, step, value, lengths)
        return np.maximum(low, 0) - high

    for _ in range(8):
        gap = gaps(lengths)
        feasible = np.flatnonzero(gap <= 0).tolist()
        if feasible:
            begin = lengths[max(0, feasible[0] - 1)]
            end = lengths[min(len(lengths) - 1, feasible[-1] + 1)]
            finer = np.unique(np.rint(np.linspace(begin, end, 4 * _NUM_LENGTHS)))
            return finer[gaps(finer) <= 0]
        best = int(np.argmin(gap))
        begin, end = lengths[max(0, best - 1)], lengths[min(len(lengths) - 1, best + 1)]
        finer = np.unique(np.rint(np.linspace(begin, end, _NUM_LENGTHS)))
        if len(finer) <= 3 or np.array_equal(finer, lengths):
            return lengths[:0]
        lengths = finer
    return lengths[:0]


def ends_after(logged: PrintedLrs, state: State) -> tuple[int, int] | None:
    """Return the first and the last step at which the last stage may end, if not within the log."""
    begin, end = state.knots[-2:]
    after = int(logged.steps[-1]) + 1
    if end.step < after:
        return None
    family = _FAMILIES[end.shape]
    rest = logged.part(logged.steps > begin.step)

    def explains(step: int) -> bool:
        length = np.array([step - begin.step], np.float64)
        low, high = _end_levels(family, rest, begin.step, begin.value, length)
        return bool(max(0.0, low[0]) <= high[0])

    # The steps that explain all rows are contiguous, and `end.step` is one of them.
    first = after + bisect_left(range(after, end.step), True, key=explains)
    later = range(end.step + 1, MAX_STEP + 1)
    last = end.step + bisect_left(later, True, key=lambda step: not explains(step))
    return first, last


def roundest(first: int, last: int) -> int:
    """Return the roundest step from `first` to `last`.

    >>> roundest(9_873, 10_412), roundest(9_873, 9_899)
    (10000, 9880)
    """
    for power in range(10, -1, -1):
        spacing = 10**power
        candidate = -(-first // spacing) * spacing
        if candidate <= last:
            return candidate
    return first
