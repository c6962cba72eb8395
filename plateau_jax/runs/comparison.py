"""Compare a run with the saved one that it continues, and decide if it may."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar, cast

from plateau_jax.arguments.checks import Message, Path, short_repr
from plateau_jax.clocks.clock import CLOCKS, CheckedClock
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import plain_arguments_of
from plateau_jax.runs.policy import Difference, Policy
from plateau_jax.runs.record import shortest_decimals
from plateau_jax.runs.saved_run import SavedRun

_Value = TypeVar("_Value")

_TRAIN_LONGER = (
    "to train longer, keep the lengths of the phases so far, written in steps and not in percent, "
    "or stretch a decay that is running (docs/cooldowns.md)"
)


class Schedule(NamedTuple):
    """What the program says about a parameter group. A `Record` is what a saved run said."""

    curve: Curve
    peak_value: float | None
    """The shortest decimal of the peak's float32; None to leave it out of the comparison."""
    clock: Any
    """The clock in plain values."""


def schedules_of(
    curves: Sequence[Curve], peaks: Sequence[float] | None, clock: CheckedClock
) -> list[Schedule]:
    """Return the schedule of each parameter group. Without peaks, they are not compared."""
    plain_clock = clock.to_plain()
    if peaks is None:
        return [Schedule(curve, None, plain_clock) for curve in curves]
    shown_peaks = shortest_decimals(peaks)
    return [
        Schedule(curve, peak, plain_clock) for curve, peak in zip(curves, shown_peaks, strict=True)
    ]


class Outcome(NamedTuple):
    """How a saved run continues."""

    warnings: list[str]
    is_new_clock: bool
    """True if the clock differs from the saved one."""


def compare_with_saved(
    saved: SavedRun, now: Sequence[Schedule], policy: Policy, *, strict: bool
) -> Outcome:
    """Compare a run with the saved one that it continues: clock, peaks, and the curves so far.

    All steps of the curves below `saved.curve_step` are compared. If an update may have used that
    step already, it is compared too, except at or past the end of the saved curve, where the next
    phase of `saved.then(...)` may have a different level.

    Args:
        saved: The saved run.
        now: The schedule of each parameter group.
        policy: What a difference leads to.
        strict: False to continue in spite of differences that are errors.

    Raises:
        ValueError: The run cannot continue; or a newer version may have saved a curve, which is an
            error even if `strict` is False, because nothing was compared.
    """
    differences = list(_find_differences(saved, now, policy))
    step = saved.curve_step
    for difference in differences:
        if strict and difference.aspect in policy.errors:
            raise ValueError(policy.error_message(difference, step))
    warnings = [policy.warning_message(difference, step) for difference in differences]
    is_new_clock = any(difference.aspect == "clock" for difference in differences)
    return Outcome(warnings, is_new_clock)


def _find_differences(
    saved: SavedRun, now: Sequence[Schedule], policy: Policy
) -> Iterator[Difference]:
    if len(saved.peaks) != len(now):
        problem = f"the number of records was {len(saved.peaks)}, and is {len(now)} now"
        yield Difference("number of records", problem)
        return
    yield from _compare_clocks(saved, now)
    yield from _compare_peaks(saved, now, policy)
    yield from _compare_curves(saved, now, policy)


def _compare_clocks(saved: SavedRun, now: Sequence[Schedule]) -> Iterator[Difference]:
    """Yield the first difference of a clock, if there is one."""
    for saved_clock, schedule in zip(saved.clocks, now, strict=True):
        # Compared as plain values: building rules from them would also check their types, and a
        # library that stores [0.3, 5] as floats returns 5.0.
        if _comparable(saved_clock) != _comparable(schedule.clock):
            shown = f"clock={show_clock(saved_clock)}, now {show_clock(schedule.clock)}"
            yield Difference("clock", f"it was saved with {shown}")
            return


def _comparable(clock: Any) -> Any:
    """Return a clock with the defaults of absent arguments, which an earlier version did not have.

    Without its `count`: a resumed run may have a different batch size.
    """
    if isinstance(clock, list):
        return [_comparable(rule) for rule in cast("list[Any]", clock)]
    if not isinstance(clock, dict):
        return clock
    given = cast("dict[str, Any]", clock)
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in CLOCKS:
        return given
    arguments: dict[str, Any] = {}
    for argument in fields(CLOCKS[kind]):
        if argument.default is not MISSING:
            arguments[argument.name] = argument.default
    arguments.update(given)
    arguments.pop("count", None)
    return arguments


def show_clock(clock: Any) -> str:
    """Return the Python expression that builds a clock; the plain values if its kind is unknown."""
    if isinstance(clock, list):
        rules = [show_clock(rule) for rule in cast("list[Any]", clock)]
        if len(rules) == 1:
            return rules[0]
        return f"[{', '.join(rules)}]"
    if not isinstance(clock, dict) or clock.get("kind") not in CLOCKS:
        return short_repr(clock)
    shown: list[str] = []
    for name, value in cast("dict[str, Any]", clock).items():
        if name != "kind" and value is not None:
            shown.append(f"{name}={short_repr(value)}")
    return f"{CLOCKS[clock['kind']].__name__}({', '.join(shown)})"


def _compare_peaks(
    saved: SavedRun, now: Sequence[Schedule], policy: Policy
) -> Iterator[Difference]:
    peaks = [schedule.peak_value for schedule in now]
    for saved_peak, peak in zip(saved.peaks, peaks, strict=True):
        if saved_peak is not None and peak is not None and saved_peak != peak:
            old = one_if_equal(saved.peaks)
            new = one_if_equal(peaks)
            problem = (
                f"it was saved with {policy.peak}_value={short_repr(old)}, now {short_repr(new)}"
            )
            yield Difference("peak", problem, old, new)
            return


def one_if_equal(values: Sequence[_Value]) -> _Value | Sequence[_Value]:
    """Return the value that all parameter groups have, or the values if they differ."""
    if values and values.count(values[0]) == len(values):
        return values[0]
    return values


def _compare_curves(
    saved: SavedRun, now: Sequence[Schedule], policy: Policy
) -> Iterator[Difference]:
    """Yield the first difference of a curve from the saved one, if there is one."""
    if saved.records is None:
        yield Difference("unknown curve")
        return
    for index, (record, schedule) in enumerate(zip(saved.records, now, strict=True)):
        curve = schedule.curve
        if record.curve == curve.to_dict():
            continue  # without building it, which takes long if it has many stages
        try:
            saved_curve = record.built_curve
        except TypeError as error:
            yield Difference("unreadable curve", str(error))
            return
        first = curve.first_difference(saved_curve)
        if first is None or saved.curve_step < first:
            continue
        is_step_discontinuous = saved.is_step_used and _is_discontinuous(saved_curve, curve, first)
        if saved.curve_step == first and not is_step_discontinuous:
            continue
        values = policy.values
        if len(now) > 1:
            values += f" of {policy.groups}[{index}]"
        arguments = _show_differing_arguments(saved_curve, curve)
        problem = f"it was saved with {arguments}, and the {values} differ from step {first} on"
        remedy = ""
        if curve.total_steps > saved_curve.total_steps:
            remedy = _TRAIN_LONGER
        yield Difference("curve", problem, remedy=remedy)
        return


def _is_discontinuous(saved: Curve, current: Curve, step: int) -> bool:
    """Return True if the level at `step`, which a run has used, would change."""
    if step >= saved.total_steps:
        return False
    # Levels need to be only nearly equal, because a cooldown rounds the level at which it begins.
    return not math.isclose(saved(step), current(step), rel_tol=2**-22, abs_tol=2**-57)


def _show_differing_arguments(saved: Curve, current: Curve) -> str:
    """Return the first two arguments that differ."""
    differing = list(_differing_arguments(saved, current))
    if len(differing) > 2:
        differing = [*differing[:2], "…"]
    return "; ".join(differing)


def _differing_arguments(saved: Curve, current: Curve, path: Path = ()) -> Iterator[str]:
    """Yield "argument=saved, now current" for each argument that differs.

    The arguments of a curve within a curve are included; `path` is that of the inner curve. For two
    curves of different kinds, only kind and length are shown; for a list, only the first item that
    differs.
    """
    if type(saved) is not type(current):
        yield _show_change(path, _kind_and_length(saved), _kind_and_length(current))
        return
    new = plain_arguments_of(current)
    for name, before in plain_arguments_of(saved).items():
        now = new[name]
        if before == now:
            continue
        inner_saved = getattr(saved, name, None)
        inner_current = getattr(current, name, None)
        if isinstance(inner_saved, Curve) and isinstance(inner_current, Curve):
            yield from _differing_arguments(inner_saved, inner_current, (*path, name))
        elif isinstance(before, list) and isinstance(now, list):
            yield from _differing_items(before, now, (*path, name))
        else:
            yield _show_change((*path, name), short_repr(before), short_repr(now))


def _differing_items(saved: Any, current: Any, path: Path) -> Iterator[str]:
    """Yield the first item that differs between two lists, if there is one."""
    pairs = zip_longest(saved, current)  # None after the end of the shorter list
    for index, (before, now) in enumerate(pairs):
        if before != now:
            yield _show_change((*path, index), short_repr(before), short_repr(now))
            return


def _show_change(path: Path, saved: str, current: str) -> str:
    """Return "argument=saved, now current"; without a path, only the two values."""
    if not path:
        return f"{saved}, now {current}"
    return Message(path, f"={saved}, now {current}")


def _kind_and_length(curve: Curve) -> str:
    return f"a {type(curve).__name__} of {curve.total_steps} steps"
