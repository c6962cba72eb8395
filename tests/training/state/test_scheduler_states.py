"""A run changes from a `TrainStep` to a loop with a scheduler, or back, as docs/training_step.md says."""

import copy
from typing import Any

import pytest
import torch
from support.clocks.held import CURVE as HELD_CURVE, PATIENT
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step
from support.training.trees import equal_trees

from torch_bridge import DataClock, TrainStep, lambda_lr

_DATA = batches(16)
_CLOCKS: dict[str, tuple[Any, Any]] = {
    "updates": (CURVE, None),
    "samples": (CURVE, DataClock(3, count=4)),
    "held": (HELD_CURVE, PATIENT),
}


def _train(model: Any, optimizer: Any, driver: Any, data: Any) -> None:
    for batch in data:
        if isinstance(driver, TrainStep):
            driver(batch)
            continue
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        driver.step(loss.detach()) if driver.state_dict()["hold"] else driver.step()


@pytest.mark.parametrize("clock", _CLOCKS)
@pytest.mark.parametrize("name", ["adamw", "foreach adamw", "plain momentum"])
@pytest.mark.parametrize("to_step", [False, True])
def test_run_continues_in_the_other_loop(clock: str, name: str, to_step: bool) -> None:
    curve, moved_by = _CLOCKS[clock]

    def build(is_step: bool, loaded: Any = None, **more: Any) -> list[Any]:
        model = Net()
        optimizer = make_optimizer(name, model, **({"lr": torch.tensor(0.01)} if name == "adamw" else {}))
        for part, state in zip((model, optimizer), copy.deepcopy(loaded or ()), strict=False):
            part.load_state_dict(state)
        if is_step:
            step = make_step(model=model, optimizer=optimizer, curve=curve, clock=moved_by, **more)
            return [model, optimizer, step]
        return [model, optimizer, lambda_lr(optimizer, curve, clock=moved_by, **more)]

    uninterrupted, first = build(to_step), build(not to_step)
    _train(*uninterrupted, _DATA)
    _train(*first, _DATA[:9])
    *states, saved = (part.state_dict() for part in first)
    if not to_step:
        states = saved["model"], saved["optimizer"]
    with pytest.raises(ValueError, match=r"it is the state of a (scheduler|TrainStep)\."):
        build(to_step)[2].load_state_dict(saved)
    if clock == "updates" and to_step:
        resumed = build(True, states, initial_updates=saved["last_epoch"])
    elif clock == "updates":
        resumed = build(False, states, last_epoch=saved["applied"] - 1)
    else:
        resumed = build(to_step, states)
        entries = {entry: saved[entry] for entry in ("curve_step", "consumed", "hold", "records")}
        entries |= {"applied": saved["last_epoch"]} if to_step else {"last_epoch": saved["applied"]}
        resumed[2].load_state_dict(resumed[2].state_dict() | entries)
    _train(*resumed, _DATA[9:])
    assert equal_trees(resumed[0].state_dict(), uninterrupted[0].state_dict())
