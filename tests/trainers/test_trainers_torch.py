"""Plain PyTorch under a curve: several optimizers, and other schedulers beside it."""

import numpy as np
import pytest
from support import trainers
from support.runs import through_a_file
from support.trainers import CURVE, PEAK, execute, rates, rates_used, readme, same_weights
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR, LambdaLR, SequentialLR
from torch.optim.swa_utils import SWALR

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

SEVERAL, SEQUENTIAL = readme("Plain PyTorch")
OTHER = PlateauCurve(12, plateaus=[(50, 30)], decay_shape="linear")


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
        resumed.parts, through_a_file([part.state_dict() for part in interrupted.parts]), strict=True
    ):
        part.load_state_dict(state)
    assert before + resumed.train(5, 12) == used
    assert same_weights(resumed.model, whole.model)
    return used


def test_several_optimizers_under_a_curve_each():
    def build(model):
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
        names = {"muon": Muon(matrices, 0.02), "adamw": AdamW(others, PEAK), "curve": CURVE, "other": OTHER}
        names["lambda_lr"] = lambda_lr
        execute([SEVERAL], names)
        return [names["muon"], names["adamw"]], names["schedulers"], lambda _: names["schedulers"]

    used = used_and_resumed(build)
    assert used[0::2] == rates(CURVE, range(12), 0.02)
    assert used[1::2] == rates(OTHER, range(12))


def after_a_constant(optimizer, lambda_lr):
    names = {"SequentialLR": SequentialLR, "ConstantLR": ConstantLR, "lambda_lr": lambda_lr}
    names |= {"optimizer": optimizer, "curve": CURVE}
    execute([SEQUENTIAL], names)
    return [names["scheduler"]], lambda _: [names["scheduler"]]


def chained(optimizer, lambda_lr):
    chain = ChainedScheduler([lambda_lr(optimizer, CURVE), ExponentialLR(optimizer, 0.9)], optimizer)
    return [chain], lambda _: [chain]


def before_averaging(optimizer, lambda_lr):
    schedulers = [lambda_lr(optimizer, CURVE), SWALR(optimizer, swa_lr=1e-4, anneal_epochs=3)]
    return schedulers, lambda update: schedulers[update >= 8 :][:1]


def of_torch(optimizer, curve):
    """torch's own scheduler, with the curve's multipliers."""
    return LambdaLR(optimizer, lambda step: curve(step))


@pytest.mark.parametrize("combine", [after_a_constant, chained, before_averaging])
def test_beside_other_schedulers(combine):
    def build(scheduler):
        def of(model):
            optimizer = AdamW(model.parameters(), float(np.float32(PEAK)))
            schedulers, stepped = combine(optimizer, scheduler)
            return [optimizer], schedulers, stepped

        return of

    used = used_and_resumed(build(lambda_lr))
    assert used == Run(build(of_torch)).train(0, 12)
    if combine is after_a_constant:
        assert used == [[0.5 * float(np.float32(PEAK))]] * 4 + rates(CURVE, range(8))
    if combine is before_averaging:
        assert used[:9] == rates(CURVE, range(9))
