"""A run changes from a step to a loop with a scheduler, or back, as docs/training_step.md says."""

import copy

import pytest
import torch
from support.clocks.holds import PATIENT, THREE_PLATEAUS
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step
from support.trees import assert_equal_trees

from torch_bridge import DataClock, lambda_lr

CLOCKS = {
    "updates": {"curve": CURVE},
    "samples": {"curve": CURVE, "clock": DataClock(3, count=4)},
    "held": {"curve": THREE_PLATEAUS, "clock": PATIENT},
}
POSITION = ["offset", "consumed", "hold", "records"]
"""The entries with the position, which the states of a scheduler and of a step may have."""


class LoopRun:
    """A training loop with a scheduler."""

    updates_key = "last_epoch"
    refusal = r"it is the state of a scheduler\."
    """The other loop rejects the state with this message."""

    def __init__(self, name, clock):
        self.model = Net()
        options = {}
        if name == "adamw":
            options["lr"] = torch.tensor(0.01)
        self.optimizer = make_optimizer(name, self.model, **options)
        self.options = CLOCKS[clock]
        self.is_held = clock == "held"
        self.part = None
        """The scheduler, or the step."""

    def build(self, updates=0):
        """Build the scheduler after this number of updates."""
        self.part = lambda_lr(self.optimizer, **self.options, last_epoch=updates - 1)

    def update(self, batch):
        self.optimizer.zero_grad()
        loss = mean_loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        if self.is_held:
            self.part.step(loss.detach())
        else:
            self.part.step()

    def train(self, data):
        for batch in data:
            self.update(batch)


class BatchRun(LoopRun):
    """A training loop with a step."""

    updates_key = "applied"
    refusal = r"it is the state of a TrainStep\."

    def build(self, updates=0):
        options = self.options | {"initial_updates": updates}
        self.part = make_step(model=self.model, optimizer=self.optimizer, **options)

    def update(self, batch):
        self.part(batch)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ["adamw", "foreach adamw", "plain momentum"])
@pytest.mark.parametrize(("before", "after"), [(LoopRun, BatchRun), (BatchRun, LoopRun)])
def test_run_changes_between_step_and_scheduler(before, after, clock, name):
    data = batches(16)
    uninterrupted = after(name, clock)
    uninterrupted.build()
    uninterrupted.train(data)
    first = before(name, clock)
    first.build()
    first.train(data[:9])
    saved = copy.deepcopy(first.part.state_dict())

    resumed = after(name, clock)
    resumed.model.load_state_dict(first.model.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    updates = saved[before.updates_key]
    if clock == "updates":
        resumed.build(updates)
    else:
        resumed.build()
        position = {entry: saved[entry] for entry in POSITION if entry in saved}
        state = resumed.part.state_dict() | position | {after.updates_key: updates}
        resumed.part.load_state_dict(state)
    with pytest.raises(ValueError, match=before.refusal):
        resumed.part.load_state_dict(saved)
    resumed.train(data[9:])
    assert_equal_trees(resumed.model.state_dict(), uninterrupted.model.state_dict())
