"""Wrong arguments of `BatchPlan` and its methods."""

import pytest
from support.curves.wrong_values import A_CURVE, A_NUMBER, AN_INTEGER, Call, at_least, name_of
from support.wrong import wrong

from plateau_jax import BatchPlan, StagedCurve
from plateau_jax.arguments.curve_warning import suppress_warnings

PLAN = BatchPlan([(0, 8), (160, 16)])
"""Its batch doubles after 20 updates."""

FLAT = StagedCurve([(100,)], start=1.0)
SCALED = PLAN.scale(FLAT, 16, reference=16)
with suppress_warnings():
    ZEROS = StagedCurve([(100,)])


# Pairs.


@wrong(TypeError, "pairs = {0: 8} must be a sequence of pairs (threshold, batch)")
def test_pairs_without_an_order():
    BatchPlan({0: 8})


@wrong(TypeError, "pairs[0].threshold = 0.0", AN_INTEGER)
def test_threshold_that_is_not_an_integer():
    BatchPlan([(0.0, 8)])


@wrong(ValueError, "pairs[1].batch = 0", at_least(1))
def test_batch_below_1():
    BatchPlan([(0, 8), (9, 0)])


@pytest.mark.parametrize("pairs", [[], [(1, 8)], [(0, 8), (20, 9), (20, 1)]], ids=repr)
@wrong(ValueError, "pairs = {pairs}", "begin with a pair (0, batch)")
def test_thresholds_that_do_not_increase_from_0(pairs):
    BatchPlan(pairs)


@pytest.mark.parametrize("arguments", [5, [(0, 8)], {}, {"pairs": [[0, 8]], "unit": 3}], ids=repr)
@wrong(ValueError, "arguments = {arguments}", "as to_dict returns it", "a different version")
def test_arguments_of_something_else(arguments):
    BatchPlan.from_dict(arguments)


# Methods.


def scale(curve, unit, reference, error, *parts, **options):
    return Call("scale", (curve, unit), error, parts, {"reference": reference, **options})


def seesaw(curve, batch, largest, error, *parts):
    return Call("seesaw", (curve, batch), error, parts, {"unit": 8, "largest": largest})


@pytest.mark.parametrize(
    "call",
    [
        Call("updates", (3.0,), TypeError, ["total = 3.0", AN_INTEGER]),
        Call("__call__", (-1,), ValueError, ["consumed = -1", at_least(0)]),
        Call("consumed", (-1,), ValueError, ["updates = -1", at_least(0)]),
        Call("check", (3.0,), TypeError, ["micro_batch = 3.0", AN_INTEGER]),
        Call("check", (1, 0), ValueError, ["processes = 0", at_least(1)]),
        Call("check", (16,), ValueError, ["pairs[0] = (0, 8) is 8", "= 16 does not divide"]),
        Call("micro_batches", (-1, 4), ValueError, ["consumed = -1", at_least(0)]),
        scale(0.5, 8, 16, TypeError, "curve = 0.5", A_CURVE),
        scale(FLAT, 0, 16, ValueError, "unit = 0", at_least(1)),
        scale(FLAT, 8, None, TypeError, "reference = None", AN_INTEGER),
        scale(FLAT, 8, 8, ValueError, "reference = 8", "step 20 it is 1.41421356"),
        scale(FLAT, 8, 1, ValueError, "multiply the peak by (new / old)**exponent", exponent=2),
        scale(FLAT, 8, 16, TypeError, "exponent = 'half'", A_NUMBER, exponent="half"),
        scale(FLAT, 8, 16, ValueError, "exponent = 0", "(0, 2]", exponent=0),
        scale(FLAT, 8, 16, ValueError, "exponent = 2.5", "(0, 2]", exponent=2.5),
        scale(FLAT, 64, 16, ValueError, "pairs[1].threshold = 160", "a multiple of unit = 64"),
        scale(SCALED, 8, 16, ValueError, "unit = 8 must be 16"),
        seesaw(FLAT, 8.0, 16, TypeError, "batch = 8.0", AN_INTEGER),
        seesaw(FLAT, 8, 7, ValueError, "largest = 7", at_least(8)),
        seesaw(None, 8, 16, TypeError, "curve = None", A_CURVE),
        seesaw(ZEROS, 8, 16, ValueError, "curve = StagedCurve(", "is 0 at every step"),
        seesaw(SCALED, 8, 16, ValueError, "unit = 8 must be 16, the unit of the curve"),
    ],
    ids=name_of,
)
def test_wrong_call(call):
    call.check(PLAN)


# Factors of batch sizes.


@wrong(ValueError, "reference = 1000000", "step 0 it is 1.0000004")
def test_level_a_little_above_1():
    BatchPlan([(0, 1_000_001)]).scale(FLAT, 8, reference=1_000_000)


@wrong(ValueError, "reference = 1", "step 49 it is 1.3859292")
def test_level_above_1_before_a_jump():
    curve = StagedCurve([(50, 1.0), (0, 0.1), (50,)])
    BatchPlan([(0, 2)]).scale(curve, 1, reference=1)


@wrong(ValueError, f"reference = 1 must be nearer to the batch size {2**40}", "1.1e+12, outside")
def test_factor_that_is_too_large():
    BatchPlan([(0, 2**40)]).scale(FLAT, 1, reference=1, exponent=1)


@pytest.fixture
def tail():
    """A curve whose levels are 10⁻²⁷ and less."""
    exponential = StagedCurve([(1000, 1e-30, "exponential")], start=1.0)
    return exponential.part(900)


@wrong(ValueError, "nearer to the batch size 1000", "inf, outside")
def test_factor_that_is_infinite(tail):
    BatchPlan([(0, 10**200)]).scale(tail, 1, reference=1, exponent=2)


@wrong(ValueError, "curve = ", "not be scaled so often")
def test_factors_whose_product_is_too_large(tail):
    plan = BatchPlan([(0, 2**31)])
    once = plan.scale(tail, 1, reference=1, exponent=1)
    plan.scale(once, 1, reference=1, exponent=1)


@wrong(ValueError, "other has unit = 8, but the curve before it has unit = 16")
def test_continuation_of_a_different_unit():
    SCALED.then(PLAN.scale(FLAT, 8, reference=16))
