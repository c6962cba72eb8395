"""Models under combinations of wrappers on several ranks, which load each other's checkpoints."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from support.checkpointing.checkpoints import whole
from support.distributed.processes import error_of
from support.training.models import batches, seeded
from support.training.steps import make_step
from support.training.trees import equal_trees
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge import Checkpoints, TrainStep
from torch_bridge.distributed.plain_names import load_plain_state, plain_state


class _Model(nn.Module):
    """A model with a part named like a wrapper's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            self.module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.module(inputs))


def _compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def _compiled_in_part(model: Any) -> nn.Module:
    model.module[0] = _compiled(model.module[0])
    return model


def _checkpointed(model: Any) -> nn.Module:
    """Wrap a layer as torch does, which adds a part to its parameters' names."""
    model.module[0] = cast("Any", checkpoint_wrapper).checkpoint_wrapper(model.module[0])
    return model


def _sharded(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


WRAPPERS: list[Callable[[nn.Module], nn.Module]] = [
    nn.Module.train,  # returns the plain model
    _compiled,
    _compiled_in_part,
    DataParallel,
    lambda model: _compiled(DataParallel(model)),
    lambda model: DataParallel(_compiled(model)),
    DistributedDataParallel,
    lambda model: DistributedDataParallel(_compiled(model)),
    lambda model: _compiled(DistributedDataParallel(model)),
    _sharded,
    lambda model: _compiled(_sharded(model)),
    lambda model: DistributedDataParallel(_checkpointed(model)),
    lambda model: _sharded(_checkpointed(model)),
]


def _step(model: nn.Module, order: int = 1) -> TrainStep:
    return make_step(model=model, optimizer=torch.optim.AdamW([*model.parameters()][::order], lr=0.1))


def check_state_loads_under_every_wrapper(directory: Path) -> None:
    """Under any wrapper a step and a model are saved alone; they load under any other."""
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    warnings.filterwarnings("ignore", "the model is not wrapped", UserWarning)
    for number, wrap_saved in enumerate(WRAPPERS):
        saved, again = wrap_saved(_Model(1)), wrap_saved(_Model(2))
        checkpoints = Checkpoints(directory / str(number))
        step = _step(saved)
        step(*batches(1))
        checkpoints.save(1, step=step, model=saved, wait=True)
        plain: Any = plain_state(saved)
        assert plain._metadata["module.1"] == {"version": 2}  # of the batch normalization
        expected, state = whole(plain), step.state_dict()
        assert plain.keys() == state["model"].keys() == _Model(1).state_dict().keys()
        # An earlier version has saved it under the wrapper's names.
        named = whole(saved.state_dict())
        _step(again).load_state_dict({**state, "model": named})
        assert equal_trees(whole(plain_state(again)), expected)
        for wrap in WRAPPERS:
            models = [wrap(_Model(2)) for _ in range(5)]
            checkpoints.load(model=models[0])
            checkpoints.load(step=_step(models[1]))
            checkpoints.load_model(models[2])
            checkpoints.load_model(models[3], part="model")
            load_plain_state(models[4], named)
            for model in models:
                assert equal_trees(whole(plain_state(model)), expected)
            error = error_of(checkpoints.load, step=_step(wrap(_Model(2)), order=-1))
            assert "is module.0.weight in the state and last.bias here" in error
