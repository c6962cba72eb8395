"""Optimizers as parts: the same bits, whatever their dtypes and options, or an error."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpointing.checkpoints import Rejecting, same_bits
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import Foreign
from support.training.steps import check_resume, make_step
from torch.optim import Optimizer

from torch_bridge import Checkpoints, TrainStep

BATCHES = [(inputs.bfloat16(), targets.bfloat16()) for inputs, targets in batches(9)]


class Bfloat16Run:
    """A training run in bf16."""

    def __init__(self, make_optimizer: Callable[[Any], Optimizer], updates: int) -> None:
        self.model = Net().bfloat16()
        self.optimizer = make_optimizer(self.model.parameters())
        self.train(BATCHES[:updates])

    def train(self, batches: list[Any]) -> None:
        for batch in batches:
            self.optimizer.zero_grad()
            mean_loss(self.model, batch).backward()
            self.optimizer.step()

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}


def check_part(directory: Path, make_optimizer: Callable[[Any], Optimizer]) -> None:
    """Compare a run with two that resume from a checkpoint, and with one that is rolled back."""
    uninterrupted = Bfloat16Run(make_optimizer, updates=9)
    saved = Bfloat16Run(make_optimizer, updates=6)
    checkpoints = Checkpoints(directory)
    checkpoints.save(6, **saved.parts, rejecting=Rejecting(1))
    fresh = Bfloat16Run(make_optimizer, updates=0)
    checkpoints.load(**fresh.parts, partial=True)
    used = Bfloat16Run(make_optimizer, updates=2)
    checkpoints.load(**used.parts, partial=True)
    with pytest.raises(KeyError):
        checkpoints.load(**saved.parts, rejecting=Rejecting(2))
    for resumed in (fresh, used, saved):
        resumed.train(BATCHES[6:])
        assert same_bits(resumed.model.state_dict(), uninterrupted.model.state_dict())
        assert same_bits(resumed.optimizer.state_dict(), uninterrupted.optimizer.state_dict())


@pytest.mark.parametrize(
    "optimizer_class", [Foreign, torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW]
)
def test_optimizer_keeps_dtypes_of_its_state(tmp_path: Path, optimizer_class: Any) -> None:
    """torch casts them to the dtype of the parameters when it loads them."""
    check_part(tmp_path, partial(optimizer_class, lr=0.01))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adabelief", {}),
        ("adan", {}),
        ("adopt", {}),
        ("ademamix", {}),
        ("came", {}),
        ("lamb", {}),
        ("lion", {}),
        ("madgrad", {}),
        ("prodigy", {}),
        ("tiger", {}),
        ("ranger21", {"num_iterations": 40}),
        ("sara", {}),
        ("schedulefreeadamw", {}),
        ("soap", {}),
        ("spam", {}),
        ("stableadamw", {}),
    ],
)
def test_optimizers_of_other_library_resume(
    tmp_path: Path, name: str, options: dict[str, int]
) -> None:
    import pytorch_optimizer

    optimizer_class = pytorch_optimizer.load_optimizer(name)
    check_part(tmp_path, partial(optimizer_class, lr=0.01, **options))

    def build() -> TrainStep:
        model = Net()
        optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
        return make_step(model=model, optimizer=optimizer)

    check_resume(build, batches(9), (1, 5))


def optimizer_with_names(prefix: str) -> Optimizer:
    """Return an optimizer that has stepped, with names of the parameters after a prefix."""
    model = Net()
    parameters = [(prefix + name, parameter) for name, parameter in model.named_parameters()]
    optimizer = torch.optim.AdamW(parameters)
    loss = mean_loss(model, *batches(1))
    loss.backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("saving", "loading"), [("", "module."), ("module.", "")])
def test_optimizer_may_name_a_wrapped_model(tmp_path: Path, saving: str, loading: str) -> None:
    saved = optimizer_with_names(saving)
    loaded = optimizer_with_names(loading)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, optimizer=saved)
    checkpoints.load(optimizer=loaded)
    assert same_bits(loaded.state_dict()["state"], saved.state_dict()["state"])
