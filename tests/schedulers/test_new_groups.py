"""Groups added in mid-run, peaks changed in mid-run, and peaks read at the start."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.schedulers.driven import Driven
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim.lr_scheduler import ConstantLR, SequentialLR

from plateau_jax import PlateauCurve
from torch_bridge import follow, get_cosine_plateau_schedule_with_warmup, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def _add(optimizer: torch.optim.Optimizer, **options: Any) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], **options})


def test_new_group_with_shared_tensor_has_its_peak() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 5)
    _add(optimizer)  # torch gives it the default learning rate, the tensor that the scheduler fills
    advance(optimizer, scheduler)
    assert scheduler.base_lrs == [0.5, 0.5]
    assert lrs_of(optimizer) == [float(np.float32(0.5 * CURVE(6)))] * 2


@examples(20)
@given(st.lists(st.sampled_from(("update", "resume", "add")), max_size=12))
def test_new_groups_begin_with_tensors_of_defaults(moves: list[str]) -> None:
    """Neither the scheduler nor a follower changes them, before a resume or after it."""

    def start(groups: int) -> tuple[torch.optim.Optimizer, list[Any]]:
        parameters = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(groups)]
        options: Any = {"betas": (torch.tensor(0.75), torch.tensor(0.875)), "foreach": False}
        optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.5), **options)
        drivers = [lambda_lr(optimizer, CURVE), *(follow(optimizer, ("betas", i), CURVE) for i in (0, 1))]
        return optimizer, drivers

    groups, (optimizer, drivers) = 1, start(1)
    for move in moves:
        if move == "add":
            groups += 1
            _add(optimizer)
        elif move == "resume":
            saved = through_file([optimizer.state_dict(), *(driver.state_dict() for driver in drivers)])
            optimizer, drivers = start(groups)
            for part, state in zip([optimizer, *drivers], saved, strict=True):
                part.load_state_dict(state)
        else:
            optimizer.step()
            for driver in drivers:
                driver.step()
        assert [driver.state_dict() for driver in drivers]  # admits the new groups
    assert drivers[0].base_lrs == [0.5] * groups
    assert [driver.base_values for driver in drivers[1:]] == [[0.75] * groups, [0.875] * groups]
    assert [optimizer.defaults["lr"].item(), *map(float, optimizer.defaults["betas"])] == [0.5, 0.75, 0.875]


@pytest.mark.parametrize("kind", ["scheduler", "held", "follower"])
def test_new_group_needs_one_curve_for_all(kind: str) -> None:
    hold = PATIENT if kind == "held" else None
    run = Driven("follower" if kind == "follower" else "scheduler", [HELD_CURVE], [0.5], hold=hold)
    run.advance(4)
    _add(run.optimizer, lr=0.1, weight_decay=0.1)
    state = run.part.state_dict()
    calls = [run.step, lambda: run.part.load_state_dict(state)]
    if kind != "follower":
        calls.append(lambda: run.part.set_peak(0.2))
    for call in calls:
        run.rejects(ValueError, r"2 parameter groups; it had 1 .*follows a curve that was given", call)


def test_new_group_with_wrong_lr_changes_nothing() -> None:
    run = Driven("scheduler", CURVE)
    run.advance(1)
    state = run.shown()
    _add(run.optimizer, lr=0.1)
    run.optimizer.param_groups[-1]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"param_groups\[2\] = -1.0"):
        run.step()
    del run.optimizer.param_groups[-1]
    assert run.shown() == state
    del run.optimizer.param_groups[-1]
    with pytest.raises(ValueError, match="1 parameter groups; it had 2"):
        run.step()
    assert run.part.last_epoch == 1


def test_set_peak_separates_shared_tensors() -> None:
    parameters = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=torch.tensor(0.5))
    scheduler = lambda_lr(optimizer, PlateauCurve(100))
    scheduler.set_peak([0.5, 0.25])
    assert lrs_of(optimizer) == [0.5, 0.25]


def test_set_peak_before_its_turn_writes_no_lr() -> None:
    optimizer = optimizer_with([0.5])
    schedulers = [ConstantLR(optimizer, 0.5, total_iters=100), lambda_lr(optimizer, CURVE)]
    scheduler = SequentialLR(optimizer, schedulers, [5])
    schedulers[1].set_peak(0.125)
    assert lrs_of(optimizer) == [0.25]
    advance(optimizer, scheduler, 10)
    assert lrs_of(optimizer) == [0.125 * CURVE(5)]


_WRONG: list[Any] = [
    (-0.1, ValueError), (float("nan"), ValueError), ("0.1", TypeError), (None, TypeError), (True, TypeError),
    ([0.1], ValueError), ([0.1, 0.2, 0.3], ValueError), ([0.1, -1.0], ValueError), ([0.1, None], TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("peak", "error"), _WRONG, ids=str)
def test_wrong_peak_changes_nothing(peak: Any, error: type[Exception]) -> None:
    run = Driven("scheduler", CURVE)
    run.advance(3)
    run.rejects(error, "peak", lambda: run.part.set_peak(peak))


@pytest.mark.parametrize("build", [torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(
    "scheduled",
    [
        lambda optimizer, last: lambda_lr(optimizer, CURVE, last),
        lambda optimizer, last: lambda_lr(optimizer, HELD_CURVE, last, hold=PATIENT),
        lambda optimizer, last: get_cosine_plateau_schedule_with_warmup(
            optimizer, 1, 9, min_lr=0.4, last_epoch=last
        ),
    ],
    ids=("plain", "held", "factory"),
)
def test_decayed_lr_is_not_taken_as_peak(build: Any, loaded: bool, scheduled: Any) -> None:
    optimizer = optimizer_with([0.5, 0.25], build)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    if loaded:
        state = through_file(optimizer.state_dict())
        optimizer = optimizer_with([0.5, 0.25], build)
        optimizer.load_state_dict(state)
    before = str(optimizer.param_groups)
    with pytest.raises(
        ValueError, match=r'last_epoch = 6.*param_groups\[0\].* lr = 0\.01 .*"initial_lr"\] = '
    ):
        scheduled(optimizer, 6)
    assert str(optimizer.param_groups) == before
    for group in optimizer.param_groups:
        group["initial_lr"] = 0.5
    assert scheduled(optimizer, 6).base_lrs == [0.5, 0.5]


def test_lr_of_plain_sgd_is_its_peak() -> None:
    optimizer = optimizer_with([0.5])
    optimizer.step()
    assert lambda_lr(optimizer, CURVE, 6).base_lrs == [0.5]


@pytest.mark.parametrize("build", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD])
def test_fresh_optimizer_may_start_in_mid_run(build: Any) -> None:
    assert lambda_lr(optimizer_with([0.5], build), CURVE, 6).base_lrs == [0.5]
    stepped = optimizer_with([0.5], build)
    stepped.step()
    assert lambda_lr(stepped, CURVE).base_lrs == [0.5]
