"""Another peak in mid-run, and the peak of an optimizer that has trained."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.held import CURVE as HELD_CURVE
from support.held import PATIENT
from support.runs import advance, modest_peaks, optimizer_with, rates_of, through_a_file
from torch.optim.lr_scheduler import ConstantLR, SequentialLR

from plateau_jax import PlateauCurve
from torch_bridge import get_cosine_plateau_schedule_with_warmup, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


@pytest.mark.parametrize("held", [False, True])
@examples(30)
@given(st.integers(0, 12), st.one_of(modest_peaks, st.tuples(modest_peaks, modest_peaks)), st.integers(0, 5))
def test_from_the_next_update_on_and_after_a_resume(held: bool, steps: int, peak: Any, more: int) -> None:
    curve, hold = (HELD_CURVE, PATIENT) if held else (CURVE, None)

    def start() -> Any:
        optimizer = optimizer_with([0.5, 0.25])
        return optimizer, lambda_lr(optimizer, curve, hold=hold)

    def update() -> None:
        optimizer.step()
        scheduler.step(*[0.5] * held)

    def check() -> None:
        expected = [float(np.float32(each)) * curve(scheduler.clock) for each in peaks]
        assert rates_of(optimizer) == scheduler.get_last_lr() == expected

    optimizer, scheduler = start()
    for _ in range(steps):
        update()
    counts = scheduler.clock, scheduler.last_epoch
    scheduler.set_peak(peak)
    peaks = peak if isinstance(peak, tuple) else (peak, peak)
    assert (scheduler.clock, scheduler.last_epoch) == counts
    check()
    for _ in range(more):
        update()
        check()
    saved = through_a_file([optimizer.state_dict(), scheduler.state_dict()])
    optimizer, scheduler = start()
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    for _ in range(3):
        check()
        update()


def test_groups_that_shared_a_tensor_part() -> None:
    parameters = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=torch.tensor(0.5))
    scheduler = lambda_lr(optimizer, PlateauCurve(100))
    scheduler.set_peak([0.5, 0.25])
    assert rates_of(optimizer) == [0.5, 0.25]


def test_one_that_waits_for_its_turn_writes_no_rate() -> None:
    optimizer = optimizer_with([0.5])
    parts = [ConstantLR(optimizer, 0.5, total_iters=100), lambda_lr(optimizer, CURVE)]
    scheduler = SequentialLR(optimizer, parts, [5])
    parts[1].set_peak(0.125)
    assert rates_of(optimizer) == [0.25]
    advance(optimizer, scheduler, 10)
    assert rates_of(optimizer) == [0.125 * CURVE(5)]


_WRONG: list[Any] = [
    (-0.1, ValueError), (float("nan"), ValueError), ("0.1", TypeError), (None, TypeError), (True, TypeError),
    ([0.1], ValueError), ([0.1, 0.2, 0.3], ValueError), ([0.1, -1.0], ValueError), ([0.1, None], TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("peak", "error"), _WRONG, ids=str)
def test_what_is_no_peak_changes_nothing(peak: Any, error: type[Exception]) -> None:
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 3)
    before = scheduler.state_dict(), str(optimizer.param_groups)
    with pytest.raises(error, match="peak"):
        scheduler.set_peak(peak)
    assert (scheduler.state_dict(), str(optimizer.param_groups)) == before


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
def test_a_decayed_rate_is_not_taken_as_the_peak(build: Any, loaded: bool, scheduled: Any) -> None:
    optimizer = optimizer_with([0.5, 0.25], build)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    if loaded:
        state = through_a_file(optimizer.state_dict())
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


@pytest.mark.parametrize("build", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD])
def test_a_fresh_optimizer_may_go_on_and_a_stepped_one_may_begin(build: Any) -> None:
    assert lambda_lr(optimizer_with([0.5], build), CURVE, 6).base_lrs == [0.5]
    stepped = optimizer_with([0.5], build)
    stepped.step()
    assert lambda_lr(stepped, CURVE).base_lrs == [0.5]
