"""Guards of a captured update: every change is noticed, without reading the device or false alarms."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.operators import OperatorRecorder
from support.training.optimizers import make_optimizer
from torch import nn
from torch.optim import Optimizer

from torch_bridge.training.cuda_graphs.guards import Guards


class _Parts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.1))
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("none", None)


def _built() -> tuple[_Parts, Optimizer, Guards]:
    model = _Parts()
    optimizer = make_optimizer("adamw", model)
    mean_loss(model, batches(1)[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer, Guards(model, [optimizer])


def _group(optimizer: Optimizer) -> dict[str, Any]:
    return optimizer.param_groups[0]


def _replace_moment(optimizer: Optimizer) -> None:
    state = next(iter(optimizer.state.values()))
    state["exp_avg"] = state["exp_avg"].clone()


def _move_moment(optimizer: Optimizer) -> None:
    moment = next(iter(optimizer.state.values()))["exp_avg"]
    moment.data = moment.clone()


def _swap_states(optimizer: Optimizer) -> None:
    states = list(optimizer.state.values())[::-1]
    optimizer.state.update(zip(optimizer.state, states, strict=True))


_CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "fused": lambda model, optimizer: _group(optimizer).update(fused=False),
    "a load": lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    "weight decay": lambda model, optimizer: _group(optimizer).update(weight_decay=0.5),
    "betas": lambda model, optimizer: _group(optimizer).update(betas=(0.5, 0.9)),
    "a setting more": lambda model, optimizer: _group(optimizer).update(name="x"),
    "evaluation": lambda model, optimizer: model.eval(),
    "evaluation of a part": lambda model, optimizer: model.more[1].eval(),
    "frozen": lambda model, optimizer: model.first.weight.requires_grad_(False),
    "another parameter": lambda model, optimizer: setattr(model.first, "bias", nn.Parameter(torch.ones(8))),
    "other memory": lambda model, optimizer: setattr(model.first.bias, "data", torch.ones(8)),
    "a buffer's other memory": lambda model, optimizer: setattr(model.kept, "data", torch.ones(2)),
    "a moment's other memory": lambda model, optimizer: _move_moment(optimizer),
    "moments that changed places": lambda model, optimizer: _swap_states(optimizer),
    "another dtype": lambda model, optimizer: model.double(),
    "another buffer": lambda model, optimizer: setattr(model, "kept", torch.ones(2)),
    "no buffer": lambda model, optimizer: setattr(model, "kept", None),
    "a buffer in place of none": lambda model, optimizer: setattr(model, "none", torch.ones(2)),
    "another part": lambda model, optimizer: setattr(model, "last", nn.Linear(8, 2)),
    "a part more": lambda model, optimizer: model.more.append(nn.Identity()),
    "a part less": lambda model, optimizer: model.more.pop(1),
    "parts in a different order": lambda model, optimizer: model.more.insert(0, model.more.pop(1)),
    "tied": lambda model, optimizer: setattr(model.more[0], "bias", model.more[0].weight),
    "another moment": lambda model, optimizer: _replace_moment(optimizer),
    "cleared states": lambda model, optimizer: optimizer.state.clear(),
    "a state less": lambda model, optimizer: optimizer.state.popitem(),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
def test_every_change_fails_guards_once(change: Callable[[Any, Any], Any]) -> None:
    model, optimizer, guards = _built()
    assert not guards.failed()
    change(model, optimizer)
    with OperatorRecorder() as operators:
        assert guards.failed()
        guards.record()
        assert not guards.failed()
    assert not operators.names


def test_list_and_tensor_settings_are_compared() -> None:
    _, optimizer, guards = _built()
    betas = [0.9, torch.tensor(0.99)]
    _group(optimizer)["betas"] = betas
    guards.record()
    assert not guards.failed()
    betas[0] = 0.5
    assert guards.failed()
    guards.record()
    betas[1] = torch.tensor(0.99)
    assert guards.failed()


def test_undisturbed_run_passes_guards() -> None:
    model, optimizer, guards = _built()
    for batch in batches(5):
        for inputs in (batch, nonfinite(batch)):
            optimizer.found_inf = torch.zeros(())
            mean_loss(model, inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
            _group(optimizer).update(lr=0.5, initial_lr=0.5)  # the clock's memory holds the learning rate
            model.kept.add_(1)
            assert not guards.failed()
