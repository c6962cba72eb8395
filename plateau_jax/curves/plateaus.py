"""The plateaus of a `PlateauCurve`: their checks, their place in steps, and likely mistakes."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

from plateau_jax.numerics import exact
from plateau_jax.validation.checks import Message, Path, integer, must, number, pairs, short_repr
from plateau_jax.validation.curve_warning import warn


def check_percentages(plateaus: Any) -> list[tuple[float, float]]:
    """Check pairs (start, duration) in percent of the steps after the warmup."""
    checked: list[tuple[float, float]] = []
    for path, start, duration in pairs("plateaus", plateaus, "(start, duration) in percent"):
        pair = number((*path, "start"), start), number((*path, "duration"), duration)
        if min(pair) < 0 or max(pair) > 100:
            raise ValueError(must(path, pair, "lie in 0 … 100 %; for steps use absolute_plateaus"))
        checked.append(pair)
    return checked


def check_absolute(plateaus: Any, warmup_steps: int) -> list[tuple[int, int]]:
    """Check pairs (start, length) in steps."""
    checked: list[tuple[int, int]] = []
    for path, start, length in pairs("absolute_plateaus", plateaus, "(start, length) in steps"):
        start = integer((*path, "start"), start)
        length = integer((*path, "length"), length)
        if start < warmup_steps:
            too_early = f"not start before the warmup ends, at step {warmup_steps}"
            raise ValueError(must(path, (start, length), too_early))
        if length < 0:
            raise ValueError(must(path, (start, length), "not have a negative length"))
        checked.append((start, length))
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
    placed: list[_Plateau] = []
    for index, pair in enumerate(absolute_plateaus):
        placed.append(_Plateau(*pair, ("absolute_plateaus", index), pair))
    for index, pair in enumerate(plateaus):
        start, length = (exact.percent_of(after_warmup, percentage) for percentage in pair)
        placed.append(_Plateau(warmup_steps + start, length, ("plateaus", index), pair))
    placed.sort()
    # In steps, after rounding: of 1000 steps, (0, 30.04) ends before step 300 and (30.03, 10)
    # starts there.
    for plateau, following in pairwise(placed):
        before = f"before the next plateau starts, at step {following.start}"
        _check_end(plateau, following.start, before)
    if placed:
        _check_end(placed[-1], total_steps, f"by total_steps = {total_steps}")
    if sum(plateau.length for plateau in placed) >= after_warmup:
        rest = f"must leave at least one of the {after_warmup} steps after the warmup to decay"
        advice = "for a curve that never decays use StagedCurve"
        raise ValueError(Message("plateaus", f" {rest}; {advice}"))
    return [(plateau.start, plateau.length) for plateau in placed]


def _check_end(plateau: _Plateau, last: int, deadline: str) -> None:
    """Raise a ValueError if a plateau ends after the step `last`, the deadline in words."""
    end = plateau.start + plateau.length
    if end > last:
        span = f"it lasts from step {plateau.start} to step {end}"
        advice = "the second number is the length, not the end"
        raise ValueError(must(plateau.path, plateau.pair, f"end {deadline}: {span}; {advice}"))


def warn_of_small_plateaus(plateaus: Sequence[tuple[float, float]], after_warmup: int) -> None:
    """Warn if the percentages look like fractions, or a duration rounds to no step."""
    if not plateaus:
        return
    percentages = list(chain.from_iterable(plateaus))
    if max(percentages) <= 1 and any(0 < percentage < 1 for percentage in percentages):
        text = "look like fractions of 1, but are percentages. Multiply them by 100"
        warn(Message("plateaus", f" = {short_repr(sorted(plateaus))} {text}"))
        return
    for _, duration in plateaus:
        if duration and not exact.percent_of(after_warmup, duration):
            text = f"a duration of {duration} % of {after_warmup} steps rounds down to 0 steps"
            advice = "Write a longer one, or absolute_plateaus in steps"
            warn(Message("plateaus", f": {text}. {advice}"))
            return
