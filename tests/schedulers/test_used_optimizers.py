"""A new scheduler on an optimizer that was used before warns if its peak is not the one that is meant."""

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers import runs
from support.schedulers.runs import advance
from support.training.trees import through_file
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from plateau_jax import CurveWarning, PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(1000, warmup_steps=10, min_lr_ratio=0.1)
LATER = PlateauCurve(2000, plateaus=[(50, 20)], min_lr_ratio=0.1)
OLD, NEW = 1e-2, 1e-5

OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "momentum": partial(SGD, momentum=0.9), "adamw": AdamW}
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)


def _optimizer(kind: Any, lr: Any) -> Optimizer:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 0.5)
    return kind([parameter], lr=lr)


def _ours(optimizer: Any) -> Any:
    return lambda_lr(optimizer, CURVE)


TORCHS: dict[str, Any] = {
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 50),
    "linear": lambda optimizer: LinearLR(optimizer, 0.1, total_iters=90),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: (step + 1) / 90),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, 100, cycle_momentum=False),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, 50)], [5]
    ),
    "chain": lambda optimizer: ChainedScheduler([LinearLR(optimizer), ExponentialLR(optimizer, 0.9)]),
}
FIRST: dict[str, Any] = {"ours": _ours, "dropped": _ours, **TORCHS}


def _set_lr(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _saved(kind: Any) -> list[Any]:
    optimizer = _optimizer(kind, OLD)
    scheduler = _ours(optimizer)
    advance(optimizer, scheduler, 20)
    return through_file([optimizer.state_dict(), scheduler.state_dict()])


def _one_warning(optimizer: Any, scheduler: Any, message: str) -> str:
    with pytest.warns(CurveWarning, match=message) as caught:
        advance(optimizer, scheduler, 30)
    assert [warning.filename for warning in caught] == [runs.__file__]
    return str(caught[0].message)


@every_optimizer
@pytest.mark.parametrize("form", [float, torch.tensor])
@pytest.mark.parametrize("name", FIRST)
def test_overwritten_lr_warns(kind: Any, form: Any, name: str) -> None:
    optimizer = _optimizer(kind, form(OLD))
    first = FIRST[name](optimizer)
    advance(optimizer, first, 20)
    if name == "dropped":
        del first
    _set_lr(optimizer, 1e-4)
    scheduler = lambda_lr(optimizer, LATER)
    peak = 0.004 if name == "one cycle" else OLD
    message = rf"^param_groups\[0\] has initial_lr = {peak} .* its lr = 0\.0001; the curve's peak is {peak}\."
    text = _one_warning(optimizer, scheduler, message)
    assert f"scheduler.set_peak(0.0001), or scheduler.set_peak({peak}) for the old one" in text


@every_optimizer
@pytest.mark.parametrize("order", ["lb", "bl"])
def test_loaded_optimizer_of_another_peak_warns(kind: Any, order: str) -> None:
    optimizer = _optimizer(kind, NEW)
    scheduler: Any = None
    for event in order:
        if event == "b":
            scheduler = lambda_lr(optimizer, LATER)
        else:
            optimizer.load_state_dict(_saved(kind)[0])
    peak = OLD if order == "lb" else NEW
    text = _one_warning(
        optimizer, scheduler, rf"initial_lr = 0\.01 .* lr = 1e-05; the curve's peak is {peak}\."
    )
    assert "scheduler.set_peak(1e-05)" in text
    assert "scheduler.load_state_dict(state)" in text
    assert ("pass last_epoch=19." in text) is (kind is AdamW)


@every_optimizer
@pytest.mark.parametrize("order", ["lb", "bl"])
@pytest.mark.parametrize("advice", ["new", "old", "state", "last_epoch", "groups"])
def test_advice_works_and_is_silent(kind: Any, order: str, advice: str) -> None:
    optimizer, saved = _optimizer(kind, NEW), _saved(kind)
    last_epoch = 19 if advice == "last_epoch" else -1
    if order == "bl" and advice in ("last_epoch", "groups"):
        pytest.skip("for a scheduler that is built last")
    if order == "lb":
        optimizer.load_state_dict(saved[0])
    if advice == "groups":
        if kind is OPTIMIZERS["momentum"]:
            pytest.skip("its state does not say how many updates there were")
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = NEW
    scheduler = lambda_lr(optimizer, CURVE, last_epoch)
    if order == "bl":
        optimizer.load_state_dict(saved[0])
    if advice in ("new", "old"):
        scheduler.set_peak(OLD if advice == "old" else NEW)
    elif advice == "state":
        scheduler.load_state_dict(saved[1])
    advance(optimizer, scheduler, 5)
    peak, step = (OLD, 25) if advice in ("state", "last_epoch") else (OLD if advice == "old" else NEW, 5)
    assert scheduler.get_last_lr() == pytest.approx([peak * CURVE(step)])


# Right programs, with every warning an error.


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("form", [float, torch.tensor])
@pytest.mark.parametrize("name", FIRST)
def test_two_phases_do_not_warn(name: str, form: Any, kept: bool) -> None:
    optimizer = _optimizer(AdamW, form(OLD))
    schedulers = []
    for build in (FIRST[name], _ours, FIRST[name], _ours) if kept else (FIRST[name], _ours):
        schedulers.append(build(optimizer))
        advance(optimizer, schedulers[-1], 20)
        if not kept:
            schedulers.clear()


@pytest.mark.parametrize("way", ["initial_lr", "no initial_lr", "set_peak"])
def test_new_lr_that_is_said_does_not_warn(way: str) -> None:
    optimizer = _optimizer(AdamW, OLD)
    advance(optimizer, _ours(optimizer), 20)
    _set_lr(optimizer, 1e-4)
    for group in optimizer.param_groups:
        if way == "initial_lr":
            group["initial_lr"] = group["lr"]
        elif way == "no initial_lr":
            del group["initial_lr"]
    scheduler = lambda_lr(optimizer, LATER)
    if way == "set_peak":
        scheduler.set_peak(1e-4)
    advance(optimizer, scheduler, 9)
    assert scheduler.get_last_lr() == pytest.approx([1e-4 * LATER(9)])


def _restored_best(optimizer: Any) -> None:
    """The best state comes back, with the learning rate of its time, and a second phase begins."""
    scheduler = _ours(optimizer)
    advance(optimizer, scheduler, 20)
    scheduler.set_peak(0.5)
    advance(optimizer, scheduler, 20)
    best = through_file(optimizer.state_dict())
    advance(optimizer, scheduler, 20)
    optimizer.load_state_dict(best)
    advance(optimizer, lambda_lr(optimizer, LATER), 20)
    scheduler = _ours(optimizer)
    optimizer.load_state_dict(best)
    advance(optimizer, scheduler, 20)


def _range_test(optimizer: Any) -> None:
    before = through_file(optimizer.state_dict())
    test = ExponentialLR(optimizer, 1.1)
    advance(optimizer, test, 30)
    optimizer.load_state_dict(before)
    advance(optimizer, _ours(optimizer), 20)


def _sweep(optimizer: Any) -> None:
    before = through_file(optimizer.state_dict())
    for lr in (1e-4, 1e-3, 1e-2):
        optimizer.load_state_dict(before)
        _set_lr(optimizer, lr)
        advance(optimizer, _ours(optimizer), 20)


def _without_a_scheduler_first(optimizer: Any) -> None:
    """Updates at a constant learning rate, or under a scheduler that torch's optimizers don't notice."""
    for _ in range(20):
        optimizer.step()
    advance(optimizer, _ours(optimizer), 20)
    other = _optimizer(AdamW, OLD)
    plateau = ReduceLROnPlateau(other, patience=2)
    for _ in range(20):
        other.step()
        plateau.step(1.0)
    advance(other, _ours(other), 20)


def _initial_lr_by_hand(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 0.5
    advance(optimizer, _ours(optimizer), 20)


def _layerwise_groups(optimizer: Any) -> None:
    """Groups with learning rates of their own, resumed in every order."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr} for lr in (0.1, 0.01)]
    first = SGD(groups)
    scheduler = _ours(first)
    advance(first, scheduler, 20)
    saved = through_file([first.state_dict(), scheduler.state_dict()])
    for order in ("lbs", "bls", "bsl"):
        other, scheduler = SGD([group | {} for group in groups]), None
        for event in order:
            if event == "b":
                scheduler = _ours(other)
            else:
                (other if event == "l" else scheduler).load_state_dict(saved["ls".index(event)])
        advance(other, scheduler, 20)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "program",
    [
        _restored_best, _range_test, _sweep, _without_a_scheduler_first, _initial_lr_by_hand,
        _layerwise_groups,
    ],
)  # fmt: skip
def test_right_programs_do_not_warn(program: Any) -> None:
    program(_optimizer(AdamW, OLD))


@pytest.mark.slow
def test_accelerates_wrappers_do_not_warn() -> None:
    from accelerate import Accelerator

    inner = _optimizer(AdamW, OLD)
    wrapped: Any = Accelerator(cpu=True).prepare(inner)
    for target in (wrapped, wrapped, inner, wrapped):
        advance(wrapped, _ours(target), 20)
    _set_lr(wrapped, 1e-4)
    with pytest.warns(CurveWarning, match=r"its lr = 0\.0001"):
        advance(wrapped, _ours(inner), 20)


def test_loads_are_seen_in_the_order_of_keys() -> None:
    """As torch writes them: the constructor begins with the parameters, and a load ends with them."""
    from torch_bridge.schedulers.earlier_run import was_loaded

    for groups in (
        [torch.nn.Parameter(torch.ones(2))],
        [{"lr": 0.1, "params": [torch.nn.Parameter(torch.ones(2))]}],
    ):
        optimizer = AdamW(groups)  # type: ignore[arg-type]
        assert not was_loaded(optimizer)
        optimizer.load_state_dict(through_file(optimizer.state_dict()))
        assert was_loaded(optimizer)


def test_filter_of_the_lacking_state_hides_no_stale_peak() -> None:
    optimizer = _optimizer(AdamW, NEW)
    optimizer.load_state_dict(_saved(AdamW)[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the optimizer has made")
        _one_warning(optimizer, lambda_lr(optimizer, LATER), "initial_lr = 0.01")
