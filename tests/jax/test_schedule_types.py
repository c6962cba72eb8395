"""`optax_schedule` and `multiplier`: accepted and rejected types, and the number of compilations."""

import copy
import itertools
import logging
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.jax.jax_cases import CURVE, STEPS, assert_equal_bits, both_searches, x64_both_ways

from plateau_jax import PlateauCurve, Segments, multiplier, optax_schedule, stack


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize("peak", [1, 0.1, np.float64(0.1)])
def test_learning_rates_are_strongly_typed(x64, peak):
    with jax.enable_x64(x64):
        schedule = optax_schedule(CURVE, peak)
        factor_of, dtype = partial(multiplier, CURVE.segments), jnp.float64 if x64 else jnp.float32
        assert (schedule(3).dtype, schedule(3).weak_type) == (dtype, False)
        assert (factor_of(3).dtype, factor_of(3).weak_type) == (jnp.float32, False)
        for step in (3, np.int64(3), jnp.asarray(3), jnp.int8(3), np.arange(4)):
            # Shapes and types alone, which need no compilation.
            rate, factor = jax.eval_shape(lambda: (schedule(step), factor_of(step)))  # noqa: B023 - called at once
            traced = jax.eval_shape(lambda peak: optax_schedule(CURVE, peak)(step), peak)  # noqa: B023 - called at once
            assert rate.dtype == traced.dtype == dtype
            assert factor.dtype == jnp.float32
            for actual in (rate, traced, factor):
                assert not actual.weak_type
                assert actual.shape == np.shape(step)


INTEGERS = [f"{kind}{bits}" for bits in (2, 4, 8, 16, 32, 64) for kind in ("int", "uint")]


def steps_of(dtype):
    """Return twelve steps of this type, its smallest and largest values included."""
    limits = jnp.iinfo(dtype)
    wide = [int(limits.min), int(limits.max), -1, 0, 1, 100, 101, 500, 999, 1000, 2**31]
    fitting = [step for step in wide if limits.min <= step <= limits.max]
    return list(itertools.islice(itertools.cycle(fitting), 12))


def test_unsigned_step_does_not_wrap_around():
    assert multiplier(CURVE.segments, jnp.uint32(2**32 - 1)) == CURVE(2**31 - 1) != CURVE(0)


@pytest.mark.slow
@x64_both_ways
def test_every_integer_type_is_a_step(x64):
    # With x64 off, JAX truncates 64 bits to 32, with a warning.
    dtypes = [dtype for dtype in INTEGERS if x64 or not dtype.endswith("64")]
    with jax.enable_x64(x64):
        arrays = [
            jnp.array(np.array(steps_of(dtype), np.uint64 if dtype == "uint64" else np.int64).astype(dtype))
            for dtype in dtypes
        ]
        of_step = partial(multiplier, CURVE.segments)
        compiled = jax.jit(lambda arrays: [(of_step(array), jax.vmap(of_step)(array)) for array in arrays])
        for dtype, array, actual in zip(dtypes, arrays, compiled(arrays), strict=True):
            assert array.dtype == dtype
            wanted = CURVE(steps_of(dtype))
            # NumPy steps of the same type are handled on the host.
            for values in (*actual, of_step(np.asarray(array)), CURVE(np.asarray(array))):
                assert_equal_bits(values, wanted)
        for dtype in ("int4", "uint8", "int32"):
            array = jnp.array(steps_of(dtype), dtype)
            assert_equal_bits(of_step(array), CURVE(steps_of(dtype)))


@x64_both_ways
@given(st.lists(st.integers(), min_size=4, max_size=4))
@example([10**30, -(10**30), 2**63, -1])
def test_integers_of_any_size_are_clamped_on_host(x64, steps):
    with jax.enable_x64(x64):
        for step in (*steps, steps, np.array(steps, object)):
            assert_equal_bits(multiplier(CURVE.segments, step), np.float32(CURVE(step)))


NOT_INTEGERS = [
    *(True, np.True_, 3.0, np.float32(3), "3", None, np.arange(3.0), [True, 2.0], jax.random.key(0)),
    *(jnp.ones((), dtype) for dtype in (bool, "float32", "bfloat16", "float16", "complex64")),
]


@pytest.mark.parametrize("step", NOT_INTEGERS, ids=lambda step: f"{type(step).__name__}-{step}")
def test_steps_that_are_not_integers_are_rejected(step):
    for call in (optax_schedule(CURVE, 1.0), partial(multiplier, CURVE.segments)):
        runs = [lambda: call(step), jax.jit(lambda: call(step))]  # noqa: B023 -- called at once
        if isinstance(step, jax.Array):
            runs += [partial(run, step) for run in (jax.jit(call), jax.vmap(call, axis_size=1, in_axes=None))]
        for run in runs:
            with pytest.raises(TypeError, match="step must be an integer"):
                run()


def with_dtype(dtype):
    with jax.enable_x64(True):
        return CURVE.segments._replace(start_low=jnp.asarray(CURVE.segments.start_low, dtype))


WRONG_TABLES = [
    *((table, "segments must be one table")
      for table in (CURVE, stack([CURVE, CURVE]), CURVE.segments.begin, None)),
    *((with_dtype(dtype), f"segments.start_low is of {dtype}; it must")
      for dtype in ("int64", "float64", "float32", "int16")),
]  # fmt: skip


@pytest.mark.parametrize(("segments", "message"), WRONG_TABLES, ids=range(len(WRONG_TABLES)))
def test_wrong_tables_are_rejected(segments, message):
    with jax.enable_x64(True):
        for step in (3, STEPS):
            with pytest.raises(TypeError, match=message):
                multiplier(segments, step)
        if isinstance(segments, Segments):
            with pytest.raises(TypeError, match=message):
                jax.jit(multiplier)(segments, 3)


@pytest.mark.parametrize(
    ("curve", "peak", "error", "message"),
    [
        (5, 1.0, TypeError, "curve = 5"),
        (CURVE, -1, ValueError, "peak_value = -1"),
        *((CURVE, jnp.ones(shape, dtype), TypeError, "peak_value")
          for shape, dtype in ((2, float), ((), bool), ((), "complex64"))),
    ],
)  # fmt: skip
def test_wrong_curves_and_peaks_are_rejected(curve, peak, error, message):
    with pytest.raises(error, match=message):
        optax_schedule(curve, peak)
    if isinstance(peak, jax.Array):
        with pytest.raises(error, match=message):
            jax.jit(lambda peak: optax_schedule(curve, peak)(3))(peak)


def test_numpy_table_that_jax_narrows_is_accepted():
    wide = jax.tree.map(np.int64, CURVE.segments)
    with jax.enable_x64(False):
        assert_equal_bits(multiplier(wide, jnp.asarray(STEPS)), CURVE(STEPS))


@pytest.mark.slow
@both_searches
def test_strict_promotion_is_obeyed(curve):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.checking_leaks():
        several = [
            jnp.arange(100).astype(dtype).reshape(shape)
            for dtype in ("int8", "uint32", "int32")
            for shape in ((100,), (4, 25), (4, 5, 5))
        ]
        rates = jax.jit(lambda several: [optax_schedule(curve, 1.0)(steps) for steps in several])
        jax.eval_shape(rates, several)  # tracing alone checks promotion
        each_once = several[::4]  # each type and each rank
        for actual, steps in zip(rates(each_once), each_once, strict=True):
            assert_equal_bits(actual, curve(np.asarray(steps)))


@pytest.mark.parametrize("k", [2, 30])
def test_plateaus_move_without_recompilation(k):
    traces = []

    @jax.jit
    def of_table(table, step):
        traces.append(step)
        return multiplier(table, step)

    for shift in range(3):
        curve = PlateauCurve(
            1000, warmup_steps=shift, absolute_plateaus=[(30 * i + shift, shift) for i in range(1, k + 1)]
        )
        assert_equal_bits(of_table(curve.segments, STEPS), curve(STEPS))
    assert len(traces) == 1


@x64_both_ways
def test_eager_call_runs_one_program_compiled_once(x64, caplog):
    curve = PlateauCurve(997, plateaus=[(50, 10), (70, 10), (90, 1)])
    with jax.enable_x64(x64), jax.log_compiles(), caplog.at_level(logging.WARNING):
        for call in (optax_schedule(curve, 0.1), partial(multiplier, curve.segments)):
            assert len(jax.make_jaxpr(call)(3).eqns) == 1
            caplog.clear()
            values = [call(step) for step in (3, 5, 10**30, np.int64(7), np.int8(7))]
            assert len(values) == 5
            assert len([record for record in caplog.records if record.message.startswith("Compiling")]) == 1


@x64_both_ways
@pytest.mark.parametrize("copied", [lambda obj: pickle.loads(pickle.dumps(obj)), copy.copy, copy.deepcopy])
def test_schedule_pickles_and_copies(x64, copied):
    with jax.enable_x64(x64):
        for peak in (0.1, jnp.float32(0.1)):
            schedule = optax_schedule(CURVE, peak)
            schedule(3)
            assert_equal_bits(copied(schedule)(STEPS), np.asarray(schedule(STEPS)))
