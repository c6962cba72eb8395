"""Small models, their batches and their losses."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed the random numbers of the host; leave the GPUs alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Net(nn.Module):
    """Two layers, whose weights follow from the seed."""

    def __init__(
        self, seed: int = 0, dropout: float = 0.0, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        with seeded(seed):
            self.first = nn.Linear(3, 8)
            self.last = nn.Linear(8, 2)
        self.dropout = nn.Dropout(dropout)
        self.to(dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.first(inputs))))


class Recurrent(nn.Module):
    """An LSTM or a GRU that returns its state, and a linear layer on top."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        with seeded(0):
            self.cells = getattr(nn, kind)(3, 5, batch_first=True)
            self.last = nn.Linear(5, 2)

    def forward(self, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        hidden, carry = self.cells(inputs, carry)
        return self.last(hidden), carry

    def initial(self, rows: int = 4) -> Any:
        state = torch.zeros(1, rows, 5)
        if isinstance(self.cells, nn.LSTM):
            return state, state.clone()
        return state


class Level(nn.Module):
    """A level and a bias, which a loss may return as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.ones(2))


class Mixed(nn.Module):
    """Tied, frozen and unused parameters, a layer outside the optimizer, odd shapes and layouts."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with seeded(0):
            self.left_out = nn.Linear(3, 3)
            self.frozen = nn.Linear(3, 3)
            self.one = nn.Linear(3, 3)
            self.tied = nn.Linear(3, 3)
            self.last = nn.Linear(3, 2)
            self.unused = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.3)
        self.tied.weight = self.one.weight
        self.frozen.requires_grad_(False)
        self.scalar = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.transposed = nn.Parameter(torch.ones(2, 3).t())
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.to(self.scalar.dtype)
        hidden = torch.tanh(self.one(self.frozen(self.left_out(inputs))))
        hidden = self.dropout(self.norm(self.tied(hidden))) * self.scalar
        return self.last(hidden) + self.transposed.sum(0) + self.empty.sum()


class Embedded(nn.Embedding):
    """An embedding whose gradients are sparse."""

    def __init__(self) -> None:
        with seeded(0):
            super().__init__(9, 3, sparse=True)


class Growing(nn.Module):
    """A module in its second version, whose extra state grows with every call."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.weight = nn.Parameter(torch.randn(3, 2))
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(inputs.detach().sum(0))
        return inputs @ self.weight

    def get_extra_state(self) -> Any:
        sums = None
        if self.seen:
            sums = torch.stack(self.seen)
        return {"seen": list(self.seen), "sums": sums}

    def set_extra_state(self, state: Any) -> None:
        self.seen = list(state["seen"])

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        assert local_metadata.get("version") == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)


# Batches.

Batch = tuple[Tensor, Tensor]


def batches(
    count: int, rows: int = 4, seed: int = 0, time: int | None = None, device: str = "cpu"
) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    shape = [rows]
    if time is not None:
        shape.append(time)
    data: list[Batch] = []
    for _ in range(count):
        inputs = torch.randn(*shape, 3, generator=generator)
        targets = torch.randn(*shape, 2, generator=generator)
        data.append((inputs.to(device), targets.to(device)))
    return data


def nonfinite(batch: Batch, value: float = float("nan")) -> Batch:
    """Return a batch whose loss is not finite."""
    inputs, targets = batch
    return inputs * value, targets


# Losses; `losses.py` has more.


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs = batch[0]
    targets = batch[1]
    return nn.functional.mse_loss(model(inputs).to(targets.dtype), targets)


def pair_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
    inputs = batch[0]
    targets = batch[1]
    errors = model(inputs).float() - targets
    return errors.square().sum(), targets.numel()


def device_pair_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    total, weight = pair_loss(model, batch)
    return total, torch.tensor(weight)


LOSSES: dict[str, Any] = {"mean": mean_loss, "pair": pair_loss, "device pair": device_pair_loss}


def carried_loss(model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
    inputs = batch[0]
    targets = batch[1]
    outputs, carry = model(inputs, carry)
    return nn.functional.mse_loss(outputs.to(targets.dtype), targets), carry


def counting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss, with a carry that counts micro-batches."""
    return mean_loss(model, batch), carry + 1
