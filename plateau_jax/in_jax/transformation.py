"""A curve as an optax transformation, which may count samples or tokens, or hold the curve."""

# JAX is not fully typed, and optax has no stubs:
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.clocks.clock import AnyClock, CheckedClock, check_clock
from plateau_jax.clocks.position import Position, advance, start_position
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.in_jax.schedule import (
    OptaxSchedule,
    check_peak,
    check_real_scalar,
    unwrap_array,
)

_MAX_JAX_COUNT = 2**30
"""The largest unit and the largest count: the sum of a count and a rest below the unit fits into
int32."""


class ScaleByCurveState(NamedTuple):
    """The state of `scale_by_curve`, which describes its fields: arrays without dimensions."""

    curve_step: Any
    rest: Any
    hold: tuple[Any, ...]
    learning_rate: Any


def scale_by_curve(
    curve: Curve, peak_value: ArrayLike, clock: AnyClock | None = None
) -> optax.GradientTransformationExtraArgs:
    """Multiply updates by minus the curve's learning rate, at the end of an optax chain.

        update ← -lr · update,    lr = float32(float32(peak_value) · curve(curve_step))

    It replaces `optax.scale_by_learning_rate`: write it after `optax.scale_by_adam()`, not
    `optax.adam(lr)`, which has a minus sign too.

    By default each update moves the run to the next step of the curve, up to 2³¹ - 1. While a hold
    rule holds the curve, the run stays at its step. With a `DataClock`, a step of the curve is
    `unit` samples or tokens:

        curve_step = consumed // unit,    consumed = the sum of the counts of all earlier updates

    The step depends only on the total consumed, not on its division into updates. It stops at
    2³¹ - 1. x64 is not needed.

    `optax.MultiSteps` passes on only the `count` and the `value` of the last micro-batch of an
    update. So with the last micro-batch, pass the sum of the counts, and the mean of the values,
    over all micro-batches.

    With several processes (`jax.distributed`), each must pass the same counts and values: compute
    them inside `jit` from the global batch.

    Updates keep their dtype.

    The state does not contain the curve, so a resume under a different curve is not noticed. Save
    `resume_record(curve, peak_value, clock)` with each checkpoint, and call `check_resume` after
    you restore one.

    Args:
        curve: The curve.
        peak_value: As in `optax_schedule`.
        clock: A `DataClock`; or a hold rule such as `HoldUntilFlat`, or a list of hold rules, each
            of which sees every update and counts independently. By default each update is a step of
            the curve. For a curve from `BatchPlan.scale`, a step is its unit of samples or tokens.

    Returns:
        The transformation. Its `update(updates, state, params, *, value=None, count=None)` also
        takes:

        - `value`: With a hold rule, the metric that it reads, such as the loss: a real scalar,
          traced or not, rounded to float32; as for `optax.contrib.reduce_on_plateau`.
        - `count`: With a `DataClock`, the samples or tokens of the update: an integer from 0 to
          2³⁰, traced or not. An array is not read on the host, but clipped to this range. By
          default the `count` of the clock.

        Its state is a named tuple of scalar arrays:

        - `curve_step`: int32, the step of the next update.
        - `rest`: int32, with a `DataClock` the consumed samples or tokens that do not yet fill a
          unit; otherwise None.
        - `hold`: The state of each hold rule, a named tuple of int32 and float32; () without rules.
        - `learning_rate`: float32, that of the last update; before the first, that of step 0.

    Raises:
        TypeError: As for `optax_schedule`; or `clock` is not a clock. From `update`:

            - With a hold rule, `value` is missing or not a real scalar.
            - With a `DataClock`, `count` is missing or not a single integer.
            - There is a `count`, but no `DataClock`.
        ValueError: As for `optax_schedule`; or one of these:

            - `clock` has a `HoldUntilFlat`, but the curve has no plateau.
            - A `unit` or `count` of the clock is above 2³⁰.
            - The curve is from `BatchPlan.scale`, and needs a different clock.
            - From `update`: the state belongs to a different clock, or was restored without its
              named tuples; or `count` is out of range and not an array.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> from plateau_jax import HoldUntilFlat, PlateauCurve, scale_by_curve
    >>> curve = PlateauCurve(10, plateaus=[(50, 20)], decay_shape="linear")
    >>> hold_rule = HoldUntilFlat(patience=3, limit=100)
    >>> optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(curve, 0.1, hold_rule))
    >>> params = {"w": jnp.ones(2)}
    >>> state = optimizer.init(params)
    >>> for _ in range(9):
    ...     updates, state = optimizer.update(params, state, params, value=0.7)
    >>> state[1].curve_step, state[1].learning_rate
    (Array(6, dtype=int32), Array(0.0375, dtype=float32))

    The 9 updates are 6 steps: after 5 updates the curve reached its plateau, at step 5, and the
    hold rule held it there for 3 updates, because the loss did not improve.
    """
    curve = check_curve("curve", curve)
    schedule = OptaxSchedule(curve, check_peak(peak_value))
    checked = check_clock(clock, [curve])
    for name, amount in (("unit", checked.unit), ("count", checked.count)):
        if amount is not None and amount > _MAX_JAX_COUNT:
            limit = f"be at most {_MAX_JAX_COUNT} in JAX"
            raise ValueError(checks.must(("clock", name), amount, limit))
    rest = None if checked.unit is None else np.int32(0)
    rule_states = start_position(checked).rule_states
    initial = ScaleByCurveState(np.int32(0), rest, rule_states, np.float32(0))
    structure = jax.tree.structure(initial)
    flat_starts = np.array(sorted(checked.flat_starts), np.int32)

    # The total of a run may exceed int32, and without x64 JAX has no wider integers. So the state
    # stores the total as curve_step · unit + rest, and each number stays below 2³¹. With unit = 8,
    # counts of 5, 8 and 8 take (curve_step, rest) from (0, 0) to (0, 5), (1, 5) and (2, 5): 21
    # samples are 2 steps and 5 samples.
    @jax.jit
    def move(state: ScaleByCurveState, count: Any, metric: Any) -> ScaleByCurveState:
        position = Position(0, state.curve_step, state.rest, state.hold)
        starts_plateau = jnp.any(flat_starts == position.step)
        moved = advance(
            jnp, checked, position, count=count, metric=metric, starts_plateau=starts_plateau
        )
        step = jnp.asarray(moved.step, "int32")
        # A sum beyond int32 wraps around, to below the step before.
        step = jnp.where(step < position.step, MAX_STEP, step)
        rest = None
        if checked.unit is not None:
            rest = moved.rest
        return ScaleByCurveState(step, rest, moved.rule_states, state.learning_rate)

    def init(params: optax.Params) -> ScaleByCurveState:
        return jax.device_put(initial)._replace(learning_rate=schedule(0))

    def update(
        updates: optax.Updates,
        state: Any,
        params: Any = None,
        *,
        count: Any = None,
        value: Any = None,
        **_: Any,
    ) -> tuple[Any, ScaleByCurveState]:
        if jax.tree.structure(state) != structure:
            requirement = (
                "belong to a transformation with the same clock, and consist of its named tuples: "
                "restore a checkpoint into tx.init(params)"
            )
            raise ValueError(checks.must("state", state, requirement))
        count = _check_count(count, checked)
        metric = None
        if checked.rules:
            metric = _check_metric(value)
        lr = schedule(state.curve_step)
        moved = cast("ScaleByCurveState", move(state, count, metric))
        return _scale(updates, lr), moved._replace(learning_rate=lr)

    return optax.GradientTransformationExtraArgs(init, update)


def _scale(updates: optax.Updates, lr: jax.Array) -> Any:
    """Multiply the updates by -lr, each in its own dtype."""

    def scale_leaf(leaf: Any) -> Any:
        return (-lr).astype(leaf.dtype) * leaf

    return jax.tree.map(scale_leaf, updates)


def _check_count(count: Any, clock: CheckedClock) -> Any:
    """Return the count of an update as int32 in 0 … 2³⁰; None without a `DataClock`."""
    if clock.unit is None:
        if count is not None:
            advice = "be left out: without clock=DataClock(unit), each update is one step"
            raise TypeError(checks.must("count", count, advice))
        return None
    if count is None:
        count = clock.count
    if count is None:
        raise _missing_error("count", ", or write DataClock(unit, count=n) if it is always n")
    count = unwrap_array(count)
    if isinstance(count, jax.Array):
        return _clip_count(count)
    return np.int32(checks.in_range("count", count, 0, _MAX_JAX_COUNT))


def _clip_count(count: jax.Array) -> jax.Array:
    """Return a count, possibly traced, as int32 in 0 … 2³⁰."""
    if count.shape or not jnp.issubdtype(count.dtype, jnp.integer):
        raise TypeError(checks.must("count", count, "be a single integer"))
    # Clipped in its own dtype, before the cast could wrap it around.
    if jnp.iinfo(count.dtype).max > _MAX_JAX_COUNT:
        count = jnp.clip(count, 0, _MAX_JAX_COUNT)
    return jnp.maximum(count.astype("int32"), 0)


def _check_metric(value: Any) -> Any:
    """Return the metric of an update as float32."""
    if value is None:
        raise _missing_error("value")
    value = unwrap_array(value)
    if not isinstance(value, jax.Array):
        return checks.metric("value", value)
    check_real_scalar("value", value)
    return value.astype("float32")


def _missing_error(name: str, alternative: str = "") -> TypeError:
    """Return the error for an argument that the clock needs and `update` did not get."""
    advice = (
        f" is missing: pass {name}= to update{alternative}. If you passed it, a wrapper "
        "dropped it, as flax's TrainState.apply_gradients does: instead, call "
        f"state.tx.update(grads, state.opt_state, state.params, {name}=...) and "
        "state.replace(...). optax.chain and optax.apply_if_finite drop it around MultiSteps: give "
        "them optax.GradientTransformationExtraArgs(tx.init, tx.update)"
    )
    return TypeError(checks.Message(name, advice))
