"""The shapes that the page offers, each with levels for a small picture of it."""

from typing import Any, get_args

import numpy as np

from plateau_jax.curves.plateau_curve import WarmupShape
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.shapes.known_shapes import INTERPOLATED, SHAPES

_STEPS = 32  # of a picture

_INITIAL_POWER = {"1-x^P": "2", "(1-x)^P": "2", "t^-P": "0.5"}
"""The initial P of each formula."""


def choices_per_field() -> dict[str, list[dict[str, Any]]]:
    """Return the shapes that each field can have, in the order of the page."""
    return {
        "warmup_shape": [_choice(name) for name in get_args(WarmupShape)],
        "decay_shape": [_choice(name) for name in INTERPOLATED],
        "shape": [_choice(name) for name in SHAPES],
    }


def _choice(name: str) -> dict[str, Any]:
    """Return a shape with the initial P of a formula, and the levels of a stage that falls or rises."""
    power = _INITIAL_POWER.get(name)
    shape = name.replace("P", power or "")
    low = 0.0 if name in INTERPOLATED else 0.1  # the others cannot reach 0
    falling = StagedCurve([(_STEPS, low, shape)], start=1.0)
    rising = StagedCurve([(_STEPS, 1.0, shape)], start=low)
    levels = {
        direction: np.round(stage(np.arange(_STEPS + 1)).astype(np.float64), 4).tolist()
        for direction, stage in (("falling", falling), ("rising", rising))
    }
    return {"name": name, "power": power, "levels": levels}
