"""Wrong arguments of `BatchPlan` and its methods."""

from support.curves.requirements import A_NUMBER, AN_INTEGER, at_least
from support.raises import raises

from plateau_jax import BatchPlan, StagedCurve

PLAN = BatchPlan([(0, 8), (160, 16)])
"""Its batch doubles after 20 updates."""

FLAT = StagedCurve([(100,)], start=1.0)
SCALED = PLAN.scale(FLAT, 16, reference=16)


# Pairs.


def test_wrong_pairs():
    with raises(TypeError, "pairs[0].threshold = 0.0", AN_INTEGER):
        BatchPlan([(0.0, 8)])
    with raises(ValueError, "pairs[1].batch = 0", at_least(1)):
        BatchPlan([(0, 8), (9, 0)])
    for pairs in ([], [(1, 8)], [(0, 8), (20, 9), (20, 1)]):
        with raises(ValueError, f"pairs = {pairs}", "begin with a pair (0, batch)"):
            BatchPlan(pairs)
    for arguments in (5, {"pairs": [[0, 8]]}, {"kind": "batch_plan"}):
        parts = [f"arguments = {arguments}", "as to_dict returns it", "a different version"]
        with raises(ValueError, *parts):
            BatchPlan.from_dict(arguments)


# Methods.


def test_wrong_call():
    with raises(TypeError, "total = 3.0", AN_INTEGER):
        PLAN.updates(3.0)
    with raises(ValueError, "consumed = -1", at_least(0)):
        PLAN(-1)
    with raises(ValueError, "updates = -1", at_least(0)):
        PLAN.consumed(-1)
    with raises(TypeError, "micro_batch = 3.0", AN_INTEGER):
        PLAN.check(3.0)
    with raises(ValueError, "processes = 0", at_least(1)):
        PLAN.check(1, 0)
    with raises(ValueError, "= 16 does not divide the batch size 8"):
        PLAN.check(16)


def test_wrong_scale():
    with raises(ValueError, "unit = 0", at_least(1)):
        PLAN.scale(FLAT, 0, reference=16)
    with raises(TypeError, "reference = None", AN_INTEGER):
        PLAN.scale(FLAT, 8, reference=None)
    with raises(TypeError, "exponent = 'half'", A_NUMBER):
        PLAN.scale(FLAT, 8, reference=16, exponent="half")
    for exponent in (0, 2.5):
        with raises(ValueError, f"exponent = {exponent}", "(0, 2]"):
            PLAN.scale(FLAT, 8, reference=16, exponent=exponent)
    with raises(ValueError, "pairs[1].threshold = 160", "a multiple of unit = 64"):
        PLAN.scale(FLAT, 64, reference=16)
    with raises(ValueError, "unit = 8 must be 16"):
        PLAN.scale(SCALED, 8, reference=16)


# Factors of batch sizes.


def test_level_above_1():
    with raises(
        ValueError, "reference = 1000000", "step 0 it is 1.0000004", "(new / old)**exponent"
    ):
        BatchPlan([(0, 1_000_001)]).scale(FLAT, 8, reference=1_000_000)
    jumping = StagedCurve([(50, 1.0), (0, 0.1), (50,)])
    with raises(ValueError, "reference = 1", "step 49 it is 1.3859292"):
        BatchPlan([(0, 2)]).scale(jumping, 1, reference=1)
    with raises(ValueError, "reference = 1", "step 0 it is 1099511627776"):
        BatchPlan([(0, 2**40)]).scale(FLAT, 1, reference=1, exponent=1)


@raises(ValueError, "other has unit = 8, but the curve before it has unit = 16")
def test_continuation_of_a_different_unit():
    SCALED.then(PLAN.scale(FLAT, 8, reference=16))
