"""`BatchPlan` against a loop over updates."""

import json
import math
import pickle
import warnings
from dataclasses import FrozenInstanceError
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.numerics.oracle import Oracle, are_equal

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve

RAMP = BatchPlan([(0, 8), (160, 16)])
_gaps = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), max_size=6)


@st.composite
def all_pairs(draw):
    gaps = draw(_gaps)
    thresholds = [0, *accumulate(gap for gap, _ in gaps)]
    return list(zip(thresholds, [draw(st.integers(1, 40)), *(batch for _, batch in gaps)], strict=True))


def clocks_of(pairs, updates):
    """Loop over updates, and return what was consumed before each, and each batch."""
    consumed, found = 0, []
    for _ in range(updates):
        batch = [batch for threshold, batch in pairs if threshold <= consumed][-1]
        found.append((consumed, batch))
        consumed += batch
    return found


@given(all_pairs())
def test_plan_matches_loop_over_updates(pairs):
    plan, run = BatchPlan(pairs), clocks_of(pairs, 400)
    for updates, (consumed, batch) in enumerate(run):
        assert plan(consumed) == batch
        assert plan.consumed(updates) == consumed
        assert plan.updates(consumed) == updates
    for total in range(300):
        assert plan.updates(total) == next(
            updates for updates, (consumed, _) in enumerate(run) if consumed >= total
        )


@given(all_pairs(), st.integers(0, 10**40), st.integers(1, 10**30))
def test_counted_clock_is_exact_for_any_counts(pairs, total, scale):
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
    with pytest.raises(FrozenInstanceError):
        RAMP.pairs = ()
    assert pickle.loads(pickle.dumps(RAMP)) == RAMP
    for found in (RAMP(np.int64(160)), RAMP.updates(np.uint8(200)), RAMP.consumed(np.int16(3))):
        assert type(found) is int


@given(all_pairs())
def test_json_round_trip_gives_equal_object(pairs):
    plan = BatchPlan(pairs)
    assert BatchPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


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
    if divides:
        plan.check(micro_batch, processes)
    else:
        with pytest.raises(ValueError, match=r"of pairs\[\d\] = \(\d+, \d+\) is .* does not divide"):
            plan.check(micro_batch, processes)


def test_processes_default_to_one():
    assert RAMP.micro_batches(0, 4) == RAMP.micro_batches(160, 4, 2) == 2
    RAMP.check(8)
    with pytest.raises(ValueError, match=r"pairs\[0\] = \(0, 8\) is 8, .* = 16 · 1 = 16 does not divide"):
        RAMP.check(16)


NOT_INTEGERS = math.nan, 3.0, math.inf, True, "3", None, Fraction(3), np.float32(3)
NUMBERS = {
    "consumed": RAMP,
    "total": RAMP.updates,
    "updates": RAMP.consumed,
    "micro_batch": RAMP.check,
    "processes": lambda processes: RAMP.check(1, processes),
}
FLAT = StagedCurve([(100,)], start=1.0)
with warnings.catch_warnings(action="ignore"):
    ZERO = StagedCurve([(100,)])


def scaled(changes):
    return RAMP.scale(**{"curve": FLAT, "unit": 8, "reference": 16} | changes)


def scale_from_1(pairs):
    return BatchPlan(pairs).scale(FLAT, 1, reference=1, exponent=1)


def seesaw(changes):
    return BatchPlan.seesaw(**{"curve": FLAT, "batch": 8, "unit": 8, "largest": 16} | changes)


SCALING = {
    "unit": lambda unit: scaled({"unit": unit}),
    "reference": lambda reference: scaled({"reference": reference}),
    "batch": lambda batch: seesaw({"batch": batch}),
    "largest": lambda largest: seesaw({"largest": largest}),
}
KEYS = "arguments = .* as to_dict returns it"


@pytest.mark.parametrize(
    ("call", "argument", "error", "message"),
    [
        (BatchPlan, [], ValueError, "must hold at least one pair"),
        (BatchPlan, [(1, 8)], ValueError, "threshold 0"),
        (BatchPlan, [(-1, 8), (0, 9)], ValueError, "threshold 0"),
        (BatchPlan, [(0, 8), (160, 16), (160, 32)], ValueError, "rising thresholds; 160 follows 160"),
        (BatchPlan, [(0, 8), (160, 16), (20, 32)], ValueError, "rising thresholds; 20 follows 160"),
        (BatchPlan, [(0, 0)], ValueError, "batch = 0 must be at least 1"),
        (BatchPlan, [(0, 8), (160, -16)], ValueError, "batch = -16 must be at least 1"),
        (BatchPlan, [(0, 8.0)], TypeError, "batch = 8.0 must be an integer"),
        (BatchPlan, [(0.0, 8)], TypeError, "threshold = 0.0 must be an integer"),
        (BatchPlan, [(False, 8)], TypeError, "threshold = False must be an integer"),
        (BatchPlan, [(0, True)], TypeError, "batch = True must be an integer"),
        (BatchPlan, [(0, 8), (math.nan, 16)], TypeError, "threshold = nan must be an integer"),
        (BatchPlan, [0, 8], TypeError, r"pairs\[0\] = 0 must be a pair"),
        (BatchPlan, {0: 8}, TypeError, "sequence of pairs"),
        (BatchPlan, 8, TypeError, "sequence of pairs"),
        (BatchPlan.from_dict, [(0, 8)], TypeError, KEYS),
        (BatchPlan.from_dict, None, TypeError, KEYS),
        (BatchPlan.from_dict, {}, ValueError, KEYS),
        (BatchPlan.from_dict, {"pairs": [[0, 8]], "unit": 3}, ValueError, KEYS),
        *(
            (call, value, TypeError, f"{name} = .* must be an integer")
            for name, call in NUMBERS.items()
            for value in NOT_INTEGERS
        ),
        *((NUMBERS[name], -1, ValueError, f"{name} = -1 must be at least [01]") for name in NUMBERS),
        *((NUMBERS[name], 0, ValueError, f"{name} = 0 must be at least 1") for name in list(NUMBERS)[3:]),
        *(
            (call, value, TypeError, f"{name} = .* must be an integer")
            for name, call in SCALING.items()
            for value in (8.0, True, "8", None)
        ),
        *((call, 0, ValueError, f"{name} = 0 must be at least (1|batch)") for name, call in SCALING.items()),
        (scaled, {"curve": 0.5}, TypeError, "curve = 0.5 must be a Curve"),
        (scaled, {"exponent": "half"}, TypeError, "exponent = 'half' must be a number"),
        (scaled, {"exponent": 0}, ValueError, r"exponent = 0 must lie in \(0, 2\]"),
        (scaled, {"exponent": 2.5}, ValueError, r"exponent = 2.5 must lie in \(0, 2\]"),
        (
            scaled,
            {"unit": 64},
            ValueError,
            r"pairs\[1\].threshold = 160 must be a multiple of unit = 64",
        ),
        (
            scaled,
            {"reference": 8},
            ValueError,
            r"reference = 8 must .* at step 20 it is 1.41421: use a larger reference",
        ),
        (
            scaled,
            {"reference": 1, "exponent": 2},
            ValueError,
            r"at step 0 it is 64: .* multiply the peak by \(new / old\)\*\*exponent",
        ),
        (
            scale_from_1,
            [(0, 2**40)],
            ValueError,
            r"reference = 1 must be nearer to the batch 1\d*: .* is 1.1e\+12, outside",
        ),
        (seesaw, {"curve": ZERO}, ValueError, r"curve = StagedCurve\(.*\) is 0 at every step"),
        (seesaw, {"curve": None}, TypeError, "curve = None must be a Curve"),
        (
            seesaw,
            {"curve": RAMP.scale(FLAT, 16, reference=16)},
            ValueError,
            "unit = 8 must be 16, the unit of the curve",
        ),
        (seesaw, {"batch": 17}, ValueError, "largest = 16 must be at least batch = 17"),
    ],
)
def test_wrong_arguments_are_rejected(call, argument, error, message):
    with pytest.raises(error, match=message):
        call(argument)


_UNIT = 8
_RAMPED: list[Curve] = [
    StagedCurve([(10, 1.0, "linear"), (130,), (40, 0.0, "linear")], start=0.0),
    PlateauCurve(180, warmup_steps=10, absolute_plateaus=[(10, 130)], decay_shape="linear"),
]


@pytest.mark.parametrize("curve", _RAMPED, ids=["staged", "plateau"])
def test_batch_ramp_keeps_length_of_every_phase(curve):
    """100 updates: batch 8 for 160 samples, then 16; warmup for 10, then constant, linear decay for 20."""
    total = 160 + 80 * 16
    assert RAMP.updates(total) == 100
    assert RAMP.consumed(100) == total == curve.total_steps * _UNIT
    clocks = [RAMP.consumed(updates) // _UNIT for updates in range(101)]
    rates = np.array([curve(clock) for clock in clocks])
    np.testing.assert_array_equal(rates[:11], (np.arange(11) / np.float32(10)).astype(np.float32))
    assert (rates[10:81] == 1).all()
    np.testing.assert_array_equal(rates[80:], (np.arange(20, -1, -1) / np.float32(20)).astype(np.float32))
    assert (np.diff(rates[80:]) < 0).all()


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


def test_doublings_at_a_drop_to_0_are_one_jump():
    curve = StagedCurve([(100,), (100, 0.0), (100,)], start=1.0)
    plan = BatchPlan.seesaw(curve, 8, unit=1, largest=10**6)
    assert plan.pairs[-1] == (200, 8 * 2**16)


def test_product_of_rounded_decimals_may_be_1():
    curve = StagedCurve([(50,), (0, 0.7071067811865476), (50, 0.5)], start=1.0)
    scaled = BatchPlan([(0, 8), (50, 16)]).scale(curve, 1, reference=8)
    assert scaled([0, 49, 50]).tolist() == [1, 1, 1]
    assert scaled(99) < 1


def test_nested_scalings_are_bounded():
    tail = StagedCurve([(1000, 1e-30, "exponential")], start=1.0).part(900)
    once = BatchPlan([(0, 2**31)]).scale(tail, 1, reference=1, exponent=1)
    twice = BatchPlan([(0, 2**31)])
    with pytest.raises(ValueError, match=r"curve = .* must not be scaled so often"):
        twice.scale(once, 1, reference=1, exponent=1)
    with pytest.raises(ValueError, match=r"nearer to the batch 1000.*inf, outside"):
        BatchPlan([(0, 10**200)]).scale(tail, 1, reference=1, exponent=2)


@pytest.mark.parametrize("exponent", [0.5, 1])
def test_seesaw_and_its_scaled_curve_keep_ratio_at_every_sample(exponent):
    curve = PlateauCurve(10_000)
    plan = BatchPlan.seesaw(curve, 32, unit=32, largest=2**40)
    assert [threshold // 32 for threshold, _ in plan.pairs[:4]] == [0, 5000, 6667, 7700]
    assert 1 - plan.updates(320_000) / 10_000 == pytest.approx(0.377, abs=5e-4)
    scaled = plan.scale(curve, 32, reference=32, exponent=exponent)
    assert all(scaled(threshold // 32) > scaled(threshold // 32 - 1) for threshold, _ in plan.pairs[1:9])
    for step in range(0, 10_000, 7):
        batch = plan(32 * step)
        assert scaled(step) / (batch / 32) ** exponent == pytest.approx(curve(step), rel=2e-7)
