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

    with pytest.raises(TypeError, match=rf"^{name} is traced by JAX.* pass it stack\(curves\)"):
        build(1)


@raises(TypeError, "peak_value is traced", "optax_schedule(", "multiplier(curve.table, step)")
def test_traced_peak_of_a_learning_rate():
    jax.jit(partial(CURVE.learning_rate, 5))(0.1)


@raises(ValueError, "peak_value = ", "optax.scale_by_learning_rate(schedule) and scale_by_curve")
def test_negative_array_as_peak():
    optax_schedule(CURVE, jnp.float32(-1))


@raises(TypeError, "peak_value = ", A_REAL_SCALAR)
def test_traced_vector_as_peak():
    jax.jit(partial(optax_schedule, CURVE))(jnp.ones(2))


@raises(TypeError, "peak_value = ", "precision of float32", "hyperparam_dtype=jnp.float32")
def test_peak_of_low_precision():
    scale_by_curve(CURVE, jnp.bfloat16(0.1))


# Tables.


@pytest.mark.parametrize("table", [CURVE, stack([CURVE, CURVE])])
@raises(TypeError, "table must be one table")
def test_something_else_as_table(table):
    multiplier(table, jnp.arange(3))


@raises(TypeError, "table.low is of float32; it must be of int32")
def test_table_with_a_column_of_another_dtype():
    multiplier(CURVE.table._replace(low=jnp.float32(CURVE.table.low)), 3)


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


@raises(TypeError, "value is missing: pass value= to update", DROPPED, "value=...)")
def test_update_without_a_value():
    update(HELD)


@pytest.mark.parametrize("value", ["0.5", jnp.ones(1), jnp.array(1j)])
@raises(TypeError, "value = ", A_REAL_SCALAR)
def test_value_that_is_not_a_real_scalar(value):
    update(HELD, value=value)


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


@pytest.mark.parametrize("count", [3.0, jnp.float32(3), jnp.ones(1, int)])
@raises(TypeError, "count = ", "integer")
def test_count_that_is_not_an_integer(count):
    update(COUNTED, count=count)


@pytest.mark.parametrize("count", [-1, 2**30 + 1])
@raises(ValueError, "count = {count}", in_range(0, 2**30))
def test_count_out_of_range(count):
    update(COUNTED, count=count)


@raises(TypeError, "count = 0", "left out", "clock=DataClock(unit)")
def test_count_without_a_data_clock():
    update(HELD, value=0.5, count=0)


# States that a library has restored without their named tuples.


@raises(ValueError, "state = ", "tx.init(params)")
def test_list_as_state():
    PLAIN.update(ONE, list(PLAIN.init(None)))


@raises(ValueError, "state = ", "tx.init(params)")
def test_dictionaries_as_states_of_rules():
    state = HELD.init(None)
    dictionaries = [of_rule._asdict() for of_rule in state.hold]
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
