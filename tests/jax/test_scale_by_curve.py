"""`scale_by_curve` beyond what every clock does: modes of JAX, its state, metrics, counts, and optax."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.clocks.holds import BELOW, PEAK, STAIRS, UNTIL, WORST, rates_by_words
from support.curves.descriptions import OF_UNIT_8
from support.jax.jax_cases import CURVE, assert_equal_bits, mostly_x64, product, x64_both_ways

from plateau_jax import DataClock, HoldBelow, check_resume, optax_schedule, resume_record, scale_by_curve
from plateau_jax.schedules.transformation import CountedCurveState, ScaleByCurveState

MOST = 2**30
MAX_STEP = 2**31 - 1
ONE = jnp.ones(())


@mostly_x64
def test_without_rules_updates_match_optax(x64):
    with jax.enable_x64(x64):
        # Numbers whose products round differently in each type.
        values = np.sin(np.arange(1.0, 30.0))
        params = {
            "float32": jnp.asarray(values, "float32"),
            "bfloat16": jnp.asarray(values, "bfloat16"),
            "widest": jnp.asarray(values),
            "nothing": None,
        }
        ours = scale_by_curve(CURVE, PEAK)
        theirs = optax.scale_by_learning_rate(optax_schedule(CURVE, PEAK))

        @jax.jit
        def both(state, their_state):
            given = {"value": 3.0, "other": 7}  # which it ignores
            return ours.update(params, state, params, **given), theirs.update(params, their_state, params)

        state, their_state = ours.init(params), theirs.init(params)
        assert state.hold == ()
        for step in range(6):
            (updates, state), (wanted, their_state) = both(state, their_state)
            jax.tree.map(assert_equal_bits, updates, jax.tree.map(np.asarray, wanted))
            assert_equal_bits(state.learning_rate, product(CURVE, PEAK, np.array(step)))


@x64_both_ways
@pytest.mark.parametrize("clock", [None, UNTIL, [BELOW, UNTIL], DataClock(8)], ids=str)
def test_state_keeps_structure_shapes_and_dtypes(x64, clock):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        optimizer = scale_by_curve(STAIRS, PEAK, clock)
        state = optimizer.init(None)
        counts_data = isinstance(clock, DataClock)
        assert type(state) is (CountedCurveState if counts_data else ScaleByCurveState)
        assert state.curve_step == 0
        assert_equal_bits(state.learning_rate, product(STAIRS, PEAK, np.array(0)))
        assert {leaf.shape for leaf in jax.tree.leaves(state)} == {()}
        assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"int32", "float32"}
        update = partial(optimizer.update, **({"count": 3} if counts_data else {"value": 1.0}))
        before, (_, after) = jax.eval_shape(lambda: state), jax.eval_shape(update, jnp.ones(3), state)
        described = [
            jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), kind)
            for kind in (before, after)
        ]
        assert described[0] == described[1]


def test_state_saved_without_x64_resumes_with_it():
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(CURVE, PEAK))
    params = jnp.ones(3)
    state = optimizer.init(params)
    with jax.enable_x64(True):
        _, resumed = jax.jit(optimizer.update)(params, jax.device_get(state), params)
    _, uninterrupted = jax.jit(optimizer.update)(params, state, params)
    jax.tree.map(assert_equal_bits, resumed, jax.tree.map(np.asarray, uninterrupted))


@pytest.mark.parametrize(
    ("clock", "name", "given"),
    [(HoldBelow(0, 1), "value", [1, 1, 1, 1]), (DataClock(1), "count", [2, 1, MOST, 0])],
)
def test_curve_step_stops_at_last_int32(clock, name, given):
    optimizer = scale_by_curve(STAIRS, PEAK, clock)
    state = optimizer.init(None)._replace(curve_step=jnp.int32(MAX_STEP - 3))
    steps_left = []
    for argument in given:
        _, state = optimizer.update(ONE, state, **{name: argument})
        steps_left.append(MAX_STEP - int(state.curve_step))
    assert steps_left == ([2, 1, 0, 0] if name == "value" else [1, 0, 0, 0])


HELD = scale_by_curve(STAIRS, PEAK, [UNTIL, BELOW])  # compiled once


@pytest.mark.parametrize(
    "convert",
    [
        *(float, np.float64, np.float16, jnp.float32, jnp.bfloat16, np.array),
        lambda value: round(float(value) * 3),
    ],
)
def test_metric_may_be_any_real_scalar(convert):
    state, rates = HELD.init(None), []
    converted = [convert(value) for value in np.array([2, 2, 1, 0.7, 1, 0.1, 0.1, 0.1] * 3)]
    for metric in converted:
        _, state = HELD.update(ONE, state, value=metric)
        rates.append(state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL, BELOW], [float(metric) for metric in converted]))


def test_metric_beyond_float32_is_not_finite():
    with jax.enable_x64(True):
        optimizer = scale_by_curve(STAIRS, PEAK, HoldBelow(0, 9))
        state = optimizer.init(None)
        for value in (-1e39, jnp.array(-1e39), -np.inf):
            assert optimizer.update(ONE, state, value=value)[1].curve_step == 1


@pytest.mark.parametrize(
    ("x64", "dtypes"),
    [(True, ["int8", "int32", "int64", "uint64"]), (False, ["int4", "uint8", "int32", "uint32"])],
)
def test_count_of_any_integer_type_is_clipped(x64, dtypes):
    with jax.enable_x64(x64):
        counts = []
        for dtype in dtypes:
            low, high = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
            # Of the last, int32 would keep 5.
            counts += [jnp.array(count, dtype) for count in (low, high, 5, max(low, 5 - 2**33))]
        transformation = scale_by_curve(CURVE, PEAK, DataClock(3))
        state, traces = transformation.init(None), []

        @jax.jit
        def advance(count):
            traces.append(count)
            _, following = transformation.update(ONE, state, count=count)
            return following.curve_step, following.rest

        for count in counts:
            assert advance(count) == divmod(min(max(int(count), 0), MOST), 3)
        assert len(traces) == len(dtypes)  # a new count does not recompile
        eager = transformation.update(ONE, state, count=counts[2])[1]
        assert (eager.curve_step, eager.rest) == divmod(5, 3)


MIXED = [None, 5, 0, np.int64(64), jnp.int32(17), None, MOST, jnp.uint8(3)]
"""Counts of updates; None leaves it out."""


@pytest.mark.parametrize("usual", [1, 8, 20, MOST])
def test_count_of_an_update_replaces_that_of_the_clock(usual):
    """And 0 is a count too."""
    optimizer = scale_by_curve(CURVE, PEAK, DataClock(8, count=usual))
    without_count = scale_by_curve(CURVE, PEAK, DataClock(8))
    state, wanted = optimizer.init(None), without_count.init(None)
    for count in MIXED:
        given = {} if count is None else {"count": count}
        _, state = optimizer.update(ONE, state, **given)
        _, wanted = without_count.update(ONE, wanted, count=usual if count is None else count)
        jax.tree.map(assert_equal_bits, state, jax.tree.map(np.asarray, wanted))
    total = sum(usual if count is None else int(count) for count in MIXED)
    assert (state.curve_step, state.rest) == divmod(total, 8)


@pytest.mark.parametrize("curve", OF_UNIT_8, ids=lambda curve: curve.to_dict()["kind"])
def test_curve_of_a_batch_plan_counts_in_its_unit(curve):
    """Without a clock as with its own, of which only `count` is new."""
    assert resume_record(curve) == resume_record(curve, clock=DataClock(8))
    check_resume(resume_record(curve), resume_record(curve, clock=DataClock(8, count=5)), 3)
    states = []
    for clock in (None, DataClock(8), DataClock(8, count=5)):
        optimizer = scale_by_curve(curve, PEAK, clock)
        _, state = optimizer.update(ONE, optimizer.init(None), count=84)
        states.append(jax.tree.map(np.asarray, optimizer.update(ONE, state, count=5)[1]))
    for state in states:
        jax.tree.map(assert_equal_bits, state, states[0])
        assert (state.curve_step, state.rest) == divmod(89, 8)
        assert_equal_bits(state.learning_rate, product(curve, PEAK, np.array(10)))


COUNTS = np.array([5, 0, 17, 8, 64, 3] * 4)
CLOCKS = {
    "rule": (UNTIL, "value", WORST[1], rates_by_words([UNTIL], WORST[1])),
    "data": (DataClock(8), "count", COUNTS, product(STAIRS, PEAK, (np.cumsum(COUNTS) - COUNTS) // 8)),
}
"""A clock, the argument that moves it, its values, and the learning rate of each update."""

# How to wrap `build(peak)`, and where its state is then.
WRAPPERS = {
    "chain": (lambda build: optax.chain(optax.scale_by_adam(), build(PEAK)), lambda state: state[-1]),
    "injected peak": (
        lambda build: optax.inject_hyperparams(build)(peak=PEAK),
        lambda state: state.inner_state,
    ),
    "apply_if_finite": (
        lambda build: optax.apply_if_finite(build(PEAK), 100),
        lambda state: state.inner_state,
    ),
    "MultiSteps": (
        lambda build: optax.MultiSteps(build(PEAK), every_k_schedule=3),
        lambda state: state.inner_opt_state,
    ),
}


@mostly_x64
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", CLOCKS)
def test_wrapped_clock_gives_the_same_learning_rates(kind, wrapper, x64):
    """A skipped update changes nothing, and only the argument of the last micro-batch counts."""
    clock, name, values, expected = CLOCKS[kind]
    wrap, inner = WRAPPERS[wrapper]
    rates = []
    with jax.enable_x64(x64):
        optimizer = wrap(lambda peak: scale_by_curve(STAIRS, peak, clock))
        state, update = optimizer.init(jnp.ones(2)), jax.jit(optimizer.update)
        for value in values:
            ignored = {"apply_if_finite": [jnp.array([1, jnp.nan])], "MultiSteps": [jnp.ones(2)] * 2}
            for gradients in ignored.get(wrapper, []):
                before = jax.tree.map(np.asarray, inner(state))
                _, state = update(gradients, state, jnp.ones(2), **{name: values.dtype.type(100)})
                jax.tree.map(assert_equal_bits, inner(state), before)
            _, state = update(jnp.ones(2), state, jnp.ones(2), **{name: value})
            rates.append(inner(state).learning_rate)
    assert_equal_bits(rates, expected)
