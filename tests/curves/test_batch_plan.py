"""`BatchPlan` against a loop over updates."""

import json
import math
import pickle
from dataclasses import FrozenInstanceError
from fractions import Fraction
from itertools import accumulate
from math import nan

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.errors import check_error, each, each_row
from support.numerics.oracle import Oracle, are_equal

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings

RAMP = BatchPlan([(0, 8), (160, 16)])
_gaps = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), max_size=6)


@st.composite
def all_pairs(draw):
    gaps = draw(_gaps)
    thresholds = [0, *accumulate(gap for gap, _ in gaps)]
    return list(zip(thresholds, [draw(st.integers(1, 40)), *(batch for _, batch in gaps)], strict=True))


def loop_over(pairs, updates):
    """Loop over updates, and return what was consumed before each, and each batch."""
    consumed, found = 0, []
    for _ in range(updates):
        batch = [batch for threshold, batch in pairs if threshold <= consumed][-1]
        found.append((consumed, batch))
        consumed += batch
    return found


@given(all_pairs())
def test_plan_matches_loop_over_updates(pairs):
    plan, run = BatchPlan(pairs), loop_over(pairs, 400)
    assert BatchPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    for updates, (consumed, batch) in enumerate(run):
        assert plan(consumed) == batch
        assert plan.consumed(updates) == consumed
        assert plan.updates(consumed) == updates
    for total in range(300):
        assert plan.updates(total) == next(
            updates for updates, (consumed, _) in enumerate(run) if consumed >= total
        )


@given(all_pairs(), st.integers(0, 10**40), st.integers(1, 10**30))
def test_plan_is_exact_for_any_counts(pairs, total, scale):
    plan = BatchPlan([(threshold * scale, batch * scale) for threshold, batch in pairs])
    updates = plan.updates(total)
    assert type(updates) is type(plan.consumed(updates)) is int
    assert plan.consumed(updates) >= total
    assert updates == 0 or plan.consumed(updates - 1) < total
    assert plan.consumed(updates) == scale * BatchPlan(pairs).consumed(updates)
    assert plan(plan.consumed(updates)) == plan.consumed(updates + 1) - plan.consumed(updates)


def test_plan_is_frozen_and_hashable():
    other = BatchPlan(((np.int64(0), np.int8(8)), [160, 16]))
    assert (other, hash(other)) == (RAMP, hash(RAMP))
    assert repr(other) == "BatchPlan(pairs=((0, 8), (160, 16)))"
    assert BatchPlan([(0, 8)]) != RAMP
    assert pickle.loads(pickle.dumps(RAMP)) == RAMP
    for found in (RAMP(np.int64(160)), RAMP.updates(np.uint8(200)), RAMP.consumed(np.int16(3))):
        assert type(found) is int


@given(all_pairs(), st.integers(1, 8), st.integers(1, 4))
def test_micro_batches_divide_batch_or_are_rejected(pairs, micro_batch, processes):
    plan, divides = BatchPlan(pairs), True
    for threshold, batch in pairs:
        if batch % (micro_batch * processes):
            divides = False
            with pytest.raises(ValueError, match=f"batch at consumed = {threshold} is {batch}"):
                plan.micro_batches(threshold, micro_batch, processes)
        else:
            count = plan.micro_batches(threshold, micro_batch, processes)
            assert count * micro_batch * processes == batch
            assert plan.micro_batches(threshold, micro_batch * processes) == count
    if divides:
        plan.check(micro_batch, processes)
        plan.check(micro_batch * processes)
    else:
        with pytest.raises(ValueError, match=r"of pairs\[\d\] = \(\d+, \d+\) is .* does not divide"):
            plan.check(micro_batch, processes)


FLAT = StagedCurve([(100,)], start=1.0)
TAIL = StagedCurve([(1000, 1e-30, "exponential")], start=1.0).part(900)
with suppress_warnings():
    ZERO = StagedCurve([(100,)])
ONCE = BatchPlan([(0, 2**31)]).scale(TAIL, 1, reference=1, exponent=1)
NEAR = BatchPlan([(0, 1_000_001)])
NOT_INTEGERS = nan, 3.0, True, "3", None, Fraction(3), np.float32(3)
KEYS = "as to_dict returns it"

# Wrong values of one argument of a call.
OF_CALLS = [
    (lambda value: RAMP(value), "consumed", TypeError, "integer", NOT_INTEGERS),
    (lambda value: RAMP.updates(value), "total", TypeError, "integer", NOT_INTEGERS),
    (lambda value: RAMP.consumed(value), "updates", TypeError, "integer", NOT_INTEGERS),
    (lambda value: RAMP.check(value), "micro_batch", TypeError, "integer", NOT_INTEGERS),
    (lambda value: RAMP.check(1, value), "processes", TypeError, "integer", NOT_INTEGERS),
    (lambda value: RAMP(value), "consumed", ValueError, "at least 0", [-1]),
    (lambda value: RAMP.updates(value), "total", ValueError, "at least 0", [-1]),
    (lambda value: RAMP.consumed(value), "updates", ValueError, "at least 0", [-1]),
    (lambda value: RAMP.check(value), "micro_batch", ValueError, "at least 1", [-1, 0]),
    (lambda value: RAMP.check(1, value), "processes", ValueError, "at least 1", [-1, 0]),
    (lambda value: RAMP.micro_batches(value, 4), "consumed", ValueError, "at least 0", [-1]),
    (lambda value: RAMP.scale(FLAT, value, reference=16), "unit", TypeError, "integer",
     [8.0, True, "8", None]),
    (lambda value: RAMP.scale(FLAT, value, reference=16), "unit", ValueError, "at least 1", [0]),
    (lambda value: RAMP.scale(FLAT, 8, reference=value), "reference", TypeError, "integer",
     [8.0, True, "8", None]),
    (lambda value: RAMP.scale(FLAT, 8, reference=value), "reference", ValueError, "at least 1", [0]),
    (lambda value: RAMP.scale(FLAT, 8, reference=value), "reference", ValueError, "step 20 it is 1.41421356",
     [8]),
    (lambda value: NEAR.scale(FLAT, 8, reference=value), "reference", ValueError, "step 0 it is 1.0000004",
     [1_000_000]),
    (lambda value: RAMP.scale(value, 8, reference=16), "curve", TypeError, "a Curve", [0.5]),
    (lambda value: RAMP.scale(FLAT, 8, reference=16, exponent=value), "exponent", TypeError, "number",
     ["half"]),
    (lambda value: RAMP.scale(FLAT, 8, reference=16, exponent=value), "exponent", ValueError, "(0, 2]",
     [0, 2.5]),
    (lambda value: BatchPlan.seesaw(FLAT, value, unit=8, largest=16), "batch", TypeError, "integer",
     [8.0, True]),
    (lambda value: BatchPlan.seesaw(FLAT, value, unit=8, largest=16), "batch", ValueError, "at least 1", [0]),
    (lambda value: BatchPlan.seesaw(FLAT, 8, unit=8, largest=value), "largest", TypeError, "integer",
     [8.0, True]),
    (lambda value: BatchPlan.seesaw(FLAT, 8, unit=8, largest=value), "largest", ValueError,
     "at least 8", [0, 7]),
    (lambda value: BatchPlan.seesaw(value, 8, unit=8, largest=16), "curve", TypeError, "a Curve", [None]),
    (lambda value: BatchPlan(value), "pairs", TypeError, "sequence of pairs", [8, {0: 8}]),
    (lambda value: BatchPlan([value, 8]), "pairs[0]", TypeError, "pair (threshold, batch)", [0, (0, 8, 9)]),
    (lambda value: BatchPlan([(value, 8)]), "pairs[0].threshold", TypeError, "integer", [0.0, False, nan]),
    (lambda value: BatchPlan([(0, 8), (9, value)]), "pairs[1].batch", TypeError, "integer", [8.0, True]),
    (lambda value: BatchPlan([(0, 8), (9, value)]), "pairs[1].batch", ValueError, "at least 1", [0, -16]),
    (lambda value: BatchPlan(value), "pairs", ValueError, "begin with a pair (0, batch)",
     [[], [(1, 8)], [(-1, 8)], [(0, 8), (20, 9), (20, 1)], [(0, 8), (20, 9), (2, 1)]]),
    (lambda value: BatchPlan.from_dict(value), "arguments", ValueError, KEYS, [[(0, 8)]]),
    (lambda value: BatchPlan.from_dict(value), "arguments", ValueError, KEYS,
     [{}, {"pairs": [[0, 8]], "unit": 3}]),
]  # fmt: skip
ERRORS = [
    *(row for call, name, error, word, values in OF_CALLS
      for row in each(call, values, error, f"{name} = {{}}", word)),
    (lambda: BatchPlan([(0, 2)]).scale(StagedCurve([(50, 1.0), (0, 0.1), (50,)]), 1, reference=1), ValueError,
     "reference"),
    (lambda: RAMP.scale(FLAT, 64, reference=16), ValueError, "pairs[1].threshold = 160",
     "a multiple of unit = 64"),
    (lambda: RAMP.scale(FLAT, 8, reference=1, exponent=2), ValueError,
     "multiply the peak by (new / old)**exponent"),
    (lambda: BatchPlan([(0, 2**40)]).scale(FLAT, 1, reference=1, exponent=1), ValueError,
     f"reference = 1 must be nearer to the batch {2**40}", "1.1e+12, outside"),
    (lambda: BatchPlan([(0, 10**200)]).scale(TAIL, 1, reference=1, exponent=2), ValueError,
     "nearer to the batch 1000", "inf, outside"),
    (lambda: BatchPlan([(0, 2**31)]).scale(ONCE, 1, reference=1, exponent=1), ValueError, "curve = ",
     "not be scaled so often"),
    (lambda: BatchPlan.seesaw(ZERO, 8, unit=8, largest=16), ValueError, "curve = StagedCurve(",
     "is 0 at every step"),
    (lambda: BatchPlan.seesaw(RAMP.scale(FLAT, 16, reference=16), 8, unit=8, largest=16), ValueError,
     "unit = 8 must be 16, the unit of the curve"),
    (lambda: RAMP.scale(RAMP.scale(FLAT, 16, reference=16), 8, reference=16), ValueError,
     "unit = 8 must be 16"),
    (lambda: RAMP.scale(FLAT, 16, reference=16).then(RAMP.scale(FLAT, 8, reference=16)), ValueError,
     "other has unit = 8, but the curve before it has unit = 16"),
    (lambda: RAMP.check(16), ValueError, "pairs[0] = (0, 8) is 8", "= 16 · 1 = 16 does not divide"),
    (lambda: setattr(RAMP, "pairs", ()), FrozenInstanceError),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row):
    check_error(row, RAMP=RAMP)


@given(descriptions(), st.integers(1, 5), st.integers(1, 3), st.integers(0, 40))
def test_seesaw_doubles_where_curve_has_halved(description, batch, unit, doublings):
    curve, exact = build(description), Oracle(description)
    ends = {step for begin, end, _ in exact.spans() for step in (begin, end - 1)} | {curve.total_steps}
    highest = max(map(exact, ends))
    assume(highest)
    plan = BatchPlan.seesaw(curve, batch, unit=unit, largest=batch << doublings)

    def is_within(step, doubled):
        return exact(step) <= highest / 2**doubled or are_equal(exact(step), highest / 2**doubled)

    for (threshold, size), following in zip(plan.pairs, [*plan.pairs[1:], None], strict=True):
        step, doubled = threshold // unit, int(math.log2(size / batch))
        assert (size, threshold) == (batch << doubled, step * unit)
        assert step < curve.total_steps
        # All doublings so far are due here and from here on; the last of them was not due a step before.
        assert all(is_within(later, doubled) for later in (step, *ends) if later >= step)
        assert not step or not is_within(step - 1, doubled)
        # The next doubling is due at the next threshold, or never.
        if following:
            assert not is_within(following[0] // unit - 1, doubled + 1)
        elif doubled < doublings:
            assert not (
                is_within(curve.total_steps - 1, doubled + 1) and is_within(curve.total_steps, doubled + 1)
            )
    plan.scale(curve, unit, reference=batch)


def test_seesaw_fits_scale_however_long_the_curve():
    curve = PlateauCurve(3 * 10**8)
    plan = BatchPlan.seesaw(curve, 1, unit=1, largest=2)
    assert plan.pairs == ((0, 1), (150_000_000, 2))
    assert plan.scale(curve, 1, reference=1, exponent=1)(150_000_000) == 1


def test_product_of_rounded_decimals_may_be_1():
    curve = StagedCurve([(50,), (0, 0.7071067811865476), (50, 0.5)], start=1.0)
    scaled = BatchPlan([(0, 8), (50, 16)]).scale(curve, 1, reference=8)
    assert scaled([0, 49, 50]).tolist() == [1, 1, 1]
    assert scaled(99) < 1
