"""A run that saves the mean of its weights over each block of updates, under any wrapper."""

import warnings
from pathlib import Path
from typing import Any

import torch
from support.distributed.distributed_updates import wrapped
from support.training.models import Net, seeded
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from plateau_jax import StagedCurve
from torch_bridge import Checkpoints
from torch_bridge.distributed.processes import rank, world_size

LENGTH = 4
"""Updates in a block."""
LAST = 24
"""Updates of the run."""
STABLE = StagedCurve([(2, 1.0), (LAST - 2,)])


class BlockMeansRun:
    """Trains two layers; all ranks together see the batches that a single process sees.

    Args:
        directory: Of the checkpoints.
        wrapper: As for `wrapped`.
        dtype: Of the model.
        every: Updates between two that are averaged.
    """

    def __init__(
        self,
        directory: Path,
        wrapper: str = "plain",
        dtype: torch.dtype = torch.float32,
        every: int = 1,
    ) -> None:
        model = Net().to(dtype)
        self.mean = AveragedModel(model, avg_fn=get_swa_avg_fn()).float()
        self.model = wrapped(wrapper, model)
        if wrapper == "fsdp":
            wrapped(wrapper, self.mean.module)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.every = every
        self.num_updates = 0
        self.weights: list[dict[str, Tensor]] = []
        """The weights after each update, in float64."""
        self.checkpoints = Checkpoints(directory, keep=LAST)

    def train(self, last: int) -> None:
        for update in range(self.num_updates + 1, last + 1):
            with seeded(update):
                inputs = torch.randn(12, 3)
            inputs = inputs[rank() :: world_size()].to(next(self.model.parameters()).dtype)
            self.model(inputs).sub(inputs[:, :2].sin()).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            state = self.model.state_dict()
            self.weights.append({name: weight.double() for name, weight in state.items()})
            if update % LENGTH == 1:
                self.mean.n_averaged.zero_()
            if update % self.every == 0:
                self.mean.update_parameters(self.model)
            if update % LENGTH == 0:
                self.save(update)
            self.num_updates = update

    def save(self, update: int) -> None:
        self.checkpoints.save(update, wait=True, **self.parts())

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "mean": self.mean}

    def load_newest(self) -> None:
        # The random states of a rank that is gone, or new, are not needed here.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            self.num_updates = self.checkpoints.load(**self.parts()) or 0


def train_on_ranks(directory: Path, wrapper: str, last: int) -> None:
    """Continue the run in a directory, or begin it, until after some updates; then save it."""
    run = BlockMeansRun(directory, wrapper)
    run.load_newest()
    run.train(last)
    run.save(last)
