"""Models under combinations of wrappers on several ranks, which load each other's checkpoints."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from support.checkpointing.checkpoints import gather_tensors
from support.training.models import mean_loss
from support.training.steps import CURVE
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import Checkpoints, TrainStep
from torch_bridge.distributed.plain_names import plain_state


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))


def _compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def _checkpointed(model: Any) -> nn.Module:
    """Wrap a layer as torch does, which adds a part to its parameters' names."""
    model[0] = cast("Any", checkpoint_wrapper).checkpoint_wrapper(model[0])
    return model


def _sharded(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "ddp of compiled": lambda model: DistributedDataParallel(_compiled(model)),
    "compiled ddp": lambda model: _compiled(DistributedDataParallel(model)),
    "sharded": _sharded,
    "compiled sharded": lambda model: _compiled(_sharded(model)),
    "checkpointed ddp": lambda model: DistributedDataParallel(_checkpointed(model)),
    "sharded checkpointed": lambda model: _sharded(_checkpointed(model)),
}


def _step(model: nn.Module, order: int = 1) -> TrainStep:
    return TrainStep(model, torch.optim.AdamW([*model.parameters()][::order], lr=0.1), mean_loss, CURVE)


def _differs(model: nn.Module, expected: dict[str, Any]) -> bool:
    loaded = gather_tensors(dict(plain_state(model)))
    return loaded.keys() != expected.keys() or any((loaded[key] != expected[key]).any() for key in expected)


def loads_everywhere(directory: Path, wrapper: str) -> list[str]:
    """Save under one wrapper, load under all, and name the loads that differ."""
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    trained = WRAPPERS[wrapper](_model(1))
    step = _step(trained)
    step((torch.ones(4, 3), torch.ones(4, 2)))
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, step=step, model=trained, wait=True)
    expected, wrong = gather_tensors(dict(plain_state(trained))), list[str]()
    for name, wrap in WRAPPERS.items():
        for part in ("step", "model"):
            model = wrap(_model(2))
            checkpoints.load_model(model, part=part)
            wrong += [f"{part} alone, {name}"] * _differs(model, expected)
        model = wrap(_model(2))
        checkpoints.load(model=model)
        wrong += [f"model, {name}"] * _differs(model, expected)
        model = wrap(_model(2))
        checkpoints.load(step=_step(model))
        wrong += [f"step, {name}"] * _differs(model, expected)
        try:
            checkpoints.load(step=_step(wrap(_model(2)), order=-1))
        except ValueError as error:
            wrong += [str(error)] * ("is 0.weight in the state and 3.bias here" not in str(error))
        else:
            wrong.append(f"reordered, {name}")
    model = _model(2)
    checkpoints.load_model(model)
    return wrong + ["plain"] * _differs(model, expected)
