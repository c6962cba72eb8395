"""A curve inside an optimizer of optax: updates times -rate, at a clock that rules may hold."""

# JAX is not fully typed, and optax has no stubs:
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plateau_jax import checks
from plateau_jax.curve import Curve
from plateau_jax.decision import decide, start
from plateau_jax.holds import Rule, rules_of
from plateau_jax.schedule import array_of, check_real_scalar, optax_schedule


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


def scale_by_curve(
    curve: Curve, peak_value: Any, *, hold: Rule | list[Rule] | None = None
) -> optax.GradientTransformationExtraArgs:
    """The last transformation of an optax chain: it multiplies updates by minus the curve's learning rate.

        update ← -rate · update,    rate = float32(peak_value) · curve(clock)

    It takes the place of `optax.scale_by_learning_rate`. The clock is the step of the curve that gives the
    rate. It begins at 0, and after each update it moves one step on, up to 2³¹ - 1, unless a rule in `hold`
    holds it. With rules, pass the metric that they read, such as the loss, to `update` as `value=`, as for
    `optax.contrib.reduce_on_plateau`: a real scalar, traced or not. It is rounded to float32.

    Updates keep their dtype.

    Args:
        curve: The curve.
        peak_value: As in `optax_schedule`.
        hold: A `HoldUntilFlat` or `HoldBelow`, or a list of them. Each rule sees every update and counts for
            itself; the clock moves on when no rule holds it.

    Returns:
        The transformation; its state is a `ScaleByCurveState`.

    Raises:
        TypeError: As `optax_schedule`; `hold` is no rule. `update`: with rules, a `value` that is missing or
            not a real scalar.
        ValueError: As `optax_schedule`; a `HoldUntilFlat` for a curve without a flat part. `update`: a state
            of rules of other kinds, or of none.

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
    """
    schedule = optax_schedule(curve, peak_value)
    rules = rules_of(hold, curve)
    kinds = tuple(type(start(rule)) for rule in rules)
    flat_starts = np.array(curve.flat_starts, np.int32)

    @jax.jit
    def after(clock: Any, states: Any, metric: Any) -> tuple[Any, Any]:
        following = optax.safe_increment(clock)
        if not rules:
            return following, states
        states, held = decide(jnp, rules, states, jnp.any(flat_starts == clock), metric)
        return jnp.where(held, clock, following), states

    def init(params: optax.Params) -> ScaleByCurveState:
        states: Any = jax.device_put(tuple(map(start, rules)))
        return ScaleByCurveState(jnp.zeros((), "int32"), states, schedule(0))

    def update(
        updates: optax.Updates, state: Any, params: Any = None, *, value: Any = None, **_: Any
    ) -> tuple[Any, ScaleByCurveState]:
        if tuple(map(type, state.hold)) != kinds:
            raise ValueError(f"state.hold = {state.hold!r} does not fit the rules {hold!r}")
        metric = _metric(value) if rules else None
        rate = schedule(state.clock)
        clock, states = after(state.clock, state.hold, metric)

        def scaled(leaf: Any) -> Any:
            return (-rate).astype(leaf.dtype) * leaf

        return jax.tree.map(scaled, updates), ScaleByCurveState(clock, states, rate)

    return optax.GradientTransformationExtraArgs(init, update)


def _metric(value: Any) -> Any:
    """The metric as float32."""
    if value is None:
        raise TypeError("value is missing: with hold, call update(updates, state, params, value=metric)")
    value = array_of(value)
    if not isinstance(value, jax.Array):
        return checks.metric("value", value)
    check_real_scalar("value", value)
    return value.astype("float32")
