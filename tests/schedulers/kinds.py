"""Curves and kinds of schedulers for the tests of warnings."""

from functools import partial
from typing import Any

import pytest
from schedulers.torch_run import TorchRun
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, SequentialLR

from plateau_jax import DataClock, HoldBelow, PlateauCurve
from torch_bridge import lambda_lr

LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
WARMUP = PlateauCurve(10_000, warmup_steps=100)
CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
SHORT = PlateauCurve(10)
FLOOR = PlateauCurve(10, min_lr_ratio=0.1)
MOMENTUM: Any = partial(SGD, momentum=0.9)


def states_after_20_updates(kind: Any) -> Any:
    """Return the states of an earlier run with a different peak."""
    run = TorchRun(kind, lr=0.01)
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(20)
    return run.save()


# The kinds of schedulers.


def with_arguments(scheduler: Any, **arguments: Any) -> Any:
    """Let a scheduler be stepped like all others, without its metric or count."""
    scheduler.step = partial(scheduler.step, **arguments)
    return scheduler


def sequence(optimizer: Any, *schedulers: Any, at: int) -> Any:
    return SequentialLR(optimizer, list(schedulers), [at])


def constant(optimizer: Any) -> Any:
    return ConstantLR(optimizer, factor=1.0, total_iters=10)


def held(optimizer: Any, curve: Any) -> Any:
    never_holds = HoldBelow(-1.0, 1)
    scheduler = lambda_lr(optimizer, curve, clock=never_holds)
    return with_arguments(scheduler, metric=0.5)


def counting(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, curve, clock=DataClock(8, count=8))


def curve_per_group(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, [curve, curve])


def chained(optimizer: Any, curve: Any) -> Any:
    first = lambda_lr(optimizer, curve)
    second = constant(optimizer)
    return ChainedScheduler([first, second], optimizer)


def first_in_sequence(optimizer: Any, curve: Any) -> Any:
    first = lambda_lr(optimizer, curve)
    second = constant(optimizer)
    return sequence(optimizer, first, second, at=3000)


KINDS = [lambda_lr, held, counting, curve_per_group, chained, first_in_sequence]
every_kind = pytest.mark.parametrize("build", KINDS)
