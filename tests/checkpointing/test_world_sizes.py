"""Steps and models saved on some number of ranks, and loaded on another; to the bit."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open
from support.checkpointing.checkpoints import gathered
from support.distributed.models import net, wrapped
from support.distributed.processes import error_of, run
from support.training.models import Net, batches, pair_loss
from support.training.steps import make_step
from support.trees import assert_equal_trees
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints
from torch_bridge.training.checkpointing.file_format import TensorReader
from torch_bridge.training.distributed.dtensors import local_shard
from torch_bridge.training.distributed.plain_names import plain_state
from torch_bridge.training.distributed.processes import rank, world_size

pytestmark = pytest.mark.slow

SHARDED = ("fsdp", "hybrid")


# Optimizers.


def sharded_along_rows(tensor):
    """Return a DTensor sharded where its parameter is, and a plain tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    placements = []
    for placement in tensor.placements:
        if placement.is_replicate():
            placements.append(Replicate())
        else:
            placements.append(Shard(0))
    return tensor.redistribute(placements=placements)


class ShardedState(Optimizer):
    """Keeps tensors for each matrix: alone, in lists and in dictionaries.

    Some have the matrix's shape, others do not, and one is plain.
    """

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.25})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.double()
                parameter.sub_((group["lr"] * gradient).float())
                if parameter.ndim == 2:
                    self.state[parameter] = self.state_of(gradient)

    def state_of(self, gradient):
        return {
            "sums": [gradient / 3, [gradient.sum(1).to(torch.bfloat16)]],
            "more": {"columns": (sharded_along_rows(gradient.sum(0)),)},
            "rows": gradient.sum(1).float(),
            "plain": [torch.ones(2, dtype=torch.int64)],
        }


optimizers = pytest.mark.parametrize("optimizer", ["adamw", "sharded state"])


def step_of(wrapper, optimizer):
    model = wrapped(wrapper, Net())
    if optimizer == "sharded state":
        sharded_state = ShardedState(model.parameters())
        return make_step(model=model, loss_fn=pair_loss, optimizer=sharded_state)
    return make_step(optimizer, model, pair_loss)


# Saving.


class Content(NamedTuple):
    """The content of a step that a load must restore."""

    state: dict[str, Any]
    """Its model, its optimizer and its counts."""
    placements: dict[str, list[int]]
    """The dimension along which each tensor of the optimizer is sharded; none if replicated."""
    random: Tensor


def content_of(step):
    state = step.state_dict()
    placements = {}
    leaves = cast("list[tuple[Any, Any]]", pytree.tree_leaves_with_path(state["optimizer"]))
    for path, leaf in leaves:
        if not isinstance(leaf, DTensor):
            continue
        shards = [place for place in leaf.placements if isinstance(place, Shard)]
        placements[pytree.keystr(path)] = [shard.dim for shard in shards]
    kept = {key: state[key] for key in ("model", "optimizer", "applied", "offset")}
    return Content(gathered(kept), placements, state["random"]["cpu"])


@dataclass
class SavedRun:
    """A directory with a trained step for each optimizer, and a model."""

    directory: Path
    wrapper: str
    content: list[dict[str, Content]]
    """What each rank must get back, by optimizer."""


def save_run(directory, wrapper):
    torch.manual_seed(10 + rank())
    content = {}
    for optimizer in ("adamw", "sharded state"):
        step = step_of(wrapper, optimizer)
        for batch in batches(3, seed=rank()):
            step(batch)
        checkpoints = Checkpoints(directory / optimizer)
        checkpoints.save(3, step=step, wait=True)
        content[optimizer] = content_of(step)
    model = wrapped(wrapper, net(1))
    Checkpoints(directory / "model").save(3, model=model, wait=True)
    return content


@pytest.fixture(
    scope="module",
    params=[(1, "plain"), (2, "ddp"), (2, "fsdp"), (4, "hybrid")],
    ids="saved under {0[1]} on {0[0]}".format,
)
def saved(request, tmp_path_factory):
    size, wrapper = request.param
    directory = tmp_path_factory.mktemp("run")
    content = run(save_run, directory, wrapper, processes=size)
    return SavedRun(directory, wrapper, content)


def test_each_shard_is_written_once(saved):
    """Also if two ranks have the same one."""
    places = []
    for file in (saved.directory / "adamw" / "3").glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name, place in json.loads(opened.metadata()["DCP_SHARDING_INFO"]).items():
                places.append((name, str(place)))
    assert len(set(places)) == len(places)


# Loading.


def on_ranks(size, wrapper):
    name = f"loaded under {wrapper} on {size}"
    return pytest.param(wrapper, marks=pytest.mark.ranks(size), id=name)


WRAPPED = [
    on_ranks(1, "plain"),
    on_ranks(2, "ddp"),
    on_ranks(2, "fsdp"),
    on_ranks(3, "fsdp"),
    on_ranks(4, "hybrid"),
]


@optimizers
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_step_gets_its_state(saved, wrapper, optimizer):
    """Under FSDP2 a rank reads only its shards."""
    step = step_of(wrapper, optimizer)
    checkpoints = Checkpoints(saved.directory / optimizer)
    if optimizer == "sharded state" and {wrapper, saved.wrapper} == set(SHARDED):
        error = error_of(checkpoints.load, step=step, partial=True)
        assert "mesh dimension does not match" in error
        return
    random = torch.get_rng_state().clone()
    num_read = 0
    fill_tensors = TensorReader.fill_tensors

    def count_and_fill(reader, targets):
        nonlocal num_read
        for name, tensor in targets.items():
            if "random" not in name and "/structure" not in name:
                num_read += local_shard(tensor).numel()
        fill_tensors(reader, targets)

    with (
        warnings.catch_warnings(record=True) as warned,
        patch.object(TensorReader, "fill_tensors", count_and_fill),
    ):
        warnings.simplefilter("always")
        assert checkpoints.load(step=step, partial=True) == 3
    new_random = torch.get_rng_state()
    content = content_of(step)
    expected = [of_rank[optimizer] for of_rank in saved.content]
    assert_equal_trees(content.state, expected[0].state)
    if rank() < len(expected):
        assert torch.equal(content.random, expected[rank()].random)
    else:
        assert torch.equal(new_random, random)
    is_sharded = wrapper in SHARDED
    if is_sharded and saved.wrapper in SHARDED:
        assert content.placements == expected[0].placements
    if optimizer == "adamw":
        leaves = pytree.tree_leaves(content.state)
        num_saved = sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))
        assert (num_read < 0.8 * num_saved) == is_sharded, (num_read, num_saved)
    messages = [str(warning.message) for warning in warned]
    if world_size() == len(expected):
        assert messages == []
    else:
        (message,) = messages
        assert f"with a world size of {len(expected)}, which is now {world_size()}" in message


@pytest.mark.parametrize("wrapper", [*WRAPPED, on_ranks(2, "plain")])
def test_model_gets_its_state(saved, wrapper):
    model = wrapped(wrapper, net(99))
    checkpoints = Checkpoints(saved.directory / "model")
    assert checkpoints.load_model(model, part="model") == 3
    assert_equal_trees(gathered(plain_state(model)), net(1).state_dict())
