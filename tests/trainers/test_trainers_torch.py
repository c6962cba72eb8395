"""The page's programs in PyTorch, interrupted and resumed; a curve beside other schedulers."""

from unittest.mock import patch

import numpy as np
import pytest
from support.schedulers.runs import through_file
from support.trainers import trainers
from support.trainers.trainers import (
    CURVE,
    IN_AN_OLD_FOLDER,
    OF_LIGHTNING,
    OF_PAGE,
    PEAK,
    PEAK_OF_PAGE,
    assert_resumed,
    rates,
    rates_used,
    same_weights,
    train,
)
from torch.optim import AdamW
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LambdaLR
from torch.optim.swa_utils import SWALR

import torch_bridge
from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

SEVERAL, SEQUENTIAL = "Plain PyTorch, several optimizers", "Plain PyTorch, combined with torch's schedulers"
LINEAR = PlateauCurve(200, warmup_steps=20, decay_shape="linear")
LATER = PlateauCurve(160, warmup_steps=20, plateaus=[(0, 60)], init_lr_ratio=0.1)


def of_torch(optimizer, curve):
    """torch's own scheduler, with the curve's multipliers."""
    return LambdaLR(optimizer, lambda step: curve(step))


def alternating(*parts):
    return [used for both in zip(*parts, strict=True) for used in both]


@pytest.mark.filterwarnings(OF_LIGHTNING, IN_AN_OLD_FOLDER)
@pytest.mark.parametrize(
    ("heading", "wanted"),
    [
        ("Plain PyTorch", rates(OF_PAGE, range(200), PEAK_OF_PAGE)),
        ("Lightning Fabric", rates(OF_PAGE, range(200), PEAK_OF_PAGE)),
        ("PyTorch Lightning", rates(OF_PAGE, range(200), PEAK_OF_PAGE)),
        ("Hugging Face Trainer", rates(OF_PAGE, range(200), PEAK_OF_PAGE, groups=2)),
        (SEVERAL, alternating(rates(OF_PAGE, range(200), 0.02), rates(LINEAR, range(200), PEAK_OF_PAGE))),
        (
            SEQUENTIAL,
            [[0.1 * float(np.float32(PEAK_OF_PAGE))]] * 40 + rates(LATER, range(160), PEAK_OF_PAGE),
        ),
    ],
)
def test_resumed_it_is_as_uninterrupted(heading, wanted, tmp_path):
    assert_resumed(heading, tmp_path, wanted)


def test_in_a_sequence_it_is_as_a_scheduler_of_torch(tmp_path):
    used = {}
    for name, scheduler in (("ours", lambda_lr), ("torch's", of_torch)):
        (tmp_path / name).mkdir()
        with rates_used() as used[name], patch.object(torch_bridge, "lambda_lr", scheduler):
            train(SEQUENTIAL, tmp_path / name, changes={"lr=1e-2": f"lr={float(np.float32(PEAK_OF_PAGE))}"})
    assert len(used["ours"]) == 200
    assert used["ours"] == used["torch's"]


class Run:
    """A model with its optimizers and schedulers; an update steps some of them."""

    def __init__(self, build):
        self.model = trainers.net()
        self.optimizers, self.schedulers, self.stepped = build(self.model)
        self.parts = self.model, *self.optimizers, *self.schedulers

    def train(self, first, last):
        """Make these updates, and return the rates that they used."""
        inputs, targets = trainers.dataset(48).tensors
        with rates_used() as used:
            for update in range(first, last):
                rows = slice(update * 4, update * 4 + 4)
                trainers.loss_of(self.model, (inputs[rows], targets[rows])).backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                for scheduler in self.stepped(update):
                    scheduler.step()
        return used


def used_and_resumed(build):
    """The rates of twelve updates; a run that is interrupted after five has the same rates and weights."""
    whole, interrupted, resumed = (Run(build) for _ in range(3))
    used = whole.train(0, 12)
    before = interrupted.train(0, 5)
    for part, state in zip(
        resumed.parts, through_file([part.state_dict() for part in interrupted.parts]), strict=True
    ):
        part.load_state_dict(state)
    assert before + resumed.train(5, 12) == used
    assert same_weights(resumed.model, whole.model)
    return used


def chained(optimizer, lambda_lr):
    chain = ChainedScheduler([lambda_lr(optimizer, CURVE), ExponentialLR(optimizer, 0.9)], optimizer)
    return [chain], lambda _: [chain]


def before_averaging(optimizer, lambda_lr):
    schedulers = [lambda_lr(optimizer, CURVE), SWALR(optimizer, swa_lr=1e-4, anneal_epochs=3)]
    return schedulers, lambda update: schedulers[update >= 8 :][:1]


@pytest.mark.parametrize("combine", [chained, before_averaging])
def test_beside_other_schedulers(combine):
    def build(scheduler):
        def of(model):
            optimizer = AdamW(model.parameters(), float(np.float32(PEAK)))
            schedulers, stepped = combine(optimizer, scheduler)
            return [optimizer], schedulers, stepped

        return of

    used = used_and_resumed(build(lambda_lr))
    assert used == Run(build(of_torch)).train(0, 12)
    if combine is before_averaging:
        assert used[:9] == rates(CURVE, range(9))
