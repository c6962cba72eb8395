"""The shapes that the page offers, each with levels for a small picture of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast, get_args

import numpy as np

from plateau_jax.curves.plateau_curve import WarmupShape
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.numerics import shapes

_STEPS = 32  # of a picture

_INITIAL_POWER = {shapes.POWER_FROM_START: "2", shapes.POWER_FROM_END: "2", shapes.INVERSE_POWER: "0.5"}
"""The initial P of each formula."""


def choices_per_field() -> dict[str, list[dict[str, Any]]]:
    """Return the shapes that each field can have, in the order of the page."""
    return {
        "warmup_shape": [_choice(name) for name in get_args(WarmupShape)],
        "decay_shape": [_choice(name) for name in (*shapes.SHAPES, *shapes.POWER_SHAPES)],
        "shape": [_choice(name) for name in (*shapes.NAMED_SHAPES, *shapes.FORMULAS)],
    }


def levels_of_shapes(arguments: Any) -> dict[str, dict[str, list[float]]]:
    """Return the levels of each shape that a curve's JSON names, by its spelling there."""
    levels: dict[str, dict[str, list[float]]] = {}
    for text in _strings(arguments):
        with suppress(ValueError):  # a kind of curve, such as "staged"
            levels[text] = _levels(
                shapes.canonical_shape("shape", text, shapes.NAMED_SHAPES, shapes.FORMULAS)
            )
    return levels


def _choice(name: str) -> dict[str, Any]:
    power = _INITIAL_POWER.get(name)
    return {"name": name, "power": power, "levels": _levels(name.replace("P", power or ""))}


@lru_cache(256)
def _levels(shape: str) -> dict[str, list[float]]:
    """Return the levels of a stage between 1 and 0, or 0.1 if the shape cannot reach 0, both ways."""
    formula = shapes.parse_formula(shape)
    reaches_zero = shape in shapes.SHAPES or (formula is not None and formula.name in shapes.POWER_SHAPES)
    low = 0.0 if reaches_zero else 0.1
    steps = np.arange(_STEPS + 1)
    stages = {
        "falling": StagedCurve([(_STEPS, low, shape)], start=1.0),
        "rising": StagedCurve([(_STEPS, 1.0, shape)], start=low),
    }
    return {
        direction: np.round(stage(steps).astype(np.float64), 4).tolist()
        for direction, stage in stages.items()
    }


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(list(cast("Mapping[str, Any]", value).values()))
    elif isinstance(value, Sequence):
        for item in cast("Sequence[Any]", value):
            yield from _strings(item)
