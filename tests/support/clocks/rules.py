"""The hold rules: a simulation of each, strategies that draw them, and samples.

A simulation shares no code with the product: it keeps all metrics, and computes their means again
after each update. Every update of the run calls its method `holds` once, with the step of the curve
and the metric in float32; it returns True if the rule holds the curve at this step afterwards.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from plateau_jax import HoldBelow, HoldUntilFlat

VALUES = (2.0, 1.5, 1.0, 0.7, 0.25, 0.1, 0.0, -0.5, -2.0)
"""Decreasing values; drawn metrics equal one of them or differ from it as little as possible."""

_every = st.sampled_from((1, 1, 2, 3, 5))


def _readings(metrics: Iterable[Any], every: int) -> list[Any]:
    """Return the mean of each `every` finite metrics."""
    finite = [metric for metric in metrics if np.isfinite(metric)]
    ends = range(every, len(finite) + 1, every)
    return [_mean(finite[end - every : end]) for end in ends]


def _mean(group: Sequence[Any]) -> Any:
    if len(group) == 1:
        return group[0]
    with np.errstate(over="ignore"):
        total = group[0]
        for metric in group[1:]:
            total = np.float32(total + metric)
        return np.float32(total * np.float32(1 / len(group)))


# HoldUntilFlat.


class UntilFlat:
    """At the start of a plateau: holds until `patience` readings in a row are no better."""

    def __init__(self, rule: HoldUntilFlat, starts: Iterable[int]) -> None:
        self.rule = rule
        self.starts = set(starts)
        self.curve_step = -1
        self.metrics: list[Any] = []
        """The metrics of the updates at this curve_step."""
        self.released: set[int] = set()

    def holds(self, curve_step: int, metric: Any) -> bool:
        if curve_step not in self.starts or curve_step in self.released:
            return False
        if curve_step != self.curve_step:
            self.curve_step = curve_step
            self.metrics = []
        self.metrics.append(metric)
        is_flat = self.readings_without_improvement() == self.rule.patience
        if is_flat or len(self.metrics) == self.rule.limit:
            self.released.add(curve_step)
            return False
        return True

    def readings_without_improvement(self) -> int:
        best = None
        count = 0
        for reading in _readings(self.metrics, self.rule.every):
            if best is None or self.improves(reading, best):
                best = reading
                count = 0
            else:
                count += 1
        return count

    def improves(self, reading: Any, best: Any) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            if self.rule.threshold_mode == "abs":
                bound = np.float32(best - np.float32(self.rule.threshold))
            else:
                bound = np.float32(best * np.float32(1 - self.rule.threshold))
            return bool(reading < bound)


def _until_flat(every: int, more: int, **arguments: Any) -> HoldUntilFlat:
    limit = min(every + more, 2**31 - 1)
    return HoldUntilFlat(every=every, limit=limit, **arguments)


_until_flat_rules = st.builds(
    _until_flat,
    _every,
    st.one_of(st.integers(0, 11), st.just(2**31 - 1)),
    patience=st.integers(1, 4),
    threshold=st.sampled_from((0, 1e-4, 0.1, 0.3, 1 / 3, 0.5, 1, 1e-7)),
    threshold_mode=st.sampled_from(("rel", "abs")),
)


# HoldBelow.


class Below:
    """Holds for `steps` updates from the first reading of at most the value on."""

    def __init__(self, rule: HoldBelow) -> None:
        self.rule = rule
        self.metrics: list[Any] = []
        self.is_reached = False
        self.steps_left = rule.steps

    def holds(self, curve_step: int, metric: Any) -> bool:
        self.metrics.append(metric)
        value = np.float32(self.rule.value)
        if any(reading <= value for reading in _readings(self.metrics, self.rule.every)):
            self.is_reached = True
        if not self.is_reached or self.steps_left == 0:
            return False
        self.steps_left -= 1
        return True


_below_rules = st.builds(HoldBelow, st.sampled_from(VALUES), st.integers(1, 9), every=_every)


# Both.


def simulation_of(rule: Any, starts: Iterable[int]) -> UntilFlat | Below:
    """Return the simulation of a rule in a new run; `starts` are the first steps of plateaus."""
    if isinstance(rule, HoldUntilFlat):
        return UntilFlat(rule, starts)
    return Below(rule)


any_rule = st.one_of(_until_flat_rules, _below_rules)

# Together they take every branch of `_update` and every form of an argument. Some metrics between
# 0.2 and 0.4 make them hold, and others do not.
UNTIL_FLAT_SAMPLES = (
    HoldUntilFlat(2, threshold=0.1, every=3, limit=12),
    HoldUntilFlat(2, threshold=0.1, limit=9),
    HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", every=3, limit=12),
    HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", limit=9),
)
BELOW_SAMPLES = (HoldBelow(0.3, 4, every=3), HoldBelow(0.3, 4))
SAMPLES = (*UNTIL_FLAT_SAMPLES, *BELOW_SAMPLES)
ONE_OF_EACH = (UNTIL_FLAT_SAMPLES[0], BELOW_SAMPLES[0])
