"""The record with which a JAX training run checks that it resumes on the learning rates it was saved with."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from plateau_jax.curves.curve import Curve, check_curve, check_unit
from plateau_jax.curves.saved_curves import describe_difference, read_saved_curve
from plateau_jax.holds.rules import Rule, check_rules
from plateau_jax.validation import checks
from plateau_jax.validation.checks import short_repr


def resume_record(
    curve: Curve,
    *,
    unit: int | None = None,
    hold: Rule | list[Rule] | None = None,
    peak_value: Any = None,
) -> dict[str, Any]:
    """Return what `check_resume` needs to know about this run; save it next to the optax state.

    The optax state holds the step of the curve, but neither the curve nor its unit nor the peak. A run that
    uses several curves needs a record of each.

    Args:
        curve: The curve of `optax_schedule` or `scale_by_curve`.
        unit: As in `scale_by_curve`.
        hold: As in `scale_by_curve`.
        peak_value: The peak learning rate; None to leave it out of the comparison.

    Returns:
        A dictionary of plain JSON values, with the keys `"curve"`, `"unit"`, `"hold"` and `"peak_value"`. The
        peak is the shortest decimal of its float32.

    Raises:
        ValueError: `unit` is not the unit of a curve from `BatchPlan.scale`; `peak_value` is negative, not
            finite, or positive and below 2⁻¹²⁶.

    >>> from plateau_jax import StagedCurve, resume_record
    >>> resume_record(StagedCurve([(10, 1.0)]), unit=64, peak_value=3e-4)  # doctest: +NORMALIZE_WHITESPACE
    {'curve': {'kind': 'staged', 'stages': [[10, 1.0, 'linear']], 'start': 0.0},
     'unit': 64, 'hold': None, 'peak_value': 0.0003}
    """
    rules = check_rules(hold, check_curve("curve", curve))
    unit = None if unit is None else checks.positive_int("unit", unit)
    check_unit([curve], unit)
    return {
        "curve": dict(curve.to_dict()),
        "unit": unit,
        "hold": [rule.to_dict() for rule in rules] or None,
        "peak_value": None if peak_value is None else float(str(checks.peak("peak_value", peak_value))),
    }


def check_resume(
    record: Mapping[str, Any],
    curve: Curve,
    step: Any,
    *,
    unit: int | None = None,
    hold: Rule | list[Rule] | None = None,
    peak_value: Any = None,
) -> None:
    """Raise an error if a saved run cannot resume under this curve, unit, hold and peak.

    A different curve is accepted if both agree at every step below `step` (`Curve.same_until`), such as a
    cooldown that leaves the saved curve there. With `unit` or `hold` they must agree at `step` too, unless
    the saved curve ends there: updates may have run at it already. The peaks are compared if both sides name
    one and updates may have run.

    Args:
        record: What `resume_record` returned for the saved run, from JSON, orbax (`JsonSave`), msgpack or
            pickle.
        curve: The curve to resume under.
        step: The clock of the saved state: the step of the curve that gives the next learning rate. An
            integer, or an integer array without dimensions, NumPy's or JAX's. With `optax_schedule` it is
            optax's count of updates, `optax.tree.get(state, "ScaleByScheduleState").count`. With
            `scale_by_curve` it is the `clock` in its state,
            `optax.tree.get(state, "clock")`; with `unit` or `hold` that is not the number of updates.
        unit: The unit to resume with.
        hold: The rule or rules to resume with.
        peak_value: The peak to resume with; leave it out to resume with a different one.

    Raises:
        ValueError: The curves differ at a step so far; the unit, the rules or the peaks differ; `record` is
            not a record.

    >>> from plateau_jax import PlateauCurve, check_resume, resume_record
    >>> curve = PlateauCurve(1000, warmup_steps=100)
    >>> record = resume_record(curve)
    >>> check_resume(record, curve.cooldown(500, 100), 400)
    >>> check_resume(record, PlateauCurve(2000, warmup_steps=100), 400)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: record cannot resume at step 400: it was saved with total_steps=1000, now 2000, ...
    """
    current = resume_record(curve, unit=unit, hold=hold, peak_value=peak_value)
    step = checks.at_least("step", step, 0)
    saved_curve, saved = _read_record(record)
    for name in ("unit", "hold"):
        if saved.get(name) != current[name]:
            raise ValueError(
                f"record was saved with {name} = {short_repr(saved.get(name))}, but here it is "
                f"{short_repr(current[name])}; resume with the old {name}"
            )
    can_stand_still = current["unit"] is not None or current["hold"] is not None
    peaks = saved.get("peak_value"), current["peak_value"]
    if (step or can_stand_still) and None not in peaks and peaks[0] != peaks[1]:
        raise ValueError(
            f"record was saved with peak_value = {peaks[0]}, but here it is {peaks[1]}; resume with the old "
            "peak, or leave out peak_value in check_resume to continue with the new one"
        )
    difference = describe_difference(saved_curve, curve, step, can_stand_still)
    if difference:
        raise ValueError(
            f"record cannot resume at step {step}: {difference}; resume with the old curve, or leave out "
            "check_resume to continue under the new one"
        )


def _read_record(record: Any) -> tuple[Curve, dict[str, Any]]:
    """Return the saved curve and all entries of a record."""
    try:
        entries = _to_plain_value(record)
        # An unknown key shows that it is another dictionary, such as a curve's, which may have a "curve" too.
        names = {"curve", "unit", "hold", "peak_value"}
        if not isinstance(entries, dict) or not {"curve"} <= entries.keys() <= names:
            raise ValueError('it must be a dictionary with the keys "curve", "unit", "hold" and "peak_value"')
        entries = cast("dict[str, Any]", entries)
        if (peak := entries.get("peak_value")) is not None:
            entries["peak_value"] = float(str(checks.peak("peak_value", peak)))
        return read_saved_curve(entries["curve"]), entries
    except Exception as error:  # a wrong type can raise anything
        raise ValueError(f"record = {short_repr(record)} is not from resume_record: {error}") from None


def _to_plain_value(value: Any) -> Any:
    """Undo what checkpoint libraries do to plain values.

    Orbax may return NumPy's or JAX's numbers for numbers. Flax returns {"0": a, "1": b} for [a, b].
    """
    if isinstance(value, Mapping):
        items = {key: _to_plain_value(item) for key, item in cast("Mapping[str, Any]", value).items()}
        indices = [str(index) for index in range(len(items))]  # the keys may be sorted: "0", "1", "10", "2"
        return [items[index] for index in indices] if items.keys() == set(indices) else items
    if checks.is_ordered(value):
        return [_to_plain_value(item) for item in value]
    if getattr(value, "ndim", None) == 0:
        value = np.asarray(value)[()]
    return checks.number("a number", value) if isinstance(value, np.number) else value
