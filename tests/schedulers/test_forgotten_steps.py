"""Schedulers and followers that are stepped never, once per epoch or in turns warn; right programs do not."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers import runs
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from plateau_jax import CurveWarning, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

CURVE = PlateauCurve(10_000, min_lr_ratio=0.1)
WARMUP = PlateauCurve(10_000, warmup_steps=100)


def _scheduler(optimizer: Optimizer) -> Any:
    return lambda_lr(optimizer, CURVE)


def _held(optimizer: Optimizer) -> Any:
    scheduler = lambda_lr(optimizer, CURVE, hold=HoldBelow(-1.0, 1))
    scheduler.step = partial(scheduler.step, 0.5)  # so that it is stepped like the others
    return scheduler


KINDS: dict[str, Any] = {
    "scheduler": _scheduler,
    "held": _held,
    "unit": lambda optimizer: lambda_lr(optimizer, CURVE, unit=8, count=lambda: 8),
    "tensor": lambda optimizer: lambda_lr(optimizer, [CURVE, PlateauCurve(100)]),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [lambda_lr(optimizer, CURVE), ConstantLR(optimizer)], [2000]
    ),
    "chained": lambda optimizer: ChainedScheduler([lambda_lr(optimizer, CURVE)], optimizer),
    "follower": lambda optimizer: follow(optimizer, "weight_decay", WARMUP),
    "momentum": lambda optimizer: follow(optimizer, "momentum", CURVE),
}
every_kind = pytest.mark.parametrize("name", KINDS)


def _optimizer(name: str) -> Optimizer:
    lr = torch.tensor(0.1) if name == "tensor" else 0.1
    return optimizer_with([lr, lr], weight_decay=0.5, momentum=0.5)


def _updates(optimizer: Optimizer, number: int) -> None:
    for _ in range(number):
        optimizer.step()


@every_kind
@pytest.mark.parametrize("loaded", [False, True])
def test_no_step_in_500_updates_warns(name: str, loaded: bool) -> None:
    optimizer = _optimizer(name)
    scheduler = KINDS[name](optimizer)
    if loaded:
        advance(optimizer, scheduler, 3)
        scheduler.load_state_dict(through_file(scheduler.state_dict()))
    _updates(optimizer, 499)
    word = "follower" if name in ("follower", "momentum") else "scheduler"
    with pytest.warns(
        CurveWarning, match=rf"^{word}\.step\(\) was not called in 500 optimizer steps"
    ) as caught:
        _updates(optimizer, 2000)
    assert [warning.filename for warning in caught] == [__file__]
    assert f'filterwarnings("ignore", "{word}.step")' in str(caught[0].message)


@every_kind
def test_step_per_epoch_warns_at_the_second(name: str) -> None:
    optimizer = _optimizer(name)
    scheduler = KINDS[name](optimizer)
    _updates(optimizer, 50)
    scheduler.step()
    _updates(optimizer, 50)
    with pytest.warns(
        CurveWarning, match=r"^(scheduler|follower)\.step\(\) came after 50 or more .* twice"
    ) as caught:
        scheduler.step()
    assert len(caught) == 1
    for _ in range(3):
        _updates(optimizer, 60)
        scheduler.step()


def test_follower_is_watched_next_to_a_scheduler() -> None:
    optimizer = _optimizer("follower")
    scheduler, follower = lambda_lr(optimizer, WARMUP), follow(optimizer, "weight_decay", WARMUP)
    advance(optimizer, scheduler, 499)
    with pytest.warns(CurveWarning, match="^follower.* so weight_decay keeps its first value") as caught:
        advance(optimizer, scheduler, 100)
    assert [warning.filename for warning in caught] == [runs.__file__]
    assert follower.last_epoch == 0


TURNS = r"^two schedulers .*lambda_lr\(optimizer, curve=\[\.\.\.\]\)$"


@pytest.mark.parametrize("chained", [False, True])
def test_two_curves_on_one_optimizer_warn_once(chained: bool) -> None:
    optimizer = optimizer_with([0.1, 0.2])
    pair: Any = [lambda_lr(optimizer, WARMUP), lambda_lr(optimizer, CURVE)]
    if chained:
        pair = [ChainedScheduler(pair, optimizer)]

    def update() -> None:
        optimizer.step()
        for scheduler in pair:
            scheduler.step()

    update()
    with pytest.warns(CurveWarning, match=TURNS) as caught:
        update()
    assert [warning.filename for warning in caught] == [__file__]
    for _ in range(50):
        update()


def test_turns_that_differ_in_frequency_warn() -> None:
    optimizer = optimizer_with([0.1, 0.2])
    first, second = lambda_lr(optimizer, CURVE), lambda_lr(optimizer, WARMUP)
    advance(optimizer, first, 30)
    second.step()
    with pytest.warns(CurveWarning, match=TURNS):
        advance(optimizer, first)
    advance(optimizer, first, 30)


# Right programs, with every warning an error.


def _phases(optimizer: Optimizer) -> None:
    """Each phase has a new scheduler; the old one is kept, and would decay further."""
    kept = []
    for curve in (CURVE, WARMUP, StagedCurve([(5, 1.0), (2000,), (10, 0.0)])):
        kept.append(lambda_lr(optimizer, curve))
        advance(optimizer, kept[-1], 700)


def _second_begins_when_the_first_ends(optimizer: Optimizer) -> None:
    first, second = lambda_lr(optimizer, StagedCurve([(50, 1.0)])), lambda_lr(optimizer, CURVE)
    for update in range(900):
        optimizer.step()
        first.step()  # at its end, it writes what the second one overwrites
        if update >= 50:
            second.step()


def _sequences(optimizer: Optimizer) -> None:
    schedulers = [lambda_lr(optimizer, WARMUP), lambda_lr(optimizer, CURVE), ExponentialLR(optimizer, 0.99)]
    advance(optimizer, SequentialLR(optimizer, schedulers, [600, 1200]), 1900)


def _another_scheduler_takes_over(optimizer: Optimizer) -> None:
    advance(optimizer, lambda_lr(optimizer, StagedCurve([(20, 1.0)])), 20)
    other = ReduceLROnPlateau(optimizer)
    for _ in range(1100):
        optimizer.step()
        other.step(1.0)


def _other_options(optimizer: Optimizer) -> None:
    followers = [follow(optimizer, "weight_decay", CURVE), follow(optimizer, "momentum", WARMUP)]
    scheduler = lambda_lr(optimizer, WARMUP)
    for _ in range(600):
        advance(optimizer, scheduler)
        for part in followers:
            part.step()
    again = [copy.deepcopy(part) for part in followers]
    for part, other in zip(followers, again, strict=True):
        part.load_state_dict(through_file(other.state_dict()))


def _range_tests(optimizer: Optimizer) -> None:
    for make in (lambda: lambda_lr(optimizer, CURVE), lambda: follow(optimizer, "weight_decay", CURVE)):
        part = make()
        key = "lr" if hasattr(part, "base_lrs") else "weight_decay"
        before = optimizer.param_groups[0][key]
        for update in range(1200):
            optimizer.param_groups[0][key] = 1e-6 * 1.01**update
            optimizer.step()
        optimizer.param_groups[0][key] = before
        advance(optimizer, part, 60)  # type: ignore[arg-type]


def _nothing_would_change(optimizer: Optimizer) -> None:
    """A constant curve, a plateau, the end of a curve, a value of 0, and a unit that is not full."""
    kept = [
        lambda_lr(optimizer, StagedCurve([(9000,)], start=1.0)),
        lambda_lr(optimizer, PlateauCurve(10_000, plateaus=[(0, 50)])),
        lambda_lr(optimizer, PlateauCurve(10), last_epoch=20),
    ]
    _updates(optimizer, 2000)
    still = optimizer_with([0.1], weight_decay=0.0)
    unfilled = lambda_lr(optimizer, CURVE, unit=10**6, count=lambda: 1)
    follower = follow(still, "weight_decay", CURVE)
    for _ in range(4):
        _updates(optimizer, 60)
        unfilled.step()
        _updates(still, 600)
        follower.step()
    del kept


def _held_for_long(optimizer: Optimizer) -> None:
    scheduler = lambda_lr(optimizer, CURVE, hold=HoldBelow(1.0, 9))
    for _ in range(9):
        _updates(optimizer, 60)
        scheduler.step(0.5)


def _chain_with_another(optimizer: Optimizer) -> None:
    scheduler = ChainedScheduler([lambda_lr(optimizer, CURVE), ConstantLR(optimizer, 0.5, 50)], optimizer)
    advance(optimizer, scheduler, 600)


def _comparison_of_plots(optimizer: Optimizer) -> None:
    used, plotted = lambda_lr(optimizer, CURVE), lambda_lr(optimizer, WARMUP)
    for _ in range(3):
        advance(optimizer, used, 5)
        before = lrs_of(optimizer)
        for _ in range(20):
            plotted.step()
        for group, lr in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = lr


def _epochs_on_purpose(optimizer: Optimizer) -> None:
    """The warning is turned off as the messages advise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scheduler.step")
        warnings.filterwarnings("ignore", "follower.step")
        scheduler, follower = lambda_lr(optimizer, PlateauCurve(5)), follow(optimizer, "weight_decay", CURVE)
        for _ in range(5):
            _updates(optimizer, 600)
            scheduler.step()
            follower.step()


def _unfrozen_group(optimizer: Optimizer) -> None:
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 50)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-3})
    advance(optimizer, scheduler, 600)
    advance(optimizer, CosineAnnealingLR(optimizer, 700), 600)


@pytest.mark.parametrize(
    "program",
    [
        _phases, _second_begins_when_the_first_ends, _sequences, _another_scheduler_takes_over,
        _other_options, _range_tests, _nothing_would_change, _held_for_long, _chain_with_another,
        _comparison_of_plots, _epochs_on_purpose, _unfrozen_group,
    ],
)  # fmt: skip
def test_right_programs_do_not_warn(program: Any) -> None:
    program(optimizer_with([0.1, 0.2], weight_decay=0.5, momentum=0.5))
