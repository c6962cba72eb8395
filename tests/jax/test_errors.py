"""Errors of schedules, transformations and records of JAX runs, also of traced arguments."""

import json
import math
from collections.abc import Callable
from functools import cache, partial, reduce
from itertools import permutations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.clocks.holds import BELOW, PEAK, STAIRS, UNTIL
from support.curves.descriptions import OF_UNIT_8
from support.errors import check_error, each, each_row
from support.jax.jax_cases import CURVE

from plateau_jax import (
    DataClock,
    StagedCurve,
    check_resume,
    multiplier,
    optax_schedule,
    resume_record,
    scale_by_curve,
    stack,
)

ONE = jnp.ones(())
TABLE, SCHEDULE = CURVE.table, optax_schedule(CURVE, 1.0)
nan, inf = math.nan, math.inf


@cache
def started(**options: Any) -> Any:
    """Return the function that makes an update, and the first state."""
    transformation = scale_by_curve(STAIRS, PEAK, **options)
    return transformation.update, transformation.init(None)


def update(options: dict[str, Any], **given: Any) -> None:
    function, state = started(**options)
    function(ONE, state, **given)


def of_dtype(function: Callable[..., Any], dtype: str) -> None:
    function(TABLE._replace(start_low=jnp.asarray(TABLE.start_low, dtype)), 3)


def injected_peak(params: jax.Array) -> None:
    inject = optax.inject_hyperparams(scale_by_curve, static_args=("curve", "clock"))
    optimizer = inject(CURVE, 1e-7)
    jax.jit(optimizer.update)(params, optimizer.init(params), params)


def update_in_a_chain_around_multi_steps() -> None:
    inner = optax.MultiSteps(scale_by_curve(STAIRS, PEAK, DataClock(8)), every_k_schedule=2)
    optimizer = optax.chain(optax.identity(), inner)
    optimizer.update(ONE, optimizer.init(ONE), ONE, count=8)


def update_of_plain(plain: Callable[[Any], Any], clock: Any) -> None:
    """Update a state that a library has restored without its named tuples."""
    optimizer = scale_by_curve(STAIRS, PEAK, clock)
    optimizer.update(ONE, plain(optimizer.init(None)))


def without_tuples_of_rules(state: Any) -> Any:
    return state._replace(hold=[rule._asdict() for rule in state.hold])


PLAIN_STATES = [
    ("state", list, None),
    ("state", tuple, None),
    ("state", lambda state: state._asdict(), UNTIL),
    ("state", list, DataClock(8)),
    ("state.hold", without_tuples_of_rules, UNTIL),
]
"""The name in the message, a conversion of a state, and its clock."""


HELD, COUNTED, FIXED = {"clock": UNTIL}, {"clock": DataClock(8)}, {"clock": DataClock(8, count=20)}
RECORD = resume_record(CURVE)
NOT_A_CURVE = RECORD["curve"]
EITHER_RECORD: list[tuple[str, Callable[..., Any]]] = [
    ("saved", lambda value: check_resume(value, RECORD, 10)),
    ("now", lambda value: check_resume(RECORD, value, 10)),
]


def check_nested(call: Callable[..., Any]) -> None:
    call(reduce(lambda inner, _: {"curve": inner}, range(100_000), {}))


KEPT = "a wrapper dropped it, as flax's TrainState.apply_gradients does: instead, call state.tx.update("

ERRORS: list[Any] = [
    # Schedules.
    (lambda: optax_schedule(5, 1.0), TypeError, "curve = 5"),
    (lambda: optax_schedule(CURVE, jnp.float32(-1)), ValueError, "peak_value = ", "be 0, or"),
    (lambda: optax_schedule(CURVE, 1e-40), ValueError, "peak_value = 1e-40", "2**-126"),
    (lambda: optax_schedule(CURVE, jnp.ones(2)), TypeError, "peak_value = "),
    (lambda: optax_schedule(CURVE, jnp.ones((), "complex64")), TypeError, "peak_value = "),
    (lambda: jax.jit(partial(optax_schedule, CURVE))(jnp.ones(2)), TypeError, "peak_value = ", "real scalar"),
    (lambda: jax.jit(partial(optax_schedule, CURVE))(1j), TypeError, "peak_value = ", "real scalar"),
    *each(lambda value: scale_by_curve(CURVE, value),
          [jnp.bfloat16(0.1), np.float16(0.1), jnp.float8_e4m3fn(0.1), jnp.complex64(0.1)],
          TypeError, "peak_value = ", "precision of float32", "hyperparam_dtype=jnp.float32"),
    *((partial(injected_peak, params), TypeError, f"not {params.dtype}", "hyperparam_dtype=jnp.float32")
      for params in (jnp.ones(2, "bfloat16"), jnp.ones(2, "float16"), jnp.ones(2, "complex64"))),
    # Tables.
    *each(lambda value: multiplier(value, jnp.arange(3)), [CURVE, stack([CURVE, CURVE]), TABLE.begin, None],
          TypeError, "table must be one table"),
    *((partial(of_dtype, function, dtype), TypeError, f"table.start_low is of {dtype}", "int32")
      for dtype in ("int64", "float64", "float32", "int16")
      for function in (multiplier, jax.jit(multiplier))),
    # Transformations.
    (lambda: scale_by_curve(3, PEAK), TypeError, "curve = 3"),
    (lambda: scale_by_curve(STAIRS, -1.0), ValueError, "peak_value = -1.0"),
    (lambda: scale_by_curve(STAIRS, PEAK, 3), TypeError, "clock = 3", "DataClock"),
    (lambda: scale_by_curve(STAIRS, PEAK, []), ValueError, "clock is an empty list", "leave it out"),
    (lambda: scale_by_curve(StagedCurve([(5, 1)]), PEAK, UNTIL), ValueError, "needs a flat part"),
    (lambda: scale_by_curve(STAIRS, PEAK, DataClock(2**30 + 1)), ValueError,
     "clock = DataClock(unit=1073741825", "a unit of at most 2**30 = 1073741824"),
    (lambda: scale_by_curve(STAIRS, PEAK, DataClock(8, count=2**30 + 1)), ValueError,
     "count=1073741825", "a count of at most 2**30"),
    *((partial(function, curve, PEAK, clock), ValueError, "clock = ", "must be DataClock(8)", "batch plan")
      for function in (scale_by_curve, resume_record)
      for curve in OF_UNIT_8
      for clock in (DataClock(1), DataClock(16, count=8), BELOW, [BELOW])),
    (lambda: update(HELD), TypeError, "value is missing: pass value= to update", KEPT, "value=...)"),
    *each(lambda value: update(HELD, value=value),
          [np.ones(1), jnp.ones(1), True, jnp.array(True), jnp.array(1j), "0.5", {"loss": 0.5}],
          TypeError, "value = ", "real scalar"),
    (lambda: update(COUNTED), TypeError, "count is missing: pass count= to update", KEPT, "count=...)"),
    (lambda: update(COUNTED), TypeError, "write DataClock(unit, count=n) if it is always n"),
    (update_in_a_chain_around_multi_steps, TypeError, "count is missing",
     "optax.GradientTransformationExtraArgs(tx.init, tx.update)"),
    (lambda: update(COUNTED, value=3), TypeError, "count is missing", KEPT),
    *(row for clock in (COUNTED, FIXED)
      for row in each(lambda value, clock=clock: update(clock, count=value),
                      [3.0, True, nan, np.float32(3), np.array(True), np.ones(2, int), "3",
                       jnp.float32(3), jnp.array(True), jnp.ones(1, int)],
                      TypeError, "count = ", "integer")),
    (lambda: update(COUNTED, count=-1), ValueError, "count = -1", "0 … 2**30"),
    (lambda: update(COUNTED, count=2**30 + 1), ValueError, "count = 1073741825", "0 … 2**30"),
    *(row for options in ({}, HELD)
      for row in each(lambda value, options=options: update(options, count=value),
                      [0, 3, -1, np.int32(3), jnp.ones((), "int32"), "three"],
                      TypeError, "count = ", "left out", "clock=DataClock(unit)")),
    *((partial(update_of_plain, plain, clock), ValueError, f"{name} = ", "tx.init(params)")
      for name, plain, clock in PLAIN_STATES),
    # Records.
    *each(lambda value: check_resume(RECORD, RECORD, value),
          [1.5, 3.0, "3", None, True, np.True_, nan, np.array(1.0), jnp.float32(3), jnp.array([1]),
           jnp.array(True)],
          TypeError, "step = ", "int"),
    *each(lambda value: check_resume(RECORD, RECORD, value), [jnp.arange(3), np.array([3, 3])],
          TypeError, "step = ", "count[0]"),
    *each(lambda value: check_resume(RECORD, RECORD, value), [-1, np.int64(-1), jnp.int32(-1)],
          ValueError, "step = -1", "at least 0"),
    (lambda: resume_record([NOT_A_CURVE]), TypeError, "curve = ", "must be a Curve"),
    (lambda: resume_record(CURVE, -1), ValueError, "peak_value = -1"),
    (lambda: resume_record(CURVE, [0.1]), TypeError, "peak_value = [0.1]"),
    (lambda: resume_record(CURVE, 0.1, 8), TypeError, "clock = 8", "DataClock"),
    (lambda: resume_record(CURVE, clock=[]), ValueError, "clock is an empty list"),
    (lambda: resume_record(StagedCurve([(5, 1)]), clock=UNTIL), ValueError, "needs a flat part"),
    # Either record may be something else.
    *(row for name, call in EITHER_RECORD
      for row in each(call,
                      [None, json.dumps(RECORD), Path("record.json"), {}, [RECORD], RECORD | {"format": "1"},
                       # Curves, of which the second has a "curve" too.
                       CURVE, CURVE.to_dict(), CURVE.cooldown(100, 9).to_dict(),
                       {1: 2}, RECORD | {"peak_value": -1.0}, RECORD | {"peak_value": "high"}],
                      ValueError, f"{name} = ", "is not from resume_record: ")),
    *((partial(check_nested, call), ValueError, f"{name} = ", "is not from resume_record: ")
      for name, call in EITHER_RECORD),
    *(row for name, call in EITHER_RECORD
      for row in each(call,
                      [RECORD | {"curve": curve}
                       for curve in (None, RECORD, NOT_A_CURVE | {"total_steps": "many"},
                                     NOT_A_CURVE | {"warmup_steps": np.array(True)})],
                      ValueError, f"{name} has a curve that cannot be read: ")),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    with jax.enable_x64(True):
        check_error(row)


STEPS: list[Any] = [
    *(True, np.True_, 3.0, np.float32(3), "3", None, np.arange(3.0), [True, 2.0], jax.random.key(0)),
    *(jnp.ones((), dtype) for dtype in (bool, "float32", "bfloat16", "float16", "complex64")),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{type(step).__name__}-{step}")
def test_steps_that_are_not_integers_are_rejected(step: Any) -> None:
    for call in (SCHEDULE, partial(multiplier, TABLE)):
        runs = [partial(call, step), jax.jit(partial(call, step))]
        if isinstance(step, jax.Array):
            runs += [partial(run, step) for run in (jax.jit(call), jax.vmap(call, axis_size=1, in_axes=None))]
        for run in runs:
            with pytest.raises(TypeError, match="step must be an integer"):
                run()


# With rules of the same classes, states are interchangeable.
CLOCKS: list[Any] = [None, DataClock(8), UNTIL, BELOW, (UNTIL, BELOW), (BELOW, UNTIL)]


@pytest.mark.parametrize(("clock", "other"), list(permutations(CLOCKS, 2)), ids=str)
def test_state_of_a_different_clock_is_rejected(clock: Any, other: Any) -> None:
    (function, _), (_, state) = started(clock=clock), started(clock=other)
    first = clock[0] if isinstance(clock, tuple) else clock
    name = "None" if clock is None else type(first).__name__
    fits = rf"must belong to a transformation with clock=\[?{name}"
    if isinstance(clock, DataClock) or isinstance(other, DataClock):
        message = rf"^state = .*State\(.* {fits}"
    else:
        message = rf"^state\.hold = .* {fits}"
    given: dict[str, Any] = {"count": 3} if isinstance(clock, DataClock) else {"value": 0.5}
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(partial(function, **given), ONE, state)
