"""Curves of each kind and with each shape, whose learning rates are recorded."""

import hashlib
from typing import Any

import numpy as np
from support.numerics.shapes import SAMPLES

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve

PEAK = 3e-4

_DECAYING = PlateauCurve(1_000, warmup_steps=50, plateaus=[(20, 30), (70, 10)], min_lr_ratio=0.1)
_CONSTANT = StagedCurve([(50, 1.0), (950,)])
_TWO_PHASES = StagedCurve([(40, 1.0), (300,), (60, 0.2, "1-sqrt"), (100,)])
_BATCHES = BatchPlan([(0, 8), (3_200, 16), (6_400, 32)])
_BATCHES_THAT_SHRINK = BatchPlan([(0, 16), (4_800, 48), (9_600, 32)])
_COSINE = PlateauCurve(1_000, warmup_steps=100)
_LONGER = PlateauCurve(1_900, warmup_steps=100)


def _stage(shape: str) -> StagedCurve:
    """Return a curve that falls and rises along this shape."""
    return StagedCurve([(30, 1.0), (170, 0.05, shape), (100, 0.6, shape)], start=0.25)


CURVES: dict[str, Curve] = {
    # A warmup and a decay.
    "plateau": _DECAYING,
    "plateau_without_warmup": PlateauCurve(300),
    "plateau_one_step": PlateauCurve(1),
    "plateau_at_the_peak": PlateauCurve(700, warmup_steps="2%", plateaus=[(0, 70)]),
    "plateau_in_steps": PlateauCurve(600, warmup_steps=7, absolute_plateaus=[(100, 50), (400, 33)]),
    "plateau_in_steps_and_percent": PlateauCurve(
        600, plateaus=[(50, 10)], absolute_plateaus=[(50, 99)]
    ),
    "plateau_fractional_percent": PlateauCurve(1_000, plateaus=[(32.3, 12.7)], min_lr_ratio=1 / 3),
    "plateau_cosine_warmup": PlateauCurve(
        400, warmup_steps=90, warmup_shape="cosine", init_lr_ratio=0.1
    ),
    "plateau_linear_warmup_ahead": PlateauCurve(400, warmup_steps=89, init_lr_ratio=1 / 90),
    "plateau_linear": PlateauCurve(500, warmup_steps=20, plateaus=[(10, 20)], decay_shape="linear"),
    "plateau_root": PlateauCurve(500, warmup_steps=20, plateaus=[(10, 20)], decay_shape="1-sqrt"),
    "plateau_power_from_start": PlateauCurve(
        500, warmup_steps=20, plateaus=[(10, 20)], decay_shape="1-x^3"
    ),
    "plateau_power_from_end": PlateauCurve(
        500, warmup_steps=20, decay_shape="(1-x)^0.9", min_lr_ratio=0.01
    ),
    # Stages.
    **{f"staged {shape}": _stage(shape) for shape in SAMPLES},
    "staged_inverse_square_root": StagedCurve([(100, 1.0), (900, 0.1**0.5, "t^-0.5")]),
    "staged_jumps": StagedCurve([(50,), (0, 0.5), (50,), (0, 0.9), (50, 0.0)], start=1.0),
    "staged_in_percent": StagedCurve([("3.7%", 1.0), ("rest",), ("20%", 0.0)], total_steps=777),
    "wsd": StagedCurve.wsd(900, warmup_steps=30, decay_steps="20%", decay_shape="(1-x)^1.5"),
    "through": StagedCurve.through([(0, 0.0), (10, 1.0), (200, 0.7), (200, 0.35), (400, 1e-3)]),
    # Derived curves.
    "cooldown": _CONSTANT.cooldown(700, 200),
    "cooldown_linear": _CONSTANT.cooldown(700, 200, to=0.1, shape="linear"),
    "cooldown_cosine": _DECAYING.cooldown(333, 100, to=0.01, shape="cosine"),
    "cooldown_exponential": _DECAYING.cooldown(333, 100, to=0.01, shape="exponential"),
    "cooldown_power_from_start": _CONSTANT.cooldown(20, 300, shape="1-x^0.4"),
    "cooldown_power_from_end": _CONSTANT.cooldown(1_500, 300, shape="(1-x)^3"),
    "cooldown_inverse_power": _CONSTANT.cooldown(700, 200, to=0.02, shape="t^-1"),
    "then": _TWO_PHASES.then(PlateauCurve(250, warmup_steps=10)),
    "then_scaled": _TWO_PHASES.then(_TWO_PHASES, scale=0.7).then(_TWO_PHASES, scale=0.49),
    "part": _DECAYING.part(120, 480),
    "part_from_the_beginning": _DECAYING.part(stop=333),
    "part_of_stages": _TWO_PHASES.part(20, 380),
    "stretched": _COSINE.part(0, 600).then(_LONGER.part(1_100)),
    "scaled": _BATCHES.scale(PlateauCurve(1_000, warmup_steps=100), 8, reference=32),
    "scaled_linearly": _BATCHES.scale(_CONSTANT, 16, reference=32, exponent=1),
    "scaled_up_and_down": _BATCHES_THAT_SHRINK.scale(_COSINE, 16, reference=48),
    "nested": _BATCHES.scale(_DECAYING.part(10, 900), 8, reference=64, exponent=0.8)
    .cooldown(600, 150, to=0.05)
    .then(_CONSTANT.part(0, 90).then(_TWO_PHASES), scale=0.3),
}


def describe_learning_rates(curve: Curve) -> dict[str, Any]:
    """Return what is recorded of a curve's learning rates, with floats as hexadecimal numbers."""
    steps = range(curve.total_steps + 1)
    lrs = np.asarray(curve.learning_rate(steps, PEAK), "<f4")
    return {
        "total_steps": curve.total_steps,
        "first": float(lrs[0]).hex(),
        "last": float(lrs[-1]).hex(),
        "sha256": hashlib.sha256(lrs.tobytes()).hexdigest(),
    }
