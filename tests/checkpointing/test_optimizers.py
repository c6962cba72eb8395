"""Optimizers as parts: the same bits, whatever their dtypes and options, or an error."""

from functools import partial

import pytest
import torch
from support.checkpointing.checkpoints import Rejecting, assert_same_bits
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import Foreign
from support.training.steps import check_resume, make_step

from torch_bridge import Checkpoints

BATCHES = [(inputs.bfloat16(), targets.bfloat16()) for inputs, targets in batches(9)]


class Bfloat16Run:
    """A training run in bf16."""

    def __init__(self, make_optimizer, updates):
        self.model = Net().bfloat16()
        self.optimizer = make_optimizer(self.model.parameters())
        self.train(BATCHES[:updates])

    def train(self, batches):
        for batch in batches:
            self.optimizer.zero_grad()
            mean_loss(self.model, batch).backward()
            self.optimizer.step()

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer}


def check_part(directory, make_optimizer):
    """Compare a run with two that resume from a checkpoint, and with one that is rolled back."""
    uninterrupted = Bfloat16Run(make_optimizer, updates=9)
    saved = Bfloat16Run(make_optimizer, updates=6)
    fresh = Bfloat16Run(make_optimizer, updates=0)
    used = Bfloat16Run(make_optimizer, updates=2)
    checkpoints = Checkpoints(directory)
    checkpoints.save(6, **saved.parts, rejecting=Rejecting(1))
    checkpoints.load(**fresh.parts, partial=True)
    checkpoints.load(**used.parts, partial=True)
    with pytest.raises(KeyError):
        checkpoints.load(**saved.parts, rejecting=Rejecting(2))
    for resumed in (fresh, used, saved):
        resumed.train(BATCHES[6:])
        assert_same_bits(resumed.model.state_dict(), uninterrupted.model.state_dict())
        assert_same_bits(resumed.optimizer.state_dict(), uninterrupted.optimizer.state_dict())


@pytest.mark.parametrize(
    "optimizer_class", [Foreign, torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW]
)
def test_optimizer_keeps_dtypes_of_its_state(tmp_path, optimizer_class):
    """torch casts them to the dtype of the parameters when it loads them."""
    check_part(tmp_path, partial(optimizer_class, lr=0.01))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ademamix", "came", "lion", "madgrad", "prodigy", "schedulefreeadamw", "soap", "spam"]
)
def test_optimizers_of_other_library_resume(tmp_path, name):
    import pytorch_optimizer

    optimizer_class = pytorch_optimizer.load_optimizer(name)
    check_part(tmp_path, partial(optimizer_class, lr=0.01))

    def build():
        model = Net()
        optimizer = optimizer_class(model.parameters(), lr=0.01)
        return make_step(model=model, optimizer=optimizer)

    check_resume(build, batches(9), (1, 5))


def optimizer_with_names(prefix):
    """Return an optimizer that has stepped, with names of the parameters after a prefix."""
    model = Net()
    parameters = [(prefix + name, parameter) for name, parameter in model.named_parameters()]
    optimizer = torch.optim.AdamW(parameters)
    loss = mean_loss(model, *batches(1))
    loss.backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("saving", "loading"), [("", "module."), ("module.", "")])
def test_optimizer_may_name_a_wrapped_model(tmp_path, saving, loading):
    saved = optimizer_with_names(saving)
    loaded = optimizer_with_names(loading)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, optimizer=saved)
    checkpoints.load(optimizer=loaded)
    assert_same_bits(loaded.state_dict()["state"], saved.state_dict()["state"])
