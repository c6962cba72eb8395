"""Trials of batch sizes leave everything as it was."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from support.training import CURVE, OPTIMIZERS, batches, mean_loss, optimizer_of, seeded
from support.trials import rows
from torch import Tensor, nn

from torch_bridge import TrainStep, find_batch_size, lambda_lr

pytestmark = pytest.mark.usefixtures("frozen")


class _Full(nn.Module):
    """Dropout, running statistics, a buffer that is replaced, one that was expanded, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.last.bias.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls = self.calls + 1
        np.random.rand(), random.random()  # noqa: NPY002 (the state in question)
        return self.last(self.dropout(self.norm(torch.tanh(self.first(inputs)))))


def _everything(model: nn.Module, optimizer: Any) -> list[Any]:
    """All that a run depends on, as plain values; and which tensors hold it."""
    buffers = dict(model.named_buffers())
    return [
        {name: value.tolist() for name, value in (model.state_dict() | buffers).items()},
        {name: id(value) for name, value in (dict(model.named_parameters()) | buffers).items()},
        [module.training for module in model.modules()],
        [
            (value.requires_grad, None if value.grad is None else value.grad.tolist())
            for value in model.parameters()
        ],
        repr(optimizer.state_dict()),
        [{name: id(value) for name, value in group.items()} for group in optimizer.param_groups],
        [id(value) for state in optimizer.state.values() for value in state.values()],
        torch.get_rng_state().tolist(),
        repr(np.random.get_state()),  # noqa: NPY002 (the state in question)
        random.getstate(),
    ]


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize(
    ("name", "ending"),
    [(name, "found") for name in OPTIMIZERS if name != "muon"] + [("adamw", "error"), ("adamw", "interrupt")],
)
def test_all_is_as_before(name: str, updates: int, ending: str) -> None:
    model = _Full()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind, options = OPTIMIZERS[name]
    optimizer = kind(trained, **options)
    for batch in batches(updates):
        mean_loss(model, batch).backward()
        optimizer.step()
    if not updates:
        model.dropout.eval()
    before, twin = _everything(model, optimizer), copy.deepcopy((model, optimizer))

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        loss = mean_loss(model, batch)
        if len(batch[0]) > 6:
            raise {"found": MemoryError, "error": KeyError, "interrupt": KeyboardInterrupt}[ending]
        return loss

    def make_step() -> TrainStep:
        torch.rand(3)
        return TrainStep(model, optimizer, loss_fn, CURVE)

    if ending == "found":
        assert find_batch_size(make_step, rows, 24) == (6, 4)
    else:
        with pytest.raises(KeyError if ending == "error" else KeyboardInterrupt):
            find_batch_size(make_step, rows, 24)
    assert _everything(model, optimizer) == before
    if ending == "found":
        state = torch.get_rng_state()
        results: list[list[Tensor]] = []
        for own_model, own_optimizer in ((model, optimizer), twin):
            torch.set_rng_state(state)
            step = TrainStep(own_model, own_optimizer, mean_loss, CURVE)
            results.append([step(batch).loss for batch in batches(3)] + list(own_model.parameters()))
        assert all(map(torch.equal, *results))


def test_a_scheduler_starts_from_the_same_rates() -> None:
    model, other = _Full(), _Full()
    optimizer = optimizer_of("adamw", model)
    find_batch_size(lambda: TrainStep(model, optimizer, mean_loss, CURVE), rows, 4)
    expected = lambda_lr(optimizer_of("adamw", other), CURVE)
    assert lambda_lr(optimizer, CURVE).state_dict() == expected.state_dict()
