"""Wrapped models in a group of one process, and the rejections of steps over them.

Each check runs in that process.
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.distributed.distributed_updates import Case, train
from support.distributed.processes import error_of
from support.training.models import Net, mean_loss
from support.training.optimizers import OPTIMIZERS
from support.training.steps import CURVE, make_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import DataClock, TrainStep

_BATCH = torch.ones(4, 3), torch.ones(4, 2)


def sharded(model: nn.Module, **options: Any) -> Any:
    return shard(model, **options)


def check_wrapping_changes_no_bits(_: Path) -> None:
    for wrapper, loss, precision, synchronize, recurrent in product(
        ("ddp", "fsdp"),
        ("mean", "pair", "device pair"),
        ("fp32", "bf16", "fp16"),
        ("update", "micro"),
        (False, True),
    ):
        case = Case(
            *(wrapper, "rmsprop" if recurrent else "adamw", loss, 3, 0.1, precision, synchronize, recurrent),
            corrupted=((2, 0, float("nan")),),
            updates=4,
            processes=1,
        )
        wrapped, plain = train(case), train(case._replace(wrapper="plain"))
        assert repr(wrapped[:-1]) == repr(plain[:-1]), case
        assert all(map(np.array_equal, wrapped.weights, plain.weights)), case


def _ignored_by_ddp(model: Any) -> nn.Module:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["first.weight"])
    return DistributedDataParallel(model)


def _distributed_tensor(model: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    model.first.weight = nn.Parameter(distribute_tensor(model.first.weight.detach(), mesh, [Replicate()]))
    return model


def _two_meshes(model: Any) -> nn.Module:
    sharded(model.first, mesh=init_device_mesh("cpu", (1,)))
    return sharded(model, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("copy", "shard")))


# Models that a step rejects, and what is said.
MODELS: dict[str, tuple[Callable[[Any], nn.Module], str]] = {
    "a part in DDP": (lambda model: nn.Sequential(DistributedDataParallel(model)), "DistributedDataParallel"),
    "a sharded part": (lambda model: nn.Sequential(sharded(model)), "FSDPModule"),
    "a part left out": (
        lambda model: sharded(model, ignored_params=set(model.first.parameters())),
        "sharded in part",
    ),
    "a part that DDP ignores": (_ignored_by_ddp, "does not average"),
    "a DTensor": (_distributed_tensor, "DTensors"),
    "two meshes": (_two_meshes, "several meshes"),
}


def check_unsupported_wrapping_is_rejected(_: Path) -> None:
    for name, (wrap, part) in MODELS.items():
        model = wrap(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        assert part in error_of(TrainStep, model, optimizer, mean_loss, CURVE), name
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert "initial_lr" not in optimizer.param_groups[0]


def check_wrong_count_changes_nothing(_: Path) -> None:
    """No other rank waits, so the update is not even counted as skipped."""
    for wrap in (DistributedDataParallel, sharded):
        step = make_step("adamw", wrap(Net()), clock=DataClock(2))
        assert "count = -1" in error_of(step, _BATCH, count=-1)
        assert step(_BATCH, count=3).counters.tolist() == [1, 0, 0, 3]


def check_cuda_graph_rejects_wrapped_model(_: Path) -> None:
    for wrap in (DistributedDataParallel, sharded):
        message = error_of(make_step, "adamw", wrap(Net()), cuda_graph=True)
        assert message == "ValueError: cuda_graph=True needs a model that is not wrapped for several ranks"


def check_optimizers_run_on_sharded_parameters(_: Path) -> None:
    """Or the step says that torch can't run them."""
    rejected = {"sgd", "momentum", "dampened", "nesterov", "adagrad", "adafactor", "rprop", "muon"}
    for name in OPTIMIZERS:
        model = nn.Sequential(nn.Linear(3, 2, bias=False)) if name == "muon" else Net()
        if name in rejected:
            assert "torch cannot run" in error_of(make_step, name, sharded(model))
            continue
        step = make_step(name, sharded(model))
        for batch in [_BATCH] * 3:
            step(batch)
