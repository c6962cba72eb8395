"""Groups that are added after a scheduler, or a follower, was built."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.held import CURVE as HELD_CURVE
from support.held import PATIENT
from support.runs import modest_peaks, optimizer_with, rates_of, through_a_file

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def _add(optimizer: torch.optim.Optimizer, **options: Any) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], **options})


def _update(optimizer: Any, scheduler: Any, held: bool) -> None:
    optimizer.step()
    scheduler.step(*[0.5] * held)


@pytest.mark.parametrize("held", [False, True])
@examples(30)
@given(
    st.lists(st.one_of(st.integers(1, 8), st.just("save"), modest_peaks), max_size=8),
    st.sampled_from((float, torch.tensor)),
)
def test_a_new_group_joins_the_one_curve_with_its_own_rate_as_its_peak(
    held: bool, moves: Any, form: Any
) -> None:
    curve, hold = (HELD_CURVE, PATIENT) if held else (CURVE, None)
    optimizer, peaks = optimizer_with([form(0.5)]), [0.5]
    scheduler = lambda_lr(optimizer, curve, hold=hold)
    _update(optimizer, scheduler, held)
    for move in moves:
        if isinstance(move, int):
            for _ in range(move):
                _update(optimizer, scheduler, held)
        elif move == "save":
            saved = through_a_file([optimizer.state_dict(), scheduler.state_dict()])
            optimizer = optimizer_with([form(peak) for peak in peaks])
            scheduler = lambda_lr(optimizer, curve, hold=hold)
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
            assert scheduler.state_dict() == saved[1]
            _update(optimizer, scheduler, held)
        else:
            before = rates_of(optimizer)
            _add(optimizer, lr=form(move))
            peaks.append(move)
            assert rates_of(optimizer)[:-1] == before
            _update(optimizer, scheduler, held)
        factor = curve(scheduler.clock)
        assert scheduler.base_lrs == [np.float32(peak) for peak in peaks]
        exact = [float(np.float32(peak)) * factor for peak in peaks]
        assert rates_of(optimizer) == [np.float32(rate) if form is torch.tensor else rate for rate in exact]
        assert (
            len(scheduler.get_last_lr()) == len(scheduler.lr_lambdas) == len(scheduler.curves) == len(peaks)
        )


def test_a_new_group_with_the_tensor_of_an_older_one_has_its_peak() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))
    scheduler = lambda_lr(optimizer, CURVE)
    for _ in range(5):
        _update(optimizer, scheduler, False)
    _add(optimizer)  # torch gives it the default rate, the tensor that the scheduler fills
    _update(optimizer, scheduler, False)
    assert scheduler.base_lrs == [0.5, 0.5]
    assert rates_of(optimizer) == [float(np.float32(0.5 * CURVE(6)))] * 2


@pytest.mark.parametrize("held", [False, True])
def test_under_a_curve_a_group_it_is_refused_before_anything_moves(held: bool) -> None:
    optimizer = optimizer_with([0.5])
    scheduler: Any = lambda_lr(optimizer, [HELD_CURVE], hold=PATIENT if held else None)
    for _ in range(4):
        _update(optimizer, scheduler, held)
    _add(optimizer, lr=0.1)
    optimizer.step()
    before = scheduler.clock, scheduler.last_epoch, scheduler._step_count, str(optimizer.param_groups)
    for call in (lambda: scheduler.step(*[0.5] * held), lambda: scheduler.set_peak(0.2)):
        with pytest.raises(
            ValueError, match=r"2 parameter groups; it had 1 .*follows a curve that was given"
        ):
            call()
    assert (
        scheduler.clock,
        scheduler.last_epoch,
        scheduler._step_count,
        str(optimizer.param_groups),
    ) == before


def test_a_rate_that_is_no_peak_is_refused_before_anything_moves() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    _update(optimizer, scheduler, False)
    state = scheduler.state_dict()
    _add(optimizer, lr=0.1)
    optimizer.param_groups[1]["lr"] = -1.0
    optimizer.step()
    with pytest.raises(ValueError, match=r"param_groups\[1\] = -1.0"):
        scheduler.step()
    del optimizer.param_groups[1]
    assert scheduler.state_dict() == state


def test_groups_that_have_gone_are_refused() -> None:
    optimizer = optimizer_with([0.5, 0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    del optimizer.param_groups[1]
    optimizer.step()
    with pytest.raises(ValueError, match="1 parameter groups; it had 2"):
        scheduler.step()
    assert scheduler.last_epoch == 0


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_a_new_group_joins_a_followers_one_curve(form: Any) -> None:
    optimizer = optimizer_with([0.5], torch.optim.AdamW, weight_decay=0.5)
    optimizer.param_groups[0]["weight_decay"] = form(0.5)
    follower = follow(optimizer, "weight_decay", CURVE)
    follower.step()
    _add(optimizer, weight_decay=form(0.25))
    state = through_a_file(follower.state_dict())
    again = optimizer_with([0.5, 0.5], torch.optim.AdamW, weight_decay=0.5)
    resumed = follow(again, "weight_decay", CURVE)
    resumed.load_state_dict(state)
    for step in range(2, 30):
        for each, its_optimizer in ((follower, optimizer), (resumed, again)):
            each.step()
            assert [float(group["weight_decay"]) for group in its_optimizer.param_groups] == [
                pytest.approx(base * CURVE(step), rel=1e-7) for base in (0.5, 0.25)
            ]
