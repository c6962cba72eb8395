"""Trials of batch sizes in one process, in one whose memory is short, and in several."""

import resource
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from support.training import CURVE, Net, mean_loss
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import TrainStep, find_batch_size
from torch_bridge.scale.alone import Trial, alone


def exhaust() -> None:
    """An error of the allocator itself."""
    torch.empty(2**60)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3), torch.randn(count, 2)


class LonelyStep(TrainStep):
    """A step whose trial sends nothing."""

    @contextmanager
    def _alone(self) -> Generator[None]:
        wrapper, self._wrapper = self._wrapper, Trial(self._wrapper)
        try:
            with alone(self.model):
                yield
        finally:
            self._wrapper = wrapper


def wrapped(model: Any, wrapper: str) -> nn.Module:
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "fsdp":
        for part in (model.first, model):
            fully_shard(part)
    return model


def found(wrapper: str, fitting: list[int], global_batch: int, limit: int | None = None) -> Any:
    """In one of several processes: what is found, the sizes tried, and what training gives afterwards.

    `fitting` is the largest size that fits, for each process; a negative one raises another error.
    """
    fits = fitting[distributed.get_rank()]
    tried: list[int] = []

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])  # before it fails, since others wait in the middle of a pass
        if fits < 0:
            raise KeyError("weights")
        if len(batch[0]) > fits:
            exhaust()
        return nn.functional.mse_loss(outputs, batch[1])

    def step_of(loss_fn: Callable[..., Any]) -> LonelyStep:
        return LonelyStep(model, optimizer, loss_fn, CURVE)

    def make_step() -> LonelyStep:
        tried.append(0)
        return step_of(loss_fn)

    model = wrapped(Net(), wrapper)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    try:
        result: Any = find_batch_size(make_step, rows, global_batch, limit=limit)
    except Exception as error:
        result = type(error).__name__, str(error)
    step = step_of(mean_loss)
    torch.manual_seed(distributed.get_rank())
    losses = [float(step(rows(2)).loss) for _ in range(3)]
    return result, len(tried), losses


def train(wrapper: str) -> list[float]:
    """In one of several processes: the losses of such a training without trials."""
    model = wrapped(Net(), wrapper)
    step = TrainStep(model, torch.optim.AdamW(model.parameters(), lr=0.01), mean_loss, CURVE)
    torch.manual_seed(distributed.get_rank())
    return [float(step(rows(2)).loss) for _ in range(3)]


def find_in_short_memory() -> None:
    """Print what is found where 256 MiB are left, and which sizes then train."""
    width = 2**20

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (inputs.expand(-1, width) * self.scale).square().sum()

    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def make_step() -> TrainStep:
        return TrainStep(model, optimizer, lambda model, batch: model(batch), CURVE)

    make_step()(torch.ones(1, 1))  # threads and code are there
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, -1))
    size, accumulation = find_batch_size(make_step, lambda count: torch.ones(count, 1), 512)
    make_step()(*[torch.ones(size, 1)] * accumulation)
    try:
        make_step()(*[torch.ones(2 * size, 1)] * (accumulation // 2))
    except RuntimeError as error:
        print(size, accumulation, "DefaultCPUAllocator" in str(error))


if __name__ == "__main__":
    getattr(sys.modules[__name__], sys.argv[1])()
