"""A run changes from a `TrainStep` to a loop with a scheduler, or back, as docs/training_step.md says."""

import copy
from typing import Any

import pytest
import torch
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step
from support.training.trees import equal_trees

from torch_bridge import TrainStep, lambda_lr

DATA = batches(20)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the step, and of the scheduler
    "updates": ({}, {}),
    "samples": ({"unit": 3, "count": lambda batch: 4}, {"unit": 3, "count": lambda: 4}),
    "held": ({"curve": HELD_CURVE, "hold": PATIENT}, {"hold": PATIENT}),
}


def start(name: str) -> tuple[Any, Any]:
    model = Net()
    lr = {"lr": torch.tensor(0.01)} if name == "adamw" else {}  # fused
    return model, make_optimizer(name, model, **lr)


def train(model: Any, optimizer: Any, driver: Any, data: Any, kind: str) -> None:
    for batch in data:
        if isinstance(driver, TrainStep):
            driver(batch)
            continue
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        driver.step(*[loss.detach()] * (kind == "held"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["adamw", "foreach adamw", "plain momentum"])
@pytest.mark.parametrize("back", [False, True])
def test_run_continues_in_the_other_loop(kind: str, name: str, back: bool) -> None:
    of_step, of_scheduler = KINDS[kind]
    curve = of_step.get("curve", CURVE)

    def build(is_step: bool, loaded: Any = None, **more: Any) -> list[Any]:
        model, optimizer = start(name)
        if loaded:
            for part, state in zip((model, optimizer), copy.deepcopy(loaded), strict=True):
                part.load_state_dict(state)
        if is_step:
            return [model, optimizer, make_step(model=model, optimizer=optimizer, **of_step, **more)]
        return [model, optimizer, lambda_lr(optimizer, curve, **of_scheduler, **more)]

    uninterrupted, first = build(back), build(not back)
    train(*uninterrupted, DATA, kind)
    train(*first, DATA[:11], kind)
    states = [part.state_dict() for part in first]
    saved = states[2]
    if back:  # to the step
        argument = {"initial_updates": saved["last_epoch"]}
    else:
        argument = {"last_epoch": saved["applied"] - 1}
        states[:2] = saved["model"], saved["optimizer"]
    with pytest.raises(ValueError, match=r"it is the state of a (scheduler|TrainStep)\."):
        build(back)[2].load_state_dict(saved)
    if kind == "updates":
        resumed = build(back, states[:2], **argument)
    else:
        resumed = build(back, states[:2])
        clock = {entry: saved[entry] for entry in ("clock", "consumed", "unit", "hold", "curves")}
        clock |= {"applied": saved["last_epoch"]} if back else {"last_epoch": saved["applied"]}
        resumed[2].load_state_dict(resumed[2].state_dict() | clock)
    train(*resumed, DATA[11:], kind)
    assert equal_trees(resumed[0].state_dict(), uninterrupted[0].state_dict())
