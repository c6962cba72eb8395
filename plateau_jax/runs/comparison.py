"""Compare a run with the saved one that it continues, and decide if it may."""

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar, cast

from plateau_jax.arguments.checks import Message, Path, plural, short_repr
from plateau_jax.clocks.clock import CLOCKS, CheckedClock
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import plain_arguments_of
from plateau_jax.runs.record import Record, shortest_decimal

_Value = TypeVar("_Value")

_TRAIN_LONGER = (
    "to train longer, keep the lengths of the phases so far, written in steps and not in percent, "
    "or stretch a decay that is running (docs/longer_and_shorter.md)"
)


class Schedule(NamedTuple):
    """What the program says about a parameter group. A `Record` is what a saved run said."""

    curve: Curve
    peak_value: float | None
    """The shortest decimal of the peak's float32; None to leave it out of the comparison."""
    clock: Any
    """The clock in plain values."""


def schedules_of(
    curves: Sequence[Curve], peaks: Sequence[float], clock: CheckedClock
) -> list[Schedule]:
    """Return the schedule of each parameter group."""
    plain_clock = clock.to_plain()
    return [
        Schedule(curve, shortest_decimal(peak), plain_clock)
        for curve, peak in zip(curves, peaks, strict=True)
    ]


class Owner(NamedTuple):
    """Whose run resumes: the words of the messages, and what a different peak leads to."""

    subject: str = "state_dict"
    """What cannot resume."""
    override: str = "pass strict=False to load_state_dict"
    """How to resume all the same."""
    change_peak: str = ""
    """The method that changes the saved peak, with which the run continues: then a different one is
    a warning. Empty if the run continues with the program's: then it is an error."""
    counter: str = "updates"
    """The entry of the state with the number of updates."""


class _Difference(NamedTuple):
    aspect: str
    """"clock", "curve", "peak" or "number of groups"; "past" if the past can't be compared."""
    problem: str
    continues: str
    """How the run continues if the difference is accepted. Empty if it always is."""
    remedy: str = ""


def compare(
    records: Sequence[Record],
    now: Sequence[Schedule],
    step: int,
    owner: Owner,
    *,
    is_step_used: bool,
    strict: bool,
) -> list[str]:
    """Compare a run with the saved one that it continues, and return the warnings.

    All steps of the curves below `step` are compared. If an update may have used that step already,
    it is compared too, except at or past the end of the saved curve, where the next phase of
    `saved.then(...)` may have a different level.

    Raises:
        ValueError: The run cannot continue, and `strict` is True; or a saved curve cannot be read.
    """
    warnings: list[str] = []
    for item in _differences(records, now, step, owner, is_step_used=is_step_used):
        is_warning = item.aspect == "peak" and owner.change_peak
        if strict and not is_warning and item.continues:
            remedies = f"resume with the old {item.aspect}, or {owner.override}"
            if item.remedy:
                remedies = f"{item.remedy}; otherwise {remedies}"
            raise ValueError(
                f"{owner.subject} cannot resume at step {step}: {item.problem}; {remedies}"
            )
        if item.aspect == "past":
            warnings.append(item.problem)
        else:
            message = f"{owner.subject} has a different {item.aspect}: {item.problem}. "
            warnings.append(message + item.continues)
    return warnings


def _differences(
    records: Sequence[Record],
    now: Sequence[Schedule],
    step: int,
    owner: Owner,
    *,
    is_step_used: bool,
) -> Iterator[_Difference]:
    if len(records) != len(now):
        problem = f"the number of groups was {len(records)}, and is {len(now)} now"
        yield _Difference("number of groups", problem, f"The run continues at step {step}")
        return
    yield from _compare_clocks(records, now, step)
    yield from _compare_peaks(records, now, owner)
    yield from _compare_curves(records, now, step, owner, is_step_used=is_step_used)


def _compare_clocks(
    records: Sequence[Record], now: Sequence[Schedule], step: int
) -> Iterator[_Difference]:
    for record, schedule in zip(records, now, strict=True):
        # Compared as plain values: building rules from them would also check their types, and a
        # library that stores [0.3, 5] as floats returns 5.0.
        if differ(record.clock, schedule.clock):
            shown = f"clock={show_clock(record.clock)}, now {show_clock(schedule.clock)}"
            continues = f"The run continues at step {step} of the curve, with a fresh clock"
            yield _Difference("clock", f"it was saved with {shown}", continues)
            return


def differ(saved: Any, clock: Any) -> bool:
    """Return True if two clocks differ in more than `count`: the batch size may have changed."""
    return bool(_without_count(saved) != _without_count(clock))


def _without_count(clock: Any) -> Any:
    if isinstance(clock, dict):
        return {k: v for k, v in cast("dict[str, Any]", clock).items() if k != "count"}
    return clock


def _compare_peaks(
    records: Sequence[Record], now: Sequence[Schedule], owner: Owner
) -> Iterator[_Difference]:
    saved = [record.peak_value for record in records]
    peaks = [schedule.peak_value for schedule in now]
    for index, (before, peak) in enumerate(zip(saved, peaks, strict=True)):
        if before is not None and peak is not None and before != peak:
            group = "it"
            if len(set(saved)) > 1 or len(set(peaks)) > 1:
                group = f"group {index}"
            continues = f"The run continues with {peak}"
            if owner.change_peak:
                change = f"{owner.change_peak}({short_repr(one_if_equal(peaks))})"
                continues = (
                    f"The run continues with {before}; to change it, call {change} after the load"
                )
            problem = f"{group} was saved with {before}, now {peak}"
            yield _Difference("peak", problem, continues)
            return


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


def one_if_equal(values: Sequence[_Value]) -> _Value | Sequence[_Value]:
    """Return the value that all parameter groups have, or the values if they differ."""
    if values and values.count(values[0]) == len(values):
        return values[0]
    return values


def _compare_curves(
    records: Sequence[Record],
    now: Sequence[Schedule],
    step: int,
    owner: Owner,
    *,
    is_step_used: bool,
) -> Iterator[_Difference]:
    """Yield the first difference of a curve from the saved one, if there is one."""
    for index, (record, schedule) in enumerate(zip(records, now, strict=True)):
        curve = schedule.curve
        if record.curve is None:
            problem = (
                f"{owner.subject} was saved by a scheduler without a curve: this curve continues "
                f"at step {step}, and nothing shows whether the run has followed it so far"
            )
            yield _Difference("past", problem, "")
            return
        if record.curve == curve.to_dict():
            continue  # without building it, which takes long if it has many stages
        saved_curve = record.built_curve
        first = curve.first_difference(saved_curve)
        if first is None or step < first:
            continue
        if step == first and not (is_step_used and _is_discontinuous(saved_curve, curve, first)):
            continue
        values = "values"
        if len(now) > 1:
            values += f" of group {index}"
        arguments = _show_differing_arguments(saved_curve, curve)
        problem = f"it was saved with {arguments}, and the {values} differ from step {first} on"
        remedy = ""
        if curve.total_steps > saved_curve.total_steps:
            remedy = _TRAIN_LONGER
        continues = f"The run continues at step {step} of this curve"
        yield _Difference("curve", problem, continues, remedy)
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
    return f"a {type(curve).__name__} of {plural(curve.total_steps, 'step')}"
