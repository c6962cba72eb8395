"""`scale_by_curve` with a unit: the clock is consumed // unit, checked with Python integers."""

import pickle
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given, strategies as st
from support.curves.scaled import PLAN, exact_levels, scaled
from support.examples import examples
from support.jax.jax_cases import CURVE, assert_equal_bits, product, x64_both_ways
from support.numerics.oracle import is_nearest_float32

from plateau_jax import (
    PlateauCurve,
    scale_by_curve,
)

PEAK = 3e-4
MOST = 2**30
MAX_STEP = 2**31 - 1
LONG = PlateauCurve(MAX_STEP, warmup_steps=10**6, plateaus=[(30, 20)], min_lr_ratio=0.1)
ONE = jnp.ones(())


def by_hand(unit, counts):
    """Return (clock, rest) before each update and after the last."""
    consumed, clocks = 0, []
    for count in (*counts, 0):
        clocks.append(divmod(consumed, unit))
        consumed += count
    return np.array(clocks)


def in_scan(curve, unit, counts):
    transformation = scale_by_curve(curve, PEAK, unit=unit)

    def update(state, count):
        _, following = transformation.update(ONE, state, count=count)
        return following, (state.clock, state.rest, following.learning_rate)

    return jax.lax.scan(update, transformation.init(None), counts)[1]


def assert_by_hand(curve, unit, counts, columns, x64):
    wanted = np.minimum(by_hand(unit, counts)[:-1], MAX_STEP)  # the clock stops there
    np.testing.assert_array_equal(np.stack(columns[:2], 1), wanted)
    assert columns[0].dtype == columns[1].dtype == "int32"
    assert_equal_bits(columns[2], product(curve, PEAK, wanted[:, 0], x64))


@x64_both_ways
def test_many_random_counts_in_scan_are_exact(x64):
    random = np.random.default_rng(7)
    with jax.enable_x64(x64):
        for unit, most in ((8, 40), (65_536, 10**6), (MOST, MOST), (1, 20_000), (999_983, 3)):
            counts = random.integers(0, most, 100_000 if unit == 65_536 else 3_000, endpoint=True)
            columns = jax.jit(partial(in_scan, LONG, unit))(counts.astype(np.int32))
            assert_by_hand(LONG, unit, counts.tolist(), columns, x64)


@x64_both_ways
def test_scaled_curve_follows_its_plan(x64):
    """The run resumes with each batch of the plan."""
    with jax.enable_x64(x64):
        transformation = scale_by_curve(scaled(), 0.25, unit=8)
        update, state = jax.jit(transformation.update), transformation.init(None)
        for number, (consumed, level) in enumerate(exact_levels()):
            assert (int(state.clock), int(state.rest)) == divmod(consumed, 8)
            _, state = update(ONE, state, count=PLAN(consumed))
            assert is_nearest_float32(4 * np.float32(state.learning_rate), level)
            if number % 8 == 5:
                state = jax.tree.map(jnp.asarray, pickle.loads(pickle.dumps(jax.device_get(state))))


_sizes = st.integers(0, MOST) | st.integers(0, 50) | st.sampled_from([0, 1, MOST - 1, MOST])


# Few units, since each is compiled.
_units = st.sampled_from([1, 7, 65_536, MOST - 1, MOST])


@cache
def counted(curve, unit):
    transformation = scale_by_curve(curve, PEAK, unit=unit)
    return transformation, jax.jit(transformation.update)


@examples(40)
@example(False, 1, [MOST, MOST, 0])
@given(st.booleans(), _units, st.lists(_sizes, min_size=1, max_size=6))
def test_eager_and_jitted_updates_agree(x64, unit, counts):
    with jax.enable_x64(x64):
        transformation, jitted = counted(LONG, unit)
        state, rows = transformation.init(None), []
        for turn, count in enumerate(counts):
            update = jitted if turn % 2 else transformation.update
            updates, following = update({"w": ONE}, state, count=count)
            rows.append((state.clock, state.rest, following.learning_rate))
            assert_equal_bits(updates["w"], np.asarray(-following.learning_rate).astype(ONE.dtype))
            state = following
        assert_by_hand(LONG, unit, counts, [np.stack(column) for column in zip(*rows, strict=True)], x64)


@examples(20)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.sampled_from([1, 7, 30]), st.randoms())
def test_clock_does_not_depend_on_division_into_updates(counts, unit, random):
    transformation, update = counted(CURVE, unit)
    ends = []
    for several in (counts, [sum(counts)], random.sample(counts, len(counts))):
        state = transformation.init(None)
        for count in several:
            _, state = update(ONE, state, count=count)
        ends.append((int(state.clock), int(state.rest)))
    assert set(ends) == {divmod(sum(counts), unit)}


_INTEGERS = ["int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"]


@x64_both_ways
def test_count_of_any_integer_type_is_clipped(x64):
    dtypes = [*_INTEGERS, *(["int64", "uint64"] if x64 else [])]
    limits = [(jnp.iinfo(dtype).min, jnp.iinfo(dtype).max) for dtype in dtypes]
    # Of the last, int32 would keep 5.
    counts = [[int(low), int(high), 5, max(int(low), 5 - 2**33)] for low, high in limits]
    with jax.enable_x64(x64):
        transformation = scale_by_curve(CURVE, PEAK, unit=3)
        advance = partial(transformation.update, ONE, transformation.init(None))
        arrays = [jnp.array(given, dtype) for given, dtype in zip(counts, dtypes, strict=True)]
        of_arrays = jax.jit(lambda arrays: [jax.vmap(lambda n: advance(count=n)[1])(one) for one in arrays])
        for given, array, traced in zip(counts, arrays, of_arrays(arrays), strict=True):
            expected = [divmod(min(max(count, 0), MOST), 3) for count in given]
            assert [*zip(traced.clock.tolist(), traced.rest.tolist(), strict=True)] == expected
            if array.dtype.name in ("int8", "uint32", "uint64"):  # each type is compiled
                eager = [advance(count=count)[1] for count in array]
                assert [(state.clock, state.rest) for state in eager] == expected


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
