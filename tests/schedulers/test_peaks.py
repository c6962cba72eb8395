"""Which of a group's `lr` and `initial_lr` is its peak when a scheduler meets the group."""

import copy
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR

from plateau_jax import CurveWarning, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

pytestmark = pytest.mark.usefixtures("frozen")

FALLING = StagedCurve([(40, 0.2, "linear")], start=1.0)
WITH_WARMUP = PlateauCurve(40, warmup_steps=5)


def new_parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter


# Schedulers that are built on one optimizer, one after another.


def build_curve(optimizer: Optimizer, curve: Any) -> Any:
    return lambda_lr(optimizer, curve)


def build_constant(optimizer: Optimizer, curve: Any) -> Any:
    return ConstantLR(optimizer, 0.3, 4)


def build_linear(optimizer: Optimizer, curve: Any) -> Any:
    return LinearLR(optimizer, 0.01, 1.0, 4)


BUILDERS = [build_curve, build_constant, build_linear, build_curve]


@examples(40)
@given(
    order=st.sampled_from(list(permutations(BUILDERS))),
    curve=st.sampled_from((FALLING, WITH_WARMUP)),
    updates=st.lists(st.integers(0, 14), min_size=1, max_size=3),
)
def test_torchs_schedulers_leave_the_peak(
    order: Sequence[Any], curve: Any, updates: list[int]
) -> None:
    """Their learning rates are not the user's, even if no update was made under them."""
    optimizer = optimizer_with([0.5, 0.25])
    for count in updates:  # as a cell of a notebook that is run again
        schedulers = [build(optimizer, curve) for build in order]
        sequence = SequentialLR(optimizer, schedulers, [3, 6, 9])
        for scheduler in schedulers:
            assert scheduler.base_lrs == [0.5, 0.25]
        advance(optimizer, sequence, count)


@pytest.mark.parametrize("form", [float, torch.tensor])
@pytest.mark.parametrize("is_copied", [False, True])
def test_lr_that_the_user_wrote_is_the_peak(form: Any, is_copied: bool) -> None:
    optimizer = optimizer_with([form(0.5)])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    if is_copied:
        optimizer, scheduler = copy.deepcopy((optimizer, scheduler))
    optimizer.param_groups[0]["lr"] = form(0.07)
    second = lambda_lr(optimizer, FALLING)
    assert second.base_lrs == [learning_rate(0.07, StagedCurve([(1, 1.0)], start=1.0), 0)]


def test_lr_of_an_unknown_writer_warns_with_both_numbers() -> None:
    """Updates were made without the scheduler: a range test, or a scheduler that is gone."""
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 3)
    for update in range(20):
        optimizer.param_groups[0]["lr"] = 1e-3 * 1.2**update
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.07
    message = r"lr = 0\.07 and, from an earlier scheduler, initial_lr = 0\.5"
    with pytest.warns(CurveWarning, match=message):
        second = lambda_lr(optimizer, FALLING)
    assert second.base_lrs == [0.5]


def test_restored_scheduler_at_step_0_replaces_loaded_learning_rates() -> None:
    """As after any other step: those of a pretrained optimizer do not stay."""
    saved = lambda_lr(optimizer_with([0.5]), FALLING)
    pretrained = optimizer_with([0.01])
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    scheduler.load_state_dict(saved.state_dict())
    optimizer.load_state_dict(pretrained.state_dict())
    assert lrs_of(optimizer) == [0.5]


# Groups that are made from the options of another group.


@pytest.mark.parametrize("set_by_hand", [None, 0.33])
def test_lr_beside_copied_options_is_the_peak(set_by_hand: float | None) -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 12)
    if set_by_hand is not None:
        optimizer.param_groups[0]["lr"] = set_by_hand
    options = dict(optimizer.param_groups[0])
    optimizer.add_param_group({**options, "params": [new_parameter()], "lr": 0.125})
    optimizer.add_param_group({**options, "params": [new_parameter()]})
    advance(optimizer, scheduler)
    assert scheduler.base_lrs == [0.5, 0.125, 0.5]
    assert lrs_of(optimizer) == [learning_rate(peak, FALLING, 13) for peak in scheduler.base_lrs]


def test_initial_lr_of_a_loaded_group_is_its_peak() -> None:
    """The group is added before the states are loaded, as FinetuningScheduler does."""
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    optimizer_state = copy.deepcopy(optimizer.state_dict())
    state = copy.deepcopy(scheduler.state_dict())
    resumed = optimizer_with([0.5])
    again = lambda_lr(resumed, FALLING)
    resumed.add_param_group({"params": [new_parameter()], "lr": 0.25})
    resumed.load_state_dict(optimizer_state)
    again.load_state_dict(state)
    assert again.state_dict() == scheduler.state_dict()
    assert lrs_of(resumed) == lrs_of(optimizer)


def test_group_may_be_appended_after_a_load_and_a_look() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 5)
    state = scheduler.state_dict()
    optimizer.add_param_group({"params": [new_parameter()], "lr": 0.125})
    scheduler.get_lr()
    scheduler.load_state_dict(state)
    scheduler.base_lrs.append(0.25)
    scheduler.lr_lambdas.append(scheduler.lr_lambdas[0])
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(peak, FALLING, 6) for peak in (0.5, 0.25)]
