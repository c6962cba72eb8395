"""The page's programs in PyTorch, interrupted and resumed; a curve with other schedulers."""

from unittest.mock import patch

import numpy as np
import pytest
from support.trainers import trainers
from support.trainers.trainers import (
    CURVE,
    FOLDER_WARNING,
    LIGHTNING_WARNING,
    PAGE_CURVE,
    PAGE_PEAK,
    PEAK,
    assert_resumed,
    expected_lrs,
    record_lrs,
    same_weights,
    train,
)
from support.training.trees import through_file
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


def torch_lambda_lr(optimizer, curve):
    """Build torch's LambdaLR with the curve's multipliers."""
    return LambdaLR(optimizer, lambda step: curve(step))


def alternating(*sequences):
    return [used for both in zip(*sequences, strict=True) for used in both]


@pytest.mark.filterwarnings(LIGHTNING_WARNING, FOLDER_WARNING)
@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Plain PyTorch", expected_lrs(PAGE_CURVE, range(200), PAGE_PEAK)),
        ("Lightning Fabric", expected_lrs(PAGE_CURVE, range(200), PAGE_PEAK)),
        ("PyTorch Lightning", expected_lrs(PAGE_CURVE, range(200), PAGE_PEAK)),
        ("Hugging Face Trainer", expected_lrs(PAGE_CURVE, range(200), PAGE_PEAK, groups=2)),
        (
            SEVERAL,
            alternating(
                expected_lrs(PAGE_CURVE, range(200), 0.02), expected_lrs(LINEAR, range(200), PAGE_PEAK)
            ),
        ),
        (
            SEQUENTIAL,
            [[0.1 * float(np.float32(PAGE_PEAK))]] * 40 + expected_lrs(LATER, range(160), PAGE_PEAK),
        ),
    ],
)
def test_resume_matches_uninterrupted_run(heading, expected, tmp_path):
    assert_resumed(heading, tmp_path, expected)


def test_sequence_matches_torch_lambda_lr(tmp_path):
    used = {}
    for name, scheduler in (("ours", lambda_lr), ("torch's", torch_lambda_lr)):
        (tmp_path / name).mkdir()
        with record_lrs() as used[name], patch.object(torch_bridge, "lambda_lr", scheduler):
            train(SEQUENTIAL, tmp_path / name, changes={"lr=1e-2": f"lr={float(np.float32(PAGE_PEAK))}"})
    assert len(used["ours"]) == 200
    # Torch does not round the product to float32.
    np.testing.assert_allclose(used["ours"], used["torch's"], rtol=2**-24)


class Run:
    """A model with its optimizers and schedulers; each update steps some of the schedulers."""

    def __init__(self, build):
        self.model = trainers.net()
        self.optimizers, self.schedulers, self.stepped = build(self.model)
        self.saved_parts = self.model, *self.optimizers, *self.schedulers

    def train(self, first, last):
        """Make these updates and return their learning rates."""
        inputs, targets = trainers.dataset(48).tensors
        with record_lrs() as used:
            for update in range(first, last):
                rows = slice(update * 4, update * 4 + 4)
                trainers.loss_of(self.model, (inputs[rows], targets[rows])).backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                for scheduler in self.stepped(update):
                    scheduler.step()
        return used


def check_resumed_run(build):
    """Return the learning rates of twelve updates, checking a run that is resumed after five."""
    uninterrupted, interrupted, resumed = (Run(build) for _ in range(3))
    used = uninterrupted.train(0, 12)
    before = interrupted.train(0, 5)
    for part, state in zip(
        resumed.saved_parts,
        through_file([part.state_dict() for part in interrupted.saved_parts]),
        strict=True,
    ):
        part.load_state_dict(state)
    assert before + resumed.train(5, 12) == used
    assert same_weights(resumed.model, uninterrupted.model)
    return used


def chained(optimizer, lambda_lr):
    chain = ChainedScheduler([lambda_lr(optimizer, CURVE), ExponentialLR(optimizer, 0.9)], optimizer)
    return [chain], lambda _: [chain]


def before_averaging(optimizer, lambda_lr):
    schedulers = [lambda_lr(optimizer, CURVE), SWALR(optimizer, swa_lr=1e-4, anneal_epochs=3)]
    return schedulers, lambda update: schedulers[update >= 8 :][:1]


@pytest.mark.parametrize("combine", [chained, before_averaging])
def test_resume_with_curve_among_other_schedulers(combine):
    def build(scheduler):
        def build_parts(model):
            optimizer = AdamW(model.parameters(), float(np.float32(PEAK)))
            schedulers, stepped = combine(optimizer, scheduler)
            return [optimizer], schedulers, stepped

        return build_parts

    used = check_resumed_run(build(lambda_lr))
    np.testing.assert_allclose(used, Run(build(torch_lambda_lr)).train(0, 12), rtol=2**-24)
    if combine is before_averaging:
        assert used[:9] == expected_lrs(CURVE, range(9))
