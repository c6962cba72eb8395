"""The training step has the bits of a hand-written loop, however a batch is split."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.models import (
    Batch,
    Net,
    batches,
    device_pair_loss,
    mean_loss,
    nonfinite,
    pair_loss,
    seeded,
)
from support.training.optimizers import OPTIMIZERS, make_optimizer
from support.training.steps import CURVE, make_step, train, train_by_hand
from support.training.trees import equal_trees
from torch import Tensor, nn

from torch_bridge import TrainStep, lambda_lr


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("pieces", "max_norm"), [(1, None), (1, 0.1), (3, None), (2, 0.05)])
def test_step_matches_hand_written_loop(name: str, pieces: int, max_norm: float | None) -> None:
    data = batches(20 * pieces)
    updates = [data[start : start + pieces] for start in range(0, len(data), pieces)]
    model, stepped_model = Net(), Net()
    optimizer = make_optimizer(name, model)
    expected = train_by_hand(model, [optimizer], updates, max_norm)
    stepped_optimizer = make_optimizer(name, stepped_model)
    step = TrainStep(stepped_model, stepped_optimizer, mean_loss, CURVE, max_norm=max_norm)
    results = [step(*micro_batches) for micro_batches in updates]
    assert equal_trees([(result.lr, result.loss, result.grad_norm) for result in results], expected)
    assert equal_trees(stepped_model.state_dict(), model.state_dict())
    states, expected_states = (item.state_dict()["state"] for item in (stepped_optimizer, optimizer))
    unused = [states.pop(index) for index in states.keys() - expected_states.keys()]
    assert not any(state["momentum_buffer"].any() for state in unused), "parameters without a gradient"
    assert equal_trees(states, expected_states)
    for group, other in zip(stepped_optimizer.param_groups, optimizer.param_groups, strict=True):
        assert all(group[key] == other[key] for key in group.keys() - {"lr", "params"})
    assert all(parameter.grad is None for parameter in stepped_model.parameters())


class _Mixed(nn.Module):
    """Tied, frozen and unused parameters, and a layer outside the optimizer."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        with seeded(0):
            self.left_out, self.frozen, self.one, self.tied = (nn.Linear(3, 3) for _ in range(4))
            self.last, self.unused = nn.Linear(3, 2), nn.Linear(2, 2)
        self.tied.weight = self.one.weight
        self.frozen.requires_grad_(False)
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.one(self.frozen(self.left_out(inputs))))
        return self.last(torch.tanh(self.tied(hidden)))

    def groups(self) -> list[dict[str, Any]]:
        trained = [p for name, p in self.named_parameters() if not name.startswith("left_out")]
        matrices, biases = ([p for p in trained if (p.dim() > 1) is wanted] for wanted in (True, False))
        return [
            {"params": matrices, "weight_decay": 0.1, "lr": 0.02},
            {"params": biases, "weight_decay": 0.0},
        ]


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_step_matches_loop_for_every_kind_of_parameter(
    name: str, dtype: torch.dtype, max_norm: float | None
) -> None:
    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0].to(dtype)), batch[1].to(dtype))

    kind, options = OPTIMIZERS[name]
    model, stepped_model = _Mixed(dtype), _Mixed(dtype)
    optimizer, stepped_optimizer = (kind(module.groups(), **options) for module in (model, stepped_model))
    data = batches(25)
    expected = train_by_hand(model, [optimizer], [[batch] for batch in data], max_norm, loss_fn)
    results = train(TrainStep(stepped_model, stepped_optimizer, loss_fn, CURVE, max_norm=max_norm), data)
    assert equal_trees([(result.lr, result.loss, result.grad_norm) for result in results], expected)
    assert equal_trees(stepped_model.state_dict(), model.state_dict())
    states, expected_states = (item.state_dict()["state"] for item in (stepped_optimizer, optimizer))
    unused = [states.pop(index) for index in states.keys() - expected_states.keys()]
    assert not any(state["momentum_buffer"].any() for state in unused), "parameters without a gradient"
    assert equal_trees(states, expected_states)
    assert equal_trees(stepped_model.left_out.weight, _Mixed(dtype).left_out.weight)


def test_step_trains_sparse_gradients() -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().sum()

    model, stepped_model = nn.Embedding(9, 3, sparse=True), nn.Embedding(9, 3, sparse=True)
    stepped_model.load_state_dict(model.state_dict())
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.01)
    scheduler = lambda_lr(optimizer, CURVE)
    step = TrainStep(
        stepped_model, torch.optim.SparseAdam(stepped_model.parameters(), lr=0.01), loss_fn, CURVE
    )
    for batch in torch.randint(9, (12, 5)):
        loss = loss_fn(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.linalg.vector_norm(model.weight.grad.to_dense())
        optimizer.step()
        scheduler.step()
        result = step(batch)
        torch.testing.assert_close(result.grad_norm, norm)
        assert equal_trees(result.loss, loss)
    assert equal_trees(stepped_model.weight, model.weight)


def test_step_trains_complex_parameters() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
            self.bias = nn.Parameter(torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            return (self.weight * inputs).abs() + self.bias

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    model, stepped_model = Spectral(), Spectral()
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.1) for module in (model, stepped_model)]
    data = torch.randn(9, 4, 3)
    expected = train_by_hand(model, optimizers[:1], [[batch] for batch in data], 0.1, loss_fn)
    results = train(TrainStep(stepped_model, optimizers[1], loss_fn, CURVE, max_norm=0.1), data)
    torch.testing.assert_close([(result.lr, result.loss, result.grad_norm) for result in results], expected)
    torch.testing.assert_close(stepped_model.state_dict(), model.state_dict())


@pytest.mark.parametrize("loss_fn", [pair_loss, device_pair_loss])
@examples(25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_pairs_do_not_depend_on_the_split(loss_fn: Callable[..., Any], rows: list[int]) -> None:
    (batch,) = batches(1, sum(rows))
    pieces = list(zip(*(part.split(rows) for part in batch), strict=True))
    # Plain descent: Adam would turn gradients that round to nothing into steps of full size.
    step, in_pieces = (make_step("sgd", loss_fn=loss_fn) for _ in range(2))
    for _ in range(5):
        expected, result = step(batch), in_pieces(*pieces)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)
    for expected_param, param in zip(step.model.parameters(), in_pieces.model.parameters(), strict=True):
        torch.testing.assert_close(param, expected_param, rtol=1e-6, atol=1e-7)


def test_later_updates_do_not_overwrite_results() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.ones(2))
            self.level = nn.Parameter(torch.ones(()))

    # The loss is a fresh tensor, a parameter, a view of one.
    losses: list[Callable[..., Tensor]] = [
        lambda model, batch: model.weights.sum(),
        lambda model, batch: model.level,
        lambda model, batch: model.weights[0],
    ]
    for loss_fn in losses:
        step = make_step("sgd", Single(), loss_fn)
        results = [step(None) for _ in range(5)]
        values = [result.loss.item() for result in results]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == 5
        assert [int(result.applied) for result in results] == [1, 2, 3, 4, 5]
        assert len({result.lr.data_ptr() for result in results}) == 5


def test_step_ignores_earlier_gradients() -> None:
    (batch,) = batches(1)
    for part in ("first", "last"):  # the rest of the model is not in the optimizer
        steps = []
        for _ in range(2):
            model = Net()
            parameters = getattr(model, part).parameters()
            steps.append(make_step(model=model, optimizer=torch.optim.AdamW(parameters, lr=0.1, fused=True)))
        step, clean = steps
        mean_loss(step.model, nonfinite(batch)).backward()
        for _ in range(2):
            assert equal_trees(step(batch), clean(batch))
            assert all(parameter.grad is None for parameter in step.model.parameters())
            mean_loss(step.model, batch).backward()
