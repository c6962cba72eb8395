"""The plateaus of a `PlateauCurve`: check them, convert them to steps, and warn of likely mistakes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from plateau_jax.numerics import exact
from plateau_jax.validation.checks import Message, Path, integer, must, number, pairs, short_repr
from plateau_jax.validation.curve_warning import warn


def check_percentages(plateaus: Any) -> list[tuple[float, float]]:
    """Check pairs (start, duration) in percent of the steps after the warmup."""
    checked: list[tuple[float, float]] = []
    for path, start, duration in pairs("plateaus", plateaus, "(start, duration) in percent"):
        pair = number((*path, "start"), start), number((*path, "duration"), duration)
        if not all(0 <= percentage <= 100 for percentage in pair):
            raise ValueError(must(path, pair, "lie in 0 … 100 %; for steps use absolute_plateaus"))
        checked.append(pair)
    return checked


def check_absolute(plateaus: Any, warmup_steps: int) -> list[tuple[int, int]]:
    """Check pairs (start, length) in steps."""
    checked: list[tuple[int, int]] = []
    for path, start, length in pairs("absolute_plateaus", plateaus, "(start, length) in steps"):
        pair = integer((*path, "start"), start), integer((*path, "length"), length)
        if pair[0] < warmup_steps:
            raise ValueError(
                must(path, pair, f"not start before the warmup ends, at step {warmup_steps}")
            )
        if pair[1] < 0:
            raise ValueError(must(path, pair, "not have a negative length"))
        checked.append(pair)
    return checked


class _Plateau(NamedTuple):
    """A plateau in steps, and the argument that describes it."""

    start: int
    length: int
    path: Path
    pair: tuple[float, float]


def place_plateaus(
    total_steps: int,
    warmup_steps: int,
    plateaus: Sequence[tuple[float, float]],
    absolute_plateaus: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Return (first step, number of steps) of every plateau, sorted.

    Raises:
        ValueError: Plateaus overlap, run past the end or leave no step to decay.
    """
    after_warmup = total_steps - warmup_steps
    placed = [
        _Plateau(*pair, ("absolute_plateaus", index), pair)
        for index, pair in enumerate(absolute_plateaus)
    ]
    for index, pair in enumerate(plateaus):
        start, length = (exact.percent_of(after_warmup, percentage) for percentage in pair)
        placed.append(_Plateau(warmup_steps + start, length, ("plateaus", index), pair))
    placed.sort()
    # In steps, after rounding: of 1000 steps, (0, 30.04) ends before step 300 and (30.03, 10)
    # starts there.
    limits = [
        (later.start, f"before the next plateau starts, at step {later.start}")
        for later in placed[1:]
    ]
    limits.append((total_steps, f"by total_steps = {total_steps}"))
    for (start, length, path, pair), (limit, deadline) in zip(
        placed, limits[: len(placed)], strict=True
    ):
        if start + length > limit:
            span = f"it lasts from step {start} to step {start + length}"
            advice = "the second number is the length, not the end"
            raise ValueError(must(path, pair, f"end {deadline}: {span}; {advice}"))
    if sum(plateau.length for plateau in placed) >= after_warmup:
        text = f"must leave at least one of the {after_warmup} steps after the warmup to decay"
        raise ValueError(
            Message("plateaus", f" {text}; for a curve that never decays use StagedCurve")
        )
    return [(plateau.start, plateau.length) for plateau in placed]


def warn_of_small_plateaus(plateaus: Sequence[tuple[float, float]], after_warmup: int) -> None:
    """Warn if the percentages look like fractions, or a duration rounds to no step."""
    values = [value for pair in plateaus for value in pair]
    if max(values, default=2) <= 1 and any(0 < value < 1 for value in values):
        text = "look like fractions of 1, but are percentages. Multiply them by 100"
        warn(Message("plateaus", f" = {short_repr(sorted(plateaus))} {text}"))
        return
    for pair in plateaus:
        if pair[1] and not exact.percent_of(after_warmup, pair[1]):
            text = f": a duration of {pair[1]} % of {after_warmup} steps rounds down to 0 steps"
            warn(Message("plateaus", f"{text}. Write a longer one, or absolute_plateaus in steps"))
            return
