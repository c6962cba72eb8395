"""Hold rules as documented: a simulation that keeps all metrics.

Slow, and shares no code with the product.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from plateau_jax import HoldUntilFlat


def clocks(rules: Sequence[Any], starts: Iterable[int], metrics: Iterable[Any]) -> list[int]:
    """Return the clock of each update, and the clock after the last update.

    `starts` are the first steps of the flat parts.
    """
    clock, history = 0, [0]
    memories = [
        _UntilFlat(rule, set(starts)) if isinstance(rule, HoldUntilFlat) else _Below(rule) for rule in rules
    ]
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
    def __init__(self, rule: Any) -> None:
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
