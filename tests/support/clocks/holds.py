"""Hold rules as documented: a simulation that keeps all metrics.

`curve_steps_with_rules` is slow, and shares no code with the product. Below it are strategies and
samples.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.curves.descriptions import build
from support.curves.strategies import Words, words
from torch import Tensor, nn

from plateau_jax import Curve, DataClock, HoldBelow, HoldUntilFlat, StagedCurve


def curve_steps_with_rules(
    rules: Sequence[Any], starts: Iterable[int], metrics: Iterable[Any]
) -> list[int]:
    """Return the curve step of each update, and that after the last update.

    `starts` are the first steps of the plateaus.
    """
    simulations = [ORACLES[type(rule)](rule, set(starts)) for rule in rules]
    curve_step = 0
    history = [curve_step]
    for metric in metrics:
        with np.errstate(over="ignore"):
            rounded = np.float32(metric)
        # Each is asked, since each must see the metric.
        holding = [simulation.holds(curve_step, rounded) for simulation in simulations]
        if not any(holding):
            curve_step += 1
        history.append(curve_step)
    return history


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


class _UntilFlat:
    """At the start of a plateau: holds until `patience` readings in a row are no better."""

    def __init__(self, rule: HoldUntilFlat, starts: set[int]) -> None:
        self.rule = rule
        self.starts = starts
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


class _Below:
    """Each pair (value, steps) adds its steps at the first reading of at most its value."""

    def __init__(self, rule: HoldBelow, starts: set[int]) -> None:
        self.rule = rule
        self.metrics: list[Any] = []
        self.reached: set[tuple[float, int]] = set()
        self.steps_left = 0

    def holds(self, curve_step: int, metric: Any) -> bool:
        readings_before = _readings(self.metrics, self.rule.every)
        self.metrics.append(metric)
        readings = _readings(self.metrics, self.rule.every)
        for reading in readings[len(readings_before) :]:
            self.add_steps(reading)
        if self.steps_left == 0:
            return False
        self.steps_left -= 1
        return True

    def add_steps(self, reading: Any) -> None:
        for pair in self.rule.pairs:
            value, steps = pair
            if reading <= np.float32(value) and pair not in self.reached:
                self.reached.add(pair)
                self.steps_left += steps


ORACLES: dict[type, Any] = {HoldUntilFlat: _UntilFlat, HoldBelow: _Below}
"""The simulation of each rule: `holds(curve_step, metric)` is True if it holds the curve there."""


# Rules and awkward metrics: strategies that draw them, and fixed ones.

SIZE = 48
PEAK = 0.3
STAIRS = StagedCurve([(2, 1), (3,), (2, 0.7), (1,), (0, 0.5), (2,), (4, 0.9), (3,), (5, 0)])
"""A warmup, and plateaus that begin at 2, 7, 8 and 14; one follows a jump down, another a rise."""

UNTIL = HoldUntilFlat(2, threshold=0.1, every=2, limit=9)
BELOW = HoldBelow([(0.7, 3), (0.1, 6)], every=3)
_VALUES_OF_WORST = (2, 1, 0.7, 0.1, 0.05, -0.5, 0.63, np.nan, np.inf, 3e38)
WORST = np.random.default_rng(7).choice(np.array(_VALUES_OF_WORST, np.float32), (6, SIZE))
"""The metrics of six runs."""

VALUES = (2.0, 1.5, 1.0, 0.7, 0.25, 0.1, 0.0, -0.5, -2.0)
"""Decreasing values; drawn metrics equal one of them or differ from it as little as possible."""

_SMALL = np.float32(1e-30)
_thresholds = st.sampled_from((0, 1e-4, 0.1, 0.3, 1 / 3, 0.5, 1, 1e-7))
_every = st.sampled_from((1, 1, 2, 3, 5))


def _until_flat(every: int, more: int, **arguments: Any) -> HoldUntilFlat:
    limit = min(every + more, 2**31 - 1)
    return HoldUntilFlat(every=every, limit=limit, **arguments)


until_flat = st.builds(
    _until_flat,
    _every,
    st.one_of(st.integers(0, 11), st.just(2**31 - 1)),
    patience=st.integers(1, 4),
    threshold=_thresholds,
    threshold_mode=st.sampled_from(("rel", "abs")),
)


def _in_falling_order(pairs: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return one pair for each value."""
    return sorted(dict(pairs).items(), reverse=True)


_pairs = st.lists(st.tuples(st.sampled_from(VALUES), st.integers(1, 9)), min_size=1, max_size=4)
below = st.builds(HoldBelow, _pairs.map(_in_falling_order), every=_every)
any_rule = st.one_of(until_flat, below)
rules = st.lists(any_rule, min_size=1, max_size=3)


def metrics(count: int) -> st.SearchStrategy[list[Any]]:
    """Draw `count` float32; many are equal, at a rule's threshold or next to it, or not finite."""
    return words(count).map(_metrics)


def _metrics(read: Words) -> list[Any]:
    return [_metric(bits) for bits in read.words]


def _metric(bits: int) -> Any:
    rest, kind = divmod(bits, 16)
    index = rest % len(VALUES)
    value = np.float32(VALUES[index])
    rest //= len(VALUES)
    if kind == 0:
        return _extreme_metric(rest)
    if kind < 8:
        return value
    if kind < 10:
        return _near(value * np.float32(1 - _threshold(rest)), rest)
    if kind < 12:
        return _near(value - np.float32(_threshold(rest)), rest)
    return np.float32(rest % 2**24 / 2**23 - 0.5)


def _extreme_metric(bits: int) -> Any:
    largest = np.finfo(np.float32).max
    extremes = (np.nan, np.inf, -np.inf, largest, -largest, -0.0)
    return np.float32(extremes[bits % len(extremes)])


def _threshold(bits: int) -> float:
    return (1e-4, 0.1, 0.3, 1 / 3, 0.5)[bits % 5]


def _near(value: Any, bits: int) -> Any:
    """Return the value or one of its neighbors, but none that XLA would flush to zero."""
    direction = np.float32((-1, 0, 1)[bits // 5 % 3])
    near = np.nextafter(value, value + direction)
    if 0 < abs(near) < _SMALL:
        return np.copysign(_SMALL, near)
    return near


# Small curves with plateaus, hold rules, and the curve steps of a run by definition.

CURVE = StagedCurve(
    [(3, 1.0), (6,), (0, 0.5), (4,), (5, 0.25, "cosine"), (3,), (4, 0.0)],
    start=0.1,
)
"""Flat from steps 3, 9 and 18 on."""
PATIENT = HoldUntilFlat(3, limit=9)

_steps = st.integers(1, 5)
_levels = st.sampled_from((1.0, 0.75, 0.5, 0.3, 0.0))
_flat = st.tuples(_steps)
_stage = st.one_of(_flat, st.tuples(st.integers(0, 5), _levels))
_stages = st.lists(_stage, max_size=4)


def _staged(before: list[Any], flat: Any, after: list[Any]) -> StagedCurve:
    return StagedCurve([*before, flat, *after], start=0.25)


def _from_the_first_flat_part_on(curve: Curve) -> Curve:
    """Return the curve from inside its first plateau on, or from its last step."""
    return curve.part(min(curve.flat_starts[0] + 1, curve.total_steps - 1))


def _is_partly_flat(curve: Curve) -> bool:
    return len(curve.flat_starts) > 0


def _with_plateaus(total_steps: int, warmup_steps: int) -> Curve:
    arguments = {"total_steps": total_steps, "warmup_steps": warmup_steps}
    return build({**arguments, "plateaus": [(20, 40), (80, 15)]})


_staged_curves = st.builds(_staged, _stages, _flat, _stages)
curves: st.SearchStrategy[Curve] = st.one_of(
    _staged_curves,
    _staged_curves.map(_from_the_first_flat_part_on).filter(_is_partly_flat),
    st.builds(_with_plateaus, st.integers(8, 40), st.integers(0, 5)),
)
"""Each has a plateau."""
holds = st.one_of(rules, any_rule)
"""One rule, or a list."""


def curve_steps_of(
    clock: Any, curve: Curve, counts: Sequence[int], metrics: Iterable[Any]
) -> list[int]:
    """Return the step of the curve of each update and the one after the last."""
    if isinstance(clock, DataClock):
        unit = clock.unit
    else:
        unit = curve.unit
    if unit is not None:
        return [consumed // unit for consumed in accumulate(counts, initial=0)]
    if clock is None:
        return list(range(len(counts) + 1))
    all_rules: Any = clock
    if not isinstance(clock, list | tuple):
        all_rules = [clock]
    return curve_steps_with_rules(all_rules, curve.flat_starts, metrics)


def told(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the batch as the loss, with a zero gradient."""
    return batch + sum(parameter.sum() for parameter in model.parameters()) * 0
