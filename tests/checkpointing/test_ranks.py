"""Checkpoints of two ranks: what each of them saved comes back, and an error of one is all's."""

import time
from collections import OrderedDict
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file
from support.checkpointing.checkpoints import (
    Part,
    Rejecting,
    assert_same_bits,
    check_no_leftovers,
    gathered,
)
from support.distributed.models import distributed_net
from support.distributed.processes import error_of
from support.training.models import batches
from support.training.steps import make_step
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial

from torch_bridge import Checkpoints
from torch_bridge.training.checkpointing import file_format
from torch_bridge.training.distributed.processes import rank

pytestmark = [pytest.mark.slow, pytest.mark.ranks(2)]


def tensor_of_rank():
    return torch.full((3,), float(rank()))


def test_values_of_each_rank_come_back(tmp_path):
    """A value that is equal on all ranks is written once."""
    common = torch.arange(1000.0)
    state = {
        "common": common,
        "of_rank": tensor_of_rank(),
        "dtype of rank": torch.ones(4).view([torch.float32, torch.int32][rank()]),
        "shape of rank": torch.ones(4).view([(4,), (2, 2)][rank()]),
        "rank": [rank()],
        "empty": {},
    }
    part = Part(state)
    values = {"rank": rank(), "all": [1]}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, part=part, values=values)
    part.state = None
    values.clear()
    assert checkpoints.load(part=part, values=values) == 1
    assert_same_bits(part.state, state)
    assert values == {"rank": rank(), "all": [1]}
    file_of_rank_0 = tmp_path / "1" / "rank-0.safetensors"
    file_of_rank_1 = tmp_path / "1" / "rank-1.safetensors"
    size_of_rank_0 = file_of_rank_0.stat().st_size
    size_of_rank_1 = file_of_rank_1.stat().st_size
    assert size_of_rank_0 - size_of_rank_1 > common.nbytes
    check_no_leftovers(tmp_path, [1])


def test_tied_shards_are_saved(tmp_path):
    """Even of a tied weight of which rank 1 has no row."""
    first = nn.Linear(3, 1)
    nn.init.constant_(first.weight, 7.0)
    second = nn.Linear(3, 1)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    fully_shard(model)
    step = make_step(model=model)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, model=model, wait=True)
    for part in ("step", "model"):
        plain = nn.Sequential(nn.Linear(3, 1), nn.Linear(3, 1))
        checkpoints.load_model(plain, part=part)
        for layer in plain:
            weight = layer.get_parameter("weight")
            assert weight.tolist() == [[7.0, 7.0, 7.0]]


def step_in_a_different_order_on_each_rank(parallelism):
    model = distributed_net(parallelism)
    parameters = list(model.named_parameters())
    rotated = parameters[rank() :] + parameters[: rank()]
    optimizer = torch.optim.AdamW(rotated)
    step = make_step(model=model, optimizer=optimizer)
    step(*batches(1))
    return step


def test_shards_in_other_orders_are_rejected(tmp_path):
    step = step_in_a_different_order_on_each_rank("fsdp")
    checkpoints = Checkpoints(tmp_path)
    message = "optimizer.param_groups.0.param_names.0 = '0.weight' on rank 0, and '0.bias' on rank"
    error = error_of(checkpoints.save, 1, step=step, wait=True)
    assert f"step.{message}" in error
    error = error_of(checkpoints.save, 1, optimizer=step.optimizer, wait=True)
    assert message in error


def test_partial_sums_are_rejected(tmp_path):
    """As shards, they would be joined rather than added."""
    mesh = init_device_mesh("cpu", (2,))
    sums = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    error = error_of(Checkpoints(tmp_path).save, 1, part=Part({"sums": sums}))
    assert "TypeError: part.sums is a DTensor of partial sums" in error


def test_each_rank_may_have_another_order_under_ddp(tmp_path):
    """It saves its whole state, and gets it back."""
    step = step_in_a_different_order_on_each_rank("ddp")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, wait=True)
    assert checkpoints.load(step=step) == 1
    checkpoints.save(1, optimizer=step.optimizer, wait=True)
    assert checkpoints.load(optimizer=step.optimizer) == 1


# Failures, after which the next save is complete.


def check_error_of_rank_1(error, message):
    assert message in error
    assert error.startswith("RuntimeError: rank 1 failed: ") == (rank() == 0)


def on_rank_1(holder, name, error):
    """Let a function raise an error on rank 1."""
    if rank() == 1:
        return patch.object(holder, name, side_effect=error)
    return nullcontext()


class SavedParts:
    """Two parts, and their checkpoint 1."""

    def __init__(self, directory):
        self.part = Part({"a": rank()})
        self.second = Part(OrderedDict(b=1))
        self.checkpoints = Checkpoints(directory)
        self.save(1)

    def save(self, step, *, wait=True):
        self.checkpoints.save(step, part=self.part, second=self.second, wait=wait)

    def check_unchanged(self):
        assert self.part.state == {"a": rank()}
        assert self.second.state == {"b": 1}
        self.check_next_save()

    def check_next_save(self):
        distributed.barrier()
        assert self.checkpoints.steps() == [1]
        self.save(3)
        assert self.checkpoints.steps() == [1, 3]
        check_no_leftovers(self.checkpoints.directory, [1, 3])


def test_error_of_a_state_is_raised_on_all(tmp_path):
    saved = SavedParts(tmp_path)
    with on_rank_1(Part, "state_dict", OSError("none")):
        error = error_of(saved.save, 2, wait=False)
    check_error_of_rank_1(error, "OSError: none")
    saved.check_unchanged()


def test_error_of_writing_is_raised_on_all(tmp_path):
    saved = SavedParts(tmp_path)
    saved.part.state = {"a": torch.ones(2) * rank()}
    with on_rank_1(file_format, "save_file", OSError("the disk is full")):
        error = error_of(saved.save, 2)
    check_error_of_rank_1(error, "OSError: the disk is full")
    saved.part.state = {"a": rank()}
    saved.check_unchanged()


def test_different_steps_are_rejected(tmp_path):
    saved = SavedParts(tmp_path)
    error = error_of(saved.save, 2 + rank(), wait=False)
    assert "step = 2 on rank 0, and 3 on rank 1: every rank must name the same checkpoint" in error
    assert "rank 1 failed" not in error
    error = error_of(saved.checkpoints.load, rank(), part=saved.part, second=saved.second)
    assert "step = 0 on rank 0, and 1 on rank 1: every rank" in error
    saved.check_unchanged()


def test_rejection_of_a_state_is_raised_on_all(tmp_path):
    """A part that rejects its state is not loaded; those before it are loaded."""
    saved = SavedParts(tmp_path)
    saved.part.state = {"a": 7}
    saved.second.state = {"b": 7}
    part = saved.part
    expected = {"a": 0}
    if rank() == 1:
        part = Rejecting({"a": 7})
        expected = {"a": 7}
    error = error_of(saved.checkpoints.load, second=saved.second, part=part)
    assert saved.part.state == expected
    assert saved.second.state == {"b": 1}
    check_error_of_rank_1(error, "KeyError: 'a different one'")
    saved.check_next_save()


def test_load_model_gives_all_ranks_the_buffers_of_rank_0(tmp_path):
    model = nn.Module()
    model.register_buffer("statistics", tensor_of_rank())
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model, wait=True)
    checkpoints.load_model(model, part="model")
    assert model.get_buffer("statistics").tolist() == [0.0, 0.0, 0.0]


def test_damage_is_known_to_all_ranks(tmp_path):
    """Each rank checks a share of the files."""
    part = Part({"of_rank": tensor_of_rank()})
    model = distributed_net("blocks")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, part=part, model=model, wait=True)
    before = gathered(model.state_dict())
    for path in sorted((tmp_path / "1").iterdir()):
        content = path.read_bytes()
        distributed.barrier()
        if rank() == 0:
            flipped = bytearray(content)
            flipped[-3] ^= 1
            path.write_bytes(flipped)
        distributed.barrier()
        error = error_of(checkpoints.load, part=part, model=model)
        assert f"only damaged checkpoints: 1: {path.name} is damaged" in error
        error = error_of(checkpoints.load_model, model, part="model")
        assert f"only damaged checkpoints: 1: {path.name} is damaged" in error
        assert_same_bits(gathered(model.state_dict()), before)
        distributed.barrier()
        path.write_bytes(content)


def test_unshared_folder_is_rejected(tmp_path):
    """As on several machines without a shared file system: no checkpoint would ever be complete."""
    part = Part(tensor_of_rank())
    checkpoints = Checkpoints(tmp_path / str(rank()))
    error = error_of(checkpoints.save, 1, part=part, wait=True)
    assert "the ranks do not share " in error


def test_save_of_destroyed_group_is_complete_or_lost(tmp_path):
    """Some versions of torch still let the ranks agree that it is complete."""
    checkpoints = Checkpoints(tmp_path / "run")
    part = Part(tensor_of_rank())
    signs = [tmp_path / "destroyed 0", tmp_path / "destroyed 1"]

    def save_late(*arguments):
        while not (signs[0].exists() and signs[1].exists()):
            time.sleep(0.01)
        save_file(*arguments)

    checkpoints.save(1, part=part, wait=True)
    with patch.object(file_format, "save_file", save_late):
        checkpoints.save(2, part=part)
        sign_of_rank = signs[rank()]
        distributed.destroy_process_group()
        sign_of_rank.touch()
        expected = [1, 2]
        try:
            checkpoints.steps()
        except Exception as error:
            failed, reason = error.__notes__
            assert "The save of checkpoint 2" in failed
            assert "The process group was destroyed before the save was complete" in reason
            expected = [1]
    assert checkpoints.steps() == expected
