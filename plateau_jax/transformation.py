"""A curve inside an optimizer of optax: updates times -rate, at a clock of updates or of samples."""

# JAX is not fully typed, and optax has no stubs:
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plateau_jax.curves.curve import Curve
from plateau_jax.holds.decision import decide, initial_state
from plateau_jax.holds.rules import Rule, check_rules
from plateau_jax.schedule import array_of, check_real_scalar, optax_schedule
from plateau_jax.validation import checks
from plateau_jax.validation.checks import MAX_STEP

MAX_COUNT = 2**30
"""The largest unit and the largest count: with a rest below the unit, their sum fits into int32."""


class ScaleByCurveState(NamedTuple):
    """The state of `scale_by_curve`: arrays of no dimensions.

    >>> from plateau_jax import PlateauCurve
    >>> scale_by_curve(PlateauCurve(10, init_lr_ratio=1.0), 0.5).init({})
    ScaleByCurveState(clock=Array(0, dtype=int32), hold=(), learning_rate=Array(0.5, dtype=float32))
    """

    clock: Any
    """int32: the step of the curve that the next update's rate is taken at."""
    hold: tuple[Any, ...]
    """The state of each rule, int32 and float32; empty without rules."""
    learning_rate: Any
    """The rate of the last update, or of step 0 before the first; float32, or float64 when x64 is on."""


class CountedCurveState(NamedTuple):
    """The state of `scale_by_curve` with `unit`: arrays of no dimensions.

        consumed = clock · unit + rest

    >>> from plateau_jax import PlateauCurve
    >>> curve = PlateauCurve(10, init_lr_ratio=1.0)
    >>> scale_by_curve(curve, 0.5, unit=8).init({})  # doctest: +NORMALIZE_WHITESPACE
    CountedCurveState(clock=Array(0, dtype=int32), rest=Array(0, dtype=int32),
                      learning_rate=Array(0.5, dtype=float32))
    """

    clock: Any
    """int32: the step of the curve that the next update's rate is taken at."""
    rest: Any
    """int32: what was consumed since the clock moved, below the unit."""
    learning_rate: Any
    """The rate of the last update, or of step 0 before the first; float32, or float64 when x64 is on."""


def scale_by_curve(
    curve: Curve, peak_value: Any, *, hold: Rule | list[Rule] | None = None, unit: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """The last transformation of an optax chain: it multiplies updates by minus the curve's learning rate.

        update ← -rate · update,    rate = float32(peak_value) · curve(clock)

    It takes the place of `optax.scale_by_learning_rate`. The clock is the step of the curve that gives the
    rate. It begins at 0, and after each update it moves one step on, up to 2³¹ - 1, unless a rule in `hold`
    holds it. With rules, pass the metric that they read, such as the loss, to `update` as `value=`, as for
    `optax.contrib.reduce_on_plateau`: a real scalar, traced or not. It is rounded to float32.

    With `unit` the clock counts samples or tokens:

        clock = consumed // unit,    consumed = the sum of the counts of all updates before

    Pass the count of each update to `update` as `count=`: an integer from 0 to 2³⁰, traced or not. An array
    is not read on the host, so one below 0 counts as 0, and one above 2³⁰ as 2³⁰. The clock depends only on
    what was consumed, not on how that was cut into updates; it stops at 2³¹ - 1. Nothing needs x64. Inside of
    `optax.MultiSteps` the count that is given with the last micro-batch is taken alone: give the sum of all
    micro-batches of the update there. Without `unit` a `count` is left alone.

    Updates keep their dtype.

    Args:
        curve: The curve.
        peak_value: As in `optax_schedule`.
        hold: A `HoldUntilFlat` or `HoldBelow`, or a list of them. Each rule sees every update and counts for
            itself; the clock moves on when no rule holds it.
        unit: How many samples or tokens make one step of the curve, 1 to 2³⁰; None for a clock of updates.

    Returns:
        The transformation; its state is a `ScaleByCurveState`, or with `unit` a `CountedCurveState`.

    Raises:
        TypeError: As `optax_schedule`; `hold` is no rule; `unit` is no integer. `update`: with rules, a
            `value` that is missing or not a real scalar; with `unit`, a `count` that is missing or not a
            single integer.
        ValueError: As `optax_schedule`; a `HoldUntilFlat` for a curve without a flat part; a `unit` out of
            its range, or beside `hold`. `update`: a state of rules of other kinds, or of none; the state of
            another clock; a `count` out of its range that is no array.

    >>> import optax
    >>> from plateau_jax import HoldUntilFlat, PlateauCurve, scale_by_curve
    >>> curve = PlateauCurve(10, plateaus=[(50, 20)], decay_shape="linear")
    >>> rule = HoldUntilFlat(patience=3, limit=100)
    >>> optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(curve, 0.1, hold=rule))
    >>> params = {"w": jnp.ones(2)}
    >>> state = optimizer.init(params)
    >>> for _ in range(9):
    ...     updates, state = optimizer.update(params, state, params, value=0.7)
    >>> state[1].clock, state[1].learning_rate
    (Array(6, dtype=int32), Array(0.0375, dtype=float32))

    A step of this curve is 8 samples:

    >>> transformation = scale_by_curve(PlateauCurve(10, warmup_steps=4), 0.1, unit=8)
    >>> state = transformation.init(params)
    >>> for samples in (5, 8, 8):
    ...     updates, state = transformation.update(params, state, count=samples)
    >>> state.clock, state.rest, state.learning_rate
    (Array(2, dtype=int32), Array(5, dtype=int32), Array(0.025, dtype=float32))
    """
    schedule = optax_schedule(curve, peak_value)
    if unit is not None:
        if hold is not None:
            raise ValueError(f"hold = {hold!r} counts updates, and cannot stand beside unit = {unit!r}")
        return _counted(schedule, _up_to_most("unit", unit, 1))
    rules = check_rules(hold, curve)
    kinds = tuple(type(initial_state(rule)) for rule in rules)
    flat_starts = np.array(curve.flat_starts, np.int32)

    @jax.jit
    def after(clock: Any, states: Any, metric: Any) -> tuple[Any, Any]:
        following = optax.safe_increment(clock)
        if not rules:
            return following, states
        states, held = decide(jnp, rules, states, jnp.any(flat_starts == clock), metric)
        return jnp.where(held, clock, following), states

    def init(params: optax.Params) -> ScaleByCurveState:
        states: Any = jax.device_put(tuple(map(initial_state, rules)))
        return ScaleByCurveState(jnp.zeros((), "int32"), states, schedule(0))

    def update(
        updates: optax.Updates, state: Any, params: Any = None, *, value: Any = None, **_: Any
    ) -> tuple[Any, ScaleByCurveState]:
        if isinstance(state, CountedCurveState):
            raise ValueError(f"state = {state!r} is of a clock with unit=, and this one counts updates")
        if tuple(map(type, state.hold)) != kinds:
            raise ValueError(f"state.hold = {state.hold!r} does not fit the rules {hold!r}")
        metric = _metric(value) if rules else None
        rate = schedule(state.clock)
        clock, states = after(state.clock, state.hold, metric)
        return _scaled(updates, rate), ScaleByCurveState(clock, states, rate)

    return optax.GradientTransformationExtraArgs(init, update)


def _counted(schedule: Callable[[Any], jax.Array], unit: int) -> optax.GradientTransformationExtraArgs:
    @jax.jit
    def after(clock: Any, rest: Any, count: Any) -> tuple[Any, Any]:
        consumed = rest + count
        steps = consumed // unit
        return jnp.minimum(clock, MAX_STEP - steps) + steps, consumed % unit

    def init(params: optax.Params) -> CountedCurveState:
        return CountedCurveState(jnp.zeros((), "int32"), jnp.zeros((), "int32"), schedule(0))

    def update(
        updates: optax.Updates, state: Any, params: Any = None, *, count: Any = None, **_: Any
    ) -> tuple[Any, CountedCurveState]:
        if not isinstance(state, CountedCurveState):
            raise ValueError(f"state = {state!r} is not of a clock with unit = {unit}")
        count = _count(count)
        rate = schedule(state.clock)
        clock, rest = after(state.clock, state.rest, count)
        return _scaled(updates, rate), CountedCurveState(clock, rest, rate)

    return optax.GradientTransformationExtraArgs(init, update)


def _scaled(updates: optax.Updates, rate: jax.Array) -> Any:
    def scaled(leaf: Any) -> Any:
        return (-rate).astype(leaf.dtype) * leaf

    return jax.tree.map(scaled, updates)


def _up_to_most(name: str, value: Any, least: int) -> int:
    found = checks.integer(name, value)
    if not least <= found <= MAX_COUNT:
        raise ValueError(f"{name} = {found} must lie in {least} … 2**30 = {MAX_COUNT}")
    return found


def _count(count: Any) -> Any:
    """The count of an update as int32 in 0 … 2³⁰."""
    if count is None:
        raise TypeError("count is missing: with unit, call update(updates, state, params, count=samples)")
    count = array_of(count)
    if not isinstance(count, jax.Array):
        return np.int32(_up_to_most("count", count, 0))
    if count.shape or not jnp.issubdtype(count.dtype, jnp.integer):
        raise TypeError(f"count = {count!r} must be a single integer")
    if jnp.iinfo(count.dtype).max > MAX_COUNT:
        count = jnp.clip(count, 0, MAX_COUNT)
    return jnp.maximum(count.astype("int32"), 0)


def _metric(value: Any) -> Any:
    """The metric as float32."""
    if value is None:
        raise TypeError("value is missing: with hold, call update(updates, state, params, value=metric)")
    value = array_of(value)
    if not isinstance(value, jax.Array):
        return checks.metric("value", value)
    check_real_scalar("value", value)
    return value.astype("float32")
