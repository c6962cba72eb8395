"""`optax_schedule` and `multiplier`: steps and peaks of every type, and schedules as values."""

import copy
import logging
import pickle
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.curves.descriptions import CURVES_IN_UNITS_OF_8
from support.jax.jax_cases import (
    CURVE,
    MANY,
    NESTED,
    STEPS,
    assert_equal_bits,
    mostly_x64,
    product,
    x64_both_ways,
)

from plateau_jax import PlateauCurve, multiplier, optax_schedule


@contextmanager
def strictly():
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.checking_leaks(),
    ):
        yield


_slow_nested = pytest.param(NESTED, marks=pytest.mark.slow)


@mostly_x64
@pytest.mark.parametrize("curve", [_slow_nested, MANY], ids=["compared", "searched"])
def test_every_step_of_a_curve_matches_numpy(x64, curve):
    with jax.enable_x64(x64), strictly():
        of_traced_peak = jax.jit(lambda peak: optax_schedule(curve, peak)(STEPS))
        for peak in (np.float64(0.1), 1.0):
            assert_equal_bits(of_traced_peak(peak), product(curve, peak, STEPS))


@pytest.mark.parametrize(
    "empty", [[], range(0), np.zeros((0, 3)), jnp.zeros((0, 3), int)], ids=repr
)
def test_empty_steps_give_empty_values(empty):
    expected = np.zeros(np.shape(empty), np.float32)
    assert_equal_bits(multiplier(CURVE.table, empty), expected)
    assert_equal_bits(optax_schedule(CURVE, 0.5)(empty), expected)


def learning_rate(step, peak):
    return optax_schedule(CURVE, peak)(step)


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize("peak", [1, 0.1, np.float64(0.1)])
def test_learning_rates_are_strongly_typed(x64, peak):
    with jax.enable_x64(x64):
        for step in (3, np.int64(3), jnp.asarray(3), jnp.int8(3), np.arange(4)):
            # Shapes and types alone, which need no compilation.
            for values in (
                jax.eval_shape(partial(multiplier, CURVE.table, step)),
                jax.eval_shape(partial(learning_rate, step, peak)),
                jax.eval_shape(partial(learning_rate, step), peak),
            ):
                assert values.dtype == jnp.float32
                assert not values.weak_type
                assert values.shape == np.shape(step)


def steps_of(dtype):
    """Return eight steps of this type, among them its smallest and its largest number."""
    low = int(jnp.iinfo(dtype).min)
    high = int(jnp.iinfo(dtype).max)
    steps = [low, high]
    steps.extend(step for step in (-1, 0, 1, 101, 999, 2**31) if low <= step <= high)
    return np.resize(np.array(steps, object), 8).astype(dtype)


@pytest.mark.slow
@x64_both_ways
def test_every_integer_type_is_a_step(x64):
    bits = [2, 4, 8, 16, 32]
    if x64:  # with x64 off, JAX truncates them to 32 bits, with a warning
        bits.append(64)
    dtypes = [f"{kind}{number}" for kind in ("int", "uint") for number in bits]
    of_step = partial(multiplier, CURVE.table)

    @jax.jit
    def compiled(arrays):
        return [(of_step(array), jax.vmap(of_step)(array)) for array in arrays]

    with jax.enable_x64(x64), strictly():
        arrays = [jnp.array(steps_of(jnp.dtype(dtype))) for dtype in dtypes]
        assert [array.dtype.name for array in arrays] == dtypes
        for array, (values, by_vmap) in zip(arrays, compiled(arrays), strict=True):
            expected = CURVE([int(step) for step in array])
            assert_equal_bits(values, expected)
            assert_equal_bits(by_vmap, expected)
            # NumPy steps of the same type are handled on the host.
            assert_equal_bits(of_step(np.asarray(array)), expected)
            assert_equal_bits(CURVE(np.asarray(array)), expected)


@x64_both_ways
def test_eager_steps_do_not_wrap_around(x64):
    with jax.enable_x64(x64):
        at_the_end = multiplier(CURVE.table, jnp.uint32(2**32 - 1))
        assert at_the_end == CURVE(2**31 - 1) != CURVE(0)
        at_the_start = multiplier(CURVE.table, jnp.int8(-100))
        assert at_the_start == CURVE(0) != CURVE(156)
        steps = [10**30, -(10**30), 2**63, -1]
        for steps_on_host in (*steps, steps, np.array(steps, object)):
            values = multiplier(CURVE.table, steps_on_host)
            assert_equal_bits(values, np.float32(CURVE(steps_on_host)))


@x64_both_ways
def test_eager_call_runs_one_program_compiled_once(x64, caplog):
    curve = PlateauCurve(997, plateaus=[(50, 10), (70, 10), (90, 1)])
    with jax.enable_x64(x64), jax.log_compiles(), caplog.at_level(logging.WARNING):
        for call in (optax_schedule(curve, 0.1), partial(multiplier, curve.table)):
            assert len(jax.make_jaxpr(call)(3).eqns) == 1
            caplog.clear()
            for step in (3, 5, 10**30, np.int64(7), np.int8(7)):
                call(step)
            first_words = [record.message.partition(" ")[0] for record in caplog.records]
            assert first_words.count("Compiling") == 1


def pickled(schedule):
    return pickle.loads(pickle.dumps(schedule))


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("peak", [0.1, np.float32(0.1), jnp.float32(0.1)])
def test_schedule_is_a_value(copied, peak):
    schedule = optax_schedule(CURVE, peak)
    schedule(3)
    copy_of_schedule = copied(schedule)
    assert copy_of_schedule == schedule == optax_schedule(CURVE, 0.1)
    assert hash(copy_of_schedule) == hash(schedule)
    assert repr(copy_of_schedule) == repr(schedule) == f"optax_schedule({CURVE!r}, 0.1)"
    assert_equal_bits(copy_of_schedule(STEPS), product(CURVE, 0.1, STEPS))


def test_equal_static_schedule_is_not_traced_again():
    traced = []

    @partial(jax.jit, static_argnames="schedule")
    def learning_rate(schedule, step):
        traced.append(schedule)
        return schedule(step)

    for curve, peak in ((CURVE, 0.1), (CURVE, 0.1), (CURVE, 0.3), (MANY, 0.1), (CURVE, 0.1)):
        lr = learning_rate(optax_schedule(curve, peak), 777)
        assert_equal_bits(lr, product(curve, peak, np.array(777)))
    assert traced == [
        optax_schedule(CURVE, 0.1),
        optax_schedule(CURVE, 0.3),
        optax_schedule(MANY, 0.1),
    ]


def test_static_schedules_of_traced_peaks_are_traced_apart():
    """`jit` compares its static arguments, and a tracer has no value to compare."""

    @partial(jax.jit, static_argnames="schedule")
    def learning_rate(schedule, step):
        return schedule(step)

    @jax.jit
    def both(first, second):
        lr = learning_rate(optax_schedule(CURVE, first), 777)
        other_lr = learning_rate(optax_schedule(CURVE, second), 777)
        return lr, other_lr

    lr, other_lr = both(0.1, 0.3)
    step = np.array(777)
    assert_equal_bits(lr, product(CURVE, 0.1, step))
    assert_equal_bits(other_lr, product(CURVE, 0.3, step))


@pytest.mark.parametrize("curve", CURVES_IN_UNITS_OF_8, ids=lambda curve: curve.to_dict()["kind"])
def test_schedule_of_a_batch_plan_is_rejected(curve):
    """An optimizer would call it with its number of updates, but its steps are samples."""
    message = r"8 samples or tokens.*scale_by_curve\(curve, peak_value\).*count="
    with pytest.raises(ValueError, match=message):
        optax_schedule(curve, 0.1)
