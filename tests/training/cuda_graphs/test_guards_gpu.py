"""Captured updates on a GPU after changes to what their graphs depend on."""

from typing import Any

import pytest
import torch
from support.training.cuda_graphs.captured_runs import Case, Deep, Run, compare_with_eager
from support.training.cuda_graphs.gpu import gpu_step, on_gpu
from support.training.models import batches
from support.training.steps import train
from support.training.trees import equal_trees, through_file
from torch import nn

pytestmark = pytest.mark.gpu


def _set(name: str, value: Any) -> Any:
    return lambda step: step.optimizer.param_groups[0].__setitem__(name, value)


def _append_layer(step: Any) -> None:
    step.model.more.append(nn.Linear(2, 2, bias=False).cuda())
    nn.init.eye_(step.model.more[1].weight)


_CHANGES: dict[str, Any] = {
    "mode": lambda step: step.model.eval(),
    "requires_grad": lambda step: step.model.first.weight.requires_grad_(False),
    "a buffer": lambda step: setattr(step.model, "shift", torch.ones(3, device="cuda")),
    "a buffer's memory": lambda step: setattr(step.model.shift, "data", torch.ones(3, device="cuda")),
    "a parameter's memory": lambda step: setattr(step.model.last.bias, "data", torch.ones(2, device="cuda")),
    "a module": lambda step: step.model.more.__setitem__(0, nn.Identity()),
    "a new module": _append_layer,
    "a trip to the host": lambda step: step.model.cpu().cuda(),
    "weight_decay": _set("weight_decay", 0.5),
    "betas": _set("betas", (0.5, 0.6)),
    "maximize": _set("maximize", True),
    "a learning rate that is a number": _set("lr", 0.3),
    "a different tensor as learning rate": _set("lr", torch.tensor(0.3)),
    "no states": lambda step: step.optimizer.state.clear(),
    "a state fewer": lambda step: step.optimizer.state.popitem(),
    "the step's state": lambda step: step.load_state_dict(through_file(step.state_dict())),
    "the optimizer's state": lambda step: step.optimizer.load_state_dict(step.optimizer.state_dict()),
    "the model's state": lambda step: step.model.load_state_dict(through_file(step.model.state_dict())),
}


_ADAMW_ALONE = ["a state fewer"]  # torch's fused SGD needs all momentum buffers, or none
_CASES = [
    *(("adamw", change) for change in _CHANGES),
    *(("momentum", change) for change in _CHANGES if change not in _ADAMW_ALONE),
]


@pytest.mark.parametrize(("name", "change"), _CASES)
def test_change_takes_effect(name: str, change: str) -> None:
    updates = [Run.updates] * 2
    actions = [*updates, lambda run: _CHANGES[change](run.step), *updates]
    compare_with_eager(Case(model=Deep), actions, name, graphs=1)


def test_uncapturable_settings_are_rejected() -> None:
    captured, eager, data = gpu_step(cuda_graph=True), gpu_step(), on_gpu(batches(8))
    assert equal_trees(train(captured, data[:5]), train(eager, data[:5]))
    group = captured.optimizer.param_groups[0]
    for name in ("fused", "capturable"):
        group[name] = False
        with pytest.raises(ValueError, match=f"cuda_graph=True needs .*{name}=True"):
            captured(data[5])
        group[name] = True
    assert equal_trees(train(captured, data[5:]), train(eager, data[5:]))
    assert equal_trees(captured.state_dict(), eager.state_dict())
