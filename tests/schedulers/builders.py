"""Curves and schedulers for the tests of this folder."""

from functools import partial
from typing import Any

import pytest
from support.schedulers.runs import advance, optimizer_with
from support.training.steps import through_file
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, SequentialLR

from plateau_jax import Curve, DataClock, PlateauCurve
from torch_bridge import lambda_lr

LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
SHORT = PlateauCurve(10)
FLOOR = PlateauCurve(10, min_lr_ratio=0.1)
MOMENTUM: Any = partial(SGD, momentum=0.9)


def states_after_20_updates(optimizer_class: Any, curve: Curve = LONG) -> Any:
    """Return the states of an optimizer and its scheduler, from a run with a different peak."""
    optimizer = optimizer_with([0.01, 0.01], optimizer_class)
    scheduler = lambda_lr(optimizer, curve)
    advance(optimizer, scheduler, 20)
    return through_file([optimizer.state_dict(), scheduler.state_dict()])


# Functions that build a scheduler, alone or inside torch's.


def counting(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, curve, clock=DataClock(8, count=8))


def chained(optimizer: Any, curve: Any) -> Any:
    first = lambda_lr(optimizer, curve)
    second = ConstantLR(optimizer, factor=1.0)
    return ChainedScheduler([first, second], optimizer)


def first_in_sequence(optimizer: Any, curve: Any) -> Any:
    first = lambda_lr(optimizer, curve)
    second = ConstantLR(optimizer, factor=1.0)
    return SequentialLR(optimizer, [first, second], [3000])


BUILDERS = [lambda_lr, counting, chained, first_in_sequence]
every_builder = pytest.mark.parametrize("build", BUILDERS)
