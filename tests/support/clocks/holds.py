"""Hold rules as documented: a simulation that keeps all metrics.

`clocks` is slow, and shares no code with the product. Below it are strategies and samples.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.curves.descriptions import build
from support.curves.strategies import words
from torch import Tensor, nn

from plateau_jax import Curve, DataClock, HoldBelow, HoldUntilFlat, StagedCurve


def clocks(rules: Sequence[Any], starts: Iterable[int], metrics: Iterable[Any]) -> list[int]:
    """Return the clock of each update, and the clock after the last update.

    `starts` are the first steps of the flat parts.
    """
    clock, history = 0, [0]
    memories = [ORACLES[type(rule)](rule, set(starts)) for rule in rules]
    for metric in metrics:
        with np.errstate(over="ignore"):
            rounded = np.float32(metric)
        holding = [memory for memory in memories if memory.holds(clock, rounded)]
        clock += not holding
        history.append(clock)
    return history


def _readings(metrics: Iterable[Any], every: int) -> list[Any]:
    finite = [metric for metric in metrics if np.isfinite(metric)]
    return [_mean(finite[first : first + every]) for first in range(0, len(finite) - every + 1, every)]


def _mean(group: Sequence[Any]) -> Any:
    total = group[0]
    with np.errstate(over="ignore"):
        for metric in group[1:]:
            total = np.float32(total + metric)
        return total if len(group) == 1 else np.float32(total * np.float32(1 / len(group)))


class _UntilFlat:
    def __init__(self, rule: HoldUntilFlat, starts: set[int]) -> None:
        self.rule, self.starts = rule, starts
        self.here: list[Any] = []
        self.clock = -1
        self.released: set[int] = set()

    def holds(self, clock: int, metric: Any) -> bool:
        if clock not in self.starts or clock in self.released:
            return False
        if clock != self.clock:
            self.clock, self.here = clock, []
        self.here.append(metric)
        if len(self.here) == self.rule.limit or self._in_a_row() == self.rule.patience:
            self.released.add(clock)
            return False
        return True

    def _in_a_row(self) -> int:
        best, without = None, 0
        for reading in _readings(self.here, self.rule.every):
            if best is None or self._improves(reading, best):
                best, without = reading, 0
            else:
                without += 1
        return without

    def _improves(self, reading: Any, best: Any) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            if self.rule.threshold_mode == "abs":
                return bool(reading < np.float32(best - np.float32(self.rule.threshold)))
            return bool(reading < np.float32(best * np.float32(1 - self.rule.threshold)))


class _Below:
    def __init__(self, rule: HoldBelow, starts: set[int]) -> None:
        self.rule = rule
        self.seen: list[Any] = []
        self.fired: set[int] = set()
        self.left = 0

    def holds(self, clock: int, metric: Any) -> bool:
        before = len(_readings(self.seen, self.rule.every))
        self.seen.append(metric)
        for reading in _readings(self.seen, self.rule.every)[before:]:
            for index, (value, steps) in enumerate(self.rule.pairs):
                if reading <= np.float32(value) and index not in self.fired:
                    self.fired.add(index)
                    self.left += steps
        if self.left == 0:
            return False
        self.left -= 1
        return True


ORACLES: dict[type, Any] = {HoldUntilFlat: _UntilFlat, HoldBelow: _Below}
"""The simulation of each rule: `holds(clock, metric)` is True if the rule holds the curve at `clock`."""


# Rules and awkward metrics: strategies that draw them, and fixed ones.

SIZE = 48
PEAK = 0.3
STAIRS = StagedCurve([(2, 1), (3,), (2, 0.7), (1,), (0, 0.5), (2,), (4, 0.9), (3,), (5, 0)])
"""A warmup, and flat parts that begin at `STARTS`; one follows a jump down, another a rise."""
STARTS = {2, 7, 8, 14}

UNTIL = HoldUntilFlat(2, threshold=0.1, every=2, limit=9)
BELOW = HoldBelow([(0.7, 3), (0.1, 6)], every=3)
WORST = np.random.default_rng(7).choice(
    np.array([2, 1, 0.7, 0.1, 0.05, -0.5, 0.63, np.nan, np.inf, 3e38], np.float32), (6, SIZE)
)
"""The metrics of six runs."""

VALUES = (2.0, 1.5, 1.0, 0.7, 0.25, 0.1, 0.0, -0.5, -2.0)
"""Decreasing values; drawn metrics equal one of them or differ from it as little as possible."""

_SMALL = np.float32(1e-30)
_thresholds = st.sampled_from((0, 1e-4, 0.1, 0.3, 1 / 3, 0.5, 1, 1e-7))
_every = st.sampled_from((1, 1, 2, 3, 5))


def _until_flat(every: int, more: int, **arguments: Any) -> HoldUntilFlat:
    return HoldUntilFlat(every=every, limit=min(every + more, 2**31 - 1), **arguments)


until_flat = st.builds(
    _until_flat,
    _every,
    st.one_of(st.integers(0, 11), st.just(2**31 - 1)),
    patience=st.integers(1, 4),
    threshold=_thresholds,
    threshold_mode=st.sampled_from(("rel", "abs")),
)
below = st.builds(
    HoldBelow,
    st.lists(st.tuples(st.sampled_from(VALUES), st.integers(1, 9)), min_size=1, max_size=4).map(
        lambda pairs: sorted(dict(pairs).items(), reverse=True)
    ),
    every=_every,
)
any_rule = st.one_of(until_flat, below)
rules = st.lists(any_rule, min_size=1, max_size=3)


def metrics(count: int) -> st.SearchStrategy[list[Any]]:
    """Draw `count` float32; many are equal, at a rule's threshold or next to it, or not finite."""
    return words(count).map(lambda drawn: [_metric(word) for word in drawn])


def _metric(word: int) -> Any:
    rest, kind = divmod(word, 16)
    value = np.float32(VALUES[rest % len(VALUES)])
    rest //= len(VALUES)
    if kind == 0:
        odd = np.nan, np.inf, -np.inf, np.finfo(np.float32).max, np.finfo(np.float32).min, -0.0
        return np.float32(odd[rest % len(odd)])
    if kind < 8:
        return value
    if kind < 12:  # a threshold away from it, or nearly so
        share = (1e-4, 0.1, 0.3, 1 / 3, 0.5)[rest % 5]
        near = value * np.float32(1 - share) if kind < 10 else value - np.float32(share)
        near = np.nextafter(near, near + np.float32((-1, 0, 1)[rest // 5 % 3]))
        # Not so small that XLA would flush it to zero.
        return near if near == 0 or abs(near) > _SMALL else np.copysign(_SMALL, near)
    return np.float32(rest % 2**24 / 2**23 - 0.5)


# Small curves with flat parts, hold rules, and the clocks of a run by definition.

CURVE = StagedCurve([(3, 1.0), (6,), (0, 0.5), (4,), (5, 0.25, "cosine"), (3,), (4, 0.0)], start=0.1)
"""Flat from steps 3, 9 and 18 on."""
PATIENT = HoldUntilFlat(3, limit=9)

_steps = st.integers(1, 5)
_levels = st.sampled_from((1.0, 0.75, 0.5, 0.3, 0.0))
_flat = st.tuples(_steps)
_stage = st.one_of(_flat, st.tuples(st.integers(0, 5), _levels))
_staged = st.tuples(st.lists(_stage, max_size=4), _flat, st.lists(_stage, max_size=4)).map(
    lambda stages: StagedCurve([*stages[0], stages[1], *stages[2]], start=0.25)
)
curves: st.SearchStrategy[Curve] = st.one_of(
    _staged,
    # A part that begins inside a flat part, or at one of a single step at the end.
    _staged.map(lambda curve: curve.part(min(curve.flat_starts[0] + 1, curve.total_steps - 1))).filter(
        lambda curve: curve.flat_starts
    ),
    st.tuples(st.integers(8, 40), st.integers(0, 5)).map(
        lambda drawn: build(
            {"total_steps": drawn[0], "warmup_steps": drawn[1], "plateaus": [(20, 40), (80, 15)]}
        )
    ),
)
"""Each has a flat part."""
holds = st.one_of(rules, rules.map(lambda drawn: drawn[0]))
"""One rule, or a list."""


def curve_steps_of(clock: Any, curve: Curve, counts: Sequence[int], metrics: Iterable[Any]) -> list[int]:
    """Return the step of the curve of each update and the one after the last."""
    unit = clock.unit if isinstance(clock, DataClock) else curve.unit
    if unit is not None:
        return [consumed // unit for consumed in accumulate(counts, initial=0)]
    if clock is None:
        return list(range(len(counts) + 1))
    rules: Any = [clock] if type(clock) in ORACLES else clock
    return clocks(rules, curve.flat_starts, metrics)


def told(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the batch as the loss, with a zero gradient."""
    return batch + sum(parameter.sum() for parameter in model.parameters()) * 0
