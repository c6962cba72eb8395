"""Trials of batch sizes in one process, in one whose memory is short, and in several."""

import gc
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from support.training import CURVE, Net, mean_loss
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import TrainStep, find_batch_size


def exhaust() -> None:
    """An error of the allocator itself."""
    torch.empty(2**60)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3), torch.randn(count, 2)


def wrapped(model: Any, wrapper: str) -> nn.Module:
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "fsdp":
        for part in (model.first, model):
            fully_shard(part)
    return model


def found(wrapper: str, cases: Sequence[tuple[list[int], int]]) -> list[tuple[Any, int, bool]]:
    """In one of several processes: what is found, in how many trials; does training go on as without?

    A case is the largest size that fits, for each process (a negative one raises another error), and the
    global batch.
    """
    gc.freeze()  # what is imported need not be looked through after each trial
    return [_found(wrapper, fitting[distributed.get_rank()], global_batch) for fitting, global_batch in cases]


def _found(wrapper: str, fits: int, global_batch: int) -> tuple[Any, int, bool]:
    trials: list[TrainStep] = []

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])  # before it fails, where others would wait in the middle of a pass
        if fits < 0:
            raise KeyError("weights")
        if len(batch[0]) > fits:
            exhaust()
        return nn.functional.mse_loss(outputs, batch[1])

    def step_of(model: nn.Module, optimizer: Any, loss_fn: Callable[..., Any] = mean_loss) -> TrainStep:
        return TrainStep(model, optimizer, loss_fn, CURVE)

    def make_step() -> TrainStep:
        trials.append(step_of(*parts, loss_fn))
        return trials[-1]

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = wrapped(Net(), wrapper)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    parts = build()
    try:
        result: Any = find_batch_size(make_step, rows, global_batch)
    except Exception as error:
        result = type(error).__name__, str(error)
    losses: list[list[float]] = []
    for model, optimizer in (parts, build()):
        torch.manual_seed(distributed.get_rank())
        step = step_of(model, optimizer)
        losses.append([float(step(rows(2)).loss) for _ in range(3)])
    return result, len(trials), losses[0] == losses[1]


def find_in_short_memory() -> None:
    """Print what is found where 56 MiB are left, a row taking 2, and whether a size more would not train."""
    width = 2**17

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
    # Half a tensor beside three of 32 rows: what just fails to be mapped may just fit on the heap, and stay.
    resource.setrlimit(resource.RLIMIT_AS, (used + 7 * 2**23, -1))
    size, accumulation = find_batch_size(make_step, lambda count: torch.ones(count, 1), 64)
    make_step()(*[torch.ones(size, 1)] * accumulation)
    try:
        make_step()(*[torch.ones(2 * size, 1)] * (accumulation // 2))
    except RuntimeError as error:
        print(size, accumulation, "DefaultCPUAllocator" in str(error))


if __name__ == "__main__":
    getattr(sys.modules[__name__], sys.argv[1])()
