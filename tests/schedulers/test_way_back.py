"""A curve's state in torch's own LambdaLR, and what comes back from there."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.runs import advance, optimizer_with, rates_of, through_a_file
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax import HoldUntilFlat, PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def _function(step: int) -> float:
    return 1 / (1 + step)


def _partial(scale: float, step: int) -> float:
    return scale / (1 + step)


@given(
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from((_function, partial(_partial, 1.0), lambda step: 1 / (1 + step))),
)
def test_torchs_own_goes_on_from_a_curves_state(steps: int, held: bool, function: Any) -> None:
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE, hold=HoldUntilFlat(3, limit=9) if held else None)
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*[0.5] * held)
    saved = through_a_file([optimizer.state_dict(), scheduler.state_dict()])
    other = optimizer_with([0.5, 0.25])
    own = LambdaLR(other, function)
    other.load_state_dict(saved[0])
    own.load_state_dict(saved[1])
    assert own.last_epoch == steps
    assert own.get_last_lr() == rates_of(other) == rates_of(optimizer)
    for step in range(steps + 1, steps + 4):
        advance(other, own)
        assert rates_of(other) == own.get_last_lr() == [peak * function(step) for peak in (0.5, 0.25)]
    # The state is as it was, and goes back to where it came from.
    again = lambda_lr(optimizer_with([0.5, 0.25]), CURVE, hold=HoldUntilFlat(3, limit=9) if held else None)
    again.load_state_dict(saved[1])
    assert again.state_dict() == scheduler.state_dict()


def test_what_torchs_own_keeps_of_a_curves_state_is_not_taken_for_its_own() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 5)
    other = optimizer_with([0.5])
    own = LambdaLR(other, _function)
    own.load_state_dict(scheduler.state_dict())
    advance(other, own, 7)
    back = optimizer_with([0.5])
    again = lambda_lr(back, CURVE)
    state = through_a_file(own.state_dict())
    with pytest.raises(ValueError, match=r"has no curve.* strict=False"):
        again.load_state_dict(state)
    again.load_state_dict(state, strict=False)
    assert (again.clock, again.last_epoch) == (12, 12)
    assert rates_of(back) == [0.5 * CURVE(12)]


@pytest.mark.slow
def test_the_scheduler_of_transformers_takes_it() -> None:
    import transformers

    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 30)
    other = optimizer_with([0.5, 0.25], torch.optim.SGD)
    own = transformers.get_cosine_schedule_with_warmup(other, 10, 100)
    own.load_state_dict(through_a_file(scheduler.state_dict()))
    straight = optimizer_with([0.5, 0.25])
    its_own = transformers.get_cosine_schedule_with_warmup(straight, 10, 100)
    advance(straight, its_own, 31)
    advance(other, own)
    assert rates_of(other) == rates_of(straight)
