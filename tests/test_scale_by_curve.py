"""Updates times -rate, after a clock that rules may hold: in every mode of JAX as in words."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orbax import checkpoint  # which flax brings
from support.hold_cases import metrics, rules
from support.hold_oracle import clocks
from support.jax_cases import CURVE, assert_equal_bits, product, x64_both_ways

from plateau_jax import HoldBelow, HoldUntilFlat, StagedCurve, optax_schedule, scale_by_curve

SIZE = 48
PEAK = 0.3
STAIRS = StagedCurve([(2, 1), (3,), (2, 0.7), (1,), (0, 0.5), (2,), (4, 0.9), (3,), (5, 0)])
"""Warmup, and flat parts that begin at the steps below; one follows a jump down, one a rise."""
STARTS = {2, 7, 8, 14}

UNTIL = HoldUntilFlat(2, threshold=0.1, every=2, limit=9)
BELOW = HoldBelow([(0.7, 3), (0.1, 6)], every=3)
WORST = np.random.default_rng(7).choice(
    np.array([2, 1, 0.7, 0.1, 0.05, -0.5, 0.63, np.nan, np.inf, 3e38], np.float32), (6, SIZE)
)
"""Six trainings' metrics."""


def test_where_the_parts_begin():
    assert set(STAIRS.flat_starts) == STARTS


def rates_by_words(given_rules, given_metrics, x64=False):
    return product(STAIRS, PEAK, np.array(clocks(given_rules, STARTS, given_metrics)[:-1]), x64)


def rates_in_scan(optimizer, given_metrics, **how):
    """The learning rate of each update, all in one scan."""

    def update(state, metric):
        updates, state = optimizer.update(jnp.ones(2), state, value=metric)
        return state, (state.learning_rate, updates)

    return jax.lax.scan(update, optimizer.init(jnp.ones(2)), given_metrics, **how)[1]


@pytest.mark.slow
@x64_both_ways
@settings(max_examples=15)
@given(rules, st.lists(metrics(SIZE), min_size=6, max_size=6))
def test_as_in_words(x64, given_rules, columns):
    with jax.enable_x64(x64):
        optimizer = scale_by_curve(STAIRS, PEAK, hold=given_rules)
        in_scan = jax.jit(jax.vmap(partial(rates_in_scan, optimizer)))
        rates, updates = in_scan(np.array(columns, np.float32))
        wanted = np.array([rates_by_words(given_rules, column, x64) for column in columns])
        assert_equal_bits(rates, wanted)
        assert_equal_bits(updates, -np.stack([wanted.astype(updates.dtype)] * 2, -1))


@x64_both_ways
@pytest.mark.parametrize(
    "mode", ["eager", "jit", "strict", "scan", "unrolled scan", "unrolled", "uncompiled"]
)
def test_in_every_mode_as_in_words(x64, mode):
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
def test_without_rules_it_is_optaxs_own_with_the_schedule(x64):
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
            found, state = update(params, state, params, value=3.0, other=7)
            wanted, their_state = their_update(params, their_state, params)
            jax.tree.map(assert_equal_bits, found, jax.tree.map(np.asarray, wanted))
            rates.append(state.learning_rate)
        assert_equal_bits(rates, product(CURVE, PEAK, np.arange(120), x64))


@x64_both_ways
@pytest.mark.parametrize("hold", [None, UNTIL, [BELOW, UNTIL]])
def test_a_state_keeps_structure_shapes_and_dtypes(x64, hold):
    with jax.enable_x64(x64):
        optimizer = scale_by_curve(STAIRS, PEAK, hold=hold)
        state = optimizer.init(None)
        assert state.clock == 0
        assert_equal_bits(state.learning_rate, product(STAIRS, PEAK, np.array(0), x64))
        assert state.clock.dtype == "int32"
        assert all(leaf.shape == () for leaf in jax.tree.leaves(state))
        assert {leaf.dtype.name for leaf in jax.tree.leaves(state.hold)} <= {"int32", "float32"}
        _, after = jax.eval_shape(partial(optimizer.update, value=1.0), jnp.ones(3), state)
        described = [
            jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), kind)
            for kind in (jax.eval_shape(lambda: state), after)
        ]
        assert described[0] == described[1]


def test_the_clock_stops_at_the_last_int32():
    optimizer = scale_by_curve(STAIRS, hold=HoldBelow(0, 1))
    state = optimizer.init(None)._replace(clock=jnp.int32(2**31 - 2))
    for wanted in (2**31 - 1, 2**31 - 1):
        _, state = optimizer.update(jnp.ones(()), state, value=1.0)
        assert state.clock == wanted


def test_inside_a_chain():
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), scale_by_curve(STAIRS, PEAK, hold=UNTIL)
    )
    named = optax.named_chain(
        ("adam", optax.scale_by_adam()), ("rate", scale_by_curve(STAIRS, PEAK, hold=UNTIL))
    )
    params = {"w": jnp.ones(3), "b": jnp.ones((), "bfloat16")}
    state, named_state = optimizer.init(params), named.init(params)
    rates, named_rates = [], []
    for metric in WORST[1]:
        updates, state = jax.jit(optimizer.update)(params, state, params, value=metric)
        _, named_state = jax.jit(named.update)(params, named_state, params, value=metric)
        rates.append(state[-1].learning_rate)
        named_rates.append(named_state["rate"].learning_rate)
        assert updates["b"].dtype == "bfloat16"
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[1]))
    assert_equal_bits(named_rates, rates_by_words([UNTIL], WORST[1]))


def test_inside_multi_steps_the_clock_counts_updates():
    optimizer = optax.MultiSteps(scale_by_curve(STAIRS, PEAK, hold=UNTIL), every_k_schedule=2)
    state = optimizer.init(jnp.ones(2))
    update = jax.jit(optimizer.update)
    rates = []
    for metric in WORST[2]:
        for value in (np.float32(0), metric):  # the metric is the one beside the last micro-batch
            _, state = update(jnp.ones(2), state, jnp.ones(2), value=value)
        rates.append(state.inner_opt_state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[2]))


def test_what_apply_if_finite_skips_changes_nothing():
    optimizer = optax.apply_if_finite(scale_by_curve(STAIRS, PEAK, hold=UNTIL), 100)
    state = optimizer.init(jnp.ones(2))
    update = jax.jit(optimizer.update)
    rates = []
    for metric in WORST[3]:
        _, skipped = update(jnp.array([1, jnp.nan]), state, value=np.float32(0))
        jax.tree.map(assert_equal_bits, skipped.inner_state, jax.tree.map(np.asarray, state.inner_state))
        _, state = update(jnp.ones(2), skipped, value=metric)
        rates.append(state.inner_state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL], WORST[3]))


@pytest.mark.parametrize("hold", [None, [UNTIL, BELOW]])
def test_orbax_saves_it(tmp_path, hold):
    optimizer = scale_by_curve(STAIRS, PEAK, hold=hold)
    update = jax.jit(optimizer.update)
    state = optimizer.init(None)
    for metric in WORST[4][:20]:
        _, state = update(jnp.ones(2), state, value=metric)
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        restored = saver.restore(tmp_path / "state", optimizer.init(None))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for metric in WORST[4][20:]:
        _, state = update(jnp.ones(2), state, value=metric)
        _, restored = update(jnp.ones(2), restored, value=metric)
        jax.tree.map(assert_equal_bits, restored, jax.tree.map(np.asarray, state))


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
def test_a_metric_of_any_real_kind(convert):
    column = np.array([2, 2, 1, 0.7, 1, 0.1, 0.1, 0.1] * 4)
    converted = [convert(value) for value in column]
    optimizer = scale_by_curve(STAIRS, PEAK, hold=[UNTIL, BELOW])
    state, rates = optimizer.init(None), []
    for metric in converted:
        _, state = optimizer.update(jnp.ones(()), state, value=metric)
        rates.append(state.learning_rate)
    assert_equal_bits(rates, rates_by_words([UNTIL, BELOW], [float(metric) for metric in converted]))


def test_a_metric_that_float32_cannot_hold_is_not_finite():
    with jax.enable_x64(True):
        optimizer = scale_by_curve(STAIRS, hold=HoldBelow(0, 9))
        for value in (-1e39, jnp.array(-1e39), -np.inf):
            assert optimizer.update(jnp.ones(()), optimizer.init(None), value=value)[1].clock == 1


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({}, ["value is missing", "value=metric"]),
        ({"value": None}, ["value is missing"]),
        ({"value": np.ones(1)}, ["value", "real scalar"]),
        ({"value": jnp.ones(1)}, ["value", "real scalar"]),
        ({"value": True}, ["value = True", "real scalar"]),
        ({"value": jnp.array(True)}, ["value", "real scalar"]),
        ({"value": jnp.array(1j)}, ["value", "real scalar"]),
        ({"value": "0.5"}, ["value = '0.5'", "real scalar"]),
        ({"value": {"loss": 0.5}}, ["value = {'loss': 0.5}", "real scalar"]),
    ],
    ids=str,
)
def test_what_is_no_metric(arguments, parts):
    optimizer = scale_by_curve(STAIRS, hold=UNTIL)
    for update in (optimizer.update, optax.chain(optimizer).update):
        state = optimizer.init(None)
        with pytest.raises(TypeError) as caught:
            update(jnp.ones(()), state if update is optimizer.update else (state,), **arguments)
        for part in parts:
            assert part in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "arguments", "part"),
    [
        (TypeError, {"curve": 3}, "curve = 3"),
        (ValueError, {"peak_value": -1.0}, "peak_value = -1.0"),
        (TypeError, {"hold": 3}, "hold = 3"),
        (ValueError, {"hold": []}, "hold"),
        (ValueError, {"curve": StagedCurve([(5, 1)]), "hold": UNTIL}, "no flat part"),
    ],
    ids=str,
)
def test_bad_arguments(kind, arguments, part):
    with pytest.raises(kind, match=part):
        scale_by_curve(**{"curve": STAIRS, **arguments})
