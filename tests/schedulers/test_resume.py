"""States of schedulers and followers, their printed form, and followers next to a training step."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.schedulers.driven import Driven
from support.schedulers.runs import advance, learning_rate, optimizer_with
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.steps import make_step
from support.training.trees import equal_trees, through_file

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")
LONG = PlateauCurve(60, warmup_steps=4, plateaus=[(0, 60)], min_lr_ratio=0.1)


@pytest.mark.parametrize("kind", ["scheduler", "follower"])
@pytest.mark.parametrize("then", [Driven.check, Driven.by_copy, Driven.by_pickle])
def test_trainer_loads_by_builders_strict(kind: str, then: Callable[[Driven], None]) -> None:
    saved, run = Driven(kind, CURVE), Driven(kind, OTHER, strict=False)
    saved.advance(40)
    _, state = saved.saved()
    then(run)
    run.rejects(ValueError, "cannot resume at step 40", lambda: run.part.load_state_dict(state, strict=True))
    run.part.load_state_dict(state)  # as a trainer does
    run.updates = 40
    run.check()


def test_state_is_small_and_shares_nothing() -> None:
    run, other = Driven("scheduler", CURVE), Driven("scheduler", CURVE)
    run.advance(2000)
    state = run.part.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    assert max(len(pickle.dumps(run.part)), file.tell()) < 10_000
    kept = copy.deepcopy(state)
    other.part.load_state_dict(state)
    other.updates = 2000
    assert other.part.state_dict() == kept
    other.advance(3)
    assert state == kept
    for entry in ("base_lrs", "curves", "rates", "_last_lr"):
        state[entry].clear()
    for each in (run, other):
        each.advance(1)
        each.check()


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_print_shows_curve_clock_and_values(form: Any) -> None:
    optimizer = optimizer_with([form(0.5)], momentum=0.5)
    scheduler, follower = lambda_lr(optimizer, CURVE), follow(optimizer, "momentum", CURVE, unit=4)
    advance(optimizer, scheduler, 5)
    follower.step(count=20)
    assert str(scheduler) == f"CurveLR({CURVE}, clock=5, lr=0.25)"
    assert str(follower) == f"Follower({CURVE}, clock=5, unit=4, momentum=0.25)"
    several = lambda_lr(optimizer_with([0.5, 0.25]), [CURVE, OTHER])
    assert str(several) == f"CurveLR([{CURVE}, {OTHER}], clock=0, lr=[0.0, 0.25])"


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("step_first", [True, False])
def test_training_step_uses_followed_values(fused: bool, step_first: bool) -> None:
    """Each update uses the value that is in the group when the step is called, also after a resume."""

    def optimizer_of(model: Net) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)

    def start() -> list[Any]:
        model = Net()
        step = make_step(model=model, optimizer=optimizer_of(model), curve=LONG)
        keys: Any = ("weight_decay", ("betas", 0))
        return [step, *(follow(step.optimizer, key, CURVE) for key in keys)]

    by_hand = Net()
    reference = optimizer_of(by_hand)
    parts, applied = start(), 0
    for number, batch in enumerate(batches(20)):
        if number == 8:
            saved = through_file([part.state_dict() for part in parts])
            parts = start()
            for part, state in list(zip(parts, saved, strict=True))[:: 1 if step_first else -1]:
                part.load_state_dict(state)
        step, *followers = parts
        is_bad = number in (0, 7, 8, 15)
        step(nonfinite(batch) if is_bad else batch)
        for follower in followers:
            follower.step()
        if is_bad:
            continue
        (group,) = reference.param_groups
        lr = learning_rate(0.01, LONG, applied)
        group["lr"] = torch.tensor(lr, dtype=torch.float32) if fused else lr
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (learning_rate(0.9, CURVE, number), 0.999)
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
        applied += 1
    assert equal_trees(step.model.state_dict(), by_hand.state_dict())
