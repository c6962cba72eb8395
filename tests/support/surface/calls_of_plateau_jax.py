"""Calls of `plateau_jax`, each with the type of its result or error, or with a value.

The values are those of defaults that a body computes. The errors are those of mistakes that users
make, at least one of each type that a docstring names; `ranges` has the numbers out of range.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from support.surface.outcomes import attribute_of, entry_of, noting, outcome, outcome_of
from support.surface.samples import CLOCK, CURVE, PLAN, SCALED_CURVE, UNTIL_FLAT
from support.surface.shown import with_shape

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveScheduler,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    LossRun,
    PlateauCurve,
    StagedCurve,
    check_resume,
    check_resume_file,
    compare,
    compare_log,
    find_curve,
    fit_losses,
    multiplier,
    optax_schedule,
    resume_record,
    scale_by_curve,
    stack,
)


def calls_of_curves() -> Iterator[str]:
    yield outcome(CURVE, 10)
    yield outcome(CURVE, np.int64(10))
    yield outcome(CURVE, [10, 20])
    yield outcome(CURVE, np.arange(3))
    yield outcome(CURVE, np.array(10))
    yield outcome(CURVE, 10.0)
    yield outcome(CURVE, jnp.int32(10))
    yield outcome(CURVE.learning_rate, 10, 0.1)
    yield outcome(CURVE.learning_rate, [10, 20], 0.1)
    yield outcome(CURVE.learning_rate, 10, 0)
    yield outcome(CURVE.learning_rate, 10, "0.1")
    yield outcome(CURVE.cooldown, 50, 10)
    yield outcome(CURVE.cooldown, 50, 0.5)
    yield outcome(CURVE.cooldown, 50, 10, shape="square")
    yield outcome(CURVE.then, CURVE)
    yield outcome(CURVE.then, {"total_steps": 10})
    yield outcome(CURVE.then, 10)
    yield outcome(CURVE.part, 10)
    yield outcome(CURVE.part, 0.5)
    yield outcome(CURVE.merge_weights, [30, 60, 90])
    yield outcome(CURVE.merge_weights, [0.5, 1.5])
    yield outcome(CURVE.merge_weights, [60, 90, 120], mean_of=30)
    yield outcome(CURVE.merge_weights, [60, 100], mean_of=[30, 40])
    yield outcome(CURVE.merge_weights, [100], mean_of="70")
    yield outcome(CURVE.same_until, CURVE, 10)
    yield outcome(CURVE.same_until, CURVE, 0.5)
    yield outcome(CURVE.first_difference, CURVE)
    yield noting("of its part", outcome(CURVE.first_difference, CURVE.part(0, 50)))
    yield outcome(CURVE.first_difference, None)
    yield outcome(CURVE.describe)
    yield outcome(CURVE.to_dict)
    yield outcome(CURVE.to_source)
    yield outcome(CURVE.to_source, 0.1)
    yield outcome(CURVE.to_source, "0.1")
    yield outcome(Curve.from_dict, {"total_steps": 10})
    yield outcome(Curve.from_dict, {"stages": [[10, 1.0]]})
    yield outcome(Curve.from_dict, {})
    yield outcome(Curve.from_dict, {"total_steps": 10, "peak": 0.1})
    yield outcome(Curve.from_dict, [])
    yield outcome(PlateauCurve, 100)
    yield outcome(PlateauCurve, 1e2)
    yield outcome(PlateauCurve, 100, plateaus=[50, 10])
    yield outcome(PlateauCurve, 100, plateaus=[(0.5, 0.1)])
    yield outcome(PlateauCurve, 100, min_lr_ratio=1e-5)
    yield outcome(PlateauCurve, "1.5k")
    yield outcome(PlateauCurve, "1.2345k")
    yield outcome(PlateauCurve, "10K")
    yield outcome(StagedCurve, [(10, 1.0), (20,)])
    yield outcome(StagedCurve, [("10k", 1.0)])
    yield outcome(StagedCurve, [(10, 1e-4)])
    yield outcome(StagedCurve, [("rest", 1.0)])
    yield outcome(StagedCurve, [("rest", 1.0)], total_steps=10)
    yield outcome(StagedCurve, 10)
    yield outcome(StagedCurve.wsd, 100, warmup_steps="2%", decay_steps="20%")
    yield outcome(StagedCurve.wsd, 100, warmup_steps=60, decay_steps=60)
    yield outcome(StagedCurve.wsd, 100, warmup_steps=0.02, decay_steps=60)
    yield outcome(StagedCurve.through, [(0, 0.0), (10, 1.0)])
    yield outcome(StagedCurve.through, [0, 1])
    yield outcome(stack, [CURVE, CURVE])
    yield outcome(stack, [])
    yield outcome(stack, CURVE)
    yield outcome(compare, CURVE, CURVE.part(0, 50))
    yield outcome(compare)
    yield outcome(compare, 10)
    yield entry_of("stop", CURVE.part(10).to_dict)
    yield f"plateau_jax.Curve.table.begin: {with_shape(CURVE.table.begin)}"
    yield f"plateau_jax.stack(…).begin: {with_shape(stack([CURVE, CURVE]).begin)}"
    yield attribute_of("pairs", HoldBelow, 0.5, 3)
    yield attribute_of("stages", StagedCurve, [(10,), (20, 0.5)], start=1.0)
    yield attribute_of("segments", StagedCurve, [(10,), (20, 0.5)], start=1.0)


def calls_of_runs() -> Iterator[str]:
    yield outcome(PLAN, 0)
    yield outcome(PLAN, 0.5)
    yield outcome(PLAN.updates, 100)
    yield outcome(PLAN.consumed, 100)
    yield outcome(PLAN.micro_batches, 0, 4)
    yield outcome(PLAN.micro_batches, 0, 3)
    yield outcome(PLAN.check, 4)
    yield outcome(PLAN.check, 3)
    yield outcome(PLAN.check, 0.5)
    yield outcome(PLAN.scale, CURVE, 8, reference=16)
    yield outcome(PLAN.scale, CURVE, 3, reference=16)
    yield outcome(PLAN.scale, CURVE, 8, reference=0.5)
    yield outcome(BatchPlan.seesaw, CURVE, 8, unit=8, largest=32)
    yield outcome(BatchPlan.seesaw, CURVE, 8, unit=8, largest=4)
    yield outcome(BatchPlan, [])
    yield outcome(BatchPlan, [8])
    yield outcome(BatchPlan.from_dict, {"pairs": [[0, 8]]})
    yield outcome(BatchPlan.from_dict, {"pair": [[0, 8]]})
    yield outcome(BatchPlan, [(0, "4k"), ("2B", "1M")])
    yield outcome(DataClock, 0.5)
    yield outcome(DataClock, "64k", "0.5M")
    yield outcome(HoldUntilFlat, 3.0, limit=9)
    yield outcome(HoldBelow, [(0.5, 3), (0.6, 3)])
    yield outcome(HoldBelow, "0.5", 3)
    yield from _calls_of_schedulers()
    yield from _calls_of_records()


def _calls_of_schedulers() -> Iterator[str]:
    scheduler = CurveScheduler(CURVE, 0.1)
    yield outcome(CurveScheduler, CURVE, 0.1)
    yield outcome(CurveScheduler, CURVE, "0.1")
    yield attribute_of("lr", CurveScheduler, CURVE, 0.1)
    yield outcome(scheduler.step)
    yield outcome(scheduler.step, count=8)
    counting = CurveScheduler(CURVE, 0.1, clock=DataClock(8))
    yield noting("with a DataClock", outcome(counting.step))
    yield noting("with a DataClock", outcome(counting.step, count=8))
    yield outcome(scheduler.load_state_dict, scheduler.state_dict())
    yield outcome(scheduler.load_state_dict, {})


def _calls_of_records() -> Iterator[str]:
    record = resume_record(CURVE, 0.1)
    different = resume_record(CURVE, 0.2)
    yield outcome(resume_record, CURVE, 0.1)
    yield outcome(resume_record, None)
    yield outcome(resume_record, CURVE, 0.1, "tokens")
    yield outcome(check_resume, record, record, 10)
    yield noting("a different peak", outcome(check_resume, record, different, 10))
    tolerated = outcome(check_resume, record, different, 10, strict=False)
    yield noting("a different peak", tolerated)
    yield outcome(check_resume, None, record, 10)
    yield outcome(check_resume, record, record, 0.5)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "curve.json")
        yield outcome(check_resume_file, path, record, 0)
        yield noting("a different peak", outcome(check_resume_file, path, different, 10))
        yield outcome(check_resume_file, path, record, 0.5)
        yield outcome(check_resume_file, "gs://bucket/curve.json", record, 0)
    yield entry_of("clock", resume_record, SCALED_CURVE)


def calls_of_logs() -> Iterator[str]:
    """Logged learning rates, against a curve and without one."""
    rows = [{"step": 0, "lr": 0.1}, {"step": 50, "lr": "5.00e-02"}]
    curve = PlateauCurve(100)
    yield outcome(compare_log, rows, curve, 0.1)
    yield outcome(compare_log, rows, curve, 0.2, groups=[(curve, 0.1)])
    yield outcome(compare_log, rows, curve, 0)
    yield outcome(compare_log, rows, 100, 0.1)
    yield outcome(compare_log, [{"step": 1, "rate": 0.1}], curve, 0.1)
    yield outcome(compare_log, [{"step": 1, "lr": -0.1}], curve, 0.1)
    yield outcome(compare_log, Path("missing.csv"), curve, 0.1)
    yield outcome(find_curve, rows)
    yield outcome(find_curve, [{"step": 1, "rate": 0.1}])
    yield outcome(find_curve, 10)


def calls_of_losses() -> Iterator[str]:
    """The law of the loss, and its forecasts."""
    curve = PlateauCurve(100)
    steps = np.arange(10, 101, 3)
    run = LossRun(curve, 0.1, steps, 2.5 + 2 * steps**-0.5)
    fit = fit_losses(run)
    yield outcome(LossRun, curve, 0.1, [50, 100], [3.0, 2.5])
    yield outcome(LossRun, curve, 0.1, [100, 50], [3.0, 2.5])
    yield outcome(LossRun, curve, 0.1, [50, 100], [300.0, 250.0])
    yield outcome(LossRun, curve, "0.1", [50], [3.0])
    for step in ("step", "global_step", "train/global_step", "trainer/global_step"):
        yield outcome(LossRun.read, [{step: 50, "loss": 3.0}], curve, 0.1)
    for step in ("iter", "_step", "applied", "epoch"):
        yield outcome(LossRun.read, [{step: 50, "loss": 3.0}], curve, 0.1)
    for loss in ("train_loss", "train/loss", "val_loss"):
        yield outcome(LossRun.read, [{"step": 50, loss: 3.0}], curve, 0.1)
    for lr in ("lr", "learning_rate", "train/lr", "train/learning_rate", "rate"):
        rows = [{"step": step, "loss": 3.0, lr: 0.05} for step in (50, 51)]
        yield outcome(LossRun.read, rows, curve)
    yield outcome(LossRun.read, Path("missing.csv"))
    yield outcome(LossRun.read, 10)
    yield outcome(fit_losses, run)
    yield outcome(fit_losses, [])
    yield outcome(fit_losses, [curve])
    yield outcome(fit.predict, curve)
    yield outcome(fit.predict, 100)
    yield noting("too short", outcome(fit.predict, PlateauCurve(5)))
    yield outcome(fit.losses, curve, [50, 100])
    yield outcome(fit.losses, curve, [0])
    yield outcome(fit.compare, {"cosine": curve})
    yield outcome(fit.compare, {})
    yield outcome(fit.compare, curve)
    peak_is_that_of_the_runs = fit.predict(curve) == fit.predict(curve, 0.1)
    yield f"plateau_jax.LossFit.predict peak_value is that of the runs: {peak_is_that_of_the_runs}"


def calls_of_schedules() -> Iterator[str]:
    """Of functions of the step, in JAX."""
    schedule = optax_schedule(CURVE, 0.1)
    every_k = PLAN.every_k_schedule(4)
    yield outcome(multiplier, CURVE.table, 10)
    yield outcome(multiplier, CURVE.table, jnp.arange(3))
    yield outcome(multiplier, CURVE.table, 0.5)
    yield noting("from stack", outcome(multiplier, stack([CURVE, CURVE]), 10))
    yield outcome(optax_schedule, SCALED_CURVE, 0.1)
    yield outcome(optax_schedule, CURVE, "0.1")
    yield outcome(optax_schedule, None, 0.1)
    yield outcome_of("optax_schedule(…)(10)", schedule, 10)
    yield outcome_of("optax_schedule(…)([10, 20])", schedule, np.array([10, 20]))
    yield outcome_of("optax_schedule(…)(0.5)", schedule, 0.5)
    yield outcome(PLAN.every_k_schedule, 3)
    yield outcome_of("every_k_schedule(…)(10)", every_k, 10)
    yield outcome_of("every_k_schedule(…)(jax.Array)", every_k, jnp.int32(10))
    yield outcome_of("every_k_schedule(…)(0.5)", every_k, 0.5)


def calls_of_transformations() -> Iterator[str]:
    """Of `scale_by_curve`, and of the functions that it returns."""
    updates = jnp.ones(2)
    counted: Any = scale_by_curve(CURVE, 0.1, CLOCK)
    uncounted: Any = scale_by_curve(CURVE, 0.1, DataClock(8))
    held: Any = scale_by_curve(CURVE, 0.1, UNTIL_FLAT)
    state = counted.init(updates)
    init = "scale_by_curve(…).init(updates)"
    update = "scale_by_curve(…).update(updates, state)"
    yield outcome(scale_by_curve, CURVE, 0.1)
    yield outcome(scale_by_curve, SCALED_CURVE, 0.1)
    yield outcome(scale_by_curve, SCALED_CURVE, 0.1, DataClock(16))
    yield outcome(scale_by_curve, CURVE, 0.1, "tokens")
    yield outcome_of(init, counted.init, updates)
    yield outcome_of(update, counted.update, updates, state)
    yield noting("without a count", outcome_of(update, uncounted.update, updates, state))
    yield noting("of a different clock", outcome_of(update, held.update, updates, state))
