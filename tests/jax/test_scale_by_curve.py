"""`scale_by_curve` beyond what every clock does: JAX's modes, state, metrics, counts, and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.clocks.holds import BELOW, STAIRS, UNTIL, WORST, curve_steps_of
from support.jax.jax_cases import assert_equal_bits, mostly_x64, product, x64_both_ways

from plateau_jax import DataClock, HoldBelow, optax_schedule, scale_by_curve
from plateau_jax.in_jax.transformation import ScaleByCurveState

PEAK = 0.3
MAX_COUNT = 2**30
MAX_STEP = 2**31 - 1
ONE = jnp.ones(())


def learning_rates_under(rules, metrics):
    """Return the learning rate of each update, by the oracle of the rules."""
    curve_steps = curve_steps_of(rules, STAIRS, (), metrics)[:-1]
    return product(STAIRS, PEAK, np.array(curve_steps))


def assert_equal_leaves(actual, expected):
    jax.tree.map(assert_equal_bits, actual, jax.tree.map(np.asarray, expected))


@pytest.mark.parametrize("clock", [None, DataClock(8), BELOW])
def test_no_two_entries_of_a_state_are_one_array(clock):
    """Otherwise a jitted update could not donate the state."""
    optimizer = scale_by_curve(STAIRS, PEAK, clock=clock)
    leaves = jax.tree.leaves(optimizer.init(ONE))
    assert len({id(leaf) for leaf in leaves}) == len(leaves)


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
        optimizer = scale_by_curve(STAIRS, PEAK)
        of_optax = optax.scale_by_learning_rate(optax_schedule(STAIRS, PEAK))
        state = optimizer.init(params)
        state_of_optax = of_optax.init(params)
        assert state.hold == ()

        @jax.jit
        def both(state, state_of_optax):
            result = optimizer.update(params, state, params, value=3.0, other=7)  # both ignored
            return result, of_optax.update(params, state_of_optax, params)

        for step in range(6):
            result, result_of_optax = both(state, state_of_optax)
            updates, state = result
            expected, state_of_optax = result_of_optax
            assert_equal_leaves(updates, expected)
            lr = product(STAIRS, PEAK, np.array(step))
            assert_equal_bits(state.learning_rate, lr)


@x64_both_ways
@pytest.mark.parametrize("clock", [None, UNTIL, [BELOW, UNTIL], DataClock(8)], ids=str)
def test_state_keeps_structure_shapes_and_dtypes(x64, clock):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        optimizer = scale_by_curve(STAIRS, PEAK, clock)
        state = optimizer.init(None)
        arguments = {"value": 1.0}
        if isinstance(clock, DataClock):
            arguments = {"count": 3}
        assert type(state) is ScaleByCurveState
        assert state.curve_step == 0
        first_lr = product(STAIRS, PEAK, np.array(0))
        assert_equal_bits(state.learning_rate, first_lr)
        leaves = jax.tree.leaves(state)
        assert {leaf.shape for leaf in leaves} == {()}
        assert {leaf.dtype.name for leaf in leaves} == {"int32", "float32"}

        def advance(state):
            _, state = optimizer.update(jnp.ones(3), state, **arguments)
            return state

        leaves, structure = jax.tree.flatten(jax.eval_shape(advance, state))
        expected_leaves, expected_structure = jax.tree.flatten(jax.eval_shape(lambda: state))
        assert structure == expected_structure
        for leaf, expected in zip(leaves, expected_leaves, strict=True):
            assert leaf.shape == expected.shape
            assert leaf.dtype == expected.dtype
            assert leaf.weak_type == expected.weak_type


@pytest.mark.parametrize(
    ("clock", "argument", "values", "expected"),
    [
        (HoldBelow(0, 1), "value", [1, 1, 1, 1], [2, 1, 0, 0]),
        (DataClock(1), "count", [2, 1, MAX_COUNT, 0], [1, 0, 0, 0]),
    ],
)
def test_curve_step_stops_at_last_int32(clock, argument, values, expected):
    optimizer = scale_by_curve(STAIRS, PEAK, clock)
    state = optimizer.init(None)._replace(curve_step=jnp.int32(MAX_STEP - 3))
    steps_left = []
    for value in values:
        _, state = optimizer.update(ONE, state, **{argument: value})
        steps_left.append(MAX_STEP - int(state.curve_step))
    assert steps_left == expected


def to_integer(value):
    return round(float(value) * 3)


HELD = scale_by_curve(STAIRS, PEAK, [UNTIL, BELOW])  # compiled once


@pytest.mark.parametrize(
    "convert",
    [
        float,
        np.float64,
        np.float16,
        jnp.float32,
        jnp.bfloat16,
        np.array,
        to_integer,
    ],
)
def test_metric_may_be_any_real_scalar(convert):
    values = np.array([2, 2, 1, 0.7, 1, 0.1, 0.1, 0.1] * 3)
    metrics = [convert(value) for value in values]
    state = HELD.init(None)
    lrs = []
    for metric in metrics:
        _, state = HELD.update(ONE, state, value=metric)
        lrs.append(state.learning_rate)
    expected = learning_rates_under([UNTIL, BELOW], [float(metric) for metric in metrics])
    assert_equal_bits(lrs, expected)


@pytest.mark.parametrize(
    ("x64", "dtypes"),
    [
        (True, ["int8", "int32", "int64", "uint64"]),
        (False, ["int4", "uint8", "int32", "uint32"]),
    ],
)
def test_count_of_any_integer_type_is_clipped(x64, dtypes):
    with jax.enable_x64(x64):
        counts = []
        for dtype in dtypes:
            low = int(jnp.iinfo(dtype).min)
            high = int(jnp.iinfo(dtype).max)
            # Of the last, int32 would keep 5.
            counts.extend(jnp.array(count, dtype) for count in (low, high, 5, max(low, 5 - 2**33)))
        optimizer = scale_by_curve(STAIRS, PEAK, DataClock(3))
        state = optimizer.init(None)
        traces = []

        @jax.jit
        def advance(count):
            traces.append(count)
            _, following = optimizer.update(ONE, state, count=count)
            return following.curve_step, following.rest

        for count in counts:
            consumed = min(max(int(count), 0), MAX_COUNT)
            assert advance(count) == divmod(consumed, 3)
        assert len(traces) == len(dtypes)  # a new count does not recompile
        _, following = optimizer.update(ONE, state, count=counts[2])
        assert (following.curve_step, following.rest) == divmod(5, 3)


# Wrapped by optax.

COUNTS = np.array([5, 0, 17, 8, 64, 3] * 4)
CONSUMED_BEFORE = np.cumsum(COUNTS) - COUNTS


def in_a_chain(clock):
    return optax.chain(optax.scale_by_adam(), scale_by_curve(STAIRS, PEAK, clock))


def with_an_injected_peak(clock):
    inject = optax.inject_hyperparams(scale_by_curve, static_args=("curve", "clock"))
    return inject(STAIRS, PEAK, clock)


def under_apply_if_finite(clock):
    return optax.apply_if_finite(scale_by_curve(STAIRS, PEAK, clock), 100)


def under_multi_steps(clock):
    return optax.MultiSteps(scale_by_curve(STAIRS, PEAK, clock), every_k_schedule=3)


def is_curve_state(node):
    return hasattr(node, "curve_step")


def curve_state_in(state):
    """Return the state of the curve in the state of an optimizer."""
    leaves = jax.tree.leaves(state, is_leaf=is_curve_state)
    (curve_state,) = filter(is_curve_state, leaves)
    return curve_state


@mostly_x64
@pytest.mark.parametrize(
    ("wrapped", "ignored_gradients"),
    [
        (in_a_chain, []),
        (with_an_injected_peak, []),
        (under_apply_if_finite, [[1, np.nan]]),
        (under_multi_steps, [[1, 1], [1, 1]]),
    ],
)
@pytest.mark.parametrize(
    ("clock", "argument", "values", "expected"),
    [
        (UNTIL, "value", WORST[1], learning_rates_under([UNTIL], WORST[1])),
        (DataClock(8), "count", COUNTS, product(STAIRS, PEAK, CONSUMED_BEFORE // 8)),
    ],
    ids=["held", "counted"],
)
def test_wrapped_clock_gives_the_same_learning_rates(
    clock, argument, values, expected, wrapped, ignored_gradients, x64
):
    """A skipped update changes nothing, and only the argument of the last micro-batch counts."""
    lrs = []
    with jax.enable_x64(x64):
        optimizer = wrapped(clock)
        update = jax.jit(optimizer.update)
        params = jnp.ones(2)
        state = optimizer.init(params)
        ignored_value = values.dtype.type(100)
        for value in values:
            for gradients in ignored_gradients:
                before = curve_state_in(state)
                ignored = jnp.array(gradients, params.dtype)
                _, state = update(ignored, state, params, **{argument: ignored_value})
                assert_equal_leaves(curve_state_in(state), before)
            _, state = update(jnp.ones(2), state, params, **{argument: value})
            lrs.append(curve_state_in(state).learning_rate)
    assert_equal_bits(lrs, expected)
