"""The record of a run, and a comparison of two records, which decides if a saved run may resume."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import zip_longest
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np

from plateau_jax.clocks.clock import CLOCKS, AnyClock, CheckedClock, check_clock
from plateau_jax.curves.curve import AnyCurve, Curve, as_curve
from plateau_jax.validation import checks
from plateau_jax.validation.checks import Message, Path, short_repr
from plateau_jax.validation.curve_warning import suppress_warnings
from plateau_jax.validation.formats import NEWER, Format, describe_error, describe_unknown


class _SavedRecord(TypedDict):
    kind: str
    format: int
    curve: dict[str, Any]
    """The result of `Curve.to_dict`."""
    peak_value: float | None
    """The shortest decimal of the peak's float32."""
    clock: dict[str, Any] | list[dict[str, Any]] | None
    """The result of `to_dict` of a `DataClock`, or a list with that of each rule."""


_FORMAT = Format("resume_record", _SavedRecord, defaults={"peak_value": None, "clock": None})


def resume_record(
    curve: AnyCurve, peak_value: Any = None, clock: AnyClock | None = None
) -> dict[str, Any]:
    """Return the record of a run for `check_resume`; save it next to the optax state.

    The optax state holds the step of the curve, but neither the curve nor its clock nor the peak. A
    run that uses several curves needs a record of each. The states of `lambda_lr` and `TrainStep`
    contain such a record for each parameter group, under `"records"`.

    Args:
        curve: The curve of `optax_schedule` or `scale_by_curve`, or a mapping that describes it.
        peak_value: The peak learning rate; None to leave it out of the comparison.
        clock: As in `scale_by_curve`.

    Returns:
        A dictionary of plain JSON values, with the keys `"kind"`, `"format"`, `"curve"`,
        `"peak_value"` and `"clock"`. The peak is the shortest decimal of its float32.

    Raises:
        TypeError, ValueError: As `lambda_lr` for the same curve, peak and clock.

    >>> from plateau_jax import DataClock, StagedCurve, resume_record
    >>> curve = StagedCurve([(10, 1.0)])
    >>> resume_record(curve, 3e-4, DataClock(64))  # doctest: +NORMALIZE_WHITESPACE
    {'kind': 'resume_record', 'format': 1,
     'curve': {'kind': 'staged', 'stages': [[10, 1.0, 'linear']], 'start': 0.0},
     'peak_value': 0.0003, 'clock': {'kind': 'data', 'unit': 64, 'count': None}}
    """
    curve = as_curve("curve", curve)
    return dump_record(curve, peak_value, check_clock(clock, [curve]))


def check_resume(saved: Mapping[str, Any], now: Mapping[str, Any], step: Any) -> None:
    """Raise an error if a run that was saved with one record cannot resume under another.

    A different curve is accepted if both agree at every step below `step` (`Curve.same_until`),
    such as a cooldown that leaves the saved curve there. With a clock they must agree at `step`
    too, unless the saved curve ends there: updates may have used that step already. The peaks are
    compared if both records have one and the run may have made updates. The clocks must be the
    same, except for the `count` of a `DataClock`.

    Args:
        saved: What `resume_record` returned for the saved run, from JSON, orbax (`JsonSave`),
            msgpack or pickle; or a record in the state of a `lambda_lr` or `TrainStep`.
        now: What `resume_record` returns for the run that resumes. To resume with a different peak,
            leave out its `peak_value`.
        step: The step of the curve in the saved state, which gives the next learning rate. An
            integer, or an integer array without dimensions of NumPy or JAX. With `scale_by_curve`
            it is the `curve_step` of its state, `optax.tree.get(state, "curve_step")`; with a
            clock, this is not the number of updates. With `optax_schedule` it is optax's count of
            updates, `optax.tree.get(state, "ScaleByScheduleState").count`.

    Raises:
        TypeError: `step` is not an integer.
        ValueError: The curves differ at a step so far; the clocks or the peaks differ; `saved` or
            `now` is not a record.

    >>> from plateau_jax import PlateauCurve, check_resume, resume_record
    >>> curve = PlateauCurve(1000, warmup_steps=100)
    >>> saved = resume_record(curve)
    >>> check_resume(saved, resume_record(curve.cooldown(500, 100)), 400)
    >>> longer = PlateauCurve(2000, warmup_steps=100)
    >>> check_resume(saved, resume_record(longer), 400)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: the run cannot resume at step 400: it was saved with total_steps=1000, now 2000, ...
    """
    requirement = "be an integer"
    if getattr(step, "shape", ()):
        requirement += ": pass one count of a vmapped or replicated state, such as count[0]"
    step = checks.at_least("step", step, 0, requirement)
    problem = _describe_problem(read_record("saved", saved), read_record("now", now), step)
    if problem:
        raise ValueError(f"the run cannot resume at step {step}: {problem}")


class Record(NamedTuple):
    """A record in plain values; `read_curve` builds its curve, which this version may reject."""

    curve: Any
    peak_value: float | None
    clock: Any


def _describe_problem(saved: Record, now: Record, step: int) -> str:
    """Return why a run cannot resume, and the remedy, as a part of a sentence; "" if it can."""
    difference = describe_clock_difference(saved.clock, now.clock)
    if difference:
        return f"{difference}; resume with the old clock"

    can_stand_still = now.clock is not None
    if step > 0 or can_stand_still:
        difference = describe_peak_difference(saved.peak_value, now.peak_value)
        if difference:
            return (
                f"{difference}; resume with the old peak, or leave peak_value out of now's record "
                "to continue with the new one"
            )

    current_curve = read_curve("now", now)
    if saved.curve == now.curve:
        return ""  # without building the saved curve, which is slow if it has many stages
    saved_curve = read_curve("saved", saved)
    difference = describe_curve_difference(
        saved_curve, current_curve, step, is_step_used=can_stand_still
    )
    if difference:
        return (
            f"{difference}; resume with the old curve, or skip check_resume to continue under the "
            "new one"
        )
    return ""


def dump_record(curve: Curve, peak_value: Any, clock: CheckedClock) -> dict[str, Any]:
    """Return the record of a run as plain JSON values."""
    if peak_value is not None:
        peak_value = shortest_decimal(peak_value)
    return {
        "kind": _FORMAT.kind,
        "format": _FORMAT.number,
        "curve": dict(curve.to_dict()),
        "peak_value": peak_value,
        "clock": clock.to_plain(),
    }


def read_record(name: str, record: Any) -> Record:
    """Check a saved record, after undoing what checkpoint libraries do to plain values."""
    try:
        plain = _to_plain_value(record)
        newer = _describe_newer(name, plain)
        if not newer:
            return _parse_record(name, plain)
    except Exception as error:  # a wrong type can raise anything
        shown = f"{name} = {short_repr(record)}"
        problem = describe_error(error)
        raise ValueError(f"{shown} is not from resume_record: {problem}") from None
    raise ValueError(newer)


def _parse_record(name: str, plain: Any) -> Record:
    saved = _FORMAT.read(name, plain)
    peak_value: Any = saved["peak_value"]
    if peak_value is not None:
        peak_value = shortest_decimal(peak_value)
    return Record(saved["curve"], peak_value, saved["clock"])


def _describe_newer(name: str, plain: Any) -> str:
    """Return an error message if a newer version saved this record, or ""."""
    problem = _FORMAT.describe_newer(name, plain)
    if problem or not _FORMAT.is_of(plain):
        return problem
    return _describe_newer_clock(name, plain.get("clock"))


def _describe_newer_clock(name: str, clock: Any) -> str:
    """Return an error message if a newer version saved a record with this clock, or ""."""
    for part in _parts_of(clock):
        if not isinstance(part, dict):
            continue
        arguments = cast("dict[str, Any]", part)
        kind = arguments.get("kind")
        if isinstance(kind, str) and kind not in CLOCKS:
            return f"{name} has a clock of the kind {kind!r}, so it was {NEWER}"
        if isinstance(kind, str):
            known = {"kind", *(argument.name for argument in fields(CLOCKS[kind]))}
            problem = describe_unknown(f"the clock of {name}", arguments, known)
            if problem:
                return problem
    return ""


def _parts_of(clock: Any) -> list[Any]:
    """Return the rules, or the clock itself."""
    if isinstance(clock, list):
        return cast("list[Any]", clock)
    return [clock]


def _to_plain_value(value: Any) -> Any:
    """Undo what checkpoint libraries do to plain values.

    Orbax may return NumPy's or JAX's numbers for numbers. Flax returns {"0": a, "1": b} for [a, b].
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return _restore_list({key: _to_plain_value(item) for key, item in items})
    if checks.is_ordered(value):
        return [_to_plain_value(item) for item in value]
    if getattr(value, "ndim", None) == 0:
        value = np.asarray(value)[()]
    if isinstance(value, np.number):
        return checks.number("a number", value)
    return value


def _restore_list(items: dict[str, Any]) -> dict[str, Any] | list[Any]:
    """Return [a, b] for {"0": a, "1": b}; any other dictionary unchanged."""
    indices = [str(index) for index in range(len(items))]
    if items.keys() != set(indices):
        return items
    return [items[index] for index in indices]  # the keys may be sorted: "0", "1", "10", "2"


def read_curve(name: str, record: Record) -> Curve:
    """Return the curve in a record."""
    try:
        with suppress_warnings():  # the run that saved it has warned about it
            return Curve.from_dict(record.curve)
    except Exception as error:  # a wrong type can raise anything
        raise ValueError(f"{name} has a curve that cannot be read: {error}") from None


def describe_clock_difference(saved: Any, now: Any) -> str:
    """Return how a clock differs from the saved one, as a part of a sentence; "" if not.

    Both are plain values, and are compared as such: building rules from them would also check their
    types, and a library that stores [0.3, 5] as floats returns 5.0.
    """
    if _comparable(saved) == _comparable(now):
        return ""
    return f"it was saved with clock={show_clock(saved)}, now {show_clock(now)}"


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


def describe_peak_difference(saved: Any, now: Any) -> str:
    """Return how a peak differs from the saved one, as a part of a sentence; "" if not.

    A peak is a number, or a list with a number for each parameter group. None is not compared.
    """
    if saved is None or now is None or saved == now:
        return ""
    return f"it was saved with peak_value={short_repr(saved)}, now {short_repr(now)}"


def shortest_decimal(peak: Any) -> float:
    """Return the shortest decimal of the peak's float32: 0.0003, not 0.0003000000142492354."""
    return float(str(checks.peak("peak_value", peak)))


def describe_curve_difference(
    saved: Curve,
    current: Curve,
    step: int,
    *,
    is_step_used: bool,
    driven: str = "learning rates",
) -> str:
    """Return how curves differ at the steps of a run, as a part of a sentence; "" if they do not.

    Args:
        saved: The curve of the run so far.
        current: The curve to resume under.
        step: The step to resume at; all steps below it are compared.
        is_step_used: True if an update may have used `step` already, because with a clock several
            updates may share a step. Then `step` is compared too, except at or past the end of the
            saved curve, where the next phase of `saved.then(...)` may have a different level.
        driven: The name of the values that follow the curve.
    """
    first = current.first_difference(saved)
    if first is None or step < first:
        return ""
    if step == first and not (is_step_used and _is_discontinuous(saved, current, step)):
        return ""
    arguments = _show_differing_arguments(saved, current)
    return f"it was saved with {arguments}, and the {driven} differ from step {first} on"


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
    old, new = saved.to_dict(), current.to_dict()
    if old.keys() != new.keys() or old.get("kind") != new.get("kind"):
        yield _show_change(path, _kind_and_length(saved), _kind_and_length(current))
        return
    for name, before in old.items():
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
