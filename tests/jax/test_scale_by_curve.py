"""`scale_by_curve` with rules that hold the clock, in every mode of JAX, against the rules' oracle."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.hold_cases import (
    BELOW,
    PEAK,
    SIZE,
    STAIRS,
    STARTS,
    UNTIL,
    WORST,
    metrics,
    rates_by_words,
    rules,
)
from support.jax.jax_cases import CURVE, assert_equal_bits, product, x64_both_ways

from plateau_jax import CountedCurveState, HoldBelow, ScaleByCurveState, optax_schedule, scale_by_curve


def test_flat_starts_of_the_test_curve():
    assert set(STAIRS.flat_starts) == STARTS


def rates_in_scan(optimizer, given_metrics, **how):
    """Return the learning rate of each update, computed in one scan."""

    def update(state, metric):
        updates, state = optimizer.update(jnp.ones(2), state, value=metric)
        return state, (state.learning_rate, updates)

    return jax.lax.scan(update, optimizer.init(jnp.ones(2)), given_metrics, **how)[1]


@pytest.mark.slow
@examples(12)
@given(st.booleans(), rules, st.lists(metrics(SIZE), min_size=6, max_size=6))
def test_learning_rates_match_oracle(x64, given_rules, columns):
    with jax.enable_x64(x64):
        optimizer = scale_by_curve(STAIRS, PEAK, hold=given_rules)
        in_scan = jax.jit(jax.vmap(partial(rates_in_scan, optimizer)))
        rates, updates = in_scan(np.array(columns, np.float32))
        wanted = np.array([rates_by_words(given_rules, column, x64) for column in columns])
        assert_equal_bits(rates, wanted)
        assert_equal_bits(updates, -np.stack([wanted.astype(updates.dtype)] * 2, -1))


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize(
    "mode", ["eager", "jit", "strict", "scan", "unrolled scan", "unrolled", "uncompiled"]
)
def test_every_mode_matches_the_oracle(x64, mode):
    given_rules = [UNTIL, BELOW]
    optimizer = scale_by_curve(STAIRS, PEAK, hold=given_rules)
    column = WORST[0]

    def one_by_one(update, state, given_metrics):
        rates = []
        for metric in given_metrics:
            _, state = update(jnp.ones(()), state, value=metric)
            rates.append(state.learning_rate)
        return jnp.array(rates)

    def one_by_one_from_the_start(update, given_metrics):
        return one_by_one(update, optimizer.init(jnp.ones(())), given_metrics)

    with jax.enable_x64(x64):
        if mode == "eager":
            rates = one_by_one_from_the_start(optimizer.update, column)
        elif mode == "jit":
            rates = one_by_one_from_the_start(jax.jit(optimizer.update), column)
        elif mode == "strict":
            with jax.numpy_dtype_promotion("strict"):
                rates, _ = rates_in_scan(optimizer, jnp.array(column))
        elif mode == "unrolled":
            column = column[:12]
            rates = jax.jit(partial(one_by_one_from_the_start, optimizer.update))(column)
        elif mode == "uncompiled":
            with jax.disable_jit():
                rates = one_by_one_from_the_start(optimizer.update, column)
        else:
            rates, _ = rates_in_scan(optimizer, column, unroll=5 if mode == "unrolled scan" else 1)
        assert_equal_bits(rates, rates_by_words(given_rules, column, x64))


@x64_both_ways
def test_without_rules_updates_match_optax(x64):
    with jax.enable_x64(x64):
        params = {
            "float32": jnp.linspace(-1, 1, 5, dtype="float32"),
            "bfloat16": jnp.linspace(-1, 1, 5, dtype="bfloat16"),
            "float16": jnp.ones((2, 3), "float16"),
            "widest": jnp.linspace(-1, 1, 5),
            "nothing": None,
        }
        ours = scale_by_curve(CURVE, PEAK)
        theirs = optax.scale_by_learning_rate(optax_schedule(CURVE, PEAK))
        assert ours.init(params).hold == ()
        update, their_update = jax.jit(ours.update), jax.jit(theirs.update)
        state, their_state = ours.init(params), theirs.init(params)
        rates = []
        for _ in range(120):
            updates, state = update(params, state, params, value=3.0, other=7)
            wanted, their_state = their_update(params, their_state, params)
            jax.tree.map(assert_equal_bits, updates, jax.tree.map(np.asarray, wanted))
            rates.append(state.learning_rate)
        assert_equal_bits(rates, product(CURVE, PEAK, np.arange(120), x64))


@x64_both_ways
@pytest.mark.parametrize("options", [{}, {"hold": UNTIL}, {"hold": [BELOW, UNTIL]}, {"unit": 8}], ids=str)
def test_state_keeps_structure_shapes_and_dtypes(x64, options):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        optimizer = scale_by_curve(STAIRS, PEAK, **options)
        state = optimizer.init(None)
        assert type(state) is (CountedCurveState if "unit" in options else ScaleByCurveState)
        assert state.clock == 0
        assert_equal_bits(state.learning_rate, product(STAIRS, PEAK, np.array(0), x64))
        assert {leaf.shape for leaf in jax.tree.leaves(state)} == {()}
        *counters, _ = state
        assert {leaf.dtype.name for leaf in jax.tree.leaves(counters)} <= {"int32", "float32"}
        update = partial(optimizer.update, **({"count": 3} if "unit" in options else {"value": 1.0}))
        before, (_, after) = jax.eval_shape(lambda: state), jax.eval_shape(update, jnp.ones(3), state)
        described = [
            jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), kind)
            for kind in (before, after)
        ]
        assert described[0] == described[1]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"hold": HoldBelow(0, 1)}, [{"value": 1.0}] * 4),
        ({"unit": 1}, [{"count": count} for count in (2, 1, 2**30, 0)]),
    ],
    ids=str,
)
def test_clock_stops_at_last_int32(options, arguments):
    optimizer = scale_by_curve(STAIRS, PEAK, **options)
    state = optimizer.init(None)._replace(clock=jnp.int32(2**31 - 4))
    consumed = 2**31 - 4
    for argument in arguments:
        consumed += argument.get("count", 1)
        _, state = optimizer.update(jnp.ones(()), state, **argument)
        assert state.clock == min(consumed, 2**31 - 1)


HELD = scale_by_curve(STAIRS, PEAK, hold=[UNTIL, BELOW])  # compiled once


@pytest.mark.parametrize(
    "convert",
    [
        float,
        np.float64,
        np.float16,
        jnp.float32,
        jnp.bfloat16,
        np.array,
        lambda value: round(float(value) * 3),
    ],
)
def test_metric_may_be_any_real_scalar(convert):
    column = np.array([2, 2, 1, 0.7, 1, 0.1, 0.1, 0.1] * 4)
    converted = [convert(value) for value in column]
    state, rates = HELD.init(None), []
    for metric in converted:
        _, state = HELD.update(jnp.ones(()), state, value=metric)
        rates.append(state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL, BELOW], [float(metric) for metric in converted]))


def test_metric_beyond_float32_is_not_finite():
    with jax.enable_x64(True):
        optimizer = scale_by_curve(STAIRS, PEAK, hold=HoldBelow(0, 9))
        for value in (-1e39, jnp.array(-1e39), -np.inf):
            assert optimizer.update(jnp.ones(()), optimizer.init(None), value=value)[1].clock == 1
