"""Models under combinations of wrappers on several ranks, which load each other's checkpoints."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from support.checkpointing.checkpoints import equal_arrays, gather_tensors
from support.distributed.processes import error_of
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


WRAPPERS: list[Callable[[nn.Module], nn.Module]] = [
    DistributedDataParallel,
    lambda model: DistributedDataParallel(_compiled(model)),
    lambda model: _compiled(DistributedDataParallel(model)),
    _sharded,
    lambda model: _compiled(_sharded(model)),
    lambda model: DistributedDataParallel(_checkpointed(model)),
    lambda model: _sharded(_checkpointed(model)),
]


def _step(model: nn.Module, order: int = 1) -> TrainStep:
    return TrainStep(model, torch.optim.AdamW([*model.parameters()][::order], lr=0.1), mean_loss, CURVE)


def _has(model: nn.Module, expected: dict[str, Any]) -> bool:
    return equal_arrays(gather_tensors(dict(plain_state(model))), expected)


def state_loads_under_every_wrapper(directory: Path) -> None:
    """Under any wrapper a step and a model are saved alone; they load under any other."""
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    for number, wrap_saved in enumerate(WRAPPERS):
        trained, checkpoints = wrap_saved(_model(1)), Checkpoints(directory / str(number))
        step = _step(trained)
        step((torch.ones(4, 3), torch.ones(4, 2)))
        checkpoints.save(1, step=step, model=trained, wait=True)
        expected = gather_tensors(dict(plain_state(trained)))
        for wrap in (*WRAPPERS, nn.Module.train):  # the last one returns the plain model
            for part in ("step", "model"):
                model = wrap(_model(2))
                checkpoints.load_model(model, part=part)
                assert _has(model, expected)
        for wrap in WRAPPERS:
            model = wrap(_model(2))
            checkpoints.load(model=model)
            assert _has(model, expected)
            model = wrap(_model(2))
            checkpoints.load(step=_step(model))
            assert _has(model, expected)
            error = error_of(checkpoints.load, step=_step(wrap(_model(2)), order=-1))
            assert "is 0.weight in the state and 3.bias here" in error
