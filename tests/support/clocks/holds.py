"""The curve steps of a run with hold rules, by their simulations; rules, metrics and curves.

The simulation of each rule is in `support.clocks.rules`. It is slow, and shares no code with the
product.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.clocks.rules import VALUES, any_rule, simulation_of
from support.curves.descriptions import build
from support.curves.strategies import randoms
from torch import Tensor, nn

from plateau_jax import Curve, DataClock, HoldBelow, HoldUntilFlat, StagedCurve


def curve_steps_with_rules(
    rules: Sequence[Any], starts: Iterable[int], metrics: Iterable[Any]
) -> list[int]:
    """Return the curve step of each update, and that after the last update.

    `starts` are the first steps of the plateaus.
    """
    simulations = [simulation_of(rule, starts) for rule in rules]
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


# Rules and awkward metrics: strategies that draw them, and fixed ones.

SIZE = 48
PEAK = 0.3
STAIRS = StagedCurve([(2, 1), (3,), (2, 0.7), (1,), (0, 0.5), (2,), (4, 0.9), (3,), (5, 0)])
"""A warmup, and plateaus that begin at 2, 7, 8 and 14; one follows a jump down, another a rise."""

UNTIL = HoldUntilFlat(2, threshold=0.1, every=2, limit=9)
BELOW = HoldBelow(0.7, 6, every=3)
_VALUES_OF_WORST = (2, 1, 0.7, 0.1, 0.05, -0.5, 0.63, np.nan, np.inf, 3e38)
WORST = np.random.default_rng(7).choice(np.array(_VALUES_OF_WORST, np.float32), (6, SIZE))
"""The metrics of six runs."""

_SMALL = np.float32(1e-30)
rules = st.lists(any_rule, min_size=1, max_size=3)


def metrics(count: int) -> st.SearchStrategy[list[Any]]:
    """Draw `count` float32; many are equal, at a rule's threshold or next to it, or not finite."""

    def draw_metrics(random: Random) -> list[Any]:
        return [_draw_metric(random) for _ in range(count)]

    return randoms.map(draw_metrics)


_LARGEST = np.finfo(np.float32).max
_EXTREMES = (np.nan, np.inf, -np.inf, _LARGEST, -_LARGEST, -0.0)


def _draw_metric(random: Random) -> Any:
    case = random.randrange(16)
    value = np.float32(random.choice(VALUES))
    threshold = random.choice((1e-4, 0.1, 0.3, 1 / 3, 0.5))
    if case == 0:
        return np.float32(random.choice(_EXTREMES))
    if case < 8:
        return value
    if case < 10:
        return _draw_near(random, value * np.float32(1 - threshold))
    if case < 12:
        return _draw_near(random, value - np.float32(threshold))
    return np.float32(random.randrange(2**24) / 2**23 - 0.5)


def _draw_near(random: Random, value: Any) -> Any:
    """Draw the value or one of its neighbors, but none that XLA would flush to zero."""
    direction = np.float32(random.choice((-1, 0, 1)))
    near = np.nextafter(value, value + direction)
    if 0 < abs(near) < _SMALL:
        return np.copysign(_SMALL, near)
    return near


# Small curves with plateaus, hold rules, and the curve steps of a run by definition.

THREE_PLATEAUS = StagedCurve(
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


def _from_the_first_plateau_on(curve: Curve) -> Curve:
    """Return the curve from inside its first plateau on, or from its last step."""
    return curve.part(min(curve.flat_starts[0] + 1, curve.total_steps - 1))


def _has_a_plateau(curve: Curve) -> bool:
    return len(curve.flat_starts) > 0


def _with_plateaus(total_steps: int, warmup_steps: int) -> Curve:
    lengths = {"total_steps": total_steps, "warmup_steps": warmup_steps}
    return build({"kind": "plateau", **lengths, "plateaus": [(20, 40), (80, 15)]})


_staged_curves = st.builds(_staged, _stages, _flat, _stages)
curves: st.SearchStrategy[Curve] = st.one_of(
    _staged_curves,
    _staged_curves.map(_from_the_first_plateau_on).filter(_has_a_plateau),
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


def batch_as_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the batch as the loss, with a zero gradient."""
    return batch + sum(parameter.sum() for parameter in model.parameters()) * 0
