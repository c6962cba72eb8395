"""States of models under torch's wrappers load under any other wrapper."""

from typing import Any, cast

import pytest
import torch
from support.checkpointing.checkpoints import gathered
from support.distributed.processes import error_of
from support.raises import raises
from support.training.models import batches, seeded
from support.training.steps import make_step
from support.trees import assert_equal_trees
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge import Checkpoints
from torch_bridge.training.distributed.plain_names import plain_state
from torch_bridge.training.train_step.optimizer_states import load_optimizer

pytestmark = pytest.mark.usefixtures("one_rank")

(BATCH,) = batches(1)


class Module(nn.Module):
    """A model with a part named like a wrapper's."""

    def __init__(self, seed):
        super().__init__()
        with seeded(seed):
            self.module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.last = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.last(self.module(inputs))


def unwrapped(model):
    return model


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_in_part(model):
    model.module[0] = compiled(model.module[0])
    return model


def checkpointed(model):
    """Wrap a layer as torch does, which adds a part to its parameters' names."""
    model.module[0] = cast("Any", checkpoint_wrapper).checkpoint_wrapper(model.module[0])
    return model


def ddp_of_compiled(model):
    return DistributedDataParallel(compiled(model))


def compiled_ddp(model):
    return compiled(DistributedDataParallel(model))


def fsdp_of_checkpointed(model):
    return fully_shard(checkpointed(model))


EVERY_WRAPPER = [
    unwrapped,
    compiled,
    compiled_in_part,
    DataParallel,
    DistributedDataParallel,
    ddp_of_compiled,
    compiled_ddp,
    fully_shard,
    fsdp_of_checkpointed,
]


def step_over(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return make_step(model=model, optimizer=optimizer)


def step_in_reverse_order(model):
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters[::-1], lr=0.1)
    return make_step(model=model, optimizer=optimizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("wrap_saved", EVERY_WRAPPER)
def test_state_of_every_wrapper_loads(tmp_path, wrap_saved):
    """A step and a model have the same names under any wrapper.

    They load without a wrapper, under their own, and under FSDP2.
    """
    saved = wrap_saved(Module(1))
    step = step_over(saved)
    step(BATCH)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, model=saved, wait=True)
    plain = plain_state(saved)
    # Of the batch normalization, which loads different keys if the version is absent.
    assert plain._metadata["module.1"] == {"version": 2}
    state = step.state_dict()
    names = Module(1).state_dict().keys()
    assert plain.keys() == names
    assert state["model"].keys() == names
    expected = gathered(plain)

    for wrap in (unwrapped, wrap_saved, fully_shard):
        by_load = wrap(Module(2))
        checkpoints.load(model=by_load, partial=True)
        by_step = wrap(Module(2))
        checkpoints.load(step=step_over(by_step), partial=True)
        by_load_model = wrap(Module(2))
        checkpoints.load_model(by_load_model)
        by_load_model_of_part = wrap(Module(2))
        checkpoints.load_model(by_load_model_of_part, part="model")
        for model in (by_load, by_step, by_load_model, by_load_model_of_part):
            weights = gathered(plain_state(model))
            assert_equal_trees(weights, expected)
        reversed_step = step_in_reverse_order(wrap(Module(2)))
        error = error_of(checkpoints.load, step=reversed_step, partial=True)
        assert "is module.0.weight in the state and last.bias here" in error


@raises(ValueError, "parameter 0 is weight in the state and module.weight here")
def test_optimizer_state_in_a_different_order():
    """The two names are equal without the names of wrappers."""
    layer = nn.Linear(2, 2, bias=False)
    layer.module = nn.Linear(2, 2, bias=False)
    parameters = list(layer.named_parameters())
    saved = torch.optim.AdamW(parameters)
    optimizer = torch.optim.AdamW(parameters[::-1])
    load_optimizer(optimizer, saved.state_dict())
