"""Optimizers' moments in checkpoints of two ranks."""

import pytest
import torch
from support.checkpointing.checkpoints import assert_same_bits, gathered
from support.checkpointing.wrapped_tensors import Quantizing
from support.distributed.models import wrapped
from support.distributed.processes import error_of
from support.training.models import seeded
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW

from torch_bridge import Checkpoints
from torch_bridge.training.distributed.plain_names import plain_state

pytestmark = [pytest.mark.slow, pytest.mark.ranks(2)]


class Model(nn.Module):
    """Of its head, rank 1 of two has no row."""

    def __init__(self, seed=0):
        super().__init__()
        with seeded(seed):
            self.body = nn.Linear(6, 6)
            self.head = nn.Linear(6, 1)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def train(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            gradient = distribute_tensor(gradient, mesh, parameter.placements)
        parameter.grad = gradient
    optimizer.step()


# Quantized moments.


def quantizing(wrapper, seed):
    model = wrapped(wrapper, Model(seed))
    return model, Quantizing(model.parameters())


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_quantized_moments(tmp_path, wrapper):
    """Under DDP they come back; a save of shards is an error, also if one rank quantizes none."""
    model, optimizer = quantizing(wrapper, seed=0)
    train(model, optimizer, seed=1)
    checkpoints = Checkpoints(tmp_path)
    if wrapper == "fsdp":
        error = error_of(checkpoints.save, 1, model=model, optimizer=optimizer)
        assert "optimizer.state.0.moment is a shard of " in error
        return
    checkpoints.save(1, model=model, optimizer=optimizer)
    resumed, loaded = quantizing(wrapper, seed=5)
    assert checkpoints.load(model=resumed, optimizer=loaded) == 1
    for of_run in (model, optimizer), (resumed, loaded):
        train(*of_run, seed=2)
    assert_same_bits(loaded.state_dict(), optimizer.state_dict())
    assert_same_bits(resumed.state_dict(), model.state_dict())


def test_whole_quantized_moments_are_not_loaded_in_shards(tmp_path):
    """Nothing says how to cut them. The weights alone can be loaded."""
    model, optimizer = quantizing("ddp", seed=0)
    train(model, optimizer, seed=1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model, optimizer=optimizer, wait=True)
    resumed, loaded = quantizing("fsdp", seed=5)
    before = gathered(resumed.state_dict())
    error = error_of(checkpoints.load, model=resumed, optimizer=loaded)
    assert "optimizer.state.0.moment was saved whole, and is sharded here" in error
    assert_same_bits(gathered(resumed.state_dict()), before)
    checkpoints.load(model=resumed, partial=True)
    weights = gathered(plain_state(model))
    assert_same_bits(gathered(plain_state(resumed)), weights)


# Moments of parameters that are sharded on one side only.

FORMS = ("whole", "body", "plain")
"""A model is sharded as a whole, only its body, or not at all."""


def sharded(form, seed):
    model = Model(seed)
    if form != "plain":
        fully_shard(model.body)
    if form == "whole":
        fully_shard(model)
    return model, AdamW(model.parameters(), lr=0.1, foreach=False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("saved_form", FORMS)
def test_moments_take_the_form_of_their_parameter(tmp_path, saved_form, form):
    """Whether the optimizer that loads them has stepped or not."""
    model, optimizer = sharded(saved_form, seed=0)
    train(model, optimizer, seed=1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model, optimizer=optimizer, wait=True)
    train(model, optimizer, seed=2)
    weights = gathered(model.state_dict())
    moments = gathered(optimizer.state_dict()["state"])
    for has_stepped in (False, True):
        resumed, loaded = sharded(form, seed=5)
        if has_stepped:
            train(resumed, loaded, seed=6)
        checkpoints.load(model=resumed, optimizer=loaded)
        check_forms(loaded)
        train(resumed, loaded, seed=2)
        assert_same_bits(gathered(resumed.state_dict()), weights)
        assert_same_bits(gathered(loaded.state_dict()["state"]), moments)


def check_forms(optimizer):
    """Check that the moments of sharded parameters are sharded, and no others."""
    for parameter, state in optimizer.state.items():
        is_sharded = isinstance(parameter, DTensor)
        assert isinstance(state["exp_avg"], DTensor) == is_sharded
        assert isinstance(state["exp_avg_sq"], DTensor) == is_sharded
