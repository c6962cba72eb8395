"""`scale_by_curve` with a unit: the clock is consumed // unit, checked with Python integers."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, strategies as st
from support.examples import examples
from support.holds.hold_cases import BELOW
from support.jax.jax_cases import CURVE, assert_equal_bits, product, x64_both_ways

from plateau_jax import (
    CountedCurveState,
    PlateauCurve,
    optax_schedule,
    scale_by_curve,
)

PEAK = 3e-4
MOST = 2**30
MAX_STEP = 2**31 - 1
LONG = PlateauCurve(MAX_STEP, warmup_steps=10**6, plateaus=[(30, 20)], min_lr_ratio=0.1)
ONE = jnp.ones(())


def by_hand(unit, counts):
    """Return (clock, rest) before each update and after the last."""
    consumed, found = 0, []
    for count in (*counts, 0):
        found.append(divmod(consumed, unit))
        consumed += count
    return np.array(found)


def in_scan(curve, unit, counts):
    transformation = scale_by_curve(curve, PEAK, unit=unit)

    def update(state, count):
        _, following = transformation.update(ONE, state, count=count)
        return following, (state.clock, state.rest, following.learning_rate)

    return jax.lax.scan(update, transformation.init(None), counts)[1]


def assert_by_hand(curve, unit, counts, found, x64):
    wanted = np.minimum(by_hand(unit, counts)[:-1], MAX_STEP)  # the clock stops there
    np.testing.assert_array_equal(np.stack(found[:2], 1), wanted)
    assert found[0].dtype == found[1].dtype == "int32"
    assert_equal_bits(found[2], product(curve, PEAK, wanted[:, 0], x64))


@x64_both_ways
def test_many_random_counts_in_scan_are_exact(x64):
    random = np.random.default_rng(7)
    with jax.enable_x64(x64):
        for unit, most in ((8, 40), (65_536, 10**6), (MOST, MOST), (1, 20_000), (999_983, 3)):
            counts = random.integers(0, most, 100_000 if unit == 65_536 else 3_000, endpoint=True)
            found = jax.jit(partial(in_scan, LONG, unit))(counts.astype(np.int32))
            assert_by_hand(LONG, unit, counts.tolist(), found, x64)


_sizes = st.integers(0, MOST) | st.integers(0, 50) | st.sampled_from([0, 1, MOST - 1, MOST])


@examples(20)
@example(False, 1, [MOST, MOST, 0])
@given(st.booleans(), _sizes.filter(bool), st.lists(_sizes, min_size=1, max_size=6))
def test_eager_and_jitted_updates_agree(x64, unit, counts):
    with jax.enable_x64(x64):
        transformation = scale_by_curve(LONG, PEAK, unit=unit)
        jitted = jax.jit(transformation.update)
        state, found = transformation.init(None), []
        for turn, count in enumerate(counts):
            update = jitted if turn % 2 else transformation.update
            updates, following = update({"w": ONE}, state, count=count)
            found.append((state.clock, state.rest, following.learning_rate))
            assert_equal_bits(updates["w"], np.asarray(-following.learning_rate).astype(ONE.dtype))
            state = following
        assert_by_hand(LONG, unit, counts, [np.stack(column) for column in zip(*found, strict=True)], x64)


@examples(20)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 30), st.randoms())
def test_clock_does_not_depend_on_division_into_updates(counts, unit, random):
    transformation = scale_by_curve(CURVE, PEAK, unit=unit)
    update = jax.jit(transformation.update)
    ends = []
    for several in (counts, [sum(counts)], random.sample(counts, len(counts))):
        state = transformation.init(None)
        for count in several:
            _, state = update(ONE, state, count=count)
        ends.append((int(state.clock), int(state.rest)))
    assert set(ends) == {divmod(sum(counts), unit)}


def test_clock_stops_at_last_int32():
    transformation = scale_by_curve(LONG, PEAK, unit=1)
    state = transformation.init(None)._replace(clock=jnp.int32(MAX_STEP - 3))
    for count, wanted in ((2, MAX_STEP - 1), (1, MAX_STEP), (MOST, MAX_STEP), (0, MAX_STEP)):
        _, state = transformation.update(ONE, state, count=count)
        assert state.clock == wanted


_INTEGERS = ["int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"]


@pytest.mark.parametrize(
    ("dtype", "x64"),
    [*((dtype, x64) for dtype in _INTEGERS for x64 in (False, True)), ("int64", True), ("uint64", True)],
)
def test_count_of_any_integer_type_is_clipped(dtype, x64):
    with jax.enable_x64(x64):
        transformation = scale_by_curve(CURVE, PEAK, unit=3)
        limits = jnp.iinfo(dtype)
        for count in (int(limits.min), int(limits.max), 5):
            state = transformation.init(None)
            traced = jax.jit(transformation.update)(ONE, state, count=jnp.array(count, dtype))[1]
            given_as_array = transformation.update(ONE, state, count=jnp.array(count, dtype))[1]
            for found in (traced, given_as_array):
                assert (found.clock, found.rest) == divmod(min(max(count, 0), MOST), 3)


@x64_both_ways
def test_state_keeps_structure_shapes_and_dtypes(x64):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        transformation = scale_by_curve(CURVE, PEAK, unit=8)
        state = transformation.init(None)
        assert type(state) is CountedCurveState
        _, after = jax.eval_shape(partial(transformation.update, count=3), jnp.ones(3), state)
        described = [
            jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), kind)
            for kind in (jax.eval_shape(lambda: state), after)
        ]
        assert described[0] == described[1]
        assert {leaf.shape for leaf in jax.tree.leaves(state)} == {()}


def test_new_count_does_not_recompile():
    transformation, traces = scale_by_curve(CURVE, PEAK, unit=8), []

    @jax.jit
    def update(state, count):
        traces.append(count)
        return transformation.update(ONE, state, count=count)[1]

    state = transformation.init(None)
    for count in (3, 4, 100):
        state = update(state, count)
    assert len(traces) == 1
    assert divmod(107, 8) == (state.clock, state.rest)


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (None, TypeError, r"count is missing: with unit, call update\(.*count="),
        (True, TypeError, "count = True must be an integer"),
        (3.0, TypeError, "count = 3.0 must be an integer: write 3"),
        (math.nan, TypeError, "count = nan must be an integer"),
        (np.float32(3), TypeError, "must be an integer"),
        (np.array(True), TypeError, "must be an integer"),
        (np.ones(2, int), TypeError, "must be an integer"),
        ("3", TypeError, "count = '3' must be an integer"),
        (jnp.float32(3), TypeError, "must be a single integer"),
        (jnp.array(True), TypeError, "must be a single integer"),
        (jnp.ones(1, int), TypeError, "must be a single integer"),
        (-1, ValueError, r"count = -1 must lie in 0 … 2\*\*30"),
        (MOST + 1, ValueError, r"count = 1073741825 must lie in 0 … 2\*\*30"),
    ],
    ids=repr,
)
def test_bad_count_is_refused(count, error, message):
    transformation = scale_by_curve(CURVE, PEAK, unit=8)
    for update in (transformation.update, optax.chain(transformation).update):
        state = transformation.init(None)
        with pytest.raises(error, match=message):
            update(ONE, state if update is transformation.update else (state,), count=count)


def test_omitted_count_is_reported_as_missing():
    transformation = scale_by_curve(CURVE, PEAK, unit=8)
    with pytest.raises(TypeError, match="count is missing"):
        transformation.update(ONE, transformation.init(None))


@pytest.mark.parametrize(
    ("unit", "error", "message"),
    [
        (0, ValueError, r"unit = 0 must lie in 1 … 2\*\*30"),
        (-8, ValueError, "unit = -8"),
        (MOST + 1, ValueError, "unit = 1073741825"),
        (True, TypeError, "unit = True must be an integer"),
        (8.0, TypeError, "unit = 8.0 must be an integer: write 8"),
        (math.nan, TypeError, "unit = nan must be an integer"),
        ("8", TypeError, "unit = '8' must be an integer"),
    ],
    ids=repr,
)
def test_bad_unit_is_refused(unit, error, message):
    with pytest.raises(error, match=message):
        scale_by_curve(CURVE, PEAK, unit=unit)


def test_rules_with_unit_are_refused():
    with pytest.raises(ValueError, match=r"^hold = HoldBelow.* cannot be combined with unit = 8$"):
        scale_by_curve(CURVE, PEAK, hold=BELOW, unit=8)


def test_count_without_unit_is_refused():
    plain = scale_by_curve(CURVE, PEAK)
    state = plain.init(None)
    for count in (0, 3, -1, np.int32(3), jnp.ones((), "int32"), "three"):
        with pytest.raises(TypeError, match=r"^count = .* counts updates: .*\(\.\.\., unit=n\)"):
            plain.update(ONE, state, count=count)
    with pytest.raises(TypeError, match="counts updates"):
        jax.jit(plain.update)(ONE, state, count=3)
    _, state = plain.update(ONE, state, count=None)
    assert state.clock == 1


def test_state_of_other_clock_is_refused():
    counted, plain = scale_by_curve(CURVE, PEAK, unit=8), scale_by_curve(CURVE, PEAK)
    with pytest.raises(ValueError, match="is not of a clock with unit = 8"):
        counted.update(ONE, plain.init(None), count=3)
    with pytest.raises(ValueError, match="is of a clock with unit=, and this one counts updates"):
        plain.update(ONE, counted.init(None))


COUNTS = [5, 0, 17, 8, 64, 3] * 8


def clocks_and_rates(update, state, of_state, counts=COUNTS):
    found = []
    for count in counts:
        before = of_state(state)
        _, state = update(jnp.ones(2), state, jnp.ones(2), count=count)
        found.append((int(before.clock), float(of_state(state).learning_rate)))
    return found


def wanted(counts=COUNTS, unit=8):
    schedule = optax_schedule(CURVE, PEAK)
    return [(clock, float(schedule(clock))) for clock in by_hand(unit, counts)[:-1, 0].tolist()]


def test_count_passes_through_a_chain():
    chain = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), scale_by_curve(CURVE, PEAK, unit=8)
    )
    update = jax.jit(chain.update)
    assert clocks_and_rates(update, chain.init(jnp.ones(2)), lambda state: state[-1]) == wanted()


def test_injected_peak_is_used():
    injected = optax.inject_hyperparams(lambda peak: scale_by_curve(CURVE, peak, unit=8))(peak=PEAK)
    update = jax.jit(injected.update)
    assert clocks_and_rates(update, injected.init(jnp.ones(2)), lambda state: state.inner_state) == wanted()


def test_updates_skipped_by_apply_if_finite_are_not_counted():
    optimizer = optax.apply_if_finite(scale_by_curve(CURVE, PEAK, unit=8), 100)
    update = jax.jit(optimizer.update)

    def with_skips(updates, state, params, count):
        _, state = update(jnp.array([1, jnp.nan]), state, params, count=1000)
        return update(updates, state, params, count=count)

    assert (
        clocks_and_rates(with_skips, optimizer.init(jnp.ones(2)), lambda state: state.inner_state) == wanted()
    )


def test_multi_steps_uses_count_of_last_micro_batch():
    optimizer = optax.MultiSteps(scale_by_curve(CURVE, PEAK, unit=8), every_k_schedule=3)
    update = jax.jit(optimizer.update)

    def accumulated(updates, state, params, count):
        # Only the count of the last micro-batch reaches the transformation, so it must be the sum.
        for micro_batch in (7, 100, count):
            updates, state = update(updates, state, params, count=micro_batch)
        return updates, state

    start = optimizer.init(jnp.ones(2))
    assert clocks_and_rates(accumulated, start, lambda state: state.inner_opt_state) == wanted()
