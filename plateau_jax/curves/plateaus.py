"""The plateaus of a `PlateauCurve`: check them, convert them to steps, and warn of likely mistakes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from plateau_jax.curves import hints
from plateau_jax.numerics import exact
from plateau_jax.validation.checks import integer, number, pairs
from plateau_jax.validation.messages import (
    CAPITAL_WRITE,
    WRITE,
    Message,
    Name,
    Pair,
    Part,
    Setting,
    Subject,
    Wording,
    code,
    computed,
    plain,
    within,
)

LENGTH = Wording("duration", "length")
NUMBER_OF_STEPS = Wording("number of steps", "length")


class _Plateau(NamedTuple):
    first_step: int
    length: int
    argument: str
    """The name of the argument that has the pair, for messages."""
    pair: tuple[float, float]
    """The pair as the user wrote it."""


def check_percentages(plateaus: Any) -> tuple[tuple[float, float], ...]:
    """Check pairs (start, duration) in percent, and return them sorted."""
    checked: list[tuple[float, float]] = []
    for place, start, duration in pairs("plateaus", plateaus, "(start %, duration %)"):
        pair = (
            number(place.with_part("start"), start),
            number(place.with_part("duration"), duration),
        )
        if not all(0 <= percentage <= 100 for percentage in pair):
            subject = Subject(place, place.item, clause=True)
            requirement = "start and ", LENGTH, " must ", within(0, 100, unit=" %")
            raise ValueError(Message(subject, *requirement, hints.for_steps_as_percent(*pair)))
        checked.append(pair)
    return tuple(sorted(checked))


def check_absolute(plateaus: Any, warmup_steps: int) -> tuple[tuple[int, int], ...]:
    """Check pairs (first step, number of steps), and return them sorted."""
    checked: list[tuple[int, int]] = []
    for place, start, length in pairs("absolute_plateaus", plateaus, "(start step, number of steps)"):
        pair = (
            integer(place.with_part("start"), start),
            integer(place.with_part("number of steps"), length),
        )
        if pair[0] < warmup_steps:
            requirement = f" must not start before the warmup ends, at step {warmup_steps}"
            raise ValueError(Message(Subject(place, place.item), requirement))
        if pair[1] < 0:
            subject = Subject(place, place.item, clause=True)
            raise ValueError(Message(subject, "the ", NUMBER_OF_STEPS, " must not be negative"))
        checked.append(pair)
    return tuple(sorted(checked))


def place_plateaus(
    total_steps: int,
    warmup_steps: int,
    plateaus: tuple[tuple[float, float], ...],
    absolute_plateaus: tuple[tuple[int, int], ...],
) -> list[tuple[int, int]]:
    """Return (first step, number of steps) of every plateau, sorted.

    Raises:
        ValueError: Plateaus overlap, run past the end or leave no step to decay.
    """
    after_warmup = total_steps - warmup_steps
    placed: list[_Plateau] = []
    for pair in plateaus:
        start, length = (exact.percent_of(after_warmup, percentage) for percentage in pair)
        placed.append(_Plateau(warmup_steps + start, length, "plateaus", pair))
    placed += [_Plateau(*pair, "absolute_plateaus", pair) for pair in absolute_plateaus]
    placed.sort()
    for start, length, name, pair in placed:
        if start + length > total_steps:
            raise ValueError(
                Message(
                    *_lasts(name, pair, start, length),
                    Wording(", past ", ", past the end at step "),
                    computed(total_steps, Name("total_steps")),
                    hints.for_end_as_length(name, *pair, last=100 if name == "plateaus" else total_steps),
                    at=name,
                )
            )
    # In steps, after rounding: of 1000 steps, (0, 30.04) ends before step 300 and (30.03, 10) starts there.
    for (start, length, name, pair), (next_start, _, next_name, next_pair) in pairwise(placed):
        if start + length > next_start:
            raise ValueError(
                Message(
                    *_lasts(name, pair, start, length),
                    " and overlaps ",
                    _plateau(next_name, next_pair),
                    code(","),
                    f" which starts at step {next_start}",
                    at=name,
                )
            )
    if sum(plateau.length for plateau in placed) >= after_warmup:
        raise ValueError(
            Message(
                Wording((Name("plateaus"), " and ", Name("absolute_plateaus")), "the plateaus"),
                f" cover all {after_warmup} steps after the warmup; at least one must be left to decay",
                hints.for_no_decay(after_warmup, warmup_steps),
                at="plateaus",
            )
        )
    return [(plateau.first_step, plateau.length) for plateau in placed]


def _plateau(name: str, pair: tuple[float, float]) -> Part:
    """Return a plateau as a part of a sentence."""
    unit = "at {} %, {} % long," if name == "plateaus" else "at step {}, {} steps long,"
    return Wording(Pair(name, pair), f"the plateau {unit.format(*pair)}")


def _lasts(name: str, pair: tuple[float, float], start: int, length: int) -> Sequence[Part]:
    return _plateau(name, pair), f" lasts from step {start} to step {start + length}"


def likely_mistake(after_warmup: int, warmup_steps: int, plateaus: tuple[tuple[float, float], ...]) -> str:
    """Return the warning if percentages look like fractions or a duration rounds to no step, else ""."""
    values = [value for pair in plateaus for value in pair]
    if max(values, default=2) <= 1 and any(0 < value < 1 for value in values):
        percent = [
            (float(exact.as_written(start) * 100), float(exact.as_written(duration) * 100))
            for start, duration in plateaus
        ]
        advice = ". For fractions ", WRITE, " ", _setting("plateaus", percent)
        return Message(
            Wording(Setting("plateaus", pairs=plateaus, is_given=True), "the plateaus"),
            " look like fractions of 1, but are percentages: ",
            *_length_in_steps(plateaus[0], after_warmup),
            *(advice if _are_valid(after_warmup, warmup_steps, percent, []) else ()),
            at="plateaus",
        )
    empty = [pair for pair in plateaus if pair[1] > 0 and not exact.percent_of(after_warmup, pair[1])]
    if empty:
        single_steps = [(warmup_steps + exact.percent_of(after_warmup, start), 1) for start, _ in empty]
        remaining = [pair for pair in plateaus if pair not in empty]
        fits = _are_valid(after_warmup, warmup_steps, remaining, single_steps)
        return Message(
            Wording((Name("plateaus"), " has durations"), "the plateaus have lengths"),
            " that round to 0 steps: ",
            *_length_in_steps(empty[0], after_warmup),
            ". ",
            CAPITAL_WRITE,
            " longer ones, or ",
            Wording("a number of steps: ", "a plateau in steps: "),
            _setting("absolute_plateaus", single_steps if fits else [("start", 1)]),
            at="plateaus",
        )
    return ""


def _are_valid(
    after_warmup: int,
    warmup_steps: int,
    plateaus: Sequence[tuple[float, float]],
    absolute_plateaus: Sequence[tuple[int, int]],
) -> bool:
    """Return True if a curve can have these plateaus, so that a warning may suggest them."""
    try:
        place_plateaus(warmup_steps + after_warmup, warmup_steps, tuple(plateaus), tuple(absolute_plateaus))
    except ValueError:
        return False
    return True


def _length_in_steps(pair: tuple[float, float], after_warmup: int) -> Sequence[Part]:
    length = exact.percent_of(after_warmup, pair[1])
    return _plateau("plateaus", pair), f" lasts {length} of the {after_warmup} steps after the warmup"


def _setting(name: str, pairs: Sequence[tuple[Any, Any]]) -> Setting:
    return Setting(name, pairs=tuple((plain(first), plain(second)) for first, second in pairs))
