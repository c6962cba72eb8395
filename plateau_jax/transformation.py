"""A curve as an optax transformation, with a clock of updates or of samples."""

# JAX is not fully typed, and optax has no stubs:
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plateau_jax.curves.curve import Curve, check_unit
from plateau_jax.holds.decision import decide, initial_state
from plateau_jax.holds.rules import Rule, check_rules
from plateau_jax.schedule import check_real_scalar, optax_schedule, unwrap_array
from plateau_jax.validation import checks
from plateau_jax.validation.checks import MAX_STEP

MAX_COUNT = 2**30
"""The largest unit and the largest count: a rest below the unit plus a count then fits into int32."""


class ScaleByCurveState(NamedTuple):
    """The state of `scale_by_curve`: arrays without dimensions.

    >>> from plateau_jax import PlateauCurve
    >>> scale_by_curve(PlateauCurve(10, init_lr_ratio=1.0), 0.5).init({})
    ScaleByCurveState(clock=Array(0, dtype=int32), hold=(), learning_rate=Array(0.5, dtype=float32))
    """

    clock: Any
    """int32: the step of the curve that gives the next update's learning rate."""
    hold: tuple[Any, ...]
    """The state of each rule, int32 and float32; () without rules."""
    learning_rate: Any
    """The learning rate of the last update, or of step 0 before the first; float32; with x64 on, float64."""


class CountedCurveState(NamedTuple):
    """The state of `scale_by_curve` with `unit`: arrays without dimensions.

        consumed = clock · unit + rest

    >>> from plateau_jax import PlateauCurve
    >>> curve = PlateauCurve(10, init_lr_ratio=1.0)
    >>> scale_by_curve(curve, 0.5, unit=8).init({})  # doctest: +NORMALIZE_WHITESPACE
    CountedCurveState(clock=Array(0, dtype=int32), rest=Array(0, dtype=int32),
                      learning_rate=Array(0.5, dtype=float32))
    """

    clock: Any
    """int32: the step of the curve that gives the next update's learning rate."""
    rest: Any
    """int32: number of samples or tokens consumed beyond the last whole unit; below the unit."""
    learning_rate: Any
    """The learning rate of the last update, or of step 0 before the first; float32; with x64 on, float64."""


def scale_by_curve(
    curve: Curve, peak_value: Any, *, hold: Rule | list[Rule] | None = None, unit: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Multiply updates by minus the curve's learning rate, as the last transformation of an optax chain.

        update ← -lr · update,    lr = float32(float32(peak_value) · curve(clock))

    It replaces `optax.scale_by_learning_rate`: write it after `optax.scale_by_adam()`, not `optax.adam(lr)`,
    which has a minus sign too.

    The clock is the step of the curve that gives the learning rate. It starts at 0 and advances by one step
    after each update, up to 2³¹ - 1, unless a rule in `hold` holds it. With rules, pass the metric that they
    read, such as the loss, to `update` as `value=`, as for `optax.contrib.reduce_on_plateau`: a real scalar,
    traced or not. It is rounded to float32.

    With `unit` the clock counts samples or tokens:

        clock = consumed // unit,    consumed = the sum of the counts of all earlier updates

    Pass the count of each update to `update` as `count=`: an integer from 0 to 2³⁰, traced or not. An array
    is not read on the host; instead it is clipped to 0 … 2³⁰. The clock depends only on the total consumed,
    not on its division into updates; it stops at 2³¹ - 1. Nothing needs x64. Without `unit`,
    a `count` is rejected.

    Inside `optax.MultiSteps`, only the `count` and the `value` passed with the last micro-batch are used:
    pass the sum of the counts and the mean of the values over all micro-batches of the update there.

    In several processes (`jax.distributed`), counts and values must be the same in each: compute them inside
    `jit` from the global batch.

    Updates keep their dtype.

    Args:
        curve: The curve.
        peak_value: As in `optax_schedule`.
        hold: A `HoldUntilFlat` or `HoldBelow`, or a list of them. Each rule sees every update and counts
            independently; the clock advances when no rule holds it.
        unit: Number of samples or tokens per step of the curve, 1 to 2³⁰; None for a clock of updates.

    Returns:
        The transformation; its state is a `ScaleByCurveState`, or with `unit` a `CountedCurveState`.

    Raises:
        TypeError: As for `optax_schedule`; `hold` is not a rule; `unit` is not an integer. From `update`:
            with rules, `value` is missing or not a real scalar; with `unit`, `count` is missing or not a
            single integer; without `unit`, there is a `count`.
        ValueError: As for `optax_schedule`; a `HoldUntilFlat` is used with a curve without a flat part;
            `unit` is out of range, combined with `hold`, or not the unit of a curve from `BatchPlan.scale`.
            From `update`: the state belongs to different rules or to the other kind of clock; `count` is out
            of range and not an array.

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

    Here a step of the curve is 8 samples:

    >>> transformation = scale_by_curve(PlateauCurve(10, warmup_steps=4), 0.1, unit=8)
    >>> state = transformation.init(params)
    >>> for samples in (5, 8, 8):
    ...     updates, state = transformation.update(params, state, count=samples)
    >>> state.clock, state.rest, state.learning_rate
    (Array(2, dtype=int32), Array(5, dtype=int32), Array(0.025, dtype=float32))
    """
    schedule = optax_schedule(curve, peak_value)
    unit = None if unit is None else _check_range("unit", unit, 1)
    check_unit([curve], unit)
    if unit is not None and hold is not None:
        raise ValueError(checks.must("hold", hold, f"not be combined with unit = {unit}: it counts updates"))
    rules = check_rules(hold, curve)
    # Two classes, because Flax and Orbax restore a saved state only into one with the same fields.
    state_class = ScaleByCurveState if unit is None else CountedCurveState
    state_types = tuple(type(initial_state(rule)) for rule in rules)
    flat_starts = np.array(curve.flat_starts, np.int32)

    # The total of a run exceeds int32, and without x64 JAX has nothing wider. So the state holds the total as
    # clock · unit + rest, and each number stays below 2³¹. With unit = 8, counts of 5, 8 and 8 take
    # (clock, rest) from (0, 0) to (0, 5), (1, 5) and (2, 5): 21 samples are 2 steps and 5 samples.
    # A clock of updates has unit 1: each update counts 1, and there is never a rest.
    @jax.jit
    def advance(clock: Any, rest: Any, count: Any, states: Any, metric: Any) -> tuple[Any, Any, Any]:
        consumed = rest + count
        steps = consumed // (unit or 1)
        # The minimum comes before the sum, which could overflow.
        next_clock = jnp.minimum(clock, MAX_STEP - steps) + steps
        if rules:
            states, held = decide(jnp, rules, states, jnp.any(flat_starts == clock), metric)
            next_clock = jnp.where(held, clock, next_clock)
        return next_clock, consumed % (unit or 1), states

    def as_state(clock: Any, rest: Any, states: Any, lr: Any) -> ScaleByCurveState | CountedCurveState:
        if unit is None:
            return ScaleByCurveState(clock, states, lr)
        return CountedCurveState(clock, rest, lr)

    def init(params: optax.Params) -> ScaleByCurveState | CountedCurveState:
        states: Any = jax.device_put(tuple(map(initial_state, rules)))
        return as_state(jnp.zeros((), "int32"), jnp.zeros((), "int32"), states, schedule(0))

    def update(
        updates: optax.Updates,
        state: Any,
        params: Any = None,
        *,
        value: Any = None,
        count: Any = None,
        **_: Any,
    ) -> tuple[Any, ScaleByCurveState | CountedCurveState]:
        if not isinstance(state, state_class):
            requirement = f"be a {state_class.__name__}, that of unit = {unit}"
            raise ValueError(checks.must("state", state, requirement))
        if isinstance(state, CountedCurveState):
            rest, states, count = state.rest, (), _check_count(count)
        elif count is None:
            rest, states, count = np.int32(0), state.hold, np.int32(1)
        else:
            advice = "be left out: the curve counts updates, unless you write scale_by_curve(..., unit=n)"
            raise TypeError(checks.must("count", count, advice))
        if tuple(map(type, states)) != state_types:
            raise ValueError(checks.must("state.hold", states, f"fit the rules {checks.short_repr(hold)}"))
        metric = _check_metric(value) if rules else None
        lr = schedule(state.clock)
        clock, rest, states = advance(state.clock, rest, count, states, metric)

        def scale(leaf: Any) -> Any:
            return (-lr).astype(leaf.dtype) * leaf

        return jax.tree.map(scale, updates), as_state(clock, rest, states, lr)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_range(name: str, value: Any, least: int) -> int:
    value = checks.integer(name, value)
    if not least <= value <= MAX_COUNT:
        raise ValueError(checks.must(name, value, f"lie in {least} … 2**30 = {MAX_COUNT}"))
    return value


def _check_given(name: str, value: Any) -> None:
    """Raise an error if an argument that moves the clock did not reach `update`."""
    if value is None:
        advice = (
            f" is missing: pass {name}= to update. If you did, a wrapper kept it, as flax's "
            "TrainState.apply_gradients does: call state.tx.update(grads, state.opt_state, state.params, "
            f"{name}=...) and state.replace(...) instead"
        )
        raise TypeError(checks.Message(name, advice))


def _check_count(count: Any) -> Any:
    """Return the count of an update as int32 in 0 … 2³⁰."""
    _check_given("count", count)
    count = unwrap_array(count)
    if not isinstance(count, jax.Array):
        return np.int32(_check_range("count", count, 0))
    if count.shape or not jnp.issubdtype(count.dtype, jnp.integer):
        raise TypeError(checks.must("count", count, "be a single integer"))
    if jnp.iinfo(count.dtype).max > MAX_COUNT:
        count = jnp.clip(count, 0, MAX_COUNT)
    return jnp.maximum(count.astype("int32"), 0)


def _check_metric(value: Any) -> Any:
    """Return the metric as float32."""
    _check_given("value", value)
    value = unwrap_array(value)
    if not isinstance(value, jax.Array):
        return checks.metric("value", value)
    check_real_scalar("value", value)
    return value.astype("float32")
