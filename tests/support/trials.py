"""The search for a batch size, in a process with little memory."""

import resource

import torch
from support.training.steps import CURVE
from torch import nn

from torch_bridge import TrainStep, find_batch_size


def find_in_short_memory() -> None:
    """Print the size found with 56 MiB left, at 2 MiB per row, and if the next size runs out of memory."""
    width = 2**17

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (inputs.expand(-1, width) * self.scale).square().sum()

    def make_step() -> TrainStep:
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return TrainStep(model, optimizer, lambda model, batch: model(batch), CURVE)

    make_step()(torch.ones(1, 1))  # so that threads and code are loaded
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    # Room for three tensors of 32 rows and half another one: a tensor that can just not be mapped may still
    # fit on the heap, and stay there.
    resource.setrlimit(resource.RLIMIT_AS, (used + 7 * 2**23, -1))
    size, accumulation = find_batch_size(make_step, lambda count: torch.ones(count, 1), 64)
    make_step()(*[torch.ones(size, 1)] * accumulation)
    try:
        make_step()(*[torch.ones(2 * size, 1)] * (accumulation // 2))
    except RuntimeError as error:
        print(size, accumulation, "DefaultCPUAllocator" in str(error))


if __name__ == "__main__":
    find_in_short_memory()
