"""Models that two ranks distribute, and the states of steps over them."""

import io
import re

import pytest
import torch
from support.checkpointing.checkpoints import gathered
from support.distributed.models import distributed_net, net
from support.distributed.processes import error_of
from support.training.models import batches
from support.training.steps import make_step
from support.trees import assert_equal_trees
from torch import distributed
from torch.distributed.tensor import DTensor

from torch_bridge.training.distributed.plain_names import plain_state
from torch_bridge.training.distributed.processes import rank

pytestmark = [pytest.mark.slow, pytest.mark.ranks(2)]

in_every_way = pytest.mark.parametrize("parallelism", ["ddp", "fsdp", "blocks", "hybrid"])


@in_every_way
def test_every_rank_gets_the_weights_of_rank_0(parallelism):
    """Each rank builds its model from another seed."""
    model = distributed_net(parallelism, seed=10 * rank())
    weights = gathered(plain_state(model))
    expected = net(0).state_dict()
    assert_equal_trees(weights, expected)


def step_under(parallelism):
    model = distributed_net(parallelism)
    return make_step(model=model)


def update(step, number):
    (batch,) = batches(1, seed=2 * number + rank())
    return step(batch).loss.item()


@in_every_way
def test_resume_matches_uninterrupted_run(parallelism):
    """Also from a state with all DTensors gathered."""
    step = step_under(parallelism)
    for number in range(3):
        update(step, number)
    state = step.state_dict()
    from_shards = step_under(parallelism)
    from_shards.load_state_dict(state)
    from_gathered = step_under(parallelism)
    from_gathered.load_state_dict(gathered(state))
    losses = [update(step, 3), update(step, 4)]
    expected = gathered(step.state_dict())
    for resumed in (from_shards, from_gathered):
        resumed_losses = [update(resumed, 3), update(resumed, 4)]
        assert resumed_losses == losses
        assert_equal_trees(gathered(resumed.state_dict()), expected)


def test_whole_moments_are_cut_before_torch_loads_them():
    """On a GPU, the whole moments of all parameters might not fit."""
    step = step_under("fsdp")
    update(step, 0)
    resumed = step_under("fsdp")
    loaded = []

    def record(optimizer):
        for values in optimizer.state.values():
            loaded.extend(values.values())

    resumed.optimizer.register_load_state_dict_post_hook(record)
    resumed.load_state_dict(gathered(step.state_dict()))
    assert loaded
    assert all(isinstance(value, DTensor) or value.dim() == 0 for value in loaded)


def test_shards_are_not_loaded_by_an_unsharded_model():
    step = step_under("fsdp")
    update(step, 0)
    unsharded = step_under("ddp")
    error = error_of(unsharded.load_state_dict, step.state_dict())
    placed = "shards of tensors, placed as .*Shard.*; save and load through Checkpoints"
    assert re.search(placed, error)


def test_shards_are_not_loaded_by_another_rank():
    """Its state came through a file."""
    step = step_under("fsdp")
    update(step, 0)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    contents = [file.getvalue()]
    distributed.broadcast_object_list(contents)
    file_of_rank_0 = io.BytesIO(contents[0])
    state_of_rank_0 = torch.load(file_of_rank_0, weights_only=True)
    before = gathered(step.state_dict())
    error = error_of(step.load_state_dict, state_of_rank_0)
    assert ("each rank must load its own state" in error) == (rank() == 1)
    assert_equal_trees(gathered(step.state_dict()), before)
