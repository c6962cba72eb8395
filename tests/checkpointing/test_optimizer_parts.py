"""Optimizers as parts: the same bits, whatever their dtypes and options, or an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpointing.checkpoints import Rejecting, same_bits
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import Foreign
from support.training.steps import check_resume, make_step
from torch import nn
from torch.optim import Optimizer

from torch_bridge import Checkpoints

_BATCHES = [(inputs.bfloat16(), targets.bfloat16()) for inputs, targets in batches(9)]


def _train(model: nn.Module, optimizer: Optimizer, updates: list[Any]) -> None:
    for batch in updates:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()


def _check_part(directory: Path, kind: Callable[[Any], Optimizer]) -> None:
    """Compare a bf16 run with two that resume from a checkpoint, and with one that restores its state."""

    def trained(updates: list[Any]) -> tuple[nn.Module, Optimizer]:
        model = Net().bfloat16()
        optimizer = kind(model.parameters())
        _train(model, optimizer, updates)
        return model, optimizer

    uninterrupted, saved, fresh, used = (trained(_BATCHES[:count]) for count in (9, 6, 0, 2))
    checkpoints = Checkpoints(directory)
    checkpoints.save(6, model=saved[0], optimizer=saved[1], rejecting=Rejecting(1))
    for model, optimizer in (fresh, used):
        checkpoints.load(model=model, optimizer=optimizer)
    with pytest.raises(KeyError):
        checkpoints.load(model=saved[0], optimizer=saved[1], rejecting=Rejecting(2))
    for resumed in (fresh, used, saved):
        _train(*resumed, _BATCHES[6:])
        for one, other in zip(resumed, uninterrupted, strict=True):
            assert same_bits(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("kind", [Foreign, torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW])
def test_optimizer_keeps_dtypes_of_its_state(tmp_path: Path, kind: Any) -> None:
    """torch casts them to the dtype of the parameters when it loads them."""
    _check_part(tmp_path, lambda parameters: kind(parameters, lr=0.01))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("adabelief", "adan", "adopt", "ademamix", "came", "lamb", "lion", "madgrad", "prodigy", "tiger"),
        *("ranger21", "sara", "schedulefreeadamw", "soap", "spam", "stableadamw"),
    ],
)
def test_optimizers_of_other_library_resume(tmp_path: Path, name: str) -> None:
    import pytorch_optimizer

    kind = pytorch_optimizer.load_optimizer(name)
    options = {"num_iterations": 40} if name == "ranger21" else {}
    _check_part(tmp_path, lambda parameters: kind(parameters, lr=0.01, **options))

    def build() -> Any:
        model = Net()
        return make_step(model=model, optimizer=kind(model.parameters(), lr=0.01, **options))

    check_resume(build, batches(9), (1, 5))


@pytest.mark.parametrize(("saving", "loading"), [("", "module."), ("module.", "")])
def test_optimizer_may_name_a_wrapped_model(tmp_path: Path, saving: str, loading: str) -> None:
    def build(prefix: str) -> Optimizer:
        model = Net()
        optimizer = torch.optim.AdamW([(prefix + name, one) for name, one in model.named_parameters()])
        _train(model, optimizer, batches(1))
        return optimizer

    saved, loaded = build(saving), build(loading)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, optimizer=saved)
    checkpoints.load(optimizer=loaded)
    assert same_bits(loaded.state_dict()["state"], saved.state_dict()["state"])
