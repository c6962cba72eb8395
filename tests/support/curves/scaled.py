"""Curves that a batch plan has scaled: their exact values, curves derived from one, and rejected units."""

from collections.abc import Iterator
from typing import Any

from support.curves.descriptions import build
from support.numerics.oracle import Description, Oracle, as_written, mp

from plateau_jax import BatchPlan, Curve, PlateauCurve

_DESCRIPTION: Description = {"total_steps": 300, "warmup_steps": 30, "min_lr_ratio": 0.1}
PLAN = BatchPlan([(0, 24), (160, 14), (800, 50), (1600, 100), (2480, 70)])
"""The batch grows and shrinks, also past the end of the curve: after 50 updates it has consumed 2646."""


def scaled(exponent: float = 0.5) -> Curve:
    """Return a curve of 300 steps of 8 samples that follows `PLAN`."""
    return PLAN.scale(build(_DESCRIPTION), 8, reference=100, exponent=exponent)


def exact_levels(exponent: float = 0.5) -> Iterator[tuple[int, Any]]:
    """Yield, for each of 50 updates, what was consumed before it, and the exact level of `scaled`."""
    oracle = Oracle(_DESCRIPTION)
    for update in range(50):
        consumed = PLAN.consumed(update)
        # The level past the end is scaled for the last batch.
        batch = PLAN(consumed) if consumed < 2400 else 70
        yield consumed, oracle(consumed // 8) * mp.power(mp.mpf(batch) / 100, as_written(exponent))


OF_UNIT_8 = [
    scaled(),
    scaled().cooldown(50, 20),
    scaled().part(10, 60),
    scaled().then(PlateauCurve(30)),
    PlateauCurve(30).then(scaled()),
    BatchPlan([(0, 1)]).scale(scaled(), 8, reference=1),
]
WRONG_UNITS = [None, 1, 16]
