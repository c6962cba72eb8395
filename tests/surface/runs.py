"""Batch plans, clocks, schedulers without a framework, and records of runs."""

from support.surface.limits import varied

from plateau_jax import (
    BatchPlan,
    CurveScheduler,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    StagedCurve,
    check_resume,
    check_resume_file,
    resume_record,
)

curve = StagedCurve([(10, 1.0), (50,), (40, 0.0)])

# Batch plans.
plan = BatchPlan([(0, 8), (80, 16)])

plan(0)  # int
plan(0.5)  # raises TypeError
plan(varied(80))  # 0 …, else ValueError
plan.updates(100)  # int
plan.updates(varied(80))  # 0 …, else ValueError
plan.consumed(100)  # int
plan.consumed(varied(80))  # 0 …, else ValueError
plan.micro_batches(0, 4)  # int
plan.micro_batches(0, 3)  # raises ValueError
plan.check(4)  # None
plan.check(3)  # raises ValueError
plan.check(0.5)  # raises TypeError
plan.scale(curve, 8, reference=16)  # Curve
plan.scale(curve, 3, reference=16)  # raises ValueError
plan.scale(curve, 8, reference=0.5)  # raises TypeError
plan.scale(curve, 8, reference=varied(16))  # 16 … 36893488147419107328, else ValueError
plan.scale(curve, 8, reference=16, exponent=varied(0.5))  # 5e-324 … 2.0, else ValueError
BatchPlan.seesaw(curve, 8, unit=8, largest=32)  # BatchPlan
BatchPlan.seesaw(curve, 8, unit=8, largest=4)  # raises ValueError
BatchPlan.seesaw(curve, varied(8), unit=8, largest=32)  # 1 … 32, else ValueError
BatchPlan.seesaw(curve, 8, unit=varied(8), largest=32)  # 1 …, else ValueError
BatchPlan.seesaw(curve, 8, unit=8, largest=varied(32))  # 8 …, else ValueError
BatchPlan([])  # raises ValueError
BatchPlan([8])  # raises TypeError
BatchPlan([(0, "4k"), ("2B", "1M")])  # BatchPlan
BatchPlan([(0, varied(8))])  # 1 …, else ValueError
BatchPlan([(0, 8), (varied(80), 8)])  # 1 …, else ValueError
BatchPlan.from_dict({"pairs": [[0, 8]]})  # BatchPlan
BatchPlan.from_dict({"pair": [[0, 8]]})  # raises ValueError

# Clocks.
DataClock(0.5)  # raises TypeError
DataClock("64k", "0.5M")  # DataClock
DataClock(varied(8))  # 1 … 4611686018427387904, else ValueError
DataClock(8, varied(8))  # 1 … 4611686018427387903, else ValueError
HoldUntilFlat(3.0, limit=9)  # raises TypeError
HoldUntilFlat(varied(3), limit=9)  # 1 … 2147483647, else ValueError
HoldUntilFlat(3, limit=varied(9))  # 1 … 2147483647, else ValueError
HoldUntilFlat(3, limit=9, every=varied(3))  # 1 … 9, else ValueError
HoldUntilFlat(3, limit=9, threshold=varied(0.5))  # 0.0 … 1.0, else ValueError
HoldUntilFlat(3, limit=9, threshold=varied(0.5), threshold_mode="abs")  # 0.0 … 3.4028234663852886e+38, else ValueError
HoldBelow(0.5, 3).pairs  # ((0.5, 3),)
HoldBelow("0.5", 3)  # raises TypeError
HoldBelow([(0.5, 3), (0.6, 3)])  # raises ValueError
HoldBelow(varied(0.5), 3)  # -3.4028234663852886e+38 … 3.4028234663852886e+38, else ValueError
HoldBelow(0.5, varied(3))  # 1 … 2147483647, else ValueError
HoldBelow(0.5, 3, every=varied(3))  # 1 … 2147483647, else ValueError

# Schedulers.
CurveScheduler(curve, 0.1)  # CurveScheduler
CurveScheduler(curve, 0.1).lr  # 0.0
CurveScheduler(curve, "0.1")  # raises TypeError
CurveScheduler(curve, varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError

scheduler = CurveScheduler(curve, 0.1)
scheduler.step()  # None
scheduler.step(count=8)  # raises TypeError
scheduler.load_state_dict(scheduler.state_dict())  # None
scheduler.load_state_dict({})  # raises ValueError

counting = CurveScheduler(curve, 0.1, clock=DataClock(8))
counting.step()  # raises TypeError
counting.step(count=8)  # None
CurveScheduler(curve, 0.1, clock=DataClock(8)).step(count=varied(8))  # 0 … 4611686018427387904, else ValueError

# Records.
record = resume_record(curve, 0.1)
of_a_different_peak = resume_record(curve, 0.2)

resume_record(curve, 0.1)  # dict of resume_record
resume_record(curve, 0.1, "tokens")  # raises TypeError
resume_record(None)  # raises TypeError
resume_record(plan.scale(curve, 8, reference=16))["clock"]  # {'kind': 'data', 'unit': 8, 'count': None}
check_resume(record, record, 10)  # None
check_resume(record, record, 0.5)  # raises TypeError
check_resume(record, record, varied(10))  # 0 …, else ValueError
check_resume(None, record, 10)  # None, warns CurveWarning
check_resume(record, of_a_different_peak, 10)  # raises ValueError
check_resume(record, of_a_different_peak, 10, strict=False)  # None, warns CurveWarning
check_resume_file("curve.json", record, 0)  # None
check_resume_file("curve.json", record, 0.5)  # raises TypeError
check_resume_file("curve.json", of_a_different_peak, 10)  # raises ValueError
check_resume_file("gs://bucket/curve.json", record, 0)  # raises ValueError
