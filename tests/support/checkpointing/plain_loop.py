"""Training loops of plain torch that draw random numbers in every way, and that may be killed."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from support.lines import Lines
from support.training.models import Net
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from torch_bridge import Checkpoints, PlateauCurve, distribute, lambda_lr, make_loader
from torch_bridge.distributed.processes import rank, world_size

UPDATES = 12

Train = Callable[[Path, int], list[str]]


def draw() -> list[float]:
    """Draw from each generator; some numbers are drawn in pairs, of which one is kept for later."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.normal(),  # noqa: NPY002 (the global generator, as programs use it)
        torch.randn(()).item(),
    ]


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (the global generator)
    torch.manual_seed(number)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Samples that differ each time they are read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift, *noise = draw()
        return torch.tensor(noise) / 9 + index / 20, torch.full((2,), shift)


class _Run:
    """The parts of a run; each rank has different random numbers."""

    def __init__(self) -> None:
        seed(rank())
        self.model: nn.Module = Net(dropout=0.5)
        if world_size() > 1:
            self.model = distribute(self.model, "ddp", device="cpu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = lambda_lr(self.optimizer, PlateauCurve(UPDATES, warmup_steps=3))
        self.losses: list[str] = []
        """Of all updates, to the bit."""

    @property
    def parts(self) -> dict[str, Any]:
        return vars(self)

    def update(self, inputs: Tensor, targets: Tensor) -> None:
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(float(loss.detach()).hex())


def train(directory: Path, updates: int) -> list[str]:
    """Save after every other update, also in the middle of an epoch; return all losses."""
    run = _Run()
    loader = make_loader(Augmented(), 4 // world_size(), num_workers=0)
    checkpoints = Checkpoints(directory)
    checkpoints.load(**run.parts, loader=loader)
    while len(run.losses) < updates:
        for inputs, targets in loader:
            run.update(inputs, targets)
            done = len(run.losses)
            if done % 2 == 0 or done == updates:
                checkpoints.save(done, **run.parts, loader=loader, wait=done == updates)
            if done == updates:
                break
    return run.losses


def train_with_plain_loader(directory: Path, updates: int) -> list[str]:
    """Save after every epoch; torch's loader draws its order from torch's random numbers."""
    run = _Run()
    loader = DataLoader(Augmented(), batch_size=10, shuffle=True)
    checkpoints = Checkpoints(directory)
    checkpoints.load(**run.parts)
    while len(run.losses) < updates:
        for inputs, targets in loader:
            run.update(inputs, targets)
        done = len(run.losses)
        checkpoints.save(done, **run.parts, wait=done == updates)
    return run.losses


# Random states on some number of ranks.


def save_and_draw(directory: Path) -> list[float]:
    seed(rank())
    Checkpoints(directory).save(1, values=[1], wait=True)
    return draw()


def load_and_draw(directory: Path) -> list[float]:
    Checkpoints(directory).load(values=[])
    return draw()


def load_on_more_ranks(directory: Path) -> list[float]:
    seed(rank())
    with pytest.warns(UserWarning, match="the new processes keep their random numbers"):
        return load_and_draw(directory)


# A process that is killed.


class _Killing(Lines):
    """Kills the process at a line of the loop, or of the product."""

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.stop_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def train_until_killed(directory: Path, line: int | None) -> None:
    """Train to the end, and write the losses into a file, unless it is killed at a line."""
    torch.set_num_threads(1)
    with _Killing(line, __file__):
        losses = train(directory / "run", UPDATES)
    (directory / "losses").write_text("\n".join(losses))
