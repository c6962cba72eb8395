"""The learning rates of a run in a training loop without JAX or torch."""

from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex, TypedDict

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import AnyClock, check_clock
from plateau_jax.clocks.position import advance_on_host, dump_position, start_position
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.runs.comparison import StateOwner
from plateau_jax.runs.record import dump_records, records_of
from plateau_jax.runs.resume import resume
from plateau_jax.runs.schedules import Schedules
from plateau_jax.saved_states.formats import Format, reading_state_of


class _State(TypedDict):
    """See `CurveScheduler.state_dict`."""

    kind: str
    format: int
    updates: int
    offset: int | None
    consumed: int | None
    hold: list[dict[str, int | float]]
    records: list[dict[str, Any]]


CURVE_SCHEDULER_FORMAT = Format("curve_scheduler", _State)


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
        curve: The curve.
        peak_value: The learning rate at multiplier 1, rounded to float32.
        clock: As in `resume_record`.

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

    def __init__(self, curve: Curve, peak_value: float, *, clock: AnyClock | None = None) -> None:
        self._curve = check_curve("curve", curve)
        self._clock = check_clock(clock, [self._curve])
        peak = float(checks.peak("peak_value", peak_value))
        self._schedules = Schedules([self._curve], [peak])
        self._position = start_position(self._clock)

    @property
    def updates(self) -> int:
        """The number of updates."""
        return self._position.updates

    @property
    def lr(self) -> float:
        """The learning rate of the next update, a float32 number."""
        return self._schedules.values_at(self.curve_step)[0]

    @property
    def curve_step(self) -> int:
        """The step of the curve that gives the learning rate."""
        return self._position.step

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without a `DataClock`, the number of updates."""
        return self._position.consumed(self._clock)

    def __repr__(self) -> str:
        curve = checks.short_repr(self._curve)
        return f"CurveScheduler({curve}, curve_step={self.curve_step}, lr={self.lr:.6g})"

    def step(
        self, *, count: SupportsIndex | None = None, metric: SupportsFloat | None = None
    ) -> None:
        """Move to the next step of the curve, after an update.

        Args:
            count: With a `DataClock`, the samples or tokens that the update consumed, an integer of
                at least 0. By default the `count` of the clock.
            metric: With a hold rule, the loss of the update, or another metric, a real number.

        Raises:
            TypeError, ValueError: An argument is wrong or missing, or belongs to a different clock.
                Nothing was changed.
        """
        self._position = advance_on_host(self._clock, self._position, count, metric)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values.

        The keys are `kind` and `format`; `updates`; `offset`, the step of the curve minus the
        number of updates, or with a `DataClock` `consumed` (the other of the two is None); `hold`,
        the states of the hold rules; and `records`, a list with the record of the curve, the peak
        and the clock, as `resume_record` returns it, which `load_state_dict` compares.
        """
        return CURVE_SCHEDULER_FORMAT.build(
            updates=self.updates,
            **dump_position(self._clock, self._position),
            records=dump_records(records_of([self._curve], self._schedules.bases, self._clock)),
        )

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Resume from the saved step of the curve.

        A different curve is accepted if it has the same values at every step before the saved one.
        With a clock, updates may have been made at that step already. If the state shows this, the
        value there must be the same too, unless the saved curve ends there. A `DataClock` may have
        a different `count`.

        Args:
            state_dict: A state that `state_dict` returned.
            strict: If True, reject a state whose curve has a different history, or whose clock or
                peak differs. If False, the run resumes at the saved step under this curve, clock
                and peak, with a warning. A different clock starts afresh at this step.

        Raises:
            ValueError: As above; or the state was saved by a different version, or is not that of
                a `CurveScheduler`. Nothing was changed.

        Warns:
            CurveWarning: As above.
        """
        checks.boolean("strict", strict)
        with reading_state_of("a CurveScheduler", state_dict):
            state = CURVE_SCHEDULER_FORMAT.read("state_dict", state_dict)
            bases = self._schedules.bases
            now = records_of([self._curve], bases, self._clock)
            updates = checks.at_least("updates", state["updates"], 0)
            resumed = resume(state, updates, now, bases, self._clock, StateOwner(), strict=strict)
        for message in resumed.warnings:
            warn(message)
        self._position = resumed.position
