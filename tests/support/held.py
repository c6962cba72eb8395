"""Clocks that may be held: small curves with flat parts, and the clocks of a run from the rules' words."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.hold_cases import rules
from support.hold_oracle import clocks

from plateau_jax import Curve, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve

CURVE = StagedCurve([(3, 1.0), (6,), (0, 0.5), (4,), (5, 0.25, "cosine"), (3,), (4, 0.0)], start=0.1)
"""Flat from steps 3, 9 and 18 on."""
PATIENT = HoldUntilFlat(3, limit=9)

_steps = st.integers(1, 5)
_levels = st.sampled_from((1.0, 0.75, 0.5, 0.3, 0.0))
_flat = st.tuples(_steps)
_stage = st.one_of(_flat, st.tuples(st.integers(0, 5), _levels))
curves: st.SearchStrategy[Curve] = st.one_of(
    st.tuples(st.lists(_stage, max_size=4), _flat, st.lists(_stage, max_size=4)).map(
        lambda parts: StagedCurve([*parts[0], parts[1], *parts[2]], start=0.25)
    ),
    st.tuples(st.integers(8, 40), st.integers(0, 5)).map(
        lambda drawn: PlateauCurve(drawn[0], warmup_steps=drawn[1], plateaus=[(20, 40), (80, 15)])
    ),
)
"""Each with a flat part."""
holds = st.one_of(rules, rules.map(lambda drawn: drawn[0]))
"""One rule, or a list."""


def clocks_of(hold: Any, curve: Curve, metrics: Iterable[Any]) -> list[int]:
    """The clock of each update, and the next one."""
    given: Sequence[Any] = [hold] if isinstance(hold, HoldUntilFlat | HoldBelow) else hold
    return clocks(given, curve.flat_starts, metrics)


def float32_rate(peak: float, curve: Curve, clock: int) -> float:
    return float(np.float32(float(np.float32(peak)) * curve(clock)))
