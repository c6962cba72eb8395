"""Lengths in steps: a number, "2%" of all, or "rest", the steps that the other stages leave."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeGuard

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import A_COUNT, MAX_STEP, Message, Path
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.numerics import percent_of

_REST = "rest"


def _is_percentage(value: Any) -> TypeGuard[str]:
    """Return True if the value is meant as a percentage."""
    return isinstance(value, str) and "%" in value


def _percentage_in_steps(path: Path | str, written: str, total_steps: int) -> int:
    """Return a percentage of the total such as "2%", rounded down; warn if that leaves no step."""
    percentage = _parse_percentage(path, written)
    steps = percent_of(total_steps, percentage)
    if percentage and not steps:
        text = f" = {written!r} of {checks.plural(total_steps, 'step')} rounds down to 0"
        warn(Message(path, f"{text}. Write a larger percentage, or a number of steps"))
    return steps


def _parse_percentage(path: Path | str, written: str) -> Decimal:
    try:
        percentage = Decimal(written.strip().removesuffix("%"))
        if 0 <= percentage <= 100:
            return percentage
    except ArithmeticError:  # not a number
        pass
    raise ValueError(checks.must(path, written, "be a percentage from 0% to 100%, such as '2.5%'"))


def length_in_steps(path: Path | str, length: Any, total_steps: int) -> int:
    """Return a length in steps, at least 0: a number of steps, or a percentage of the total."""
    if _is_percentage(length):
        return _percentage_in_steps(path, length, total_steps)
    allowed = f"{A_COUNT}, or a percentage of total_steps such as '2%'"
    return checks.count(path, length, 0, MAX_STEP, allowed)


def lengths_in_steps(lengths: Sequence[Any], total_steps: int | None) -> list[int]:
    """Return the lengths of all stages in steps, at least 0.

    With a total, a length may be a percentage of it, one may be "rest", and they add up to it.
    """
    steps: list[int] = []
    rests: list[int] = []
    fractions = "or with total_steps a percentage such as '2%' or the word 'rest'"
    requirement = f"{A_COUNT}, {fractions}; a stage is (steps, to, shape)"
    for index, length in enumerate(lengths):
        path = "stages", index, "steps"
        is_rest = isinstance(length, str) and length == _REST
        if not is_rest and not _is_percentage(length):
            steps.append(checks.count(path, length, 0, MAX_STEP, requirement))
            continue
        if total_steps is None:
            problem = f" = {length!r} is a fraction of all steps, and needs total_steps"
            raise ValueError(Message(path, problem))
        if is_rest:
            rests.append(index)
            steps.append(0)
        else:
            steps.append(_percentage_in_steps(path, length, total_steps))
    if total_steps is None:
        return steps

    if len(rests) > 1:
        raise ValueError(Message(("stages", rests[1], "steps"), " = 'rest' may appear only once"))
    missing = total_steps - sum(steps)
    if missing < 0 or (missing > 0 and not rests):
        problem = (
            f" add up to {checks.plural(sum(steps), 'step')}, not to total_steps = {total_steps}"
        )
        if missing > 0:
            problem += ": write 'rest' for one of the lengths"
        raise ValueError(Message("stages", problem))
    for index in rests:
        steps[index] = missing
    return steps
