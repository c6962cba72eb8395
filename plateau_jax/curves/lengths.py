"""Lengths written as shares of all steps: `"2%"`, and `"rest"` for what the other stages leave."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeGuard

from plateau_jax.curves import hints
from plateau_jax.validation.checks import at_least, short_repr
from plateau_jax.validation.curve_warning import warn

REST = "rest"

# Bounded, so that the exact number stays small.
_PERCENTAGE = re.compile(
    r"\s*([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?)\s*%\s*"
)


def is_percentage(value: Any) -> TypeGuard[str]:
    """Return True if the value was meant as a percentage."""
    return isinstance(value, str) and "%" in value


def percentage_in_steps(label: str, written: str, total_steps: int) -> int:
    """Return the percentage of the total, rounded down; warn if nothing is left of it.

    Args:
        label: The argument's name, for messages.
        written: The percentage that the user wrote, such as "2%".
        total_steps: The number of steps that are 100 %.
    """
    match = _PERCENTAGE.fullmatch(written)
    percentage = Fraction(match[1]) if match else Fraction(-1)
    if not 0 <= percentage <= 100:
        raise ValueError(
            f"{label} = {short_repr(written)} must be a percentage from 0% to 100%, as in '2.5%'"
        )
    # In rationals, as the decimal that was written: 32.3 % of 1000 is 323, but floats give 322.
    steps = total_steps * percentage // 100
    if percentage and not steps:
        warn(
            f"{label} = {short_repr(written)} of {total_steps} steps rounds down to 0 steps. Write a larger "
            "percentage, or a number of steps"
        )
    return steps


def lengths_in_steps(lengths: Mapping[str, Any], total_steps: int | None) -> list[int]:
    """Return the lengths of all stages in steps, each at least 0; they add up to the total if that is given.

    Args:
        lengths: A number of steps, a percentage or "rest" for each stage, under its name for messages.
        total_steps: The number of steps of all stages; None if the user did not give it.
    """
    steps = [_length_in_steps(label, value, total_steps) for label, value in lengths.items()]
    given = [length for length in steps if length is not None]
    if total_steps is None:
        return given
    missing = total_steps - sum(given)
    rests = [label for label, length in zip(lengths, steps, strict=True) if length is None]
    if len(rests) > 1:
        raise ValueError(f"{rests[1]} = 'rest' may be given once only")
    if rests:
        if missing < 0:
            raise ValueError(
                f"stages without the 'rest' last {sum(given)} steps, more than total_steps = {total_steps}"
            )
    elif missing:
        advice = f"{-missing} too many"
        if missing > 0:
            # Each percentage loses less than a step.
            is_rounding = missing < sum(map(is_percentage, lengths.values()))
            reason = ", as percentages are rounded down" if is_rounding else ""
            advice = f"{missing} missing{reason}. Write 'rest' for one of the lengths"
        raise ValueError(f"stages last {sum(given)} steps, not total_steps = {total_steps}: {advice}")
    return [missing if length is None else length for length in steps]


def _length_in_steps(label: str, value: Any, total_steps: int | None) -> int | None:
    """Return the length in steps; None for "rest"."""
    is_rest = isinstance(value, str) and value == REST
    if is_rest or is_percentage(value):
        if total_steps is None:
            raise ValueError(f"{label} = {short_repr(value)} is a share of all steps, and needs total_steps")
        return None if is_rest else percentage_in_steps(label, value, total_steps)
    return at_least(label, value, 0, hints.for_stage_length(value))
