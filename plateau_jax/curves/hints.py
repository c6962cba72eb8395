"""Hints for commonly confused arguments of curves; "" if none applies."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from plateau_jax.numerics.exact import as_written, percent_of
from plateau_jax.validation.checks import number
from plateau_jax.validation.messages import (
    WRITE,
    LearningRate,
    Message,
    Name,
    Part,
    Setting,
    Stages,
    Subject,
    Wording,
    code,
    plain,
    shown,
)

_A_PERCENTAGE = Message(
    *("for a fraction of ", Wording(Name("total_steps"), "all steps"), " ", WRITE),
    *(" a percentage, as in ", shown("2%")),
)


def for_endless_trainer(total_steps: Any) -> Part:
    """Return the hint for infinite total steps, which Lightning estimates for a Trainer without an end."""
    is_infinite = isinstance(total_steps, float | np.floating) and total_steps == math.inf
    return code("give the Trainer max_steps") if is_infinite else ""


def for_warmup_fraction(warmup_steps: Any, total_steps: int) -> Part:
    """Return the hint for a warmup given as a fraction of the total steps, or as a string without %."""
    if isinstance(warmup_steps, str):
        return _A_PERCENTAGE
    if not isinstance(warmup_steps, float | np.floating) or not 0 < warmup_steps < 1:
        return ""
    percentage = float(as_written(number("warmup_steps", warmup_steps)) * 100)
    steps = percent_of(total_steps, percentage)
    return Message(
        code("a fraction of the total: "),
        f"{plain(percentage)} % of {total_steps} steps is ",
        Setting("warmup_steps", steps),
        code(", or ", Setting("warmup_steps", f"{plain(percentage)}%")),
    )


def for_lr_as_ratio(name: str, ratio: float, least: float = 1e-4) -> str:
    """Return the warning about a ratio in (0, `least`), which looks like a learning rate; "" otherwise.

    Recipes end at 0.1, 0.01 or 0.001 of the peak, or at 0.
    """
    # A quotient such as 1e-6 / 0.01 is meant as 1e-4, but rounds to a little less.
    if not 0 < ratio < least or math.isclose(ratio, least):
        return ""
    which = "a final" if name == "min_lr_ratio" else "an initial"
    return Message(
        Subject(name, ratio),
        " looks like a learning rate, but is a fraction of the peak. ",
        f"For {which} learning rate of {ratio!r} ",
        WRITE,
        " ",
        LearningRate(ratio, name),
    )


def for_initial_lr_as_ratio(ratio: float, warmup_steps: int) -> str:
    """Return the same for the start of a warmup.

    A warmup of (step + 1)/W starts at 1/W, which is below 1e-4 if it is long. Without a warmup the ratio has
    no effect.
    """
    least = min(1e-4, 1 / (warmup_steps + 1))
    return for_lr_as_ratio("init_lr_ratio", ratio, least) if warmup_steps else ""


def for_steps_as_shape(warmup_shape: Any) -> str:
    """Return the hint for a number of warmup steps given as the shape."""
    is_number = isinstance(warmup_shape, int | float | np.number) and not isinstance(warmup_shape, bool)
    return Message("steps go into ", Name("warmup_steps")) if is_number else ""


def for_shape_of_stage(decay_shape: Any) -> str:
    """Return the hint for a shape that only a stage can have."""
    is_formula = isinstance(decay_shape, str) and decay_shape.startswith("t^-")
    if not is_formula and decay_shape != "exponential":
        return ""
    stages = (100, 1.0), (900, 0.01, str(decay_shape))
    return Message("a stage can have it", code(": ", Stages(stages)))


def for_no_decay(after_warmup: int, warmup_steps: int) -> str:
    """Return the hint for plateaus that leave no step to decay."""
    stages = (
        Stages(((warmup_steps, 1.0), (after_warmup,))) if warmup_steps else Stages(((after_warmup,),), 1.0)
    )
    return Message("; for a learning rate that never decays ", Wording(("write ", stages), "add stages"))


def for_steps_after_level(stage: Sequence[Any]) -> str:
    """Return the hint for a stage that is given as (level, steps)."""
    level, steps, *shape = *stage, None
    is_level = isinstance(level, int | float | np.number) and 0 <= level <= 1
    is_length = isinstance(steps, int | np.integer) and steps > 1
    if isinstance(steps, str):
        is_length = steps == "rest" or steps.endswith("%")
    if not (is_level and is_length and all(isinstance(item, str) for item in shape[:-1])):
        return ""
    stage = cast("tuple[Any, ...]", (steps, level, *shape[:-1]))
    return Message("the steps come first: ", Stages((stage,), is_curve=False))


def for_stage_length(steps: Any) -> Part:
    """Return the hint for a stage's steps given as a fraction, or as any other string than a percentage."""
    if isinstance(steps, str):
        return code(_A_PERCENTAGE, "; for what the other stages leave, 'rest'")
    if not isinstance(steps, float | np.floating) or not 0 < steps < 1:
        return ""
    percentage = float(as_written(number("steps", steps)) * 100)
    return code(f"for a fraction of all steps write '{plain(percentage)}%', and total_steps=…")


def for_steps_as_percent(start: float, duration: float) -> str:
    """Return the hint for a plateau in steps given as percentages."""
    if any(number != int(number) or not 0 <= number < 2**31 for number in (start, duration)):
        return ""
    return Message("; in steps: ", Setting("absolute_plateaus", pairs=((int(start), int(duration)),)))


def for_end_as_length(argument: str, start: float, end: float, last: float) -> str:
    """Return the hint for a plateau given as (start, end) instead of (start, length)."""
    if not start < end <= last:
        return ""
    start, end, length = map(plain, (start, end, float(as_written(end) - as_written(start))))
    unit, second = ("", "number of steps")
    if argument == "plateaus":
        unit, second = " %", "duration"
    meant = f": {start}–{end}{unit} is ", Setting(argument, pairs=((start, length),))
    return Message("; the second number is a ", Wording(second, "length"), *meant)
