"""`distribute` checks, moves and wraps a model; states of steps over wrapped models."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import distributed_models as models
from support.distributed.processes import run
from support.rejections import rejects
from support.training.models import Net
from torch import nn
from torch.utils import _pytree as pytree

from torch_bridge import distribute, is_main


@pytest.mark.parametrize("mode", ["ddp", "fsdp", None])
def test_one_process_gets_its_model_back(mode: Any) -> None:
    model = models.Blocks()
    assert distribute(model, mode, blocks=models.Block, device="cpu") is model
    assert distribute(model, mode, blocks=[models.Block, nn.Linear], device=torch.device("cpu")) is model
    assert is_main()


@pytest.mark.parametrize("mode", ["ddp", "fsdp", None])
def test_wrong_arguments_are_rejected(mode: Any) -> None:
    def call(model: Any = None, **more: Any) -> None:
        distribute(Net() if model is None else model, more.pop("mode", mode), **{"device": "cpu"} | more)

    rejects(TypeError, "model = 3 must be a torch.nn.Module", call=call, model=3)
    rejects(ValueError, "mode = 'dp'", call=call, mode="dp")
    rejects(TypeError, "blocks has 'Linear'", call=call, blocks=["Linear"])
    rejects(TypeError, "blocks has <class 'int'>", call=call, blocks=int)
    rejects(TypeError, "blocks = 3", call=call, blocks=3)
    rejects(ValueError, "blocks has LSTM, but no module", call=call, blocks=[nn.Linear, nn.LSTM])
    rejects(TypeError, "['unused']", call=call, unused=True)
    rejects(ValueError, "device = 'meta'", call=call, device="meta")
    if not torch.cuda.is_available():
        rejects(ValueError, "device = 'cuda'", "an available CUDA device", call=call, device="cuda")


def test_options_are_those_of_the_wrapper() -> None:
    distribute(Net(), "ddp", device="cpu", find_unused_parameters=True)
    distribute(Net(), "fsdp", device="cpu", reshard_after_forward=False)
    for options in ({"find_unused_parameters": True}, {"reshard_after_forward": False}):
        distribute(Net(), None, device="cpu", **options)
    rejects(TypeError, "find_unused", call=lambda: distribute(Net(), "fsdp", find_unused_parameters=True))


def _equal(one: Any, other: Any) -> bool:
    leaves, structure = pytree.tree_flatten(one)
    others, other_structure = pytree.tree_flatten(other)
    return structure == other_structure and all(map(np.array_equal, leaves, others))


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", models.WRAPPERS)
def test_every_rank_gets_the_weights_of_rank_0(wrapper: str) -> None:
    expected = models.gather_weights(dict(models.Blocks(0).state_dict()))
    first, second = run(models.weights_of_main, wrapper)
    assert (first[0], second[0]) == (True, False)
    assert _equal(first[1], expected)
    assert _equal(second[1], expected)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", models.WRAPPERS)
def test_resume_matches_uninterrupted_run(wrapper: str) -> None:
    for losses, again, state, loaded in run(models.saved_and_loaded, wrapper):
        assert losses == again
        assert _equal(state, loaded)
    for function in (models.from_whole_tensors, models.loaded_at_the_second_try):
        for state, loaded in run(function, wrapper):
            assert _equal(state, loaded)


@pytest.mark.slow
def test_fused_optimizer_state_loads_without_fused() -> None:
    for pairs in run(models.from_fused_optimizers):
        for losses, sharded in pairs:
            np.testing.assert_allclose(sharded, losses, rtol=1e-5)


@pytest.mark.slow
def test_plain_model_rejects_shards() -> None:
    for said in run(models.shards_in_a_plain_step):
        assert re.search(r"shards of tensors, placed as .*Shard.*; save and load through Checkpoints", said)


@pytest.mark.slow
def test_rank_rejects_shards_of_another() -> None:
    first, second = run(models.shards_of_another_rank)
    assert first == ""
    assert "each rank must load its own state" in second
