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

    def __init__(self, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        with seeded(seed):
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.first(inputs))))


class Recurrent(nn.Module):
    """An LSTM or a GRU that returns its state, and a linear layer on top."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        with seeded(0):
            self.cells, self.last = getattr(nn, kind)(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        hidden, carry = self.cells(inputs, carry)
        return self.last(hidden), carry

    def initial(self, rows: int = 4) -> Any:
        state = torch.zeros(1, rows, 5)
        return (state, state.clone()) if isinstance(self.cells, nn.LSTM) else state


Batch = tuple[Tensor, Tensor]


def batches(count: int, rows: int = 4, seed: int = 0, time: int | None = None) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows,) if time is None else (rows, time)
    return [
        (torch.randn(*shape, 3, generator=generator), torch.randn(*shape, 2, generator=generator))
        for _ in range(count)
    ]


def nonfinite(batch: Batch, value: float = float("nan")) -> Batch:
    """Return a batch whose loss is not finite."""
    return batch[0] * value, batch[1]


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]).to(batch[1].dtype), batch[1])


def pair_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
    return (model(batch[0]).float() - batch[1]).square().sum(), batch[1].numel()


def device_pair_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    total, weight = pair_loss(model, batch)
    return total, torch.tensor(weight)


def carried_loss(model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
    outputs, carry = model(batch[0], carry)
    return nn.functional.mse_loss(outputs.to(batch[1].dtype), batch[1]), carry


def counting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss, with a carry that counts micro-batches."""
    return mean_loss(model, batch), carry + 1
