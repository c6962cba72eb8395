"""Wrapped models in a group of one process, and the rejections of steps over them."""

import warnings
from itertools import product
from typing import Any

import numpy as np
import torch
from support.distributed.distributed_models import error_of
from support.distributed.distributed_updates import Case, train
from support.training.models import Net, mean_loss
from support.training.steps import CURVE, make_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import TrainStep

_BATCH = torch.ones(4, 3), torch.ones(4, 2)


def sharded(model: nn.Module, **options: Any) -> Any:
    return shard(model, **options)


def cases() -> list[Case]:
    return [
        Case(
            wrapper,
            optimizer,
            loss,
            3,
            0.1,
            precision,
            synchronize,
            recurrent,
            ((2, 0, float("nan")),),
            updates=4,
        )._replace(processes=1)
        for wrapper, optimizer, loss, precision, synchronize, recurrent in product(
            ("ddp", "fsdp"),
            ("adamw", "rmsprop"),
            ("mean", "pair", "device pair"),
            ("fp32", "bf16", "fp16"),
            ("update", "micro"),
            (False, True),
        )
    ]


def cases_with_other_bits() -> list[Case]:
    """Return the cases whose bits differ from those of the same training without a wrapper."""
    different: list[Case] = []
    for case in cases():
        wrapped, plain = train(case), train(case._replace(wrapper="plain"))
        pairs = zip(wrapped.weights, plain.weights, strict=True)
        if repr(wrapped[:-1]) != repr(plain[:-1]) or not all(np.array_equal(*pair) for pair in pairs):
            different.append(case)
    return different


def _in_part() -> nn.Module:
    model = Net()
    sharded(model.first)
    return model


def _a_part_left_out() -> nn.Module:
    model = Net()
    return sharded(model, ignored_params=set(model.first.parameters()))


def _ignored_by_ddp() -> nn.Module:
    model = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["first.weight"])
    return DistributedDataParallel(model)


def _frozen_for_ddp() -> nn.Module:
    model = Net()
    model.first.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    model.first.requires_grad_(True)
    return wrapped


def _new_to_ddp() -> nn.Module:
    model = Net()
    wrapped = DistributedDataParallel(model)
    model.last = nn.Linear(8, 2)
    return wrapped


def _distributed_tensor() -> nn.Module:
    model = Net()
    mesh = init_device_mesh("cpu", (1,))
    model.first.weight = nn.Parameter(distribute_tensor(model.first.weight.detach(), mesh, [Replicate()]))
    return model


def _two_meshes() -> nn.Module:
    model = Net()
    sharded(model.first, mesh=init_device_mesh("cpu", (1,)))
    return sharded(model, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("copy", "shard")))


MODELS: dict[str, Any] = {
    "a part in DDP": lambda: nn.Sequential(DistributedDataParallel(Net())),
    "all sharded, in another module": lambda: nn.Sequential(sharded(Net())),
    "sharded in part": _in_part,
    "a part left out": _a_part_left_out,
    "a part that DDP ignores": _ignored_by_ddp,
    "a part that was frozen for DDP": _frozen_for_ddp,
    "a part that is new to DDP": _new_to_ddp,
    "a DTensor": _distributed_tensor,
    "two meshes": _two_meshes,
}


def rejections() -> dict[str, str]:
    """Return the error of a step over each of `MODELS`; empty if there is none."""
    messages: dict[str, str] = {}
    for name, build in MODELS.items():
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        messages[name] = error_of(lambda: TrainStep(model, optimizer, mean_loss, CURVE))  # noqa: B023
        if optimizer.param_groups[0]["lr"] != 0.1 or "initial_lr" in optimizer.param_groups[0]:
            messages[name] = "changed"
    return messages


def not_averaged() -> list[str]:
    """Return the errors of a step inside `no_sync`, and after a frozen parameter is trained again."""
    model = Net()
    model.first.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    with wrapped.no_sync():
        inside = error_of(lambda: make_step("adamw", wrapped)(_BATCH))
    step = make_step("adamw", wrapped)
    step(_BATCH)
    model.first.requires_grad_(True)
    return [inside, error_of(lambda: step(_BATCH))]


def graphs_rejected() -> list[str]:
    """Return the error of a step with `cuda_graph=True`, for each wrapper."""
    return [
        error_of(lambda wrap=wrap: make_step("adamw", wrap(Net()), cuda_graph=True))
        for wrap in (DistributedDataParallel, sharded)
    ]


def optimizers_run(names: list[str]) -> dict[str, str]:
    """Return for each optimizer the error of a step over a sharded model; empty if three updates ran."""

    def train(name: str) -> None:
        step = make_step(
            name, sharded(nn.Sequential(nn.Linear(3, 2, bias=False)) if name == "muon" else Net())
        )
        for _ in range(3):
            step(_BATCH)

    return {name: error_of(lambda name=name: train(name)) for name in names}


def compiled_models() -> list[set[str]]:
    """Return the names in the model's state after an update over each compiled wrapper."""
    names: list[set[str]] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
        for wrap in (DistributedDataParallel, sharded):
            wrapped: Any = wrap(Net())
            model: Any = torch.compile(wrapped, backend="eager")
            step = make_step("adamw", model)
            step(_BATCH)
            names.append(set(step.state_dict()["model"]))
    return names
