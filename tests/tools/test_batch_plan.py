"""`BatchPlan` against a loop over updates."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve

Pairs = list[tuple[int, int]]

batches = st.integers(1, 40)
gaps = st.lists(st.tuples(st.integers(1, 90), batches), max_size=6)


@st.composite
def all_pairs(draw):
    """Draw pairs (threshold, batch)."""
    pairs = [(0, draw(batches))]
    for gap, batch in draw(gaps):
        threshold, _ = pairs[-1]
        pairs.append((threshold + gap, batch))
    return pairs


def batch_at(pairs, consumed):
    """Return the batch of the last pair whose threshold is at most the number consumed."""
    for threshold, batch in reversed(pairs):
        if threshold <= consumed:
            return batch
    raise AssertionError("the first threshold is 0")


def consumed_before(pairs, updates):
    """Return what was consumed before each update, and after the last."""
    totals = [0]
    for _ in range(updates):
        consumed = totals[-1]
        totals.append(consumed + batch_at(pairs, consumed))
    return totals


@given(all_pairs())
def test_plan_matches_loop_over_updates(pairs):
    plan = BatchPlan(pairs)
    saved = json.dumps(plan.to_dict())
    assert BatchPlan.from_dict(json.loads(saved)) == plan
    totals = consumed_before(pairs, 400)
    for updates, consumed in enumerate(totals):
        assert plan(consumed) == batch_at(pairs, consumed)
        assert plan.consumed(updates) == consumed
        assert plan.updates(consumed) == updates
    updates = 0
    for total in range(300):
        if totals[updates] < total:
            updates += 1
        assert plan.updates(total) == updates


@given(all_pairs(), st.integers(0, 10**40), st.integers(1, 10**30))
def test_plan_is_exact_for_any_counts(pairs, total, scale):
    plan = BatchPlan([(threshold * scale, batch * scale) for threshold, batch in pairs])
    updates = plan.updates(total)
    consumed = plan.consumed(updates)
    assert type(updates) is int
    assert type(consumed) is int
    assert consumed >= total
    assert updates == 0 or plan.consumed(updates - 1) < total
    assert consumed == scale * BatchPlan(pairs).consumed(updates)
    assert plan(consumed) == plan.consumed(updates + 1) - consumed


def test_plan_is_frozen_and_hashable():
    plan = BatchPlan([(0, 8), (160, 16)])
    of_numpy = BatchPlan(((np.int64(0), np.int8(8)), [160, 16]))
    assert of_numpy == plan
    assert hash(of_numpy) == hash(plan)
    assert repr(of_numpy) == "BatchPlan(pairs=((0, 8), (160, 16)))"
    assert BatchPlan([(0, 8)]) != plan
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_counts_of_numpy_give_plain_integers():
    plan = BatchPlan([(0, 8), (160, 16)])
    assert type(plan(np.int64(160))) is int
    assert type(plan.updates(np.uint8(200))) is int
    assert type(plan.consumed(np.int16(3))) is int


@given(all_pairs(), st.integers(1, 8), st.integers(1, 4))
def test_micro_batches_divide_batch_or_are_rejected(pairs, micro_batch, processes):
    plan = BatchPlan(pairs)
    divides = True
    for threshold, batch in pairs:
        if batch % (micro_batch * processes):
            divides = False
            with pytest.raises(ValueError, match=f"does not divide the batch size {batch}$"):
                plan.micro_batches(threshold, micro_batch, processes)
        else:
            count = plan.micro_batches(threshold, micro_batch, processes)
            assert count * micro_batch * processes == batch
            assert plan.micro_batches(threshold, micro_batch * processes) == count
    if divides:
        plan.check(micro_batch, processes)
        plan.check(micro_batch * processes)
    else:
        with pytest.raises(ValueError, match="does not divide the batch size"):
            plan.check(micro_batch, processes)


@given(all_pairs(), st.integers(1, 200), st.sampled_from([0.0, 0.5]))
def test_scaled_curve_follows_formula_at_every_step(pairs, total_steps, min_lr_ratio):
    """Also past its end; if it cannot, the plan is rejected."""
    plan = BatchPlan(pairs)
    curve = PlateauCurve(total_steps, min_lr_ratio=min_lr_ratio)
    are_past = [threshold for threshold, _ in pairs if threshold > total_steps]
    if min_lr_ratio and are_past:
        limit = f"threshold = {are_past[0]} must be at most {total_steps}, the end of the curve"
        with pytest.raises(ValueError, match=limit):
            plan.scale(curve, 1, reference=40)
        return
    scaled = plan.scale(curve, 1, reference=40)
    for step in range(total_steps + 100):
        expected = curve(step) * math.sqrt(plan(step) / 40)
        assert scaled(step) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_product_of_rounded_decimals_may_be_1():
    curve = StagedCurve([(50,), (0, 0.7071067811865476), (50, 0.5)], start=1.0)
    plan = BatchPlan([(0, 8), (50, 16)])
    scaled = plan.scale(curve, 1, reference=8)
    assert scaled([0, 49, 50]).tolist() == [1, 1, 1]
    assert scaled(99) < 1
