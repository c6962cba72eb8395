"""Errors of schedules, transformations and records of JAX runs, also of traced arguments."""

import json
from functools import partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.clocks.holds import BELOW, PEAK, STAIRS, UNTIL
from support.curves.descriptions import scaled
from support.curves.requirements import (
    A_NUMBER,
    A_REAL_SCALAR,
    AN_INTEGER,
    at_least,
    at_most,
    in_range,
)
from support.jax.jax_cases import CURVE, x64_both_ways
from support.wrong import wrong

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


@pytest.fixture(autouse=True)
def with_x64():
    """Otherwise JAX makes int32 of an int64 before it can be rejected."""
    with jax.enable_x64(True):
        yield


# Schedules.


@pytest.mark.parametrize("name", ["total_steps", "warmup_steps", "min_lr_ratio", "peak_value"])
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_traced_argument_of_a_curve(name, transform):
    def learning_rate(value):
        arguments = {"total_steps": 100, "peak_value": 1e-3, name: value}
        peak = arguments.pop("peak_value")
        return PlateauCurve(**arguments).learning_rate(3, peak)

    with pytest.raises(TypeError, match=rf"^{name} is traced by JAX.* pass it stack\(curves\)"):
        transform(learning_rate)(jnp.arange(1))


@wrong(ValueError, "peak_value = ", "optax.scale_by_learning_rate(schedule) and scale_by_curve")
def test_negative_array_as_peak():
    optax_schedule(CURVE, jnp.float32(-1))


@wrong(TypeError, "peak_value = ", A_NUMBER)
def test_complex_peak():
    optax_schedule(CURVE, jnp.complex64(0.1))


@wrong(TypeError, "peak_value = ", A_REAL_SCALAR)
def test_traced_vector_as_peak():
    jax.jit(partial(optax_schedule, CURVE))(jnp.ones(2))


@pytest.mark.parametrize("peak", [jnp.bfloat16(0.1), np.float16(0.1), jnp.float8_e4m3fn(0.1)])
@wrong(TypeError, "peak_value = ", "precision of float32", "hyperparam_dtype=jnp.float32")
def test_peak_of_low_precision(peak):
    scale_by_curve(CURVE, peak)


# Tables.


@pytest.mark.parametrize("table", [CURVE, stack([CURVE, CURVE])])
@wrong(TypeError, "table must be one table")
def test_something_else_as_table(table):
    multiplier(table, jnp.arange(3))


@pytest.mark.parametrize("dtype", ["int64", "float64", "float32", "int16"])
@pytest.mark.parametrize("function", [multiplier, jax.jit(multiplier)], ids=["eager", "jit"])
def test_table_with_a_column_of_another_dtype(function, dtype):
    table = CURVE.table._replace(low=jnp.asarray(CURVE.table.low, dtype))
    with pytest.raises(TypeError, match=f"table.low is of {dtype}.*int32"):
        function(table, 3)


# Steps.


each_call = pytest.mark.parametrize(
    "call",
    [
        optax_schedule(CURVE, 1.0),
        partial(multiplier, CURVE.table),
    ],
    ids=["schedule", "multiplier"],
)


@each_call
@x64_both_ways
@pytest.mark.parametrize(
    "step",
    [True, 3.0, "3", None, [True, 2.0], np.True_, np.float32(3), np.arange(3.0)],
    ids=repr,
)
def test_step_that_is_not_an_integer(call, step, x64):
    with jax.enable_x64(x64):
        with pytest.raises(TypeError, match=AN_INTEGER):
            call(step)
        with pytest.raises(TypeError, match=AN_INTEGER):
            jax.jit(partial(call, step))()


@each_call
@x64_both_ways
@pytest.mark.parametrize("dtype", ["bool", "float32", "bfloat16", "float16", "complex64", "key"])
def test_array_of_steps_that_are_not_integers(call, dtype, x64):
    with jax.enable_x64(x64):
        if dtype == "key":
            step = jax.random.key(0)
        else:
            step = jnp.ones((), dtype)
        for run in (
            call,
            jax.jit(call),
            jax.jit(lambda _: call(step)),  # a constant of the program
            jax.vmap(call, axis_size=1, in_axes=None),
        ):
            with pytest.raises(TypeError, match=AN_INTEGER):
                run(step)


# Transformations.


@wrong(ValueError, "clock.unit = 1073741825", at_most(2**30))
def test_unit_beyond_2_to_the_30():
    scale_by_curve(STAIRS, PEAK, DataClock(2**30 + 1))


@wrong(ValueError, "clock.count = 1073741825", at_most(2**30))
def test_usual_count_beyond_2_to_the_30():
    scale_by_curve(STAIRS, PEAK, DataClock(8, count=2**30 + 1))


@wrong(ValueError, "clock = HoldBelow", "must be DataClock(8)")
def test_clock_that_a_batch_plan_excludes():
    scale_by_curve(scaled(), PEAK, BELOW)


# Updates.

ONE = jnp.ones(())
PLAIN = scale_by_curve(STAIRS, PEAK)
HELD = scale_by_curve(STAIRS, PEAK, UNTIL)
COUNTED = scale_by_curve(STAIRS, PEAK, DataClock(8))
WITH_USUAL_COUNT = scale_by_curve(STAIRS, PEAK, DataClock(8, count=20))
DROPPED = (
    "a wrapper dropped it, as flax's TrainState.apply_gradients does: "
    "instead, call state.tx.update("
)


def update(transformation, **arguments):
    transformation.update(ONE, transformation.init(None), **arguments)


@wrong(TypeError, "value is missing: pass value= to update", DROPPED, "value=...)")
def test_update_without_a_value():
    update(HELD)


@pytest.mark.parametrize(
    "value", [np.ones(1), jnp.ones(1), True, jnp.array(True), jnp.array(1j), "0.5", {"loss": 0.5}]
)
@wrong(TypeError, "value = ", A_REAL_SCALAR)
def test_value_that_is_not_a_real_scalar(value):
    update(HELD, value=value)


@wrong(
    TypeError,
    "count is missing: pass count= to update",
    "write DataClock(unit, count=n) if it is always n",
    DROPPED,
    "optax.GradientTransformationExtraArgs(tx.init, tx.update)",
)
def test_count_that_a_chain_around_multi_steps_drops():
    optimizer = optax.chain(optax.identity(), optax.MultiSteps(COUNTED, every_k_schedule=2))
    optimizer.update(ONE, optimizer.init(ONE), ONE, count=8)


@pytest.mark.parametrize(
    "count", [3.0, True, "3", np.ones(2, int), jnp.float32(3), jnp.ones(1, int)]
)
@pytest.mark.parametrize("transformation", [COUNTED, WITH_USUAL_COUNT], ids=["counted", "usual"])
@wrong(TypeError, "count = ", "integer")
def test_count_that_is_not_an_integer(transformation, count):
    update(transformation, count=count)


@pytest.mark.parametrize("count", [-1, 2**30 + 1])
@wrong(ValueError, "count = {count}", in_range(0, 2**30))
def test_count_out_of_range(count):
    update(COUNTED, count=count)


@pytest.mark.parametrize("count", [0, 3, -1, np.int32(3), jnp.ones((), "int32"), "three"])
@pytest.mark.parametrize("transformation", [PLAIN, HELD], ids=["plain", "held"])
@wrong(TypeError, "count = ", "left out", "clock=DataClock(unit)")
def test_count_without_a_data_clock(transformation, count):
    update(transformation, count=count)


# States that a library has restored without their named tuples.


@pytest.mark.parametrize("transformation", [PLAIN, COUNTED], ids=["plain", "counted"])
@wrong(ValueError, "state = ", "tx.init(params)")
def test_list_as_state(transformation):
    transformation.update(ONE, list(transformation.init(None)))


@wrong(ValueError, "state = ", "tx.init(params)")
def test_dictionaries_as_states_of_rules():
    state = HELD.init(None)
    dictionaries = [of_rule._asdict() for of_rule in state.hold]
    HELD.update(ONE, state._replace(hold=dictionaries))


# States of another clock. With rules of the same classes, states are interchangeable.

TRANSFORMATIONS = [
    ("None", PLAIN),
    ("DataClock", COUNTED),
    ("HoldUntilFlat", HELD),
    ("HoldBelow", scale_by_curve(STAIRS, PEAK, BELOW)),
    (r"\[HoldUntilFlat", scale_by_curve(STAIRS, PEAK, (UNTIL, BELOW))),
    (r"\[HoldBelow", scale_by_curve(STAIRS, PEAK, (BELOW, UNTIL))),
]
"""How the clock begins in a message, and the transformation."""


@pytest.mark.parametrize(("saved_by", "used_by"), list(permutations(TRANSFORMATIONS, 2)))
def test_state_of_a_different_clock(saved_by, used_by):
    _, saving = saved_by
    _, transformation = used_by
    state = saving.init(None)
    arguments = {"value": 0.5}
    if transformation is COUNTED:
        arguments = {"count": 3}
    update = partial(transformation.update, **arguments)
    message = r"^state = .*State\(.* must belong to a transformation with the same clock"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(update, ONE, state)


# Records.

RECORD = resume_record(CURVE)


@pytest.mark.parametrize("step", [1.5, "3", True, np.array(1.0), jnp.float32(3), jnp.array([1])])
@wrong(TypeError, "step = ", "int")
def test_saved_step_that_is_not_an_integer(step):
    check_resume(RECORD, RECORD, step)


@pytest.mark.parametrize("step", [jnp.arange(3), np.array([3, 3])])
@wrong(TypeError, "step = ", "count[0]")
def test_several_steps_at_once(step):
    check_resume(RECORD, RECORD, step)


@pytest.mark.parametrize("step", [-1, np.int64(-1), jnp.int32(-1)])
@wrong(ValueError, "step = -1", at_least(0))
def test_negative_step(step):
    check_resume(RECORD, RECORD, step)


@pytest.mark.parametrize(
    "record",
    [
        json.dumps(RECORD),
        {},
        {**RECORD, "peak_value": -1.0},
        {**RECORD, "curve": None},
        {**RECORD, "curve": {**RECORD["curve"], "total_steps": "many"}},
        CURVE,
        CURVE.cooldown(100, 9).to_dict(),  # has an entry "curve" too
    ],
)
@wrong(ValueError, "saved = ", "is not from resume_record: ")
def test_saved_value_that_is_not_a_record(record):
    check_resume(record, RECORD, 10)


@wrong(ValueError, "now = [] has no record: pass what resume_record returns")
def test_empty_list_in_place_of_a_record():
    check_resume(RECORD, [], 10)


@wrong(ValueError, "the number of groups was 0, and is 1 now")
def test_empty_list_of_saved_records():
    check_resume([], RECORD, 10)
