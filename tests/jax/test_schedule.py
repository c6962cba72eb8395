"""`optax_schedule` and `multiplier`: NumPy's bits in every mode of JAX, accepted types, and compilations."""

import copy
import itertools
import logging
import pickle
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import OF_UNIT_8, build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP, SMALLEST_NORMAL
from support.examples import examples
from support.jax.jax_cases import (
    CURVE,
    MANY,
    NESTED,
    STEPS,
    assert_equal_bits,
    assert_equal_rates,
    both_searches,
    every_shape,
    in_one_of_two_forms,
    mostly_x64,
    product,
    x64_both_ways,
)
from support.numerics.borders import steps_at_borders

from plateau_jax import PlateauCurve, StagedCurve, multiplier, optax_schedule, stack

SIZE = 48
LARGEST_PEAK = float(np.finfo(np.float32).max)

# Few table lengths, since each is compiled, on both sides of 40 rows, at which the search changes.
cases = descriptions_and_steps((0, 1, 2, 18, 19, 30), SIZE, scaled=True)

peaks = st.one_of(
    st.floats(SMALLEST_NORMAL, LARGEST_PEAK),
    st.integers(-126, 127).map(lambda exponent: 2.0**exponent),
    st.sampled_from((0, 1, 3e-4, 1.5 * SMALLEST_NORMAL)),
)


@contextmanager
def strictly():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.checking_leaks():
        yield


def curve_and_steps(case):
    description, steps = case
    return build(description), np.array(steps, np.int32)


def every_mode(of_step, steps):
    """Return the function's values at the steps in each way that JAX can run it."""

    def count(state):
        index, values = state
        return index + 1, values.at[index].set(of_step(steps[index]))

    first = of_step(steps[0])
    return {
        "whole": of_step(steps),
        "shaped": of_step(steps.reshape(2, 3, -1)).ravel(),
        "vmap": jax.vmap(of_step)(steps),
        "vmap twice": jax.vmap(jax.vmap(of_step))(steps.reshape(6, -1)).ravel(),
        "scan": jax.lax.scan(lambda carry, step: (carry, of_step(step)), None, steps)[1],
        "map": jax.lax.map(of_step, steps),
        "while": jax.lax.while_loop(
            lambda state: state[0] < len(steps), count, (0, jnp.zeros(len(steps), first.dtype))
        )[1],
        "cond": jax.lax.cond(steps[0] < 0, lambda: of_step(steps), lambda: of_step(steps + 0)),
        "remat": jax.checkpoint(of_step)(steps),
        "grad": jax.grad(lambda one: (one * of_step(steps)).sum())(jnp.ones(len(steps), first.dtype)),
    }


@jax.jit
def every_mode_of_a_traced_table(table, steps):
    return every_mode(partial(multiplier, table), steps)


@pytest.mark.slow
@x64_both_ways
@examples(40)
@given(cases)
def test_traced_table_matches_numpy_bits_in_every_mode(x64, case):
    curve, steps = curve_and_steps(case)
    # Every mode is compiled for two tables, one for each search.
    table = in_one_of_two_forms(curve)
    with jax.enable_x64(x64):
        for values in every_mode_of_a_traced_table(table, steps).values():
            assert_equal_bits(values, curve(steps))


@pytest.mark.slow
@examples(50)
@given(steps_at_borders())
def test_values_near_rounding_borders_match_numpy_bits(case):
    description, step = case
    curve, steps = build(description), np.clip(step + np.arange(SIZE) - SIZE // 2, 0, MAX_STEP)
    assert_equal_bits(multiplier(in_one_of_two_forms(curve), steps), curve(steps))


CASE = {"total_steps": 2**20, "warmup_steps": 2**10, "min_lr_ratio": 0.5}, range(0, 2**20, 2**20 // SIZE + 1)


@pytest.mark.slow
@examples(8)
@given(st.booleans(), cases, peaks)
@example(False, CASE, 1.75 * SMALLEST_NORMAL)
@example(True, CASE, 2.0**-110)
def test_constant_table_matches_numpy_bits_in_every_mode(x64, case, peak):
    """And the learning rates are the product of two float32, also of a peak that the compiler may fold."""
    curve, steps = curve_and_steps(case)
    with jax.enable_x64(x64):
        of_step, schedule = partial(multiplier, curve.table), optax_schedule(curve, peak)

        @jax.jit
        def compiled(steps_, peak_, weak_peak):
            traced = [optax_schedule(curve, given)(steps_) for given in (peak_, weak_peak)]
            modes = every_mode(of_step, steps_) | {"constant steps": of_step(jnp.array(steps))}
            return modes, [schedule(steps_), schedule(steps), *traced]

        rounded = np.float32(peak)
        modes, rates = compiled(steps, rounded, float(rounded))
        for values in (of_step(steps), *modes.values()):
            assert_equal_bits(values, curve(steps))
        for actual in (schedule(steps), *rates):
            assert_equal_rates(actual, product(curve, peak, steps))
        slope = jax.jacfwd(lambda peak: optax_schedule(curve, peak)(steps))
        assert_equal_bits(slope(rounded).astype("float32"), curve(steps))


@pytest.mark.slow
@x64_both_ways
@both_searches
def test_uncompiled_calls_match_numpy_bits(x64, curve):
    of_step = partial(multiplier, curve.table)
    with jax.enable_x64(x64), jax.disable_jit():
        assert_equal_bits(of_step(STEPS), curve(STEPS))
        assert_equal_bits(jax.vmap(of_step)(STEPS), curve(STEPS))


@mostly_x64
@pytest.mark.parametrize(
    "curve", [pytest.param(NESTED, marks=pytest.mark.slow), MANY], ids=["compared", "searched"]
)
def test_every_step_of_a_curve_matches_numpy(x64, curve):
    with jax.enable_x64(x64), strictly():
        of_traced_peak = jax.jit(lambda peak: optax_schedule(curve, peak)(STEPS))
        for peak in (np.float64(0.1), 1.0):
            assert_equal_bits(of_traced_peak(peak), product(curve, peak, STEPS))


@jax.jit
def of_each_table(tables, steps):
    return jax.vmap(multiplier, in_axes=(0, None))(tables, steps), jax.vmap(multiplier)(tables, steps[:6])


@pytest.mark.slow
@examples(30)
@given(
    descriptions_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), min_size=4, max_size=4),
)
def test_stack_under_vmap_matches_each_curve(case, others):
    first, steps = curve_and_steps(case)
    # The last is the longest and has every shape, so that all stacks have the same columns and lengths.
    curves = [first, *(build(description) for description in others), every_shape(39)]
    values, each_its_own = of_each_table(stack(curves), steps)
    assert_equal_bits(values, np.stack([curve(steps) for curve in curves]))
    wanted = [curve(step) for curve, step in zip(curves, steps, strict=False)]
    assert_equal_bits(each_its_own, np.array(wanted, np.float32))


@pytest.mark.parametrize("empty", [[], range(0), np.zeros((0, 3)), jnp.zeros((0, 3), int)], ids=repr)
def test_empty_steps_give_empty_values(empty):
    wanted = np.zeros(np.shape(empty), np.float32)
    assert_equal_bits(multiplier(CURVE.table, empty), wanted)
    assert_equal_bits(optax_schedule(CURVE, 0.5)(empty), wanted)


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize("peak", [1, 0.1, np.float64(0.1)])
def test_learning_rates_are_strongly_typed(x64, peak):
    with jax.enable_x64(x64):
        schedule = optax_schedule(CURVE, peak)
        factor_of = partial(multiplier, CURVE.table)
        for step in (3, np.int64(3), jnp.asarray(3), jnp.int8(3), np.arange(4)):
            # Shapes and types alone, which need no compilation.
            rate, factor = jax.eval_shape(lambda: (schedule(step), factor_of(step)))  # noqa: B023 - called at once
            traced = jax.eval_shape(lambda peak: optax_schedule(CURVE, peak)(step), peak)  # noqa: B023 - called at once
            for actual in (rate, traced, factor):
                assert (actual.dtype, actual.weak_type) == (jnp.float32, False)
                assert actual.shape == np.shape(step)


@pytest.mark.slow
@x64_both_ways
def test_every_integer_type_is_a_step(x64):
    names = [f"{kind}{bits}" for bits in (2, 4, 8, 16, 32, 64) for kind in ("int", "uint")]
    # With x64 off, JAX truncates 64 bits to 32, with a warning.
    dtypes = [jnp.dtype(name) for name in names if x64 or not name.endswith("64")]
    with jax.enable_x64(x64), strictly():
        arrays = []
        for dtype in dtypes:
            low, high = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
            fitting = [step for step in (low, high, -1, 0, 1, 101, 999, 2**31) if low <= step <= high]
            wide = np.array(fitting, np.uint64 if high > 2**63 else np.int64)
            arrays.append(jnp.array(np.resize(wide, 8).astype(dtype)))
        of_step = partial(multiplier, CURVE.table)
        compiled = jax.jit(lambda arrays: [(of_step(array), jax.vmap(of_step)(array)) for array in arrays])
        for dtype, array, actual in zip(dtypes, arrays, compiled(arrays), strict=True):
            assert array.dtype == dtype
            wanted = CURVE([int(step) for step in array])
            # NumPy steps of the same type are handled on the host.
            for values in (*actual, of_step(np.asarray(array)), CURVE(np.asarray(array))):
                assert_equal_bits(values, wanted)


@x64_both_ways
def test_eager_steps_do_not_wrap_around(x64):
    with jax.enable_x64(x64):
        assert multiplier(CURVE.table, jnp.uint32(2**32 - 1)) == CURVE(2**31 - 1) != CURVE(0)
        assert multiplier(CURVE.table, jnp.int8(-100)) == CURVE(0) != CURVE(156)
        steps = [10**30, -(10**30), 2**63, -1]
        for on_host in (*steps, steps, np.array(steps, object)):
            assert_equal_bits(multiplier(CURVE.table, on_host), np.float32(CURVE(on_host)))


def test_numpy_table_that_jax_narrows_is_accepted():
    wide = jax.tree.map(np.int64, CURVE.table)
    with jax.enable_x64(False):
        assert_equal_bits(multiplier(wide, jnp.asarray(STEPS)), CURVE(STEPS))


def plateaus(count):
    for shift in range(3):
        pairs = [(30 * index + shift, shift) for index in range(1, count + 1)]
        yield PlateauCurve(1000, warmup_steps=shift, absolute_plateaus=pairs)


def branches():
    for middle, level in itertools.product((20, 1, 99), (0.5, 0.25, 1.0, 1e-20)):
        curve = StagedCurve([(100 - middle, 1), (middle, level, "exponential"), (50, 0, "1-sqrt")])
        for at in (1, middle, 120, 149):
            yield curve.cooldown(at, 20)


@pytest.mark.parametrize("curves", [plateaus(2), plateaus(30), branches()], ids=range(3))
def test_traced_tables_change_without_recompilation(curves):
    traces = []

    @jax.jit
    def of_table(table, step):
        traces.append(step)
        return multiplier(table, step)

    curves = list(curves)
    for curve in curves:
        assert_equal_bits(of_table(curve.table, STEPS), curve(STEPS))
    assert len(traces) == 1
    of_each = jax.vmap(of_table, in_axes=(0, None))
    assert_equal_bits(of_each(stack(curves), STEPS), np.stack([curve(STEPS) for curve in curves]))


@x64_both_ways
def test_eager_call_runs_one_program_compiled_once(x64, caplog):
    curve = PlateauCurve(997, plateaus=[(50, 10), (70, 10), (90, 1)])
    with jax.enable_x64(x64), jax.log_compiles(), caplog.at_level(logging.WARNING):
        for call in (optax_schedule(curve, 0.1), partial(multiplier, curve.table)):
            assert len(jax.make_jaxpr(call)(3).eqns) == 1
            caplog.clear()
            for step in (3, 5, 10**30, np.int64(7), np.int8(7)):
                call(step)
            assert len([record for record in caplog.records if record.message.startswith("Compiling")]) == 1


def pickled(schedule):
    return pickle.loads(pickle.dumps(schedule))


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("peak", [0.1, np.float32(0.1), jnp.float32(0.1)])
def test_schedule_is_a_value(copied, peak):
    schedule = optax_schedule(CURVE, peak)
    schedule(3)
    copy_of_schedule = copied(schedule)
    assert copy_of_schedule == schedule == optax_schedule(CURVE.to_dict(), 0.1)
    assert hash(copy_of_schedule) == hash(schedule)
    assert repr(copy_of_schedule) == repr(schedule) == f"optax_schedule({CURVE!r}, 0.1)"
    assert_equal_bits(copy_of_schedule(STEPS), product(CURVE, 0.1, STEPS))


def test_injected_schedule_gives_each_learning_rate():
    optimizer = optax.inject_hyperparams(optax.sgd)(optax_schedule(CURVE, 0.1))
    state, lrs = optimizer.init(jnp.ones(2)), []
    for _ in range(5):
        _, state = optimizer.update(jnp.ones(2), state)
        lrs.append(state.hyperparams["learning_rate"])
    assert_equal_bits(lrs, product(CURVE, 0.1, np.arange(5)))


def test_different_schedules_are_not_equal():
    schedule = optax_schedule(CURVE, 0.1)
    for other in (optax_schedule(CURVE, 0.2), optax_schedule(MANY, 0.1), CURVE, 0.1, None):
        assert schedule != other


def test_equal_static_schedule_is_not_traced_again():
    traced = []

    @partial(jax.jit, static_argnames="schedule")
    def learning_rate(schedule, step):
        traced.append(schedule)
        return schedule(step)

    for curve, peak in ((CURVE, 0.1), (CURVE, 0.1), (CURVE, 0.3), (MANY, 0.1), (CURVE, 0.1)):
        assert_equal_bits(
            learning_rate(optax_schedule(curve, peak), 777), product(curve, peak, np.array(777))
        )
    assert traced == [optax_schedule(CURVE, 0.1), optax_schedule(CURVE, 0.3), optax_schedule(MANY, 0.1)]


def test_static_schedules_of_traced_peaks_are_traced_apart():
    """`jit` compares its static arguments, and a tracer has no value to compare."""

    @partial(jax.jit, static_argnames="schedule")
    def learning_rate(schedule, step):
        return schedule(step)

    @jax.jit
    def both(first, second):
        return [learning_rate(optax_schedule(CURVE, peak), 777) for peak in (first, second)]

    expected = [product(CURVE, peak, np.array(777)) for peak in (0.1, 0.3)]
    assert_equal_bits(both(0.1, 0.3), np.array(expected))


@pytest.mark.parametrize(
    "peak", [torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64), np.array(0.1), np.float64(0.1)]
)
def test_peak_may_be_a_scalar_of_any_library(peak):
    assert optax_schedule(CURVE, peak) == optax_schedule(CURVE, 0.1)


@pytest.mark.parametrize("curve", OF_UNIT_8, ids=lambda curve: curve.to_dict()["kind"])
def test_schedule_of_a_batch_plan_is_rejected(curve):
    """An optimizer would call it with its number of updates, but its steps are samples."""
    with pytest.raises(ValueError, match=r"8 samples or tokens.*scale_by_curve\(curve, peak_value\).*count="):
        optax_schedule(curve, 0.1)


OPTIMIZERS = [
    "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "fromage",
    "lamb", "lars", "lion", "optimistic_adam_v2", "optimistic_gradient_descent", "radam", "rmsprop", "sgd",
    "sign_sgd", "signum", "yogi",
]  # fmt: skip


@x64_both_ways
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_keep_dtypes_as_under_a_schedule_of_optax(name, x64):
    """Also as an injected hyperparameter; float64 learning rates would make float64 of float32."""
    with jax.enable_x64(x64):
        params = {"coarse": jnp.ones((2, 3), "bfloat16"), "fine": jnp.ones(3, "float32")}
        builder = getattr(optax, name)
        dtypes = []
        for schedule in (optax_schedule(CURVE, 0.1), optax.linear_schedule(0.1, 0.0, 1000)):
            of_schedule = []
            for optimizer in (builder(schedule), optax.inject_hyperparams(builder)(schedule)):
                state = jax.eval_shape(optimizer.init, params)
                of_schedule.append(jax.eval_shape(optimizer.update, params, state, params))
            dtypes.append(jax.tree.map(jnp.result_type, of_schedule))
        assert dtypes[0] == dtypes[1]


@pytest.mark.filterwarnings("ignore:min_lr_ratio:plateau_jax.CurveWarning")
@pytest.mark.gpu("jax")
@x64_both_ways
@both_searches
def test_accelerator_matches_numpy_bits(x64, curve):
    largest = PlateauCurve(MAX_STEP, warmup_steps=10**6, plateaus=[(30, 20)], min_lr_ratio=1e-12)
    steps = np.linspace(0, MAX_STEP, 100_000).astype(np.int32)
    with jax.enable_x64(x64):
        assert_equal_bits(multiplier(largest.table, steps), largest(steps))
        for values in every_mode_of_a_traced_table(curve.table, STEPS[: SIZE * 20]).values():
            assert_equal_bits(values, curve(STEPS[: SIZE * 20]))
        for peak in (0.1, 3e-4, SMALLEST_NORMAL):
            schedule = optax_schedule(curve, peak)
            assert_equal_rates(schedule(STEPS), product(curve, peak, STEPS))
            assert_equal_rates(jax.jit(partial(schedule, STEPS))(), product(curve, peak, STEPS))
