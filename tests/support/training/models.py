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

    def initial(self) -> Any:
        """Return the state before a sequence, for batches of four rows."""
        state = torch.zeros(1, 4, 5)
        if isinstance(self.cells, nn.LSTM):
            return state, state.clone()
        return state


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


# Losses.


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs = batch[0]
    targets = batch[1]
    return nn.functional.mse_loss(model(inputs).to(targets.dtype), targets)


def square_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The loss of a batch without targets."""
    return model(batch).square().mean()


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
