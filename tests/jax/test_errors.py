"""Errors of schedules, transformations and records of JAX runs, also of traced arguments."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from support.clocks.holds import BELOW, PEAK, STAIRS, UNTIL
from support.curves.requirements import (
    A_REAL_SCALAR,
    AN_INTEGER,
    at_most,
    in_range,
)
from support.jax.jax_cases import CURVE
from support.raises import raises

from plateau_jax import (
    DataClock,
    PlateauCurve,
    check_resume,
    multiplier,
    optax_schedule,
    resume_record,
    scale_by_curve,
    stack,
)

# Schedules.


@pytest.mark.parametrize("name", ["total_steps", "min_lr_ratio"])
def test_traced_argument_of_a_curve(name):
    @jax.jit
    def build(value):
        return PlateauCurve(**{"total_steps": 100, name: value}).table

    with pytest.raises(TypeError, match=r"total_steps = |on traced array"):
        build(1)


def test_wrong_peak():
    parts = ["peak_value is traced", "optax_schedule(", "multiplier(curve.table, step)"]
    with raises(TypeError, *parts):
        jax.jit(partial(CURVE.learning_rate, 5))(0.1)
    instead = "optax.scale_by_learning_rate(schedule) and scale_by_curve"
    with raises(ValueError, "peak_value = ", instead):
        optax_schedule(CURVE, jnp.float32(-1))
    with raises(ValueError, "peak_value = nan must be 0, or a finite float32"):
        optax_schedule(CURVE, float("nan"))
    with raises(TypeError, "peak_value = ", A_REAL_SCALAR):
        jax.jit(partial(optax_schedule, CURVE))(jnp.ones(2))
    with raises(TypeError, "peak_value = ", "precision of float32", "hyperparam_dtype=jnp.float32"):
        scale_by_curve(CURVE, jnp.bfloat16(0.1))


# Tables.


def test_wrong_table():
    for table in (CURVE, stack([CURVE, CURVE])):
        with raises(TypeError, "table must be one table"):
            multiplier(table, jnp.arange(3))


# Steps.


each_call = pytest.mark.parametrize(
    "call",
    [optax_schedule(CURVE, 1.0), partial(multiplier, CURVE.table)],
    ids=["schedule", "multiplier"],
)


@each_call
@pytest.mark.parametrize("step", [3.0, jnp.float32(3), jnp.array(True)], ids=repr)
def test_step_that_is_not_an_integer(call, step):
    with pytest.raises(TypeError, match=AN_INTEGER):
        call(step)
    with pytest.raises(TypeError, match=AN_INTEGER):
        jax.jit(call)(step)


# Transformations.


def test_clock_beyond_2_to_the_30():
    with raises(ValueError, "clock.unit = 1073741825", at_most(2**30)):
        scale_by_curve(STAIRS, PEAK, DataClock(2**30 + 1))
    with raises(ValueError, "clock.count = 1073741825", at_most(2**30)):
        scale_by_curve(STAIRS, PEAK, DataClock(8, count=2**30 + 1))


# Updates.

ONE = jnp.ones(())
PLAIN = scale_by_curve(STAIRS, PEAK)
HELD = scale_by_curve(STAIRS, PEAK, UNTIL)
COUNTED = scale_by_curve(STAIRS, PEAK, DataClock(8))
DROPPED = (
    "a wrapper dropped it, as flax's TrainState.apply_gradients does: "
    "instead, call state.tx.update("
)


def update(transformation, **arguments):
    transformation.update(ONE, transformation.init(None), **arguments)


def test_wrong_value():
    with raises(TypeError, "value is missing: pass value= to update", DROPPED, "value=...)"):
        update(HELD)
    for value in ("0.5", jnp.ones(1), jnp.array(1j)):
        with raises(TypeError, "value = ", A_REAL_SCALAR):
            update(HELD, value=value)


def test_wrong_count():
    for count in (3.0, jnp.float32(3), jnp.ones(1, int)):
        with raises(TypeError, "count = ", "integer"):
            update(COUNTED, count=count)
    for count in (-1, 2**30 + 1):
        with raises(ValueError, f"count = {count}", in_range(0, 2**30)):
            update(COUNTED, count=count)
    with raises(TypeError, "count = 0", "left out", "clock=DataClock(unit)"):
        update(HELD, value=0.5, count=0)


@raises(
    TypeError,
    "count is missing: pass count= to update",
    "write DataClock(unit, count=n) if it is always n",
    DROPPED,
    "optax.GradientTransformationExtraArgs(tx.init, tx.update)",
)
def test_count_that_a_chain_around_multi_steps_drops():
    optimizer = optax.chain(optax.identity(), optax.MultiSteps(COUNTED, every_k_schedule=2))
    optimizer.update(ONE, optimizer.init(ONE), ONE, count=8)


# States that a library has restored without their named tuples.


def test_state_without_named_tuples():
    with raises(ValueError, "state = ", "tx.init(params)"):
        PLAIN.update(ONE, list(PLAIN.init(None)))
    state = HELD.init(None)
    dictionaries = [of_rule._asdict() for of_rule in state.hold]
    with raises(ValueError, "state = ", "tx.init(params)"):
        HELD.update(ONE, state._replace(hold=dictionaries))


# States of another clock. With rules of the same classes, states are interchangeable.

BOTH = scale_by_curve(STAIRS, PEAK, (UNTIL, BELOW))
REVERSED = scale_by_curve(STAIRS, PEAK, (BELOW, UNTIL))


@pytest.mark.parametrize(
    ("saving", "using"), [(PLAIN, COUNTED), (COUNTED, PLAIN), (HELD, BOTH), (BOTH, REVERSED)]
)
@raises(ValueError, "state = ScaleByCurveState(", "a transformation with the same clock")
def test_state_of_a_different_clock(saving, using):
    using.update(ONE, saving.init(None))


# Records.

RECORD = resume_record(CURVE)


@raises(TypeError, "step = ", AN_INTEGER, "count[0]")
def test_several_steps_at_once():
    check_resume(RECORD, RECORD, jnp.arange(3))
