"""What to write in place of arguments of a `PlateauCurve` that are taken for others; empty where unknown."""

import math
from typing import Any

import numpy as np

from plateau_jax.numerics.exact import as_written, percent_of
from plateau_jax.validation.checks import number


def for_endless_trainer(total_steps: Any) -> str:
    """Lightning's `estimated_stepping_batches` is infinite for a Trainer without an end."""
    endless = isinstance(total_steps, float | np.floating) and total_steps == math.inf
    return "give the Trainer max_steps" if endless else ""


def for_warmup_fraction(warmup_steps: Any, total_steps: int) -> str:
    """For a warmup that is written as a share of the total."""
    if not isinstance(warmup_steps, float | np.floating) or not 0 < warmup_steps < 1:
        return ""
    percentage = float(as_written(number("warmup_steps", warmup_steps)) * 100)
    steps = percent_of(total_steps, percentage)
    return f"a share of the total: {percentage:g} % of {total_steps} steps is warmup_steps={steps}"


def for_steps_as_shape(warmup_shape: Any) -> str:
    """For a number of steps that is given as the shape."""
    is_number = isinstance(warmup_shape, int | float | np.number) and not isinstance(warmup_shape, bool)
    return "steps go into warmup_steps" if is_number else ""


def for_steps_as_percent(start: float, duration: float) -> str:
    """For a plateau in steps that is given in percent."""
    if min(start, duration) < 0 or any(number != int(number) for number in (start, duration)):
        return ""
    return f"; in steps: absolute_plateaus=[({int(start)}, {int(duration)})]"


def for_end_as_length(name: str, start: float, end: float, last: float) -> str:
    """For a plateau that is written from one place to another, and not by its length."""
    if not start < end <= last:
        return ""
    length = float(as_written(end) - as_written(start))
    unit, second = (" %", "a duration") if name == "plateaus" else ("", "a number of steps")
    return f"; the second number is {second}: {start:g}–{end:g}{unit} is ({start:g}, {length:g})"
