"""What an update was built on: every change is noticed, nothing is read, and a quiet run has none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training import Net, Operators, batches, mean_loss, optimizer_of, spoiled
from torch import nn
from torch.optim import Optimizer

from torch_bridge.training.changes import Foundation


class _Parts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.1))
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("none", None)


def _built(captured: bool, *, trained: bool = True) -> tuple[_Parts, Optimizer, Foundation]:
    model = _Parts()
    optimizer = optimizer_of("adamw", model)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    if trained:
        mean_loss(model, batches(1)[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, Foundation(model, [optimizer], [optimizer], captured)


def _group(optimizer: Optimizer) -> dict[str, Any]:
    return optimizer.param_groups[0]


def _new() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def _replace_moment(optimizer: Optimizer) -> None:
    state = next(iter(optimizer.state.values()))
    state["exp_avg"] = state["exp_avg"].clone()


def _move_moment(optimizer: Optimizer) -> None:
    moment = next(iter(optimizer.state.values()))["exp_avg"]
    moment.data = moment.clone()


def _swap_states(optimizer: Optimizer) -> None:
    states = list(optimizer.state.values())[::-1]
    optimizer.state.update(zip(optimizer.state, states, strict=True))


_ALWAYS: dict[str, Callable[[Any, Any], Any]] = {
    "fused": lambda model, optimizer: _group(optimizer).update(fused=False),
    "rate by a number": lambda model, optimizer: _group(optimizer).update(lr=0.1),
    "rate by a tensor": lambda model, optimizer: _group(optimizer).update(lr=_group(optimizer)["lr"].clone()),
    "a parameter more": lambda model, optimizer: _group(optimizer)["params"].append(_new()),
    "a parameter less": lambda model, optimizer: _group(optimizer)["params"].pop(),
    "another order": lambda model, optimizer: _group(optimizer)["params"].reverse(),
    "a group more": lambda model, optimizer: optimizer.add_param_group({"params": [_new()]}),
    "another step": lambda model, optimizer: setattr(optimizer, "step", lambda: None),
    "a load": lambda model, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
}
_CAPTURED: dict[str, Callable[[Any, Any], Any]] = {
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
    "parts in another order": lambda model, optimizer: model.more.insert(0, model.more.pop(1)),
    "tied": lambda model, optimizer: setattr(model.more[0], "bias", model.more[0].weight),
    "another moment": lambda model, optimizer: _replace_moment(optimizer),
    "cleared states": lambda model, optimizer: optimizer.state.clear(),
    "a state less": lambda model, optimizer: optimizer.state.popitem(),
}


@pytest.mark.parametrize("change", (_ALWAYS | _CAPTURED).values(), ids=_ALWAYS | _CAPTURED)
def test_every_change_is_noticed_once(change: Callable[[Any, Any], Any]) -> None:
    model, optimizer, foundation = _built(captured=True)
    assert not foundation.changed()
    change(model, optimizer)
    with Operators() as operators:
        assert foundation.changed()
        assert foundation.changed()
        foundation.settle()
        assert not foundation.changed()
    assert not operators.names


@pytest.mark.parametrize("change", _ALWAYS.values(), ids=_ALWAYS)
def test_without_a_graph_those_that_choose_the_driver(change: Callable[[Any, Any], Any]) -> None:
    model, optimizer, foundation = _built(captured=False)
    change(model, optimizer)
    with Operators() as operators:
        assert foundation.changed()
        foundation.settle()
        assert not foundation.changed()
    assert not operators.names


def test_a_list_of_settings_changed_in_place() -> None:
    _, optimizer, foundation = _built(captured=True)
    betas = [0.9, 0.99]
    _group(optimizer)["betas"] = betas
    foundation.settle()
    betas[0] = 0.5
    assert foundation.changed()


def test_settings_that_are_tensors() -> None:
    _, optimizer, foundation = _built(captured=True)
    _group(optimizer)["betas"] = (torch.tensor(0.9), torch.tensor(0.99))
    foundation.settle()
    assert not foundation.changed()
    _group(optimizer)["betas"] = tuple(beta.clone() for beta in _group(optimizer)["betas"])
    assert foundation.changed()


@pytest.mark.parametrize("captured", [True, False])
def test_a_quiet_run_has_none(captured: bool) -> None:
    model, optimizer, foundation = _built(captured)
    for batch in batches(5):
        for each in (batch, spoiled(batch)):
            optimizer.found_inf = torch.zeros(())
            mean_loss(model, each).backward()
            optimizer.step()
            optimizer.zero_grad()
            _group(optimizer)["lr"].fill_(0.5)
            model.kept.add_(1)
            assert not foundation.changed()


def test_states_that_a_first_update_makes_are_seen() -> None:
    model, optimizer, foundation = _built(captured=True, trained=False)
    mean_loss(model, batches(1)[0]).backward()
    optimizer.step()
    assert foundation.changed()


def test_a_rate_that_is_a_number_is_no_setting() -> None:
    model = Net()
    optimizer = optimizer_of("plain adam", model)
    foundation = Foundation(model, [optimizer], [optimizer], captured=False)
    for rate in (0.1, 0.2):
        _group(optimizer)["lr"] = rate
        assert not foundation.changed()
