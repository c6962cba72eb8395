"""What an update was built on: every change of it is noticed, and an update is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training import CURVE, Net, batches, mean_loss, optimizer_of, spoiled, train
from torch import Tensor, nn

from torch_bridge import TrainStep, evaluate
from torch_bridge.training.changes import Foundation


class _Deep(Net):
    """With buffers, and modules in a list."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.more = nn.BatchNorm1d(3), nn.ModuleList([nn.Linear(2, 2)])
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.more[0](super().forward(self.norm(inputs) + self.shift))


def _built(captured: bool = True) -> tuple[Any, Foundation]:
    model = _Deep()
    optimizer = optimizer_of("adamw", model)
    optimizer.param_groups[0]["own"] = (0.8, torch.tensor(0.9))
    step = TrainStep(model, optimizer, mean_loss, CURVE)
    train(step, batches(2))
    return step, Foundation(model, step.optimizers, captured)


def _group(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda step: step.optimizer.param_groups[0].__setitem__(name, value)


def _states(step: Any) -> list[dict[str, Any]]:
    return list(step.optimizer.state.values())


# Those that choose an optimizer's driver are noticed without graphs, too.
_OF_DRIVERS: dict[str, Callable[[Any], Any]] = {
    "fused": _group("fused", False),
    "a rate that is a number": _group("lr", 0.1),
    "a rate that is another tensor": _group("lr", torch.tensor(0.1)),
    "another group": lambda step: step.optimizer.param_groups.append(step.optimizer.param_groups[0]),
    "parameters in another order": lambda step: step.optimizer.param_groups[0]["params"].reverse(),
}
_OF_GRAPHS: dict[str, Callable[[Any], Any]] = {
    "mode": lambda step: step.model.eval(),
    "mode of a part": lambda step: step.model.norm.eval(),
    "requires_grad": lambda step: step.model.first.weight.requires_grad_(False),
    "a buffer": lambda step: setattr(step.model, "shift", step.model.shift.clone()),
    "a buffer's memory": lambda step: setattr(step.model.shift, "data", step.model.shift.clone()),
    "a new buffer": lambda step: step.model.register_buffer("other", torch.ones(2)),
    "no buffer": lambda step: setattr(step.model, "shift", None),
    "a parameter": lambda step: setattr(step.model.last, "bias", nn.Parameter(torch.ones(2))),
    "a parameter's memory": lambda step: setattr(step.model.last.bias, "data", torch.ones(2)),
    "a parameter's dtype": lambda step: step.model.more.double(),
    "a module": lambda step: step.model.more.__setitem__(0, nn.Linear(2, 2)),
    "a new module": lambda step: step.model.more.append(nn.Linear(2, 2)),
    "a module fewer": lambda step: step.model.more.__delitem__(0),
    "weight_decay": _group("weight_decay", 0.5),
    "betas": _group("betas", (0.8, 0.9)),
    "a tensor in a setting": _group("own", (0.8, torch.tensor(0.9))),
    "eps": _group("eps", 1e-3),
    "maximize": _group("maximize", True),
    "no states": lambda step: step.optimizer.state.clear(),
    "a state fewer": lambda step: step.optimizer.state.popitem(),
    "states that were loaded": lambda step: step.optimizer.load_state_dict(step.optimizer.state_dict()),
    "a tensor of a state": lambda step: _states(step)[0].update(exp_avg=torch.zeros(8, 3)),
    "a state's memory": lambda step: setattr(_states(step)[1]["step"], "data", torch.ones(())),
    "states that changed places": lambda step: [
        step.optimizer.state.__setitem__(parameter, state)
        for parameter, state in zip(step.optimizer.state, _states(step)[::-1], strict=True)
    ],
}
_CHANGES = _OF_DRIVERS | _OF_GRAPHS


@pytest.mark.parametrize(
    "change", [*_OF_DRIVERS.values(), *_OF_GRAPHS.values()], ids=_OF_DRIVERS | _OF_GRAPHS
)
def test_a_change_is_noticed(change: Callable[[Any], Any]) -> None:
    step, foundation = _built()
    assert not foundation.changed()
    change(step)
    assert foundation.changed()
    foundation.settle()
    assert not foundation.changed()


@pytest.mark.parametrize("change", _OF_DRIVERS.values(), ids=_OF_DRIVERS)
def test_a_change_of_the_drivers_is_noticed_without_graphs(change: Callable[[Any], Any]) -> None:
    step, foundation = _built(captured=False)
    change(step)
    assert foundation.changed()


def test_what_updates_do_is_no_change() -> None:
    step, foundation = _built()
    data = batches(6)
    for batch in data:
        step(batch)
        step(spoiled(batch))
        step.state_dict()
        evaluate(step.model, data, mean_loss)
        step.optimizer.zero_grad()
        assert not foundation.changed()
