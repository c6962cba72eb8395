"""Check that a run resumes under the schedule that it was saved with."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import CheckedClock
from plateau_jax.clocks.position import (
    Position,
    read_position,
    read_rule_states,
    start_position,
)
from plateau_jax.runs.comparison import StateOwner, clocks_differ, compare_runs, may_share_steps
from plateau_jax.runs.record import Record, read_records, shortest_decimal

SavedRecords = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A record, or one for each parameter group."""

A_STEP = "be an integer; for a vmapped or replicated state, pass one count, such as count[0]"


class ResumedRun(NamedTuple):
    """How a saved run continues."""

    position: Position
    """On the present clock."""
    bases: list[float]
    """The base of each saved parameter group, such as its peak."""
    warnings: list[str]


def resume(
    state: Mapping[str, Any],
    updates: int,
    now: Sequence[Record],
    bases: Sequence[float],
    clock: CheckedClock,
    owner: StateOwner,
    *,
    strict: bool,
) -> ResumedRun:
    """Return the position and the bases with which a saved run continues under this schedule.

    A clock that differs from the saved one starts afresh at the saved step.

    Args:
        state: A state with the entries of `dump_position` and `records`. The bases are in the
            records, or in `base_lrs`. If a scheduler without a curve saved it, it has no `records`.
        updates: The number of updates in the state; -1 if a scheduler waits for its turn in a
            `SequentialLR`.
        now: The record of each parameter group. A state may have fewer: those of the first ones.
        bases: The present base of each group, which is kept if the state has none: a program may
            have made the state from that of a `lambda_lr` (docs/training_step.md).
        clock: The clock of all of them.
        owner: Whose state it is.
        strict: False to continue in spite of differences that are errors.

    Raises:
        ValueError: The run cannot continue, or the state is malformed.
    """
    records = _read_saved(state)
    if len(records) > len(now) or (now and not records):
        raise ValueError(
            f"state_dict was saved with {len(records)} parameter groups, and there are {len(now)}: "
            "resume with those that the run had then"
        )
    now = now[: len(records)]
    saved_clock: Any = clock.to_plain()
    if records:
        saved_clock = records[0].clock
    unit: Any = None
    if isinstance(saved_clock, dict):
        unit = cast("dict[str, Any]", saved_clock)["unit"]
    is_same = not clocks_differ(saved_clock, clock.to_plain())
    position = read_position(state, updates, unit)
    is_step_used = _is_step_used(position, has_rules=isinstance(saved_clock, list))
    warnings = compare_runs(
        records, now, position.step, owner, is_step_used=is_step_used, strict=strict
    )
    if "records" not in state and records:
        warnings.append(
            f"{owner.subject} was saved by a scheduler without a curve: this curve continues at "
            f"step {position.step}, and nothing shows whether the run has followed it so far"
        )
    if is_same:
        position = position._replace(rule_states=read_rule_states(state["hold"], clock.rules))
    else:  # the states of other rules are dropped, unread
        position = start_position(clock, position.updates, position.step)
    saved_bases = [
        base if record.peak_value is None else float(checks.peak("peak_value", record.peak_value))
        for record, base in zip(records, bases, strict=False)
    ]
    return ResumedRun(position, saved_bases, warnings)


def _read_saved(state: Mapping[str, Any]) -> list[Record]:
    """Return the saved record of each parameter group, with its base if the state has one."""
    peaks: Sequence[float] = state.get("base_lrs", ())
    if "records" not in state:
        return [Record(None, shortest_decimal(peak), None) for peak in peaks]
    records = read_records("records", state["records"])
    for index, peak in enumerate(peaks):
        if records[index].peak_value is None:
            records[index] = records[index]._replace(peak_value=shortest_decimal(peak))
    return records


def _is_step_used(position: Position, *, has_rules: bool) -> bool:
    """Return True if updates were made at the step of the curve that comes next.

    An update with a count of 0 leaves a trace only at step 0.
    """
    updates, step = max(position.updates, 0), position.step
    has_update_at_0 = step == 0 and updates > 0
    return position.rest > 0 or has_update_at_0 or (has_rules and step != updates)


def check_resume(
    saved: SavedRecords | None, now: SavedRecords, step: SupportsIndex, *, strict: bool = True
) -> None:
    """Raise an error if a run that was saved with one record cannot resume under another.

    The curve may differ from `step` on, as a cooldown that starts there does. At every step below,
    the two curves must be equal (`Curve.same_until`). With a clock, they must also be equal at
    `step` itself, because updates may have used it already (unless the saved curve ends there). The
    peaks are compared if both records have one, and `step` is above 0 or there is a clock. The
    clocks must be equal, except for the `count` of a `DataClock`.

    Call `check_resume` after the run has restored its step, and before the next update. For a
    trainer whose state has no place for a record, use `check_resume_file`.

    Args:
        saved: What `resume_record` returned for the saved run, from JSON, orbax (`JsonSave`)
            or pickle; or a record in the state of a `lambda_lr` or `TrainStep`; or a list
            of records, one for each parameter group. None if the run was saved without a record: a
            warning then says that nothing was compared.
        now: What `resume_record` returns for the run that resumes, or a list of records.
        step: The step of the curve that gives the next learning rate, from the saved state: an
            integer, or an integer array without dimensions of NumPy or JAX.

            - With `optax_schedule`: the number of updates that optax has counted,
              `optax.tree.get(state, "ScaleByScheduleState").count`. `optax.inject_hyperparams` has
              it in `state.count`. With several schedules, as under `optax.multi_transform`, take it
              from one of `optax.tree.get_all_with_path(state, "ScaleByScheduleState")`.
            - With `scale_by_curve`: `optax.tree.get(state, "curve_step")`. With a clock, this is
              not the number of updates.
        strict: False to warn instead of raising an error if the run differs from the saved one.

    Raises:
        TypeError: `step` is not an integer.
        ValueError: The curves differ at a step so far, or the clocks, the peaks or the numbers of
            records differ (unless `strict` is False); `saved` or `now` is not a record, or was
            saved by a different version.

    Warns:
        CurveWarning: With `strict=False`, the run differs from the saved one; or `saved`
            is None, at a step above 0 or with a clock.

    >>> import numpy as np, optax
    >>> from plateau_jax import PlateauCurve, check_resume, optax_schedule, resume_record
    >>> curve = PlateauCurve(100, warmup_steps=10)
    >>> optimizer = optax.sgd(optax_schedule(curve, 0.1))
    >>> gradient = np.float32(1.0)
    >>> state = optimizer.init(gradient)
    >>> for _ in range(40):
    ...     _, state = optimizer.update(gradient, state)
    >>> saved = resume_record(curve, 0.1)  # to be saved with the state
    >>> step = optax.tree.get(state, "ScaleByScheduleState").count
    >>> check_resume(saved, resume_record(curve.cooldown(50, 10), 0.1), step)
    >>> longer = PlateauCurve(200, warmup_steps=10)
    >>> check_resume(saved, resume_record(longer, 0.1), step)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: the run cannot resume at step 40: it was saved with total_steps=100, now 200, ...
    """
    checks.boolean("strict", strict)
    number = checks.at_least("step", step, 0, A_STEP)
    current = read_records("now", now)
    if saved is None:
        if number > 0 or may_share_steps(current):
            warn(
                f"the run resumes at step {number} from a state without a record, so nothing shows "
                "whether it has followed this curve so far"
            )
        return
    records = read_records("saved", saved)
    owner = StateOwner("the run", "pass strict=False to check_resume")
    is_step_used = may_share_steps([*records, *current])
    for message in compare_runs(
        records, current, number, owner, is_step_used=is_step_used, strict=strict
    ):
        warn(message)
