"""Check that a run resumes under the schedule that it was saved with."""

from collections.abc import Mapping, Sequence
from typing import Any

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.runs.comparison import Schedule, compare_with_saved
from plateau_jax.runs.policy import Policy, record_policy
from plateau_jax.runs.record import Record, read_records
from plateau_jax.runs.saved_run import SavedRun

Records = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A record, or one for each parameter group."""


def check_resume(saved: Records | None, now: Records, step: Any, *, strict: bool = True) -> None:
    """Raise an error if a run that was saved with one record cannot resume under another.

    The curve may differ from `step` on, as a cooldown that starts there does. At every step below,
    the two curves must be equal (`Curve.same_until`). With a clock, they must also be equal at
    `step` itself, because updates may have used it already (unless the saved curve ends there). The
    peaks are compared if both records have one, and `step` is above 0 or there is a clock. The
    clocks must be equal, except for the `count` of a `DataClock`.

    Call `check_resume` after the run has restored its step, and before the next update. For a
    trainer whose state has no place for a record, use `check_resume_file`.

    Args:
        saved: What `resume_record` returned for the saved run, from JSON, orbax (`JsonSave`),
            msgpack or pickle; or a record in the state of a `lambda_lr` or `TrainStep`; or a list
            of records, one for each parameter group. None if the run was saved without a record: a
            warning then says that nothing was compared.
        now: What `resume_record` returns for the run that resumes, or a list of records.
        step: The step of the curve that gives the next learning rate, from the saved state: an
            integer, or an integer array without dimensions of NumPy or JAX.

            - With `optax_schedule`: the number of updates that optax has counted,
              `optax.tree.get(state, "ScaleByScheduleState").count`.
            - With `scale_by_curve`: `optax.tree.get(state, "curve_step")`. With a clock, this is
              not the number of updates.
        strict: False to warn instead of raising an error if the run differs from the saved one.

    Raises:
        TypeError: `step` is not an integer.
        ValueError: The curves differ at a step so far, or the clocks, the peaks or the numbers of
            records differ (unless `strict` is False); `saved` or `now` is not a record, or was
            saved by a newer version.

    Warns:
        CurveWarning: With `strict=False`, the run differs from the saved one; or `saved` is None.

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
    step = check_step(step)
    current = read_checked_records("now", now)
    if saved is None and (step > 0 or may_share_steps(current)):
        warn(
            f"the run resumes at step {step} from a state without a record, so nothing shows "
            "whether it has followed this curve so far"
        )
    if saved is None:
        return
    policy = record_policy(len(current))
    for message in compare_records(
        read_records("saved", saved), current, step, policy, strict=strict
    ):
        warn(message)


def check_step(step: Any) -> int:
    """Return the step of the curve at which a run resumes as a Python int."""
    requirement = "be an integer"
    if getattr(step, "shape", ()):
        requirement += ": pass one count of a vmapped or replicated state, such as count[0]"
    return checks.at_least("step", step, 0, requirement)


def compare_records(
    saved: Sequence[Record], now: Sequence[Record], step: int, policy: Policy, *, strict: bool
) -> list[str]:
    """Return the warnings with which a run with these records resumes.

    Raises:
        ValueError: It cannot resume.
    """
    is_step_used = may_share_steps(now)
    peaks: list[float | None] = [None] * len(saved)
    if step > 0 or is_step_used:
        peaks = [record.peak_value for record in saved]
    saved_run = SavedRun([*saved], peaks, step, is_step_used=is_step_used)
    schedules = [Schedule(record.built_curve, record.peak_value, record.clock) for record in now]
    return compare_with_saved(saved_run, schedules, policy, strict=strict).warnings


def may_share_steps(records: Sequence[Record]) -> bool:
    """Return True if several updates may have used the same step, because there is a clock."""
    return any(record.clock is not None for record in records)


def read_checked_records(name: str, given: Any) -> list[Record]:
    """Return the records that the program passes; raise a ValueError if one is unreadable."""
    records = read_records(name, given)
    if not records:
        raise ValueError(f"{name} = {given!r} has no record: pass what resume_record returns")
    for record in records:
        try:
            _ = record.built_curve
        except TypeError as error:
            raise ValueError(str(error)) from None
    return records
