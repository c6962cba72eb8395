"""Wrong arguments of `BatchPlan` and its methods."""

from dataclasses import FrozenInstanceError
from fractions import Fraction
from math import nan
from typing import Any

import numpy as np
import pytest
from support.wrong import wrong

from plateau_jax import BatchPlan, Curve, StagedCurve
from plateau_jax.arguments.curve_warning import suppress_warnings

NOT_INTEGERS = [nan, 3.0, True, "3", None, Fraction(3), np.float32(3)]
NOT_COUNTS = [8.0, True, "eight", None]
"""A count may also be text such as "8k"."""


@pytest.fixture
def plan() -> BatchPlan:
    """A plan whose batch doubles after 20 updates."""
    return BatchPlan([(0, 8), (160, 16)])


@pytest.fixture
def flat() -> Curve:
    return StagedCurve([(100,)], start=1.0)


# Pairs.


@pytest.mark.parametrize("pairs", [8, {0: 8}], ids=repr)
@wrong(TypeError, "pairs = {pairs}", "sequence of pairs")
def test_pairs_without_an_order(pairs: Any) -> None:
    BatchPlan(pairs)


@pytest.mark.parametrize("pair", [0, (0, 8, 9)], ids=repr)
@wrong(TypeError, "pairs[0] = {pair}", "pair (threshold, batch)")
def test_item_that_is_not_a_pair(pair: Any) -> None:
    BatchPlan([pair, 8])


@pytest.mark.parametrize("threshold", [0.0, False, nan])
@wrong(TypeError, "pairs[0].threshold = {threshold}", "integer")
def test_threshold_that_is_not_an_integer(threshold: Any) -> None:
    BatchPlan([(threshold, 8)])


@pytest.mark.parametrize("batch", NOT_COUNTS)
@wrong(TypeError, "pairs[1].batch = {batch}", "integer")
def test_batch_that_is_not_an_integer(batch: Any) -> None:
    BatchPlan([(0, 8), (9, batch)])


@wrong(ValueError, "pairs[1].threshold = '2b'", "B for billion")
def test_threshold_with_a_wrong_letter() -> None:
    BatchPlan([(0, 8), ("2b", 16)])


@wrong(ValueError, "pairs[0].batch = '0.0001k'", "be a whole number; k is 1000")
def test_batch_that_is_not_whole() -> None:
    BatchPlan([(0, "0.0001k")])


@pytest.mark.parametrize("batch", [0, -16])
@wrong(ValueError, "pairs[1].batch = {batch}", "at least 1")
def test_batch_below_1(batch: int) -> None:
    BatchPlan([(0, 8), (9, batch)])


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(1, 8)],
        [(0, 8), (20, 9), (20, 1)],
        [(0, 8), (20, 9), (2, 1)],
    ],
    ids=repr,
)
@wrong(ValueError, "pairs = {pairs}", "begin with a pair (0, batch)")
def test_thresholds_that_do_not_increase_from_0(pairs: Any) -> None:
    BatchPlan(pairs)


@pytest.mark.parametrize("arguments", [5, [(0, 8)], {}, {"pairs": [[0, 8]], "unit": 3}], ids=repr)
@wrong(ValueError, "arguments = {arguments}", "as to_dict returns it")
def test_arguments_of_something_else(arguments: Any) -> None:
    BatchPlan.from_dict(arguments)


@wrong(FrozenInstanceError)
def test_pairs_cannot_be_set(plan: BatchPlan) -> None:
    plan.pairs = ()


# Counts.


@pytest.mark.parametrize("consumed", NOT_INTEGERS)
@wrong(TypeError, "consumed = {consumed}", "integer")
def test_consumed_that_is_not_an_integer(plan: BatchPlan, consumed: Any) -> None:
    plan(consumed)


@pytest.mark.parametrize("total", NOT_INTEGERS)
@wrong(TypeError, "total = {total}", "integer")
def test_total_that_is_not_an_integer(plan: BatchPlan, total: Any) -> None:
    plan.updates(total)


@pytest.mark.parametrize("updates", NOT_INTEGERS)
@wrong(TypeError, "updates = {updates}", "integer")
def test_updates_that_are_not_an_integer(plan: BatchPlan, updates: Any) -> None:
    plan.consumed(updates)


@wrong(ValueError, "consumed = -1", "at least 0")
def test_consumed_below_0(plan: BatchPlan) -> None:
    plan(-1)


@wrong(ValueError, "total = -1", "at least 0")
def test_total_below_0(plan: BatchPlan) -> None:
    plan.updates(-1)


@wrong(ValueError, "updates = -1", "at least 0")
def test_updates_below_0(plan: BatchPlan) -> None:
    plan.consumed(-1)


# Micro-batches.


@pytest.mark.parametrize("micro_batch", NOT_INTEGERS)
@wrong(TypeError, "micro_batch = {micro_batch}", "integer")
def test_micro_batch_that_is_not_an_integer(plan: BatchPlan, micro_batch: Any) -> None:
    plan.check(micro_batch)


@pytest.mark.parametrize("processes", NOT_INTEGERS)
@wrong(TypeError, "processes = {processes}", "integer")
def test_processes_that_are_not_an_integer(plan: BatchPlan, processes: Any) -> None:
    plan.check(1, processes)


@pytest.mark.parametrize("micro_batch", [-1, 0])
@wrong(ValueError, "micro_batch = {micro_batch}", "at least 1")
def test_micro_batch_below_1(plan: BatchPlan, micro_batch: int) -> None:
    plan.check(micro_batch)


@pytest.mark.parametrize("processes", [-1, 0])
@wrong(ValueError, "processes = {processes}", "at least 1")
def test_processes_below_1(plan: BatchPlan, processes: int) -> None:
    plan.check(1, processes)


@wrong(ValueError, "consumed = -1", "at least 0")
def test_micro_batches_of_consumed_below_0(plan: BatchPlan) -> None:
    plan.micro_batches(-1, 4)


@wrong(ValueError, "pairs[0] = (0, 8) is 8", "= 16 · 1 = 16 does not divide")
def test_micro_batch_larger_than_the_batch(plan: BatchPlan) -> None:
    plan.check(16)


# Scaled curves.


@pytest.mark.parametrize("unit", NOT_COUNTS)
@wrong(TypeError, "unit = {unit}", "integer")
def test_unit_that_is_not_an_integer(plan: BatchPlan, flat: Curve, unit: Any) -> None:
    plan.scale(flat, unit, reference=16)


@wrong(ValueError, "unit = 0", "at least 1")
def test_unit_below_1(plan: BatchPlan, flat: Curve) -> None:
    plan.scale(flat, 0, reference=16)


@pytest.mark.parametrize("reference", NOT_COUNTS)
@wrong(TypeError, "reference = {reference}", "integer")
def test_reference_that_is_not_an_integer(plan: BatchPlan, flat: Curve, reference: Any) -> None:
    plan.scale(flat, 8, reference=reference)


@wrong(ValueError, "reference = 0", "at least 1")
def test_reference_below_1(plan: BatchPlan, flat: Curve) -> None:
    plan.scale(flat, 8, reference=0)


@wrong(ValueError, "reference = 8", "step 20 it is 1.41421356")
def test_level_above_1(plan: BatchPlan, flat: Curve) -> None:
    plan.scale(flat, 8, reference=8)


@wrong(ValueError, "reference = 1000000", "step 0 it is 1.0000004")
def test_level_a_little_above_1(flat: Curve) -> None:
    plan = BatchPlan([(0, 1_000_001)])
    plan.scale(flat, 8, reference=1_000_000)


@wrong(ValueError, "reference = 1", "step 49 it is 1.3859292")
def test_level_above_1_before_a_jump() -> None:
    curve = StagedCurve([(50, 1.0), (0, 0.1), (50,)])
    plan = BatchPlan([(0, 2)])
    plan.scale(curve, 1, reference=1)


@wrong(ValueError, "multiply the peak by (new / old)**exponent")
def test_reference_of_a_smaller_batch(plan: BatchPlan, flat: Curve) -> None:
    plan.scale(flat, 8, reference=1, exponent=2)


@wrong(ValueError, f"reference = 1 must be nearer to the batch size {2**40}", "1.1e+12, outside")
def test_factor_that_is_too_large(flat: Curve) -> None:
    plan = BatchPlan([(0, 2**40)])
    plan.scale(flat, 1, reference=1, exponent=1)


@pytest.fixture
def tail() -> Curve:
    """A curve whose levels are 10⁻²⁷ and less."""
    exponential = StagedCurve([(1000, 1e-30, "exponential")], start=1.0)
    return exponential.part(900)


@wrong(ValueError, "nearer to the batch size 1000", "inf, outside")
def test_factor_that_is_infinite(tail: Curve) -> None:
    plan = BatchPlan([(0, 10**200)])
    plan.scale(tail, 1, reference=1, exponent=2)


@wrong(ValueError, "curve = ", "not be scaled so often")
def test_factors_whose_product_is_too_large(tail: Curve) -> None:
    plan = BatchPlan([(0, 2**31)])
    once = plan.scale(tail, 1, reference=1, exponent=1)
    plan.scale(once, 1, reference=1, exponent=1)


@wrong(TypeError, "curve = 0.5", "a Curve")
def test_scaled_number(plan: BatchPlan) -> None:
    plan.scale(0.5, 8, reference=16)


@wrong(TypeError, "exponent = 'half'", "number")
def test_exponent_that_is_not_a_number(plan: BatchPlan, flat: Curve) -> None:
    plan.scale(flat, 8, reference=16, exponent="half")


@pytest.mark.parametrize("exponent", [0, 2.5])
@wrong(ValueError, "exponent = {exponent}", "(0, 2]")
def test_exponent_out_of_range(plan: BatchPlan, flat: Curve, exponent: float) -> None:
    plan.scale(flat, 8, reference=16, exponent=exponent)


@wrong(ValueError, "pairs[1].threshold = 160", "a multiple of unit = 64")
def test_threshold_within_a_step(plan: BatchPlan, flat: Curve) -> None:
    plan.scale(flat, 64, reference=16)


@wrong(ValueError, "unit = 8 must be 16")
def test_scaled_curve_of_a_different_unit(plan: BatchPlan, flat: Curve) -> None:
    once = plan.scale(flat, 16, reference=16)
    plan.scale(once, 8, reference=16)


@wrong(ValueError, "other has unit = 8, but the curve before it has unit = 16")
def test_continuation_of_a_different_unit(plan: BatchPlan, flat: Curve) -> None:
    first = plan.scale(flat, 16, reference=16)
    second = plan.scale(flat, 8, reference=16)
    first.then(second)


# Seesaw.


@pytest.mark.parametrize("batch", NOT_COUNTS)
@wrong(TypeError, "batch = {batch}", "integer")
def test_first_batch_that_is_not_an_integer(flat: Curve, batch: Any) -> None:
    BatchPlan.seesaw(flat, batch, unit=8, largest=16)


@wrong(ValueError, "batch = 0", "at least 1")
def test_first_batch_below_1(flat: Curve) -> None:
    BatchPlan.seesaw(flat, 0, unit=8, largest=16)


@pytest.mark.parametrize("largest", NOT_COUNTS)
@wrong(TypeError, "largest = {largest}", "integer")
def test_largest_batch_that_is_not_an_integer(flat: Curve, largest: Any) -> None:
    BatchPlan.seesaw(flat, 8, unit=8, largest=largest)


@pytest.mark.parametrize("largest", [0, 7])
@wrong(ValueError, "largest = {largest}", "at least 8")
def test_largest_batch_below_the_first(flat: Curve, largest: int) -> None:
    BatchPlan.seesaw(flat, 8, unit=8, largest=largest)


@wrong(TypeError, "curve = None", "a Curve")
def test_seesaw_without_a_curve() -> None:
    BatchPlan.seesaw(None, 8, unit=8, largest=16)


@wrong(ValueError, "curve = StagedCurve(", "is 0 at every step")
def test_seesaw_of_a_curve_of_zeros() -> None:
    with suppress_warnings():
        zeros = StagedCurve([(100,)])
    BatchPlan.seesaw(zeros, 8, unit=8, largest=16)


@wrong(ValueError, "unit = 8 must be 16, the unit of the curve")
def test_seesaw_of_a_different_unit(plan: BatchPlan, flat: Curve) -> None:
    scaled = plan.scale(flat, 16, reference=16)
    BatchPlan.seesaw(scaled, 8, unit=8, largest=16)
