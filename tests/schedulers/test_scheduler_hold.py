"""A scheduler whose clock rules may hold: metrics, and states under other rules and curves."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.holds.held import CURVE, PATIENT
from support.schedulers.driven import Driven
from support.schedulers.runs import learning_rate, lrs_of, optimizer_with
from torch.optim.lr_scheduler import SequentialLR

from plateau_jax import HoldBelow, HoldUntilFlat, StagedCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


def test_metric_is_rounded_to_float32() -> None:
    """In float64 these would lie on the other side of the threshold."""
    rule = HoldBelow(0.1, 2)
    above = float(np.nextafter(np.float32(0.1), np.float32(1)))
    for metric, is_held in ((0.1, True), (0.1 + 2e-9, True), (above, False), (above - 1e-12, False)):
        for form in (float, lambda value: torch.tensor(value, dtype=torch.float64)):
            run = Driven("scheduler", CURVE, hold=rule)
            run.update(metric=form(metric))
            assert run.part.clock == (not is_held)


def test_last_epoch_sets_clock_and_starts_rules() -> None:
    for last_epoch, clocks in ((2, [3, 3, 3, 3, 4]), (3, [4, 5, 6, 7, 8])):
        optimizer = optimizer_with([0.1])
        scheduler = lambda_lr(optimizer, CURVE, last_epoch, hold=PATIENT)
        held_clocks: list[int] = []
        for _ in clocks:
            held_clocks.append(scheduler.clock)
            optimizer.step()
            scheduler.step(metric=0.5)  # a first argument is the metric too
        assert held_clocks == clocks


_WRONG_METRICS: list[Any] = [
    *(None, "0.5", True, 1j, [0.5], (), np.ones(1), np.True_, torch.ones(1)),
    *(torch.ones(2, requires_grad=True), torch.tensor(True), torch.tensor(1j)),
]


@pytest.mark.parametrize("metric", _WRONG_METRICS, ids=repr)
@pytest.mark.parametrize("updates", [0, 5])
def test_wrong_metric_changes_nothing(metric: Any, updates: int) -> None:
    run = Driven("scheduler", CURVE, hold=[PATIENT, HoldBelow(0.7, 3)])
    run.advance(updates)
    run.rejects(TypeError, "metric", lambda: run.part.step(metric))
    for _ in range(9):
        run.update(metric=0.7)
        run.check()


def test_metric_without_hold_or_twice_is_rejected() -> None:
    for hold, message in ((PATIENT, "one metric"), (None, "needs lambda_lr")):
        run = Driven("scheduler", CURVE, hold=hold)
        run.rejects(TypeError, message, lambda run=run: run.part.step(3, metric=0.5))


def test_sequential_lr_cannot_step_it() -> None:
    optimizer = optimizer_with([0.1])
    schedulers = [lambda_lr(optimizer, CURVE, hold=PATIENT), lambda_lr(optimizer, CURVE)]
    scheduler = SequentialLR(optimizer, schedulers, [5])
    assert lrs_of(optimizer) == [learning_rate(0.1, CURVE, 0)]
    optimizer.step()
    with pytest.raises(TypeError, match="needs the metric"):
        scheduler.step()


_OTHERS: list[Any] = [None, HoldUntilFlat(4, limit=9), HoldBelow(0.5, 3), [PATIENT, HoldBelow(0.5, 3)]]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@given(updates=st.integers(0, 20))
def test_state_of_other_rules_is_rejected(other: Any, swapped: bool, strict: bool, updates: int) -> None:
    """The message says how to start at the step of the curve, and that works."""
    first, second = (other, PATIENT) if swapped else (PATIENT, other)
    saved, run = (Driven("scheduler", CURVE, hold=hold) for hold in (first, second))
    saved.advance(updates)
    state, clock = saved.saved()[1], saved.clock()
    message = rf"saved with hold = .*, but here it is .*step {clock} of the curve, .*last_epoch={clock - 1}$"
    run.rejects(ValueError, message, lambda: run.part.load_state_dict(state, strict=strict))
    run.start(last_epoch=clock - 1)
    assert run.values() == saved.values()


def test_history_is_compared_up_to_the_clock() -> None:
    """Not up to the number of updates, which exceeds the clock after a hold."""
    rule = HoldUntilFlat(30, limit=1000)
    saved, fresh = (Driven("scheduler", StagedCurve([(3, 1.0), (40,)]), hold=rule) for _ in range(2))
    saved.advance(20)
    fresh.advance(3)
    assert (saved.part.clock, saved.part.last_epoch) == (3, 20)
    branch, other, jump = (
        Driven("scheduler", StagedCurve(stages), hold=rule)
        for stages in ([(3, 1.0), (2,), (4, 0.0)], [(2, 1.0), (40,)], [(3, 1.0), (0, 0.5), (40,)])
    )
    branch.part.load_state_dict(saved.saved()[1])
    branch.updates, branch.metrics = saved.updates, list(saved.metrics)
    for _ in range(20):
        branch.check()
        branch.update()
    for run, message in ((other, "differ from step"), (jump, "differ from step 3 on")):
        # Held updates have run at step 3.
        run.rejects(ValueError, message, lambda run=run: run.part.load_state_dict(saved.saved()[1]))
    jump.part.load_state_dict(fresh.saved()[1])
