"""The record of a run, and the comparison of two records: may a saved run resume?"""

import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from plateau_jax.clocks.clock import AnyClock, CheckedClock, check_clock
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.validation import checks
from plateau_jax.validation.checks import short_repr
from plateau_jax.validation.curve_warning import suppress_warnings


def resume_record(
    curve: Curve, peak_value: Any = None, clock: AnyClock | None = None
) -> dict[str, Any]:
    """Return what `check_resume` needs to know about this run; save it next to the optax state.

    The optax state holds the step of the curve, but neither the curve nor its clock nor the peak. A
    run that uses several curves needs a record of each. The states of `lambda_lr` and `TrainStep`
    contain such a record for each parameter group, under `"records"`.

    Args:
        curve: The curve of `optax_schedule` or `scale_by_curve`.
        peak_value: The peak learning rate; None to leave it out of the comparison.
        clock: As in `scale_by_curve`.

    Returns:
        A dictionary of plain JSON values, with the keys `"curve"`, `"peak_value"` and `"clock"`.
        The peak is the shortest decimal of its float32.

    Raises:
        TypeError, ValueError: As `lambda_lr` for the same curve, peak and clock.

    >>> from plateau_jax import DataClock, StagedCurve, resume_record
    >>> resume_record(StagedCurve([(10, 1.0)]), 3e-4, DataClock(64))  # doctest: +NORMALIZE_WHITESPACE
    {'curve': {'kind': 'staged', 'stages': [[10, 1.0, 'linear']], 'start': 0.0},
     'peak_value': 0.0003, 'clock': {'kind': 'data', 'unit': 64, 'count': None}}
    """
    return dump_record(curve, peak_value, check_clock(clock, [check_curve("curve", curve)]))


def check_resume(saved: Mapping[str, Any], now: Mapping[str, Any], step: Any) -> None:
    """Raise an error if a run that was saved with one record cannot resume under another.

    A different curve is accepted if both agree at every step below `step` (`Curve.same_until`),
    such as a cooldown that leaves the saved curve there. With a clock they must agree at `step`
    too, unless the saved curve ends there: updates may have used it already. The peaks are compared
    if both records have one and updates may have run. The clocks must be the same, except for the
    `count` of a `DataClock`.

    Args:
        saved: What `resume_record` returned for the saved run, from JSON, orbax (`JsonSave`),
            msgpack or pickle; or a record in the state of a `lambda_lr` or `TrainStep`.
        now: What `resume_record` returns for the run that resumes. To resume with a different peak,
            leave out its `peak_value`.
        step: The step of the curve in the saved state, which gives the next learning rate. An
            integer, or an integer array without dimensions, NumPy's or JAX's. With `scale_by_curve`
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
    >>> check_resume(saved, resume_record(PlateauCurve(2000, warmup_steps=100)), 400)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: the run cannot resume at step 400: it was saved with total_steps=1000, now 2000, ...
    """
    step = checks.at_least("step", step, 0)
    old = read_record("saved", saved)
    new = read_record("now", now)
    if problem := describe_clock_difference(old.clock, new.clock):
        raise ValueError(
            f"the run cannot resume at step {step}: {problem}; resume with the old clock"
        )
    can_stand_still = new.clock is not None
    if (step or can_stand_still) and (
        problem := describe_peak_difference(old.peak_value, new.peak_value)
    ):
        raise ValueError(
            f"the run cannot resume at step {step}: {problem}; resume with the old peak, or leave "
            "peak_value out of now's record to continue with the new one"
        )
    current_curve = read_curve("now", new)
    if old.curve == new.curve:
        return  # without building the saved one, which takes long if it has many stages
    saved_curve = read_curve("saved", old)
    if problem := describe_curve_difference(saved_curve, current_curve, step, can_stand_still):
        raise ValueError(
            f"the run cannot resume at step {step}: {problem}; resume with the old curve, or skip "
            "check_resume to continue under the new one"
        )


class Record(NamedTuple):
    """A record in plain values. `read_curve` builds its curve, which another version may reject."""

    curve: Any
    peak_value: float | None = None
    clock: Any = None


def dump_record(curve: Curve, peak_value: Any, clock: CheckedClock) -> dict[str, Any]:
    """Return the record of a run as plain JSON values."""
    peak = None if peak_value is None else shortest_decimal(peak_value)
    return {"curve": dict(curve.to_dict()), "peak_value": peak, "clock": clock.to_plain()}


def read_record(name: str, record: Any) -> Record:
    """Check a saved record, after undoing what checkpoint libraries do to plain values."""
    try:
        entries = _to_plain_value(record)
        if isinstance(entries, dict) and "unit" in entries:
            raise ValueError("it was saved by an earlier version, whose records are not read")
        # An unknown key shows that it is another dictionary, such as a curve's, which may have a
        # "curve" too.
        if not isinstance(entries, dict) or not {"curve"} <= entries.keys() <= set(Record._fields):
            raise ValueError(
                'it must be a dictionary with the keys "curve", "peak_value" and "clock"'
            )
        values = Record(**cast("dict[str, Any]", entries))
        peak = None if values.peak_value is None else shortest_decimal(values.peak_value)
        return values._replace(peak_value=peak)
    except Exception as error:  # a wrong type can raise anything
        raise ValueError(
            f"{name} = {short_repr(record)} is not from resume_record: {error}"
        ) from None


def read_curve(name: str, record: Record) -> Curve:
    """Return the curve in a record."""
    try:
        with suppress_warnings():  # the run that saved it has warned about it
            return Curve.from_dict(record.curve)
    except Exception as error:  # a wrong type can raise anything
        raise ValueError(f"{name} has a curve that cannot be read: {error}") from None


def describe_clock_difference(saved: Any, now: Any) -> str:
    """Return how a clock differs from the saved one, as a part of a sentence; "" if not.

    Both are plain values. They are not built into rules, which would be compared by types too: a
    library that stores [0.3, 5] as floats returns 5.0.
    """
    # `count` is not part of the history: a resumed run may have a different batch size.
    if _without_count(saved) == _without_count(now):
        return ""
    return f"it was saved with clock={show_clock(saved)}, now {show_clock(now)}"


def _without_count(clock: Any) -> Any:
    if isinstance(clock, dict):
        return {
            name: value for name, value in cast("dict[str, Any]", clock).items() if name != "count"
        }
    return clock


def show_clock(clock: Any) -> str:
    """Return a clock of plain values as the Python expression that builds it, if its kind is known."""
    if isinstance(clock, list):
        shown = [show_clock(rule) for rule in cast("list[Any]", clock)]
        return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
    names = {"data": "DataClock", "hold_until_flat": "HoldUntilFlat", "hold_below": "HoldBelow"}
    if not isinstance(clock, dict) or clock.get("kind") not in names:
        return short_repr(clock)
    arguments = dict(cast("dict[str, Any]", clock))
    kind = names[arguments.pop("kind")]
    shown = [
        f"{name}={short_repr(value)}" for name, value in arguments.items() if value is not None
    ]
    return f"{kind}({', '.join(shown)})"


def describe_peak_difference(saved: Any, now: Any) -> str:
    """Return how a peak differs from the saved one, as a part of a sentence; "" if not, or if one is None.

    A peak is a number, or a list of those of all parameter groups.
    """
    if saved is None or now is None or saved == now:
        return ""
    return f"it was saved with peak_value={short_repr(saved)}, now {short_repr(now)}"


def shortest_decimal(peak: Any) -> float:
    """Return the shortest decimal of the peak's float32: 0.0003, not 0.0003000000142492354."""
    return float(str(checks.peak("peak_value", peak)))


def describe_curve_difference(
    saved: Curve, current: Curve, step: int, is_step_used: bool, driven: str = "learning rates"
) -> str:
    """Return how the curves differ at the steps of a run, as a part of a sentence; "" if nowhere.

    Args:
        saved: The curve of the run so far.
        current: The curve to resume under.
        step: The step to resume at; all steps below it are compared.
        is_step_used: True if an update may have used `step` already, because with a clock several
            updates may share a step. Then `step` is compared too, except at or past the end of the
            saved curve, where the next phase of `saved.then(...)` may have another level.
        driven: The values that follow the curve.
    """
    first = current.first_difference(saved)
    if first is None or step < first:
        return ""
    # Only nearly equal, because a cooldown rounds the level at which it begins.
    is_same = math.isclose(saved(step), current(step), rel_tol=2**-22, abs_tol=2**-57)
    if step == first and (is_same or not is_step_used or step >= saved.total_steps):
        return ""
    return f"it was saved with {_difference(saved, current)}, and the {driven} differ from step {first} on"


def _difference(old: Curve, new: Curve) -> str:
    """Return the saved arguments that differ, with the current ones."""
    differing = list(_differing_arguments(old, new))
    shown = [f"{name}{name and '='}{before}, now {now}" for name, before, now in differing[:2]]
    return "; ".join([*shown, "…"] if len(differing) > 2 else shown)


def _differing_arguments(old: Curve, new: Curve, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, old and new value of each argument that differs, also in curves within a curve.

    Of curves of two kinds, only kind and length are shown; of a list, only the first item that
    differs.
    """
    before, now = old.to_dict(), new.to_dict()
    if before.keys() != now.keys() or before.get("kind") != now.get("kind"):
        yield name, _kind_and_length(old), _kind_and_length(new)
        return
    key: str
    value: Any
    for key, value in before.items():
        label = f"{name}.{key}" if name else key
        inner = [getattr(curve, key, None) for curve in (old, new)]
        if isinstance(inner[0], Curve) and isinstance(inner[1], Curve):
            yield from _differing_arguments(inner[0], inner[1], label)
        elif isinstance(value, list) and isinstance(now[key], list):
            pairs: Iterator[tuple[Any, Any]] = zip_longest(cast("list[Any]", value), now[key])
            for index, (first, second) in enumerate(
                pairs
            ):  # None after the end of the shorter list
                if first != second:
                    yield f"{label}[{index}]", short_repr(first), short_repr(second)
                    break
        elif value != now[key]:
            yield label, short_repr(value), short_repr(now[key])


def _kind_and_length(curve: Curve) -> str:
    return f"a {type(curve).__name__} of {curve.total_steps} steps"


def _to_plain_value(value: Any) -> Any:
    """Undo what checkpoint libraries do to plain values.

    Orbax may return NumPy's or JAX's numbers for numbers. Flax returns {"0": a, "1": b} for [a, b].
    """
    if isinstance(value, Mapping):
        items = {
            key: _to_plain_value(item) for key, item in cast("Mapping[str, Any]", value).items()
        }
        indices = [
            str(index) for index in range(len(items))
        ]  # the keys may be sorted: "0", "1", "10", "2"
        return [items[index] for index in indices] if items.keys() == set(indices) else items
    if checks.is_ordered(value):
        return [_to_plain_value(item) for item in value]
    if getattr(value, "ndim", None) == 0:
        value = np.asarray(value)[()]
    return checks.number("a number", value) if isinstance(value, np.number) else value
