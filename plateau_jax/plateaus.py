"""The plateaus that the user wrote: checked, and placed in the count of steps."""

from itertools import pairwise
from typing import Any

from plateau_jax import exact
from plateau_jax.checks import integer, number, pairs


def percentages(plateaus: Any) -> tuple[tuple[float, float], ...]:
    """Pairs (start, duration) in percent, sorted."""
    found: list[tuple[float, float]] = []
    for label, start, duration in pairs("plateaus", plateaus, "(start %, duration %)"):
        pair = number(f"{label}: start", start), number(f"{label}: duration", duration)
        if not all(0 <= percentage <= 100 for percentage in pair):
            raise ValueError(f"{label}: start and duration must lie in 0 … 100 %")
        found.append(pair)
    return tuple(sorted(found))


def step_counts(plateaus: Any, warmup_steps: int) -> tuple[tuple[int, int], ...]:
    """Pairs (first step, number of steps), sorted."""
    found: list[tuple[int, int]] = []
    for label, start, length in pairs("absolute_plateaus", plateaus, "(start step, number of steps)"):
        pair = integer(f"{label}: start", start), integer(f"{label}: number of steps", length)
        if pair[0] < warmup_steps:
            raise ValueError(f"{label} must not start before the warmup ends, at step {warmup_steps}")
        if pair[1] < 0:
            raise ValueError(f"{label}: the number of steps must not be negative")
        found.append(pair)
    return tuple(sorted(found))


def placed(
    total_steps: int,
    warmup_steps: int,
    plateaus: tuple[tuple[float, float], ...],
    absolute_plateaus: tuple[tuple[int, int], ...],
) -> list[tuple[int, int]]:
    """(first step, number of steps) of every plateau, in order.

    Raises:
        ValueError: Plateaus that overlap, run past the end or leave no step to decay.
    """
    after_warmup = total_steps - warmup_steps
    found: list[tuple[int, int, str, tuple[float, float]]] = []
    for pair in plateaus:
        start, length = (exact.percent_of(after_warmup, percentage) for percentage in pair)
        found.append((warmup_steps + start, length, "plateaus", pair))
    found += [(*pair, "absolute_plateaus", pair) for pair in absolute_plateaus]
    found.sort()
    for start, length, name, pair in found:
        if start + length > total_steps:
            raise ValueError(
                f"{name}: {pair} lasts from step {start} to step {start + length}, "
                f"past total_steps = {total_steps}"
            )
    for (start, length, name, pair), (next_start, _, next_name, next_pair) in pairwise(found):
        if start + length > next_start:
            raise ValueError(
                f"{name}: {pair} lasts from step {start} to step {start + length} and overlaps "
                f"{next_pair} of {next_name}, which starts at step {next_start}"
            )
    if sum(length for _, length, *_ in found) >= after_warmup:
        raise ValueError(
            f"plateaus and absolute_plateaus hold the rate for all {after_warmup} steps after the "
            "warmup; at least one must be left to decay"
        )
    return [(start, length) for start, length, *_ in found]
