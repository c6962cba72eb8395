"""Lengths as fractions of all steps: `"2%"`, and `"rest"` for what the other stages leave."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeGuard

from plateau_jax.curves import hints
from plateau_jax.validation.checks import at_least, must
from plateau_jax.validation.curve_warning import warn
from plateau_jax.validation.messages import (
    CAPITAL_WRITE,
    INTEGER,
    Message,
    Name,
    Part,
    Place,
    Subject,
    Wording,
    computed,
    shown,
)

REST = "rest"

# Bounded, so that the exact number stays small.
_PERCENTAGE = re.compile(
    r"\s*([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?)\s*%\s*"
)


def is_percentage(value: Any) -> TypeGuard[str]:
    """Return True if the value was meant as a percentage."""
    return isinstance(value, str) and "%" in value


def percentage_in_steps(place: Place | str, written: str, total_steps: int) -> int:
    """Return the percentage of the total, rounded down; warn if nothing is left of it.

    Args:
        place: The argument, for messages.
        written: The percentage that the user wrote, such as "2%".
        total_steps: The number of steps that are 100 %.
    """
    match = _PERCENTAGE.fullmatch(written)
    percentage = Fraction(match[1]) if match else Fraction(-1)
    if not 0 <= percentage <= 100:
        raise ValueError(must(place, written, "be a percentage from 0% to 100%, as in ", shown("2.5%")))
    # In rationals, as the decimal that was written: 32.3 % of 1000 is 323, but floats give 322.
    steps = total_steps * percentage // 100
    if percentage and not steps:
        reason = f" of {total_steps} steps rounds down to 0 steps. "
        advice = CAPITAL_WRITE, " a larger percentage, or a number of steps"
        warn(Message(Subject(place, written), reason, *advice))
    return steps


def lengths_in_steps(lengths: Sequence[tuple[Place, Any]], total_steps: int | None) -> list[int]:
    """Return the lengths of all stages in steps, each at least 0; they add up to the total if that is given.

    Args:
        lengths: For each stage its place, for messages, and a number of steps, a percentage or "rest".
        total_steps: The number of steps of all stages; None if the user did not give it.
    """
    steps = [_length_in_steps(place, value, total_steps) for place, value in lengths]
    given = [length for length in steps if length is not None]
    if total_steps is None:
        return given
    missing = total_steps - sum(given)
    rests = [place for (place, _), length in zip(lengths, steps, strict=True) if length is None]
    if len(rests) > 1:
        raise ValueError(Message(Subject(rests[1], REST), " may be given once only"))
    total = computed(total_steps, Name("total_steps"))
    stages = Wording(Name("stages"), "the stages")
    if rests:
        if missing < 0:
            without = " without the ", shown(REST), f" last {sum(given)} steps, more than "
            raise ValueError(Message(stages, *without, total, at="stages"))
    elif missing:
        advice: list[Part] = [f"{-missing} too many"]
        if missing > 0:
            # Each percentage loses less than a step.
            is_rounding = missing < sum(is_percentage(value) for _, value in lengths)
            reason = ", as percentages are rounded down" if is_rounding else ""
            advice = [
                f"{missing} missing{reason}. ",
                CAPITAL_WRITE,
                " ",
                shown(REST),
                " for one of the lengths",
            ]
        message = Message(stages, f" last {sum(given)} steps, not ", total, ": ", *advice, at="stages")
        raise ValueError(message)
    return [missing if length is None else length for length in steps]


def _length_in_steps(place: Place, value: Any, total_steps: int | None) -> int | None:
    """Return the length in steps; None for "rest"."""
    is_rest = isinstance(value, str) and value == REST
    if is_rest or is_percentage(value):
        if total_steps is None:
            total = Name("total_steps", is_missing=True)
            needs = " is a fraction of all steps, and needs ", total
            raise ValueError(Message(Subject(place, value), Wording(needs, (" must be ", INTEGER, total))))
        return None if is_rest else percentage_in_steps(place, value, total_steps)
    return at_least(place, value, 0, hints.for_stage_length(value))
