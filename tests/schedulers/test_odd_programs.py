"""Unusual programs: the wrong ones warn once, and the right ones are silent."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.schedulers.runs import advance
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, SequentialLR

from plateau_jax import CurveWarning, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

FLOOR = PlateauCurve(1000, min_lr_ratio=0.1)
WARMUP = PlateauCurve(1000, warmup_steps=100)


def _parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 0.1)
    return parameter


def _optimizer(lr: float = 0.1, *others: float, kind: Any = AdamW) -> Any:
    return kind([{"params": [_parameter()], "lr": one} for one in (lr, *others)], lr=lr)


def _updates(optimizer: Any, count: int) -> None:
    for _ in range(count):
        optimizer.step()


def _pretrained(*lrs: float, kind: Any = AdamW) -> Any:
    optimizer = _optimizer(*lrs, kind=kind)
    advance(optimizer, lambda_lr(optimizer, FLOOR), 30)
    return optimizer.state_dict()


def _loaded(lr: float = 1e-5) -> Any:
    optimizer = _optimizer(lr)
    optimizer.load_state_dict(_pretrained(0.01))
    return optimizer


def old_peak_in_second_part_of_sequence() -> None:
    optimizer = _loaded()
    schedulers: list[Any] = [ConstantLR(optimizer, 1.0, 10), lambda_lr(optimizer, FLOOR)]
    advance(optimizer, SequentialLR(optimizer, schedulers, [10]), 20)


def new_peak_in_first_part_only() -> None:
    optimizer = _loaded()
    schedulers: list[Any] = [lambda_lr(optimizer, FLOOR), lambda_lr(optimizer, FLOOR)]
    sequence = SequentialLR(optimizer, schedulers, [10])
    schedulers[0].set_peak(1e-5)
    advance(optimizer, sequence, 20)


def new_peak_in_both_parts() -> None:
    optimizer = _loaded()
    schedulers: list[Any] = [lambda_lr(optimizer, FLOOR), lambda_lr(optimizer, FLOOR)]
    sequence = SequentialLR(optimizer, schedulers, [10])
    for part in schedulers:
        part.set_peak(1e-5)
    advance(optimizer, sequence, 20)


def two_old_peaks() -> None:
    optimizer = _optimizer(1e-5, 1e-6, kind=SGD)
    optimizer.load_state_dict(_pretrained(0.01, 0.001, kind=SGD))
    advance(optimizer, lambda_lr(optimizer, FLOOR), 5)


def dropped_scheduler() -> None:
    optimizer = _optimizer()
    lambda_lr(optimizer, WARMUP)
    _updates(optimizer, 700)


def dropped_follower() -> None:
    optimizer = _optimizer()
    follow(optimizer, "weight_decay", FLOOR)
    _updates(optimizer, 700)


def once_per_epoch_on_a_plateau() -> None:
    optimizer = _optimizer()
    scheduler = lambda_lr(optimizer, PlateauCurve(5000, plateaus=[(0, 80)]))
    for _ in range(20):
        _updates(optimizer, 250)
        scheduler.step()


def follower_resumed_each_epoch() -> None:
    optimizer, state = _optimizer(), None
    for _ in range(3):
        follower = follow(optimizer, "weight_decay", FLOOR)
        if state is not None:
            follower.load_state_dict(state)
        for _ in range(3):
            _updates(optimizer, 60)
            follower.step()
        state = follower.state_dict()


def four_schedulers() -> None:
    optimizer = _optimizer()
    schedulers = [lambda_lr(optimizer, FLOOR) for _ in range(4)]
    for _ in range(10):
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()


def sequence_once_per_epoch() -> None:
    optimizer = _optimizer()
    schedulers: list[Any] = [lambda_lr(optimizer, FLOOR), lambda_lr(optimizer, FLOOR)]
    sequence = SequentialLR(optimizer, schedulers, [3])
    for _ in range(9):
        _updates(optimizer, 60)
        sequence.step()


def two_phases_built_at_once() -> None:
    optimizer = _optimizer()
    first = lambda_lr(optimizer, StagedCurve([(100, 1.0), (900,)]))
    second = lambda_lr(optimizer, FLOOR)
    advance(optimizer, first, 1000)
    advance(optimizer, second, 900)


def three_phases() -> None:
    optimizer = _optimizer()
    advance(optimizer, lambda_lr(optimizer, FLOOR), 60)
    advance(optimizer, CosineAnnealingLR(optimizer, 100), 60)
    advance(optimizer, lambda_lr(optimizer, FLOOR), 60)


def best_state_restored() -> None:
    optimizer = _optimizer()
    cosine = CosineAnnealingLR(optimizer, 100)
    advance(optimizer, cosine, 30)
    best = copy.deepcopy(optimizer.state_dict())
    advance(optimizer, cosine, 30)
    optimizer.load_state_dict(best)
    advance(optimizer, lambda_lr(optimizer, FLOOR), 50)


def sweep_over_peaks() -> None:
    optimizer = _optimizer()
    lambda_lr(optimizer, FLOOR)
    start = copy.deepcopy(optimizer.state_dict())
    for peak in (0.05, 0.02):
        optimizer.load_state_dict(start)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = peak
        advance(optimizer, lambda_lr(optimizer, FLOOR), 20)


WRONG = (
    old_peak_in_second_part_of_sequence, new_peak_in_first_part_only, two_old_peaks, dropped_scheduler,
    dropped_follower, once_per_epoch_on_a_plateau, follower_resumed_each_epoch, four_schedulers,
    sequence_once_per_epoch,
)  # fmt: skip
RIGHT = new_peak_in_both_parts, two_phases_built_at_once, three_phases, best_state_restored, sweep_over_peaks


@pytest.mark.parametrize("program", [*WRONG, *RIGHT])
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_only_wrong_programs_warn_and_once(program: Callable[[], None]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        program()
    assert len([one for one in caught if one.category is CurveWarning]) == (program in WRONG)
