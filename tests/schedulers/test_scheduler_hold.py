"""A scheduler whose clock is held by rules: learning rates, states, rejections."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import CURVE, PATIENT, HeldRun, clocks_of, curves, holds
from support.holds.hold_cases import metrics
from support.schedulers.runs import learning_rate, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim.lr_scheduler import SequentialLR

from plateau_jax import Curve, HoldBelow, HoldUntilFlat, StagedCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


SIZE = 40


_FORMS: dict[str, Any] = {
    "float": float,
    "numpy": lambda metric: metric,
    "tensor": torch.tensor,
    "wide tensor": lambda metric: torch.tensor(float(metric), dtype=torch.float64),
    "of autograd": lambda metric: torch.tensor(metric, requires_grad=True) * 1,
}


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
@examples(60)
@given(curves, holds, metrics(SIZE))
def test_lr_follows_held_clock(form: Any, curve: Curve, hold: Any, given_metrics: list[Any]) -> None:
    run = HeldRun(curve, hold)
    expected = clocks_of(hold, curve, given_metrics)
    for updates, (clock, metric) in enumerate(zip(expected, given_metrics, strict=False)):
        run.check(clock, updates)
        run.update(form(metric))
    run.check(expected[-1], SIZE)


def test_metric_is_rounded_to_float32() -> None:
    """In float64 these would lie on the other side of the threshold."""
    rule = HoldBelow(0.1, 2)
    above = float(np.nextafter(np.float32(0.1), np.float32(1)))
    for metric, held in ((0.1, True), (0.1 + 2e-9, True), (above, False), (above - 1e-12, False)):
        for form in (float, lambda value: torch.tensor(value, dtype=torch.float64)):
            run = HeldRun(CURVE, rule)
            run.update(form(metric))
            assert run.scheduler.clock == (not held)


def test_last_epoch_sets_clock_and_starts_rules() -> None:
    for last_epoch, clocks in ((2, [3, 3, 3, 3, 4]), (3, [4, 5, 6, 7, 8])):
        optimizer = optimizer_with([0.1])
        scheduler = lambda_lr(optimizer, CURVE, last_epoch, hold=PATIENT)
        held_clocks = []
        for _ in clocks:
            held_clocks.append(scheduler.clock)
            optimizer.step()
            scheduler.step(0.5)
        assert held_clocks == clocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensor_lr_is_filled(dtype: torch.dtype) -> None:
    lr = torch.tensor(0.5, dtype=dtype)
    optimizer = optimizer_with([lr])
    scheduler = lambda_lr(optimizer, CURVE, hold=PATIENT)
    for clock in [0, 1, 2, 3, 3, 3, 3, 4, 5]:
        assert optimizer.param_groups[0]["lr"] is lr
        assert lr == torch.tensor(0.5 * CURVE(clock), dtype=dtype)
        optimizer.step()
        scheduler.step(1.0)


_WRONG_METRICS: list[Any] = [
    None,
    "0.5",
    True,
    1j,
    [0.5],
    (),
    np.ones(1),
    np.True_,
    torch.ones(1),
    torch.ones(2, requires_grad=True),
    torch.tensor(True),
    torch.tensor(1j),
]


@pytest.mark.parametrize("metric", _WRONG_METRICS, ids=repr)
@pytest.mark.parametrize("updates", [0, 5])
def test_wrong_metric_changes_nothing(metric: Any, updates: int) -> None:
    run, reference = (HeldRun(CURVE, [PATIENT, HoldBelow(0.7, 3)]) for _ in range(2))
    for _ in range(updates):
        run.update(0.7)
        reference.update(0.7)
    run.optimizer.step()
    before = run.scheduler.state_dict()
    with pytest.raises(TypeError, match="metric"):
        run.scheduler.step(metric)
    assert run.scheduler.state_dict() == before
    for _ in range(9):
        run.update(0.7)
        reference.update(0.7)
        assert run.scheduler.state_dict() == reference.scheduler.state_dict()


def test_sequential_lr_cannot_step_it() -> None:
    optimizer = optimizer_with([0.1])
    schedulers = [lambda_lr(optimizer, CURVE, hold=PATIENT), lambda_lr(optimizer, CURVE)]
    scheduler = SequentialLR(optimizer, schedulers, [5])
    assert lrs_of(optimizer) == [learning_rate(0.1, CURVE, 0)]
    optimizer.step()
    with pytest.raises(TypeError, match="needs the metric"):
        scheduler.step()


@examples(150)
@given(
    curves,
    holds,
    metrics(SIZE),
    st.dictionaries(
        st.integers(0, SIZE),
        st.sampled_from([name for name in vars(HeldRun) if name.startswith(("by_", "into_"))]),
        max_size=4,
    ),
)
def test_resume_matches_uninterrupted_run(
    curve: Curve, hold: Any, given_metrics: list[Any], stops: dict[int, str]
) -> None:
    run = HeldRun(curve, hold)
    expected = clocks_of(hold, curve, given_metrics)
    for updates, (clock, metric) in enumerate(zip(expected, given_metrics, strict=False)):
        if updates in stops:
            getattr(run, stops[updates])()
        run.check(clock, updates)
        run.update(metric)
    run.check(expected[-1], SIZE)


_OTHERS: list[Any] = [None, HoldUntilFlat(4, limit=9), HoldBelow(0.5, 3), [PATIENT, HoldBelow(0.5, 3)]]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@given(updates=st.integers(0, 20))
def test_state_of_other_rules_needs_strict_false(other: Any, swapped: bool, updates: int) -> None:
    """With strict=False the run continues from the saved clock, and the rules start afresh."""
    first, second = (other, PATIENT) if swapped else (PATIENT, other)
    saved, run = HeldRun(CURVE, first), HeldRun(CURVE, second)
    for _ in range(updates):
        saved.update(None if first is None else 0.5)
    state, before = through_file(saved.scheduler.state_dict()), run.scheduler.state_dict()
    with pytest.raises(ValueError, match=r"saved with hold = .*, but here it is .* pass strict=False"):
        run.scheduler.load_state_dict(state)
    assert run.scheduler.state_dict() == before
    run.scheduler.load_state_dict(state, strict=False)
    clock = saved.scheduler.clock
    run.check(clock, clock if second is None else updates)
    fresh = lambda_lr(optimizer_with([0.1, 0.7]), CURVE, clock - 1, hold=second)
    for _ in range(12):
        assert run.scheduler.state_dict()["hold"] == fresh.state_dict()["hold"]
        assert run.scheduler.clock == fresh.clock
        for scheduler in (run.scheduler, fresh):
            scheduler.optimizer.step()
            scheduler.step(None if second is None else 0.5)


LONG = StagedCurve([(3, 1.0), (40,), (10, 0.0)])


@pytest.mark.parametrize("hold", [PATIENT, None], ids=["held", "let go"])
def test_past_is_compared_up_to_the_clock(hold: Any) -> None:
    """Not up to the number of updates, which exceeds the clock after a hold."""
    saved = HeldRun(LONG, HoldUntilFlat(30, limit=1000))
    for _ in range(20):
        saved.update(0.5)
    assert (saved.scheduler.clock, saved.scheduler.last_epoch) == (3, 20)
    state = through_file(saved.scheduler.state_dict())
    branch = LONG.cooldown(5, 4) if hold is None else StagedCurve([(3, 1.0), (2,), (4, 0.0)])
    run = HeldRun(branch, HoldUntilFlat(30, limit=1000))
    run.scheduler.load_state_dict(state)
    for updates in range(20, 30):
        run.check(3, updates)
        run.update(0.5)
    other = HeldRun(StagedCurve([(2, 1.0), (40,)]), HoldUntilFlat(30, limit=1000))
    with pytest.raises(ValueError, match="differ from step"):
        other.scheduler.load_state_dict(state)
    jump = HeldRun(StagedCurve([(3, 1.0), (0, 0.5), (40,)]), HoldUntilFlat(30, limit=1000))
    with pytest.raises(ValueError, match="differ from step 3 on"):  # held updates have run at step 3
        jump.scheduler.load_state_dict(state)
    fresh = HeldRun(LONG, HoldUntilFlat(30, limit=1000))
    for _ in range(3):
        fresh.update(0.5)
    jump.scheduler.load_state_dict(fresh.scheduler.state_dict())
    released = HeldRun(branch, hold)
    released.scheduler.load_state_dict(state, strict=False)
    released.check(3, 20 if hold else 3)
