"""`find_curve`: the shortest curve that explains the learning rates of a log."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.curves.staged_curve import Stage, StagedCurve
from plateau_jax.logged_lrs.logs import open_lrs
from plateau_jax.logged_lrs.printed import Floats, PrintedLrs, Steps, simplest_between
from plateau_jax.logged_lrs.search import State, ends_after, shortest_paths
from plateau_jax.logged_lrs.step_ranges import lrs_at

_MOST_FOUND = 8
_ROUNDS = 3
_EVEN_ROWS = 40
_BENDS = 12
_PLATEAUS = 6
_ROUND_STEPS = 24
_HIGHEST = 1.02
"""A peak between two rows may be this many times the highest row; more would be a guess."""
_FEWEST_ROWS = 3
"""Two rows say nothing about the shape of the stage between them."""


class FoundCurve(NamedTuple):
    """A curve that explains a log.

    Attributes:
        curve: The curve.
        peak_value: Its peak.
        path: Its stages in the search.
    """

    curve: StagedCurve
    peak_value: float
    path: State

    def learning_rates(self, steps: Steps) -> Floats:
        return lrs_at(steps, self.curve, self.peak_value)


@dataclass(frozen=True)
class LoggedCurve:
    """The shortest curves that explain a log: see `find_curve`.

    Attributes:
        curve: A curve with the fewest stages; None if none was found.
        peak_value: Its peak, the simplest number that the digits of the log allow; None if none was
            found.
        alternatives: Pairs (curve, peak_value) of other curves with as many stages, which explain
            the log too.
        decisive_step: A step, if possible after the log, at which the learning rates of the curve
            and of the first alternative print differently; None if there is none.
        ends: If the last stage that the log shows ends after the log, the first and the last step
            at which it may end, each with a different last level; otherwise None. What follows it
            is not known.
        guessed_stages: The first and the last step of each stage, other than a plateau, with fewer
            than three logged learning rates, those at its two ends included: the log does not show
            its shape.
        num_lrs: The number of logged learning rates.
        digits: The number of significant digits that the log prints.
        last_step: The last step of the log.
    """

    curve: StagedCurve | None
    peak_value: float | None
    alternatives: tuple[tuple[StagedCurve, float], ...]
    decisive_step: int | None
    ends: tuple[int, int] | None
    guessed_stages: tuple[tuple[int, int], ...]
    num_lrs: int
    digits: int
    last_step: int

    def __str__(self) -> str:
        lrs = f"{self.num_lrs} learning rates with up to {self.digits} digits"
        if self.curve is None:
            return f"{lrs}: the search found no curve of few stages that explains them"
        lines = [f"{lrs}: the shortest curve found that explains all of them", repr(self.curve)]
        lines.append(f"with peak_value={self.peak_value!r}")
        lines.append(self.curve.describe())
        if self.ends is not None:
            first, last = self.ends
            may_end = f"may end at any step from {first} to {last}, each with a different level"
            if first == last:
                may_end = f"would end at step {last}"
            elif last == MAX_STEP:
                may_end = f"may end at any step from {first} on, each with a different level"
            stops = f"the log stops at step {self.last_step}, within its last stage"
            lines.append(f"{stops}, which {may_end}; what follows is not known")
        elif self.curve.total_steps >= self.last_step:
            lines.append(f"the log ends at step {self.last_step}: what follows is not known")
        if self.alternatives:
            decided = ""
            if self.decisive_step is not None:
                decided = f"; the learning rate at step {self.decisive_step} would tell"
            lines.append(f"as short, and possible too{decided}:")
            lines += [f"{curve!r} with peak_value={peak!r}" for curve, peak in self.alternatives]
        if self.guessed_stages:
            steps = ", ".join(f"{first} to {last}" for first, last in self.guessed_stages)
            lines.append(
                "each of these stages has fewer than three logged learning rates, so its shape is "
                f"a guess: steps {steps}"
            )
        return "\n".join(lines)


def find_curve(
    source: str | PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    step: str | None = None,
    lr: str | None = None,
) -> LoggedCurve:
    """Find the shortest curve that explains the learning rates of a log.

    A curve explains a learning rate r of the log if

        |r - lr(step)| <= u/2 + 3·2^-24·r + 4·2^-24·r_max

    with lr(step) = float32(float32(peak_value) · curve(step)), and u and r_max as in `compare_log`.
    Among the curves that explain all rows, those with the fewest stages are returned: first the one
    whose levels have the fewest digits. Provisional: a minor release may change this function.

    Stages may be plateaus, jumps, `"linear"`, `"cosine"`, `"1-sqrt"`, `"exponential"`, `"1-x^2"`,
    `"t^-0.5"`, `"t^-1"` and `"(1-x)^P"` with P = 0.5, 0.9, 1.5, 2, 2.5, 3 and 4; at most nine. They
    end at logged steps, with three exceptions: a warmup may end at the peak between two of them;
    the last stage may end anywhere; and so may a plateau, but if `"cosine"` or `"(1-x)^P"` follows,
    only at a round step. A part of a stage that begins after its start is not found. If nothing is
    found, the result says so.

    Args:
        source: The path of a log, or its rows, as in `LossRun.read`. Its steps are numbers of
            updates, counted from 0.
        step: The column of steps, as in `LossRun.read`.
        lr: The column of learning rates, as in `LossRun.read`. If a cell is a list, its first item
            is used.

    Returns:
        A `LoggedCurve` with the attributes `curve` and `peak_value` (None if nothing was found),
        `alternatives`, `decisive_step`, `ends`, `guessed_stages`, `num_lrs`, `digits` and
        `last_step`. As text it is a report, with the line of code and the segments of the curve.

    Raises:
        TypeError: `source` is neither a path nor rows.
        ValueError: The log has no learning rates, or no column or several have a usual name: the
            message says which argument to pass. A cell is not a number, or a file is damaged.
            Later rows replace half of the learning rates or more, as if the log had several runs or
            were not sorted by step.
        OSError: The file cannot be read.

    >>> from plateau_jax import StagedCurve, find_curve
    >>> curve = StagedCurve([(500, 1.0), (9500, 0.1, "cosine")])
    >>> rows = []
    >>> for update in range(0, 10_000, 100):
    ...     rows.append({"step": update, "lr": f"{curve.learning_rate(update, 3e-4):.2e}"})
    >>> found = find_curve(rows)
    >>> found.curve
    StagedCurve(stages=((500, 1.0, 'linear'), (9500, 0.1, 'cosine')), start=0.0)
    >>> found.peak_value
    0.0003
    """
    _, cells = open_lrs(source, step, lr, "find_curve")
    logged = PrintedLrs.from_cells(cells)
    found = discover(logged)
    last_step = int(logged.steps[-1])
    if not found:
        return LoggedCurve(None, None, (), None, None, (), len(logged), logged.digits, last_step)
    best, *others = found
    return LoggedCurve(
        best.curve,
        best.peak_value,
        tuple((other.curve, other.peak_value) for other in others),
        _decisive_step(logged, best, others),
        ends_after(logged, best.path),
        tuple(_guessed_stages(logged, best.curve)),
        len(logged),
        logged.digits,
        last_step,
    )


def _guessed_stages(logged: PrintedLrs, curve: StagedCurve) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of stages whose shape too few rows confirm."""
    for segment in curve.segments:
        if segment.last_step is None or segment.kind == "plateau":
            continue
        last = segment.last_step
        if curve(last + 1) == np.float32(segment.end):  # no jump
            last += 1
        on_stage = (segment.first_step <= logged.steps) & (logged.steps <= last)
        if np.count_nonzero(on_stage) < _FEWEST_ROWS:
            yield segment.first_step, segment.last_step


def _decisive_step(logged: PrintedLrs, best: FoundCurve, others: list[FoundCurve]) -> int | None:
    """Return a step at which two curves print differently: the first after the log, if any."""
    if not others:
        return None
    other = others[0]
    last = int(logged.steps[-1])
    horizon = max(2 * last, best.curve.total_steps, other.curve.total_steps) + 1
    steps = np.unique(np.linspace(0, horizon, 4 * 1024).astype(np.int64))
    values = best.learning_rates(steps)
    other_values = other.learning_rates(steps)
    last_digit = 10.0 ** (1 - logged.digits) * np.maximum(values, other_values)
    # With a fixed last decimal, small learning rates are printed with fewer digits.
    least_digit = float(np.min(logged.high - logged.low))
    differing = steps[np.abs(values - other_values) > 2 * np.maximum(last_digit, least_digit)]
    after = differing[differing > last]
    for candidates in (after, differing):
        if len(candidates):
            return int(candidates[0])
    return None


def discover(logged: PrintedLrs) -> list[FoundCurve]:
    """Return the shortest curves that explain all rows: one for each sequence of shapes.

    They are searched with few rows, then checked with all. Rows that a curve misses are added to
    the few.
    """
    rows = _telling_rows(logged)
    highest = _HIGHEST * float(logged.high.max())
    for _ in range(_ROUNDS):
        found: dict[tuple[str | None, ...], FoundCurve] = {}
        missed: set[int] = set()
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            paths = shortest_paths(logged.part(rows))
        for path in paths:
            candidate = None
            if path.shapes not in found:
                candidate = _curve_of(path)
            if candidate is None or candidate.peak_value > highest:
                continue
            worst = _missed_row(logged, candidate)
            if worst is not None:
                missed.add(worst)
            else:
                found[path.shapes] = _without_needless_stages(logged, path, candidate)
            if _MOST_FOUND in (len(found), len(missed)):
                break
        if found:
            fewest = min(len(candidate.curve.stages) for candidate in found.values())
            return [curve for curve in found.values() if len(curve.curve.stages) == fewest]
        more_rows = np.union1d(rows, sorted(missed))
        if len(more_rows) == len(rows):
            return []
        rows = more_rows
    return []


def _missed_row(logged: PrintedLrs, candidate: FoundCurve) -> int | None:
    """Return the row that a curve misses by most; None if it explains all."""
    excess = logged.excess(candidate.learning_rates(logged.steps))
    worst = int(np.argmax(excess))
    if excess[worst] > 0:
        return worst
    return None


def _without_needless_stages(logged: PrintedLrs, path: State, candidate: FoundCurve) -> FoundCurve:
    """Return the curve with fewer stages, if two of the same shape can be one."""
    for place in range(1, len(path.knots) - 1):
        if path.knots[place].shape != path.knots[place + 1].shape:
            continue
        knots = path.knots[:place] + path.knots[place + 1 :]
        joined = State(knots, path.row)
        shorter = _curve_of(joined)
        if shorter is not None and _missed_row(logged, shorter) is None:
            return _without_needless_stages(logged, joined, shorter)
    return candidate


def _telling_rows(logged: PrintedLrs) -> Steps:
    """Return rows at which stages may end, and rows in between."""
    count = len(logged)
    if count <= 2 * _EVEN_ROWS:
        return np.arange(count)
    values = logged.values
    slopes = np.diff(values) / np.diff(logged.steps)
    bends = np.abs(np.diff(slopes))
    rows = [np.linspace(0, count - 1, _EVEN_ROWS).astype(np.int64)]
    for largest in (np.argsort(-np.abs(slopes))[:_BENDS], np.argsort(-bends)[:_BENDS] + 1):
        rows += [largest, np.minimum(largest + 1, count - 1)]
    rows += _ends_of_plateaus(values)
    at_peak = np.flatnonzero(values == values.max())
    at_end = np.flatnonzero(values != values[-1])
    rows.append(at_peak[[0, -1]])
    if len(at_end):
        rows.append(at_end[-1:] + 1)
    spacing = 10 ** int(np.log10(logged.steps[-1]))
    while spacing > 1:
        round_rows = np.flatnonzero(logged.steps % spacing == 0)
        if len(round_rows) > _ROUND_STEPS:
            break
        rows.append(round_rows)
        spacing //= 10
    return np.unique(np.concatenate(rows))


def _ends_of_plateaus(values: Floats) -> list[Steps]:
    """Return the first and the last rows of the longest runs of one value."""
    borders = np.flatnonzero(np.diff(values)) + 1
    begins = np.concatenate([[0], borders])
    ends = np.concatenate([borders, [len(values)]]) - 1
    longest = np.argsort(begins - ends)[:_PLATEAUS]
    return [begins[longest], ends[longest]]


def _curve_of(path: State) -> FoundCurve | None:
    peak = max(knot.value for knot in path.knots)
    if peak <= 0:
        return None
    start = path.knots[0]
    stages: list[Stage] = []
    for before, knot in pairwise(path.knots):
        steps = knot.step - before.step
        if knot.value == before.value:
            stages.append(Stage(steps))
        else:
            stages.append(Stage(steps, _level(knot.value, peak), knot.shape or "linear"))
    try:
        with suppress_warnings():
            curve = StagedCurve(stages, start=_level(start.value, peak))
    except ValueError:  # a shape that cannot join two levels
        return None
    return FoundCurve(curve, peak, path)


def _level(value: float, peak: float) -> float:
    """Return the simplest fraction of the peak."""
    level = value / peak
    if level in (0, 1):
        return level
    return simplest_between(level * (1 - 1e-9), min(1.0, level * (1 + 1e-9)))
