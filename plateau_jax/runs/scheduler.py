"""The learning rates of a run in a training loop without JAX or torch."""

from collections.abc import Mapping
from typing import Any, TypedDict

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import AnyClock
from plateau_jax.curves.curve import AnyCurve, as_curve
from plateau_jax.runs.comparison import compare_with_saved, schedules_of
from plateau_jax.runs.host_clock import new_clock
from plateau_jax.runs.policy import CURVE_SCHEDULER
from plateau_jax.runs.record import dump_records, read_records
from plateau_jax.runs.saved_run import dump_hold_states, position_on, read_saved_run
from plateau_jax.runs.values_ahead import ValuesAhead
from plateau_jax.saved_states.formats import Format
from plateau_jax.saved_states.state_errors import reading_state_of


class _CurveSchedulerState(TypedDict):
    """See `CurveScheduler.state_dict`."""

    kind: str
    format: int
    updates: int
    curve_step: int
    consumed: int
    hold: list[dict[str, int | float]]
    records: list[dict[str, Any]]


_FORMAT = Format("curve_scheduler", _CurveSchedulerState)


class CurveScheduler:
    """The learning rates of a run, for a training loop in NumPy, MLX, Keras or tinygrad.

    In torch use `lambda_lr`, in JAX `optax_schedule` or `scale_by_curve`. All give learning rates
    with the same bits:

        lr = float32(float32(peak_value) · curve(curve_step))

    By default each call of `step()` moves to the next step of the curve. If `clock` is a hold rule,
    call `step(metric=loss)`: the rule may hold the curve at its step. If `clock` is a `DataClock`,
    call `step(count=n)`: the step is `consumed // unit`, and consumed is the sum of the counts of
    all updates.

    Args:
        curve: A curve, or a mapping that `Curve.from_dict` reads.
        peak_value: The learning rate at multiplier 1, rounded to float32.
        clock: As in `resume_record`.

    Attributes:
        updates: The number of updates.

    Raises:
        TypeError, ValueError: As `resume_record` for the same curve, peak and clock.

    >>> from plateau_jax import CurveScheduler, PlateauCurve
    >>> scheduler = CurveScheduler(PlateauCurve(1000, warmup_steps=100), peak_value=3e-4)
    >>> for _ in range(50):
    ...     lr = scheduler.lr  # of this update
    ...     scheduler.step()
    >>> round(scheduler.lr, 9)
    0.00015
    """

    def __init__(
        self, curve: AnyCurve, peak_value: float, *, clock: AnyClock | None = None
    ) -> None:
        self._curve = as_curve("curve", curve)
        self._clock = new_clock(clock, [self._curve])
        peak = float(checks.peak("peak_value", peak_value))
        self._values = ValuesAhead([self._curve], [peak])
        self.updates = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next update, a float32 number."""
        return self._values.at(self.curve_step)[0]

    @property
    def curve_step(self) -> int:
        """The step of the curve that gives the learning rate."""
        return self._clock.step(self.updates)

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without a `DataClock`, the number of updates."""
        return self._clock.consumed(self.updates)

    def __repr__(self) -> str:
        curve = checks.short_repr(self._curve)
        return f"CurveScheduler({curve}, curve_step={self.curve_step}, lr={self.lr:.6g})"

    def step(self, *, count: Any = None, metric: Any = None) -> None:
        """Move to the next step of the curve, after an update.

        Args:
            count: With a `DataClock`, the samples or tokens that the update consumed, an integer of
                at least 0. By default the `count` of the clock.
            metric: With a hold rule, the loss of the update, or another metric, a real number.

        Raises:
            TypeError, ValueError: An argument is wrong or missing, or belongs to a different clock.
                Nothing was changed.
        """
        clock = self._clock.after(self.updates, count, metric)
        # At once: an interrupt between two assignments would count half an update.
        vars(self).update(_clock=clock, updates=self.updates + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values.

        The keys are `kind` and `format`; `updates`, `curve_step` and `consumed`; `hold`, the states
        of the hold rules; and `records`. The last is a list with the record of the curve, the peak
        and the clock, as `resume_record` returns it, which `load_state_dict` compares.
        """
        checked = self._clock.checked
        return _FORMAT.write(
            updates=self.updates,
            curve_step=self.curve_step,
            consumed=self.consumed,
            hold=dump_hold_states(checked.rules, self._clock.hold_states),
            records=dump_records([self._curve], self._values.bases, checked),
        )

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Resume from the saved step of the curve.

        A different curve is accepted if it has the same values at every step before the saved one,
        as in `check_resume`. A `DataClock` may have a different `count`.

        Args:
            state_dict: A state that `state_dict` returned.
            strict: If True, reject a state whose curve has a different history, or whose clock or
                peak differs. If False, the run resumes at the saved step under this curve, clock
                and peak, with a warning. A different clock starts afresh at this step, with the
                `updates` and `consumed` that lead there.

        Raises:
            ValueError: As above; or the state contradicts itself, was saved by a newer version, or
                is not that of a `CurveScheduler`. Nothing was changed.

        Warns:
            CurveWarning: As above.
        """
        checked = self._clock.checked
        with reading_state_of("a CurveScheduler", state_dict):
            state = _FORMAT.read("state_dict", state_dict)
            updates = checks.at_least("updates", state["updates"], 0)
            records = read_records("records", state["records"])
            if len(records) > 1:
                raise ValueError("state_dict has several records, those of parameter groups")
            if not records or records[0].peak_value is None:
                raise ValueError("state_dict must have a record with a peak_value")
            (record,) = records
            saved = read_saved_run(state, updates, [record.peak_value])
            compared_peaks = None
            if updates:
                compared_peaks = self._values.bases
            now = schedules_of([self._curve], compared_peaks, checked)
            outcome = compare_with_saved(saved, now, CURVE_SCHEDULER, strict=strict)
            position = position_on(checked, saved, is_new_clock=outcome.is_new_clock)
        for message in outcome.warnings:
            warn(message)
        vars(self).update(_clock=self._clock.resumed(position), updates=position.updates)
