"""The hold rules that read means of metrics."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.clocks.hold_rule import HoldRule, add_to_reading, to_float32
from plateau_jax.curves.curve import Curve

ThresholdMode = Literal["rel", "abs"]


class FlatState(NamedTuple):
    """The state of a `HoldUntilFlat`.

    Its integers are initial unless the curve is held at the start of a plateau.
    """

    updates: Any
    """int32: updates at this step so far; `limit` once the rule has released the plateau."""
    stale: Any
    """int32: readings in a row without improvement; -1 before the first reading."""
    filled: Any
    """int32: number of metrics in the unfinished mean."""
    total: Any
    """float32: sum of these metrics; undefined if there are none."""
    best: Any
    """float32: the last reading that improved; undefined if there was none."""


@dataclass(frozen=True)
class HoldUntilFlat(HoldRule, kind="hold_until_flat"):
    """Hold the curve at the first step of each plateau until a metric stops improving.

    Without a hold rule, each update moves the run to the next step of the curve. While a hold rule
    holds the curve, updates continue at the same step. A plateau is a sequence of flat
    steps with one multiplier, however the curve was written. The curve is held at its first step
    until `patience` readings in a row bring no improvement, but for at most `limit` updates. Then
    the remaining steps of the plateau follow, without another hold. With `limit=1` the curve is
    never held.

    A run under a hold rule makes more than `total_steps` updates. Loop over the steps of the curve,
    `while scheduler.curve_step < curve.total_steps`. Otherwise the run ends before its decay. With
    a `TrainStep`, read `result.curve_step`; in JAX, `optax.tree.get(state, "curve_step")`.

    Pass a hold rule, or a list of them, as `clock=` to `lambda_lr`, `TrainStep`, `CurveScheduler`,
    `scale_by_curve` or `resume_record`. The arguments are also attributes.

    A metric is the number that an update passes to the hold rule, such as its loss. A reading is
    the mean of `every` metrics, counted from the first update of the hold: their float32 sum, in
    order, times float32(1/`every`). Each metric is first rounded to float32. A metric that is not
    finite is left out of the mean, but its update still counts towards `limit`. A reading improves
    if, in float32 and with t = `threshold`,

        reading < best·float32(1 - t)    for "rel", whose metric is never negative
        reading < best - float32(t)      for "abs"

    Here best is the last reading that improved. The first reading of each hold counts as an
    improvement.

    Args:
        patience: Number of readings in a row without improvement; 1 to 2³¹ - 1.
        threshold: The least improvement that counts, at least 0; for `"rel"` at most 1.
        threshold_mode: `"rel"` or `"abs"`.
        every: Number of metrics in a reading; 1 to `limit`.
        limit: Greatest number of updates at one step of the curve; 1 to 2³¹ - 1.

    Raises:
        TypeError: A count is not an integer, or a threshold is not a number.
        ValueError: A value is out of range.

    A plateau at step 2 that lasts until the loss has not improved twice:

    >>> from plateau_jax import CurveScheduler, HoldUntilFlat, PlateauCurve
    >>> curve = PlateauCurve(10, warmup_steps=2, plateaus=[(0, 50)])
    >>> scheduler = CurveScheduler(curve, peak_value=0.1, clock=HoldUntilFlat(2, limit=1000))
    >>> for loss in (5.0, 4.0, 3.0, 2.0, 2.0, 2.0, 2.0):
    ...     scheduler.step(metric=loss)
    ...     print(scheduler.curve_step, end=" ")
    1 2 2 2 2 3 4
    """

    patience: int
    _: KW_ONLY
    threshold: float = 1e-4
    threshold_mode: ThresholdMode = "rel"
    every: int = 1
    limit: int

    def __post_init__(self) -> None:
        patience = checks.positive_int("patience", self.patience)
        mode = checks.one_of("threshold_mode", self.threshold_mode, get_args(ThresholdMode))
        threshold = checks.float32("threshold", self.threshold)
        if threshold < 0 or (mode == "rel" and threshold > 1):
            limits = 'not be negative, nor above 1 for threshold_mode="rel"'
            raise ValueError(checks.must("threshold", threshold, limits))
        every = checks.positive_int("every", self.every)
        limit = checks.positive_int("limit", self.limit)
        if every > limit:
            most = f"be at most limit = {limit}: the hold would end with no reading"
            raise ValueError(checks.must("every", every, most))
        vars(self).update(
            patience=patience,
            threshold=threshold,
            threshold_mode=mode,
            every=every,
            limit=limit,
            _mean_factor=to_float32(1 / every),
            _bound=to_float32(1 - threshold if mode == "rel" else threshold),
        )

    def _check_curve(self, curve: Curve) -> None:
        if not curve.flat_starts:
            shown_curve = checks.short_repr(curve)
            raise ValueError(
                f"{self!r} needs a plateau to hold at, and {shown_curve} has none: add "
                "plateaus=[(start %, duration %)], or, in a StagedCurve, a stage (steps,)"
            )

    def _initial_state(self) -> FlatState:
        zero = np.int32(0)
        undefined = np.float32(0)
        stale = np.int32(-1)
        return FlatState(updates=zero, stale=stale, filled=zero, total=undefined, best=undefined)

    def _update(
        self, xp: Any, state: FlatState, starts_plateau: Any, metric: Any, is_finite: Any
    ) -> tuple[FlatState, Any]:
        reading = add_to_reading(xp, self, state, metric, is_finite)
        if self.threshold_mode == "rel":
            bound = state.best * self._bound
        else:
            # `best` is a product behind a `where`, so a constant must not be subtracted from it
            # (see the top of `hold_rule`). This `where` yields the threshold whenever a reading is
            # complete, but XLA cannot know that.
            bound = state.best - xp.where(is_finite, self._bound, metric)
        is_first = state.stale < 0
        is_better = reading.is_complete & (is_first | (reading.value < bound))
        best = xp.where(is_better, reading.value, state.best)

        stale = xp.where(reading.is_complete, state.stale + 1, state.stale)
        stale = xp.where(is_better, 0, stale)
        is_running = (state.updates < self.limit) & (stale < self.patience)
        updates = xp.where(is_running, state.updates + 1, self.limit)
        is_holding = starts_plateau & (updates < self.limit)
        return FlatState(updates, stale, reading.filled, reading.total, best), is_holding

    def _after_step(self, xp: Any, state: FlatState, stays_held: Any) -> FlatState:
        # A rule that has released a plateau keeps its state while another rule holds the curve
        # there, so that it does not hold the same part again. It is reset at the next step.
        return state._replace(
            updates=xp.where(stays_held, state.updates, 0),
            stale=xp.where(stays_held, state.stale, -1),
            filled=xp.where(stays_held, state.filled, 0),
        )


class BelowState(NamedTuple):
    """The state of a `HoldBelow`."""

    held: Any
    """int32: updates for which the curve was held; 0 until the value is reached."""
    filled: Any
    """int32: number of metrics in the unfinished mean."""
    total: Any
    """float32: sum of these metrics; undefined if there are none."""


@dataclass(frozen=True)
class HoldBelow(HoldRule, kind="hold_below"):
    """Hold the curve at its step for a number of updates once a metric has fallen to a value.

    The value is reached at the first update with, in float32,

        reading = float32(1/every) · Σ metrics ≤ value

    After this update, and after the next `steps` - 1 updates, the run stays at its step of the
    curve. Every other update moves it to the next step. The value is reached only once. Pass the
    rule as `clock=`, like `HoldUntilFlat`; for several values, pass a list of hold rules:
    `[HoldBelow(0.5, 100), HoldBelow(0.2, 300)]`. The arguments are also attributes.

    A metric is the number that an update passes to the hold rule, such as its loss. A reading
    consists of `every` metrics, counted from the first update of the run and summed in order. Each
    metric is first rounded to float32. A metric that is not finite is left out of the mean.

    Args:
        value: The value that starts the hold.
        steps: Number of updates that the hold lasts; 1 to 2³¹ - 1.
        every: Number of metrics in a reading; 1 to 2³¹ - 1.

    Raises:
        TypeError: The value is not a number, or a count is not an integer.
        ValueError: A number is out of range.

    >>> from plateau_jax import CurveScheduler, HoldBelow, PlateauCurve
    >>> scheduler = CurveScheduler(PlateauCurve(100), peak_value=0.1, clock=HoldBelow(0.5, 2))
    >>> for loss in (0.9, 0.4, 0.3, 0.2):
    ...     scheduler.step(metric=loss)
    ...     print(scheduler.curve_step, end=" ")
    1 1 1 2
    """

    value: float
    steps: int
    _: KW_ONLY
    every: int = 1

    def __post_init__(self) -> None:
        value = checks.float32("value", self.value)
        every = checks.positive_int("every", self.every)
        vars(self).update(
            value=value,
            steps=checks.positive_int("steps", self.steps),
            every=every,
            _mean_factor=to_float32(1 / every),
            _bound=to_float32(value),
        )

    def _initial_state(self) -> BelowState:
        zero = np.int32(0)
        return BelowState(held=zero, filled=zero, total=np.float32(0))

    def _update(
        self, xp: Any, state: BelowState, starts_plateau: Any, metric: Any, is_finite: Any
    ) -> tuple[BelowState, Any]:
        reading = add_to_reading(xp, self, state, metric, is_finite)
        falls_below = reading.is_complete & (reading.value <= self._bound)
        is_holding = (falls_below | (state.held > 0)) & (state.held < self.steps)
        held = xp.where(is_holding, state.held + 1, state.held)
        return BelowState(held, reading.filled, reading.total), is_holding


AnyHoldRule = HoldUntilFlat | HoldBelow
"""Every rule."""

HOLD_RULE_CLASSES: tuple[type[HoldRule], ...] = get_args(AnyHoldRule)
