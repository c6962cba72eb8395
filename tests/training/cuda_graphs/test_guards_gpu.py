"""Captured updates on a GPU after changes to what their graphs depend on."""

from typing import Any

import pytest
import torch
from support.training.cuda_graphs.gpu import assert_same_state, captured_and_eager, graphs_of, on_gpu
from support.training.models import Batch, Net, batches, mean_loss
from support.training.steps import train
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn

pytestmark = pytest.mark.gpu


class _Deep(Net):
    """A net with a buffer, modules in different modes, and modules in a list."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList([nn.Linear(2, 2, bias=False)])
        nn.init.eye_(self.more[0].weight)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs * 0.5 if self.training else inputs
        return nn.Sequential(*self.more)(super().forward(inputs + self.shift))


def _set(name: str, value: Any) -> Any:
    return lambda step: step.optimizer.param_groups[0].__setitem__(name, value)


def _deeper(step: Any) -> None:
    step.model.more.append(nn.Linear(2, 2, bias=False).cuda())
    nn.init.eye_(step.model.more[1].weight)


_CHANGES: dict[str, Any] = {
    "mode": lambda step: step.model.eval(),
    "requires_grad": lambda step: step.model.first.weight.requires_grad_(False),
    "a buffer": lambda step: setattr(step.model, "shift", torch.ones(3, device="cuda")),
    "a buffer's memory": lambda step: setattr(step.model.shift, "data", torch.ones(3, device="cuda")),
    "a parameter's memory": lambda step: setattr(step.model.last.bias, "data", torch.ones(2, device="cuda")),
    "a module": lambda step: step.model.more.__setitem__(0, nn.Identity()),
    "a new module": _deeper,
    "a trip to the host": lambda step: step.model.cpu().cuda(),
    "weight_decay": _set("weight_decay", 0.5),
    "betas": _set("betas", (0.5, 0.6)),
    "maximize": _set("maximize", True),
    "a rate that is a number": _set("lr", 0.3),
    "a rate that is another tensor": _set("lr", torch.tensor(0.3)),
    "no states": lambda step: step.optimizer.state.clear(),
    "a state fewer": lambda step: step.optimizer.state.popitem(),
    "the step's state": lambda step: step.load_state_dict(through_file(step.state_dict())),
    "the optimizer's state": lambda step: step.optimizer.load_state_dict(step.optimizer.state_dict()),
    "the model's state": lambda step: step.model.load_state_dict(through_file(step.model.state_dict())),
}


_CASES = [
    (name, change)
    for name in ("adamw", "momentum")
    for change in _CHANGES
    if (name, change) != ("momentum", "a state fewer")  # torch's fused SGD wants all of them, or none
]


@pytest.mark.parametrize(("name", "change"), _CASES)
def test_change_takes_effect(name: str, change: str) -> None:
    captured, eager = captured_and_eager(name, _Deep())
    data = on_gpu(batches(8))
    results = []
    for step in (captured, eager):
        train(step, data)
        _CHANGES[change](step)
        results.append(train(step, data))
    assert equal_trees(*results)
    assert len(graphs_of(captured).captured) == 1
    assert_same_state(captured, eager)


def test_changes_at_every_update_match_eager() -> None:
    """Each forward pass replaces a buffer, which a graph can't follow."""

    class Average(Net):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, inputs: Tensor) -> Tensor:
            self.mean = (0.9 * self.mean + 0.1 * inputs.mean(0)).detach()
            return super().forward(inputs - self.mean)

    captured, eager = captured_and_eager(model=Average())
    for batch in on_gpu(batches(14)):
        assert equal_trees(captured(batch), eager(batch))
        assert equal_trees(captured.model.state_dict(), eager.model.state_dict())
    assert_same_state(captured, eager)


def test_states_created_by_second_shape_match_eager() -> None:
    """A layer that only longer batches use gets its optimizer state when there is already a graph."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        loss = mean_loss(model, batch)
        return loss + model.get_parameter("more.0.weight").square().sum() if len(batch[0]) > 4 else loss

    class Split(Net):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.ModuleList([nn.Linear(2, 2, bias=False)])
            nn.init.eye_(self.more[0].weight)

    captured, eager = captured_and_eager(model=Split(), loss_fn=loss_fn)
    short, long = on_gpu(batches(12)), on_gpu(batches(12, rows=6, seed=1))
    data = [*short[:6], *(batch for pair in zip(short[6:], long, strict=False) for batch in pair), *long]
    for batch in data:
        assert equal_trees(captured(batch), eager(batch))
    assert len(graphs_of(captured).captured) == 2
    assert_same_state(captured, eager)


def test_uncapturable_settings_are_refused() -> None:
    captured, eager = captured_and_eager()
    data = on_gpu(batches(8))
    assert equal_trees(train(captured, data[:5]), train(eager, data[:5]))
    group = captured.optimizer.param_groups[0]
    for name in ("fused", "capturable"):
        group[name] = False
        with pytest.raises(ValueError, match=f"cuda_graph=True needs .*{name}=True"):
            captured(data[5])
        group[name] = True
    assert equal_trees(train(captured, data[5:]), train(eager, data[5:]))
    assert_same_state(captured, eager)
