"""`BatchPlan.every_k_schedule` against a loop over updates, and under `optax.MultiSteps`."""

from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.jax.jax_cases import assert_equal_bits, x64_both_ways
from support.raises import raises

from plateau_jax import BatchPlan, PlateauCurve, scale_by_curve

MICRO_BATCH = 3
PROCESSES = 2
UPDATES = 200

_gaps = st.integers(1, 400)
_micro_batches = st.integers(1, 9)


@st.composite
def plans(draw):
    gaps = draw(st.lists(_gaps, max_size=6))
    thresholds = accumulate(gaps, initial=0)
    pairs = []
    for threshold in thresholds:
        batch = draw(_micro_batches) * MICRO_BATCH * PROCESSES
        pairs.append((threshold, batch))
    return BatchPlan(pairs)


def micro_batches_by_a_loop(plan):
    """Return the number of micro-batches of each update; an update may pass several thresholds."""
    consumed = 0
    micro_batches = []
    for _ in range(UPDATES):
        _, batch = max(pair for pair in plan.pairs if pair[0] <= consumed)
        micro_batches.append(batch // (MICRO_BATCH * PROCESSES))
        consumed += batch
    return np.array(micro_batches, np.int32)


@x64_both_ways
@examples(12)
@given(plans())
def test_every_update_has_its_micro_batches(x64, plan):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        every_k = plan.every_k_schedule(MICRO_BATCH, PROCESSES)
        updates = jnp.arange(UPDATES, dtype="int32")
        expected = micro_batches_by_a_loop(plan)
        assert_equal_bits(jax.vmap(every_k)(updates), expected)
        assert_equal_bits(every_k(updates), expected)


@pytest.mark.parametrize("threshold", [2**36, 10**30])
def test_threshold_that_no_count_of_updates_reaches(threshold):
    plan = BatchPlan([(0, 8), (160, 16), (threshold, 32)])
    every_k = plan.every_k_schedule(8)
    for update, micro_batches in ((0, 1), (19, 1), (20, 2), (2**31 - 1, 2)):
        assert every_k(jnp.int32(update)) == micro_batches


@pytest.mark.parametrize("update", [True, 20.0, np.uint32(20)], ids=repr)
@raises(TypeError, "updates must be an int32 array")
def test_update_that_is_not_an_int32(update):
    plan = BatchPlan([(0, 8)])
    plan.every_k_schedule(8)(update)


def test_multi_steps_with_a_plan_may_be_wrapped():
    """`apply_if_finite` then passes the count on, as docs/jax.md says."""
    plan = BatchPlan([(0, 4), (8, 8)])
    scaled = plan.scale(PlateauCurve(100), 4, reference=8)
    every_k = plan.every_k_schedule(4)
    tx = optax.MultiSteps(scale_by_curve(scaled, 0.1), every_k_schedule=every_k)
    with_arguments = optax.GradientTransformationExtraArgs(tx.init, tx.update)
    optimizer = optax.apply_if_finite(with_arguments, 3)
    update = jax.jit(optimizer.update)
    params = jnp.zeros(())
    state = optimizer.init(params)
    curve_steps = []
    for _ in range(6):
        count = 4 * (state.inner_state.mini_step + 1)
        _, state = update(jnp.ones(()), state, params, count=count)
        curve_state = state.inner_state.inner_opt_state
        curve_steps.append(int(curve_state.curve_step))
    # Two updates of 4 samples; then two micro-batches for each update of 8.
    assert curve_steps == [1, 2, 2, 4, 4, 6]
