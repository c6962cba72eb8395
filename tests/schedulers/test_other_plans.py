"""Resuming under another plan: if the past is the same, a run continues under the new one, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.models import batches, nonfinite
from support.training.optimizers import FUSED
from support.training.steps import make_step, train
from support.training.trees import equal_trees, through_file
from torch.optim.lr_scheduler import SequentialLR

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    pytest.mark.filterwarnings("ignore:at = :plateau_jax.CurveWarning"),
]

LONG = PlateauCurve(60, warmup_steps=4, plateaus=[(0, 60)], min_lr_ratio=0.1)
AFTER = PlateauCurve(20, warmup_steps=3, init_lr_ratio=0.5)
_BRANCHES: dict[str, Callable[[int], Curve]] = {
    "cooldown": lambda at: LONG.cooldown(at, 9),
    "cooldown to a level": lambda at: LONG.cooldown(max(at, 1), 15, to=0.05, shape="linear"),
    "from step 0": lambda at: LONG.cooldown(at, 9).then(AFTER),
    "a longer one": lambda at: LONG.then(AFTER, scale=0.5),
}
every_branch = pytest.mark.parametrize("branch", _BRANCHES.values(), ids=_BRANCHES)
_NARROW: Any = lambda lr: torch.tensor(lr, dtype=torch.bfloat16)  # noqa: E731 - one of two forms


def _scheduled(curve: Any, peaks: list[float], steps: int, form: Any = float) -> tuple[Any, Any]:
    optimizer = optimizer_with([form(peak) for peak in peaks])
    scheduler = lambda_lr(optimizer, curve)
    advance(optimizer, scheduler, steps)
    return optimizer, scheduler


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@every_branch
@examples(20)
@given(at=st.integers(0, 60), more=st.integers(0, 20))
def test_scheduler_resumes_under_branch(branch: Callable[[int], Curve], at: int, more: int) -> None:
    """A state saved before the curves differ continues as if the run had always had the new curve."""
    curve, saved_at = branch(at), max(at - more, 0)
    optimizer, scheduler = _scheduled(LONG, [0.1, 0.7], saved_at)
    states = through_file([optimizer.state_dict(), scheduler.state_dict()])
    uninterrupted, uninterrupted_scheduler = _scheduled(curve, [0.1, 0.7], saved_at)
    resumed, again = _scheduled(curve, [0.3, 0.3], 5)
    resumed.load_state_dict(states[0])
    again.load_state_dict(states[1])
    for _ in range(70):
        assert lrs_of(resumed) == lrs_of(uninterrupted)
        assert again.get_last_lr() == uninterrupted_scheduler.get_last_lr()
        advance(resumed, again)
        advance(uninterrupted, uninterrupted_scheduler)
    assert again.state_dict() == uninterrupted_scheduler.state_dict()


@examples(60)
@given(descriptions(range(3)), descriptions(range(3), depth=1), st.integers(0, 30), st.integers(0, 40))
def test_rejection_names_first_different_step(
    description: Description, other: Description, at: int, saved_at: int
) -> None:
    """A state with the same history is accepted; a rejection names the first step that differs."""
    old = build(description)
    if old.total_steps > 2**30:
        old = old.cooldown(at, 20)
    for new in (build(other), old.cooldown(at, 7), PlateauCurve(20).then(old), old.then(AFTER)):
        state = lambda_lr(optimizer_with([0.1]), old, saved_at - 1).state_dict()
        scheduler = lambda_lr(optimizer_with([0.1]), new)
        if new.same_until(old, saved_at):
            assert old(list(range(saved_at))).tolist() == new(list(range(saved_at))).tolist()
            scheduler.load_state_dict(state)
            continue
        before = scheduler.state_dict()
        with pytest.raises(ValueError, match=r"pass strict=False to load_state_dict, or") as caught:
            scheduler.load_state_dict(state)
        assert scheduler.state_dict() == before
        same, _ = (step for step in range(saved_at + 1) if _is_last_common_step(new, old, step))
        assert f"differ from step {same} on; resume with the old curve, or" in str(caught.value)


def _is_last_common_step(new: Curve, old: Curve, step: int) -> bool:
    """Return True if `step` is the last step up to which both are the same, or the next one."""
    same = [new.same_until(old, max(step + shift, 0)) for shift in (-1, 0, 1)]
    return same in ([True, True, False], [True, False, False])


every_form = pytest.mark.parametrize(
    "form", [float, torch.tensor, _NARROW], ids=["float", "tensor", "bfloat16"]
)


@every_form
@pytest.mark.parametrize("strict", [True, False])
def test_plan_may_differ_from_saved_step_on(form: Any, strict: bool) -> None:
    """The learning rate is at once that of the new curve."""
    old, new = StagedCurve([(19,)], start=0.3), StagedCurve([(10,), (0, 0.5), (9,)], start=0.3)
    _, scheduler = _scheduled(old, [0.7], 10, form)
    resumed, again = _scheduled(new, [0.7], 0, form)
    again.load_state_dict(through_file(scheduler.state_dict()), strict=strict)
    assert lrs_of(resumed) == [pytest.approx(0.35, rel=2**-8)]
    step, data = make_step(curve=old), batches(11)
    train(step, data[:10])
    other = make_step(curve=new)
    other.load_state_dict(step.state_dict(), strict=strict)
    assert other(data[10]).lr == np.float32(0.01) / 2


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes
@given(st.sampled_from((float, torch.tensor, _NARROW)), st.booleans(), st.integers(1, 40))
def test_second_part_of_sequential_lr_changes_plan(form: Any, strict: bool, saved_at: int) -> None:
    """The scheduler that was in charge before the load is in charge afterwards."""

    def start(second: Curve) -> tuple[Any, Any]:
        optimizer = optimizer_with([form(0.5)])
        schedulers = [lambda_lr(optimizer, AFTER), lambda_lr(optimizer, second, strict=strict)]
        return optimizer, SequentialLR(optimizer, schedulers, [20])

    first, branch = LONG, LONG.cooldown(max(saved_at - 20, 0), 10)
    optimizer, scheduler = start(first)
    advance(optimizer, scheduler, saved_at)
    states = through_file([optimizer.state_dict(), scheduler.state_dict()])
    uninterrupted, uninterrupted_scheduler = start(branch)
    advance(uninterrupted, uninterrupted_scheduler, saved_at)
    resumed, again = start(branch)
    resumed.load_state_dict(states[0])
    again.load_state_dict(states[1])
    for _ in range(40):
        assert lrs_of(resumed) == lrs_of(uninterrupted)
        advance(resumed, again)
        advance(uninterrupted, uninterrupted_scheduler)


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes
def test_second_part_waits_for_its_turn() -> None:
    """Even if the learning rate of the first part happens to equal its own first one."""

    def start(second: Curve) -> tuple[Any, Any]:
        optimizer = optimizer_with([0.5])
        schedulers = [lambda_lr(optimizer, StagedCurve([(50,)], start=1.0)), lambda_lr(optimizer, second)]
        return optimizer, SequentialLR(optimizer, schedulers, [20])

    optimizer, scheduler = start(PlateauCurve(50))
    advance(optimizer, scheduler, 10)
    resumed, again = start(PlateauCurve(50, warmup_steps=5))
    resumed.load_state_dict(optimizer.state_dict())
    again.load_state_dict(scheduler.state_dict())
    lrs: list[float] = []
    for _ in range(13):
        lrs += lrs_of(resumed)
        advance(resumed, again)
    assert lrs == [0.5] * 10 + [
        0.0,
        float(np.float32(0.5) * np.float32(0.2)),
        float(np.float32(0.5) * np.float32(0.4)),
    ]


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
@every_branch
@examples(4)
@given(at=st.integers(0, 20), more=st.integers(0, 5), skips=st.sets(st.integers(0, 39), max_size=9))
def test_training_step_resumes_under_branch(
    name: str, branch: Callable[[int], Curve], at: int, more: int, skips: set[int]
) -> None:
    updates = [nonfinite(batch) if number in skips else batch for number, batch in enumerate(batches(40))]
    saved_at = max(at - more, 0)  # updates, not all of which are applied
    uninterrupted, first, second = (
        make_step(name, curve=branch(at)),
        make_step(name, curve=LONG),
        make_step(name, curve=branch(at)),
    )
    results = train(uninterrupted, updates)
    train(first, updates[:saved_at])
    train(second, updates[:3])
    second.load_state_dict(through_file(first.state_dict()))
    assert equal_trees(train(second, updates[saved_at:]), results[saved_at:])
    end, expected = second.state_dict(), uninterrupted.state_dict()
    assert equal_trees(end, expected | {"random": end["random"]})


@pytest.mark.parametrize("name", [*FUSED, "rmsprop"])
def test_training_step_rejects_another_past(name: str) -> None:
    data = batches(20)
    branch = LONG.cooldown(6, 9)
    first, second = make_step(name, curve=LONG), make_step(name, curve=branch)
    train(first, data[:12])
    train(second, data[:3])
    state, before = first.state_dict(), second.state_dict()
    with pytest.raises(ValueError, match=r"differ from step 7 on.* strict=False"):
        second.load_state_dict(state)
    assert equal_trees(second.state_dict(), before)
    second.load_state_dict(state, strict=False)
    assert equal_trees(
        second.state_dict(), state | {"curves": before["curves"], "optimizer": _optimizer(second)}
    )
    peak = np.float32(second.optimizer.param_groups[0]["initial_lr"])
    for applied, batch in enumerate(data[12:], 12):
        result = second(batch)
        assert result.lr.tolist() == [float(peak * np.float32(branch(applied)))]
        assert result.applied == applied + 1


def _optimizer(step: Any) -> Any:
    """Return the optimizer's state in a step, with the learning rates of the new curve."""
    return step.state_dict()["optimizer"]


def test_rejection_names_the_group() -> None:
    curves, others = [LONG, AFTER], [LONG, AFTER.cooldown(10, 5)]
    optimizer, scheduler = _scheduled(curves, [0.1, 0.2], 10)
    resumed, again = _scheduled(others, [0.1, 0.2], 0)
    again.load_state_dict(scheduler.state_dict())
    assert lrs_of(resumed) == lrs_of(optimizer)
    advance(optimizer, scheduler, 2)
    with pytest.raises(ValueError, match=r"the learning rates of param_groups\[1\] differ"):
        again.load_state_dict(scheduler.state_dict())


def test_follower_resumes_under_branch() -> None:
    saved, resumed = (optimizer_with([0.1], weight_decay=0.5) for _ in range(2))
    first = follow(saved, "weight_decay", LONG)
    for _ in range(30):
        first.step()
    again = follow(resumed, "weight_decay", LONG.cooldown(30, 9))
    again.load_state_dict(through_file(first.state_dict()))
    for step in range(30, 45):
        assert resumed.param_groups[0]["weight_decay"] == 0.5 * LONG.cooldown(30, 9)(step)
        again.step()
