"""Small curves with flat parts, hold rules, and the clocks of a run by definition."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from support.clocks.hold_cases import rules
from support.clocks.hold_oracle import clocks
from support.curves.descriptions import build
from torch import Tensor, nn

from plateau_jax import Curve, DataClock, HoldBelow, HoldUntilFlat, StagedCurve

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
    rules: Any = [clock] if isinstance(clock, HoldUntilFlat | HoldBelow) else clock
    return clocks(rules, curve.flat_starts, metrics)


def told(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the batch as the loss, with a zero gradient."""
    return batch + sum(parameter.sum() for parameter in model.parameters()) * 0
