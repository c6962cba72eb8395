"""Training runs that `torch.distributed.checkpoint` saves and loads, for each rank of a group."""

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp
from support.trainers import trainers
from support.trainers.trainers import CURVE, PEAK, record_lrs, train
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from plateau_jax import Curve
from torch_bridge import lambda_lr

_load = cast("Callable[..., None]", dcp.load)


def _load_without_lrs(state: dict[str, Any], **options: Any) -> None:
    """Load a state, then overwrite the learning rates of its groups."""
    _load(state, **options)
    for group in state["optimizer"]["param_groups"]:
        group["lr"] = torch.tensor(0.5) if isinstance(group["lr"], Tensor) else 0.5


@cache
def _page() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        return train("DDP and FSDP2", Path(folder), run_name="page").names


class Run:
    def __init__(self, wrapper: str, lr: float | Tensor, curve: Curve, path: str) -> None:
        self.model: nn.Module = trainers.net()
        if wrapper == "ddp":
            self.model = DistributedDataParallel(self.model)
        else:
            fully_shard(self.model)
        self.optimizer = AdamW(self.model.parameters(), lr)
        self.scheduler = lambda_lr(self.optimizer, curve)
        self.path, self.page = path, _page()

    def train(self, first: int, last: int) -> list[list[float]]:
        """Make these updates and return their learning rates."""
        rank, processes = distributed.get_rank(), distributed.get_world_size()
        inputs, targets = trainers.dataset(96).tensors
        with record_lrs() as used:
            for update in range(first, last):
                batch = slice(update * 8 + rank, update * 8 + 8, processes)
                trainers.loss_of(self.model, (inputs[batch], targets[batch])).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
        return used

    def weights(self) -> list[Tensor]:
        states: dict[str, Any] = get_model_state_dict(self.model)
        return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in states.values()]

    def save(self) -> None:
        dcp.save(self.page["state_of"](self.model, self.optimizer, self.scheduler), checkpoint_id=self.path)

    def load(self, lose_lrs: bool) -> None:
        # Before the first update, DCP builds the optimizer's state by making one, at learning rate 0.
        with patch.object(dcp, "load", _load_without_lrs if lose_lrs else _load):
            self.page["load"](self.path, self.model, self.optimizer, self.scheduler)


def compare_all_resumed(folder: str, wrapper: str, branch: Curve) -> dict[tuple[bool, bool], dict[str, Any]]:
    """Compare runs whose learning rates are tensors or numbers, and are lost or not on loading."""
    cases = product((False, True), (False, True))
    return {case: _compare_resumed(folder, wrapper, branch, *case) for case in cases}


def _compare_resumed(
    folder: str, wrapper: str, branch: Curve, as_tensor: bool, lose_lrs: bool
) -> dict[str, Any]:
    """Make three runs: uninterrupted, resumed after five updates, and resumed there under a different curve.

    Returns the learning rates of each, and True if the first two end with the same weights.
    """
    lr = torch.tensor(PEAK) if as_tensor else PEAK
    path = str(Path(folder, f"saved_{as_tensor}_{lose_lrs}"))

    def start(curve: Curve = CURVE) -> Run:
        return Run(wrapper, lr.clone() if isinstance(lr, Tensor) else lr, curve, path)

    uninterrupted, interrupted, resumed, branched = start(), start(), start(), start(branch)
    used = uninterrupted.train(0, 12)
    interrupted.train(0, 5)
    interrupted.save()
    resumed.load(lose_lrs)
    branched.load(lose_lrs)
    return {
        "uninterrupted": used,
        "resumed": resumed.train(5, 12),
        "branch": branched.train(5, 12),
        "same": all(map(torch.equal, resumed.weights(), uninterrupted.weights())),
    }
