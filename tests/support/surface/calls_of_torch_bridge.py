"""Calls of `torch_bridge`, each with the type of its result or error, or with a value.

The values are those of defaults that a body computes; see `calls_of_plateau_jax`.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.surface import samples
from support.surface.outcomes import attribute_of, entry_of, noting, outcome, outcome_of
from support.surface.samples import CURVE, SCALED_CURVE, mean_loss
from support.surface.shown import with_shape
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from torch_bridge import (
    Checkpoints,
    DataClock,
    MetricLog,
    PlateauCurve,
    TrainStep,
    checkpoint_activations,
    count_updates,
    distribute,
    evaluate,
    find_batch_size,
    follow,
    is_main,
    lambda_lr,
    make_loader,
    multiplier,
    prefetch,
    profile,
    tensors,
)

BATCH = torch.ones(3, 2)


def calls_of_schedulers() -> Iterator[str]:
    optimizer = samples.optimizer()
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    yield outcome(lambda_lr, optimizer, CURVE)
    yield outcome(lambda_lr, optimizer, [CURVE, CURVE])
    yield outcome(lambda_lr, optimizer, 0.1)
    yield outcome(lambda_lr, optimizer, CURVE, clock="tokens")
    yield outcome(lambda_lr, optimizer, CURVE, last_epoch=0.5)
    yield noting("on a fresh optimizer", _with_last_epoch(samples.optimizer()))
    yield noting("on an optimizer with a state", _with_last_epoch(samples.stepped_optimizer()))
    yield outcome(lambda_lr, nn.Linear(1, 1), CURVE)
    yield attribute_of("unit", lambda_lr, samples.optimizer(), CURVE)
    yield attribute_of("unit", lambda_lr, samples.optimizer(), SCALED_CURVE)
    yield outcome(scheduler.step)
    yield outcome(scheduler.step, 10)
    yield outcome(scheduler.step, 0.5)
    yield outcome(scheduler.step, count=8)
    yield outcome(scheduler.step, metric=0.5)
    too_early = lambda_lr(samples.optimizer(), CURVE)
    yield noting("before the optimizer", outcome(too_early.step))
    yield outcome(scheduler.get_lr)
    yield outcome(scheduler.get_last_lr)
    yield outcome(scheduler.set_peak, 0.25)
    yield outcome(scheduler.set_peak, "0.25")
    yield outcome(scheduler.set_peak, [0.25, 0.25])
    yield from _loads_of_schedulers()
    yield from _calls_of_followers()


def _with_last_epoch(optimizer: torch.optim.Optimizer) -> str:
    return outcome(lambda_lr, optimizer, CURVE, last_epoch=0)


def _loads_of_schedulers() -> Iterator[str]:
    """A state of a different curve; `strict` by default is that of the constructor."""
    state = _after_ten_steps(CURVE).state_dict()
    different_curve = PlateauCurve(100)
    tolerant = lambda_lr(samples.optimizer(), different_curve, strict=False)
    scheduler = lambda_lr(samples.optimizer(), different_curve)
    yield outcome(scheduler.load_state_dict, {})
    yield noting("strict by default", outcome(scheduler.load_state_dict, state))
    yield outcome(scheduler.load_state_dict, state, strict=False)
    yield noting("not strict by default", outcome(tolerant.load_state_dict, state))
    yield outcome(tolerant.load_state_dict, state, strict=True)


def _after_ten_steps(curve: Any) -> lambda_lr:
    scheduler = lambda_lr(samples.optimizer(), curve)
    for _ in range(10):
        scheduler.optimizer.step()
        scheduler.step()
    return scheduler


def _calls_of_followers() -> Iterator[str]:
    follower = follow(samples.optimizer(), "momentum", CURVE)
    yield outcome(follow, samples.optimizer(), "momentum", CURVE)
    yield outcome(follow, samples.optimizer(), "lr", CURVE)
    yield outcome(follow, samples.optimizer(), "weight", CURVE)
    yield outcome(follow, samples.optimizer(), 1, CURVE)
    stepped = outcome(follower.step)
    yield noting(f"to step {follower.curve_step}", stepped)
    yield outcome(follower.step, 0.5)
    counting = follow(samples.optimizer(), "momentum", SCALED_CURVE)
    yield noting("of a scaled curve", outcome(counting.step))
    yield outcome(follower.set_base_value, 0.5)
    yield outcome(follower.set_base_value, "0.5")
    yield outcome(follower.load_state_dict, follower.state_dict())
    yield outcome(follower.load_state_dict, {})


def calls_of_steps() -> Iterator[str]:
    step = samples.train_step()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    counting = samples.train_step(clock=DataClock(8))
    raising = samples.train_step(on_nonfinite="raise")
    yield outcome(TrainStep, model, optimizer, mean_loss, CURVE)
    yield outcome(TrainStep, model, optimizer, 0, CURVE)
    yield outcome(TrainStep, model, optimizer, mean_loss, CURVE, precision="fp8")
    yield outcome(TrainStep, model, optimizer, mean_loss, CURVE, clock="tokens")
    yield outcome(step, BATCH)
    yield outcome(step, BATCH, BATCH)
    yield outcome(step, BATCH, count=8)
    yield noting("with a DataClock", outcome(counting, BATCH))
    yield noting("with a DataClock", outcome(counting, BATCH, count=8))
    yield noting("not finite", outcome(raising, BATCH / 0))
    yield outcome(step.set_peak, 0.25)
    yield outcome(step.set_peak, "0.25")
    yield outcome(step.load_state_dict, step.state_dict())
    yield outcome(step.load_state_dict, {})
    yield entry_of("applied", samples.train_step().state_dict)
    scaled: Any = samples.train_step(curve=SCALED_CURVE).state_dict()
    clock = scaled["records"][0]["clock"]
    yield f"torch_bridge.TrainStep of a scaled curve clock = {clock}"
    result: Any = step(BATCH)
    for name in (*result._fields, "applied", "skipped", "curve_step", "consumed"):
        yield f"StepResult.{name}: {with_shape(getattr(result, name))}"


def calls_of_loops() -> Iterator[str]:
    log = MetricLog(every=2)
    yield outcome(log.flush)
    yield noting("the first of two", outcome(log, samples.step_result()))
    yield noting("the second of two", outcome(log, samples.step_result()))
    yield outcome(log, 0.5)
    yield outcome(log.load_state_dict, {})
    yield outcome(evaluate, nn.Linear(2, 1), [BATCH], mean_loss)
    yield outcome(evaluate, nn.Linear(2, 1), [BATCH], named_losses)
    yield outcome(evaluate, nn.Linear(2, 1), [], mean_loss)
    yield outcome(evaluate, nn.Linear(2, 1), [BATCH], mean_loss, precision="fp8")
    yield outcome(count_updates, 10, 3, accumulation=4)
    yield outcome(count_updates, [0, 1], 3)
    yield outcome(count_updates, 0.5, 3)
    yield outcome(find_batch_size, samples.train_step, batch_of, 0.5)
    with tempfile.TemporaryDirectory() as directory:
        yield outcome(profile, mean_loss, [], Path(directory, "traces"))
    yield outcome(is_main)
    yield outcome(distribute, nn.Linear(2, 1), device="cpu")
    yield outcome(distribute, nn.Linear(2, 1), "zero")
    yield outcome(distribute, nn.Linear(2, 1), blocks=[0])
    yield outcome(checkpoint_activations, nn.Linear(2, 1), nn.Linear)
    yield outcome(checkpoint_activations, nn.Linear(2, 1), nn.Conv2d)
    yield outcome(checkpoint_activations, nn.Linear(2, 1), 0)
    yield outcome(tensors, CURVE.table)
    yield outcome(tensors, None)
    yield outcome(multiplier, tensors(CURVE.table), torch.arange(3))
    yield outcome(multiplier, tensors(CURVE.table), 0)
    yield f"torch_bridge.tensors device = {tensors(CURVE.table).begin.device}"


def named_losses(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    return {"loss": mean_loss(model, batch)}


def batch_of(samples: int) -> Tensor:
    return torch.ones(samples, 2)


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def calls_of_loaders() -> Iterator[str]:
    loader = make_loader(range(10), 4, num_workers=0)
    yield outcome(make_loader, range(10), 4, num_workers=0)
    yield outcome(make_loader, _Stream(), 4)
    yield outcome(make_loader, range(10), 4, sampler=[0])
    yield outcome(make_loader, range(10), 4, device="abacus")
    yield outcome(make_loader, range(2), 4)
    loads = "value of make_loader.load_state_dict"
    yield outcome_of(f"{loads}(its state)", loader.load_state_dict, loader.state_dict())
    yield outcome_of(f"{loads}({{}})", loader.load_state_dict, {})
    yield outcome(prefetch, loader, "cpu")
    yield outcome(prefetch, loader, "meta")
    yield outcome(prefetch, loader, "abacus")
    yield outcome(prefetch([], "cpu").state_dict)
    for training in (True, False):
        for name in ("shuffle", "drop_last"):
            made_with = make_loader(range(10), 4, training=training, num_workers=0).state_dict()
            chosen = made_with["made_with"][name]
            yield f"torch_bridge.make_loader(training={training}) {name} = {chosen}"
    for workers in (0, 1):
        yield attribute_of("persistent_workers", make_loader, range(10), 4, num_workers=workers)
    yield attribute_of("pin_memory", make_loader, range(10), 4, num_workers=0)
    for cores in (1, 4, 64):
        yield f"torch_bridge.make_loader on {cores} cores num_workers = {_workers_on(cores)}"


def _workers_on(cores: int) -> int:
    """Return the number of workers by default."""

    def usable_cores(process: int = 0) -> range:
        return range(cores)

    def count_cores() -> int:
        return cores

    with (
        patch.object(os, "sched_getaffinity", usable_cores, create=True),
        patch.object(os, "cpu_count", count_cores),
    ):
        return make_loader(range(10), 4).num_workers


def calls_of_checkpoints() -> Iterator[str]:
    model = nn.Linear(2, 1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(Path(directory, "run"))
        yield noting("no checkpoint", outcome(checkpoints.load, model=model))
        yield noting("no checkpoint", outcome(checkpoints.load_model, model))
        yield outcome(checkpoints.save, 10, model=model, wait=True)
        yield outcome(checkpoints.save, 20, model=model, wait=True)
        yield outcome(checkpoints.save, 0.5, model=model)
        yield outcome(checkpoints.save, 30)
        yield outcome(checkpoints.save, 30, model=None)
        yield outcome(checkpoints.steps)
        newest = checkpoints.load(model=model)
        yield noting(f"the step {newest}", outcome(checkpoints.load, model=model))
        yield outcome(checkpoints.load, 15, model=model)
        yield outcome(checkpoints.load, 0.5, model=model)
        yield outcome(checkpoints.load, optimizer=model)
        yield outcome(checkpoints.load, model={})
        newest = checkpoints.load_model(model, part="model")
        loaded = outcome(checkpoints.load_model, model, part="model")
        yield noting(f"the step {newest}", loaded)
        different_model = nn.Linear(3, 1)
        rejected = outcome(checkpoints.load_model, different_model, part="model")
        yield noting("of a different model", rejected)
        yield outcome(checkpoints.merge, [10, 20], [0.5, 0.5], into=model, part="model")
        yield outcome(checkpoints.merge, [10, 20], [0.5, 1.5], into=model, part="model")
        yield outcome(checkpoints.merge, 10, [1.0], into=model, part="model")
        yield noting("a checkpoint", outcome(Checkpoints, Path(directory, "run", "10")))
        damaged = Path(directory, "run", "20", "checkpoint.json")
        damaged.write_text("{}", encoding="utf-8")
        yield noting("a file", outcome(Checkpoints, damaged))
        yield noting("damaged", outcome(checkpoints.load, 20, model=model))
        yield noting("the newest damaged", outcome(checkpoints.load, model=model))
        checkpoints = Checkpoints(Path(directory, "of two parts"))
        checkpoints.save(10, model=model, progress={"epoch": 1})
        yield noting("of two parts", outcome(checkpoints.load, model=model))
        yield noting("of two parts", outcome(checkpoints.load, model=model, partial=True))
