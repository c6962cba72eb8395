"""The ranges of arguments: calls with the first and the last number that they accept."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from proofs.shapes.specs import FORMULAS, GEOMETRIC_SPECS
from support.surface import samples
from support.surface.limits import Varied, accepted, accepted_by
from support.surface.samples import CURVE, PLAN, mean_loss
from torch import nn

from plateau_jax import (
    BatchPlan,
    CurveScheduler,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    LossRun,
    PlateauCurve,
    StagedCurve,
    check_resume,
    compare_log,
    resume_record,
    scale_by_curve,
)
from torch_bridge import (
    Checkpoints,
    MetricLog,
    TrainStep,
    count_updates,
    follow,
    lambda_lr,
    make_loader,
    prefetch,
)


def ranges_of_curves() -> Iterator[str]:
    yield accepted(PlateauCurve, Varied(100))
    yield accepted(PlateauCurve, 100, warmup_steps=Varied(10))
    yield accepted(PlateauCurve, 100, warmup_steps=Varied(10, "{}%"))
    yield accepted(PlateauCurve, 100, plateaus=[(Varied(50), 10)])
    yield accepted(PlateauCurve, 100, plateaus=[(50, Varied(10))])
    yield accepted(PlateauCurve, 100, absolute_plateaus=[(Varied(50), 10)])
    yield accepted(PlateauCurve, 100, absolute_plateaus=[(50, Varied(10))])
    yield accepted(PlateauCurve, 100, min_lr_ratio=Varied(0.5))
    yield accepted(PlateauCurve, 100, init_lr_ratio=Varied(0.5))
    yield accepted(StagedCurve, [(Varied(10), 1.0)])
    yield accepted(StagedCurve, [(10, 1.0), (Varied(10), 0.5)])
    yield accepted(StagedCurve, [(10, Varied(0.5))])
    yield accepted(StagedCurve, [(10, 0.5)], start=Varied(0.5))
    yield accepted(StagedCurve.wsd, Varied(100), warmup_steps=10, decay_steps=10)
    yield accepted(StagedCurve.wsd, 100, warmup_steps=Varied(10), decay_steps=10)
    yield accepted(StagedCurve.wsd, 100, warmup_steps=10, decay_steps=Varied(10))
    yield accepted(StagedCurve.through, [(0, 0.0), (Varied(10), 1.0)])
    yield accepted(CURVE.learning_rate, Varied(10), 0.1)
    yield accepted(CURVE.learning_rate, 10, Varied(0.1))
    yield accepted(CURVE.to_source, Varied(0.1))
    yield accepted(CURVE.cooldown, Varied(50), 10)
    yield accepted(CURVE.cooldown, 50, Varied(10))
    yield accepted(CURVE.cooldown, 50, 10, to=Varied(0.5))
    yield accepted(CURVE.then, CURVE, scale=Varied(0.5))
    yield accepted(CURVE.part, Varied(50))
    yield accepted(CURVE.part, 50, Varied(60))
    yield accepted(CURVE.merge_weights, [Varied(30), 60])
    yield accepted(CURVE.merge_weights, [30, Varied(60)])
    yield accepted(CURVE.merge_weights, [Varied(120)], mean_of=90)
    yield accepted(CURVE.merge_weights, [120], mean_of=Varied(90))
    yield accepted(CURVE.same_until, CURVE, Varied(10))
    yield from ranges_of_shapes()
    yield f"plateau_jax.Curve.part(), nested at most {_greatest_depth()} deep"


def ranges_of_shapes() -> Iterator[str]:
    for name in FORMULAS:
        power = Varied(2.0, name.replace("P", "{}"))
        if name in GEOMETRIC_SPECS:
            yield accepted(StagedCurve, [(10, 0.5, power)], start=1.0)
        else:
            yield accepted(StagedCurve, [(10, 0.5, power)])
            yield accepted(PlateauCurve, 100, decay_shape=power)
    for name in GEOMETRIC_SPECS:
        shape = name.replace("P", "1")
        yield accepted(StagedCurve, [(10, Varied(0.5), shape)], start=1.0)


def _greatest_depth() -> int:
    curve: Any = CURVE
    depth = 0
    with suppress(ValueError):
        while True:
            curve = curve.part()
            depth += 1
    return depth


def ranges_of_runs() -> Iterator[str]:
    yield accepted(BatchPlan, [(0, Varied(8))])
    yield accepted(BatchPlan, [(0, 8), (Varied(80), 8)])
    yield accepted(PLAN, Varied(80))
    yield accepted(PLAN.updates, Varied(80))
    yield accepted(PLAN.consumed, Varied(80))
    yield accepted(PLAN.scale, CURVE, 8, reference=Varied(16))
    yield accepted(PLAN.scale, CURVE, 8, reference=16, exponent=Varied(0.5))
    yield accepted(BatchPlan.seesaw, CURVE, Varied(8), unit=8, largest=32)
    yield accepted(BatchPlan.seesaw, CURVE, 8, unit=Varied(8), largest=32)
    yield accepted(BatchPlan.seesaw, CURVE, 8, unit=8, largest=Varied(32))
    yield accepted(DataClock, Varied(8))
    yield accepted(DataClock, 8, Varied(8))
    yield accepted(HoldBelow, Varied(0.5), 3)
    yield accepted(HoldBelow, 0.5, Varied(3))
    yield accepted(HoldBelow, 0.5, 3, every=Varied(3))
    yield accepted(HoldUntilFlat, Varied(3), limit=9)
    yield accepted(HoldUntilFlat, 3, limit=9, threshold=Varied(0.5))
    yield accepted(HoldUntilFlat, 3, limit=9, threshold=Varied(0.5), threshold_mode="abs")
    yield accepted(HoldUntilFlat, 3, limit=9, every=Varied(3))
    yield accepted(HoldUntilFlat, 3, limit=Varied(9))
    yield accepted(CurveScheduler, CURVE, Varied(0.1))
    yield accepted(compare_log, [{"step": 1, "lr": 0.1}], CURVE, Varied(0.1))
    yield accepted(LossRun, CURVE, Varied(0.1), [50], [3.0])
    yield accepted(LossRun, CURVE, 0.1, [Varied(50)], [3.0])
    yield accepted(LossRun, CURVE, 0.1, [50], [Varied(3.0)])
    yield accepted_by("plateau_jax.CurveScheduler.step(count={})", _step_on_the_host, 8)
    yield accepted(check_resume, resume_record(CURVE), resume_record(CURVE), Varied(10))


def _step_on_the_host(count: int) -> None:
    CurveScheduler(CURVE, 0.1, clock=DataClock(8)).step(count=count)


def ranges_in_jax() -> Iterator[str]:
    transformation: Any = scale_by_curve(CURVE, 0.1, DataClock(8))
    state = transformation.init({})

    def update(count: int) -> object:
        return transformation.update({}, state, count=count)

    yield accepted_by("plateau_jax.scale_by_curve(…, DataClock({}))", _with_unit, 8)
    yield accepted_by("plateau_jax.scale_by_curve(…, DataClock(8, {}))", _with_count, 8)
    yield accepted_by("plateau_jax.scale_by_curve(…).update(count={})", update, 8)


def _with_unit(unit: int) -> object:
    return scale_by_curve(CURVE, 0.1, DataClock(unit))


def _with_count(count: int) -> object:
    return scale_by_curve(CURVE, 0.1, DataClock(8, count))


def ranges_of_schedulers() -> Iterator[str]:
    follower = follow(samples.optimizer(), "momentum", CURVE)
    yield accepted_by("torch_bridge.lambda_lr(…, last_epoch={})", _at_epoch, 10)
    yield accepted_by("torch_bridge.lambda_lr.step(count={})", _step_with_count, 8)
    yield accepted(lambda_lr(samples.optimizer(), CURVE).set_peak, Varied(0.1))
    yield accepted(follower.step, Varied(8))
    yield accepted(follower.set_base_value, Varied(0.1))


def _at_epoch(last_epoch: int) -> object:
    optimizer = samples.optimizer()
    optimizer.param_groups[0]["initial_lr"] = 0.5
    return lambda_lr(optimizer, CURVE, last_epoch=last_epoch)


def _step_with_count(count: int) -> None:
    scheduler = lambda_lr(samples.optimizer(), CURVE, clock=DataClock(8))
    scheduler.optimizer.step()
    scheduler.step(count=count)


def ranges_of_training() -> Iterator[str]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.param_groups[0]["initial_lr"] = 0.5  # without it, no initial_updates
    yield accepted(TrainStep, model, optimizer, mean_loss, CURVE, max_norm=Varied(1.0))
    yield accepted(TrainStep, model, optimizer, mean_loss, CURVE, initial_updates=Varied(1))
    yield accepted(samples.train_step().set_peak, Varied(0.1))
    yield accepted(MetricLog, Varied(10))
    yield accepted(MetricLog, keep=Varied(10))
    yield accepted(Checkpoints, Path("run"), keep=Varied(3))
    yield accepted(make_loader, range(10), Varied(4), num_workers=0)
    yield accepted(make_loader, range(10), Varied(4), num_workers=0, training=False)
    yield accepted(make_loader, range(10), 4, num_workers=0, seed=Varied(4))
    yield accepted(make_loader, range(10), 4, num_workers=Varied(1))
    yield accepted(prefetch, [], "cpu", depth=Varied(2))
    yield accepted(count_updates, Varied(10), 3)
    yield accepted(count_updates, 10, Varied(3))
    yield accepted(count_updates, 10, 3, accumulation=Varied(4))
