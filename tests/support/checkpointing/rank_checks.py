"""Checks of wrapped models, states and checkpoints that every rank of one group makes in turn."""

import io
import re
import time
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from support.checkpointing.checkpoints import (
    Part,
    Rejecting,
    check_no_leftovers,
    gathered,
    same_bits,
)
from support.checkpointing.world_sizes import net
from support.distributed.distributed_updates import wrapped
from support.distributed.processes import error_of
from support.training.models import Net, batches
from support.training.steps import equal_trees, make_step
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torch_bridge import Checkpoints, TrainStep, distribute, is_main
from torch_bridge.checkpointing import file_format
from torch_bridge.distributed.plain_names import plain_state
from torch_bridge.distributed.processes import rank

WRAPPERS = ("ddp", "fsdp", "blocks", "hybrid")


def build(wrapper: str, seed: int = 0) -> Any:
    """Return a distributed model on the CPU."""
    model = net(seed)
    if wrapper == "ddp":
        return distribute(model, "ddp", device="cpu")
    if wrapper == "fsdp":
        return distribute(model, "fsdp", device="cpu")
    if wrapper == "blocks":
        return distribute(model, "fsdp", device="cpu", blocks=[nn.Linear])
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "shard"))
    return distribute(model, "fsdp", device="cpu", blocks=[nn.Linear], mesh=mesh)


# Wrapped models and their states.


def check_every_rank_gets_the_weights_of_rank_0(_: Path) -> None:
    """Each rank builds its model from another seed."""
    assert is_main() == (rank() == 0)
    for wrapper in WRAPPERS:
        model = build(wrapper, seed=10 * rank())
        assert equal_trees(gathered(plain_state(model)), net(0).state_dict())


def _update(step: TrainStep, number: int) -> float:
    (batch,) = batches(1, seed=2 * number + rank())
    return step(batch).loss.item()


def check_resume_matches_uninterrupted_run(_: Path) -> None:
    """Also from a state with all DTensors gathered."""
    for wrapper in WRAPPERS:
        step = make_step(model=build(wrapper))
        for number in range(3):
            _update(step, number)
        state = step.state_dict()
        from_shards = make_step(model=build(wrapper))
        from_shards.load_state_dict(state)
        from_gathered = make_step(model=build(wrapper))
        from_gathered.load_state_dict(gathered(state))
        losses = [_update(step, 3), _update(step, 4)]
        expected = gathered(step.state_dict())
        for resumed in (from_shards, from_gathered):
            assert [_update(resumed, 3), _update(resumed, 4)] == losses
            assert equal_trees(gathered(resumed.state_dict()), expected)


def check_shards_are_not_loaded_by_an_unsharded_model(_: Path) -> None:
    step = make_step(model=build("fsdp"))
    _update(step, 0)
    error = error_of(make_step(model=build("ddp")).load_state_dict, step.state_dict())
    placed = "shards of tensors, placed as .*Shard.*; save and load through Checkpoints"
    assert re.search(placed, error)


def check_shards_are_not_loaded_by_another_rank(_: Path) -> None:
    """Its state came through a file."""
    step = make_step(model=build("fsdp"))
    _update(step, 0)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    files = [file.getvalue()]
    distributed.broadcast_object_list(files)
    state_of_rank_0 = torch.load(io.BytesIO(files[0]), weights_only=True)
    before = gathered(step.state_dict())
    error = error_of(step.load_state_dict, state_of_rank_0)
    assert ("each rank must load its own state" in error) == (rank() == 1)
    assert equal_trees(gathered(step.state_dict()), before)


# Parts of checkpoints.


def check_values_of_each_rank_come_back(directory: Path) -> None:
    """A value that is equal on all ranks is written once."""
    common = torch.arange(1000.0)
    of_rank = torch.full((3,), float(rank()))
    state: dict[str, Any] = {"common": common, "of_rank": of_rank, "rank": [rank()], "e": {}}
    part = Part(state)
    values = {"rank": rank(), "all": [1]}
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, part=part, values=values)
    part.state = None
    values.clear()
    assert checkpoints.load(part=part, values=values) == 1
    assert same_bits(part.state, state)
    assert values == {"rank": rank(), "all": [1]}
    size_of_rank_0 = (directory / "1" / "rank-0.safetensors").stat().st_size
    size_of_rank_1 = (directory / "1" / "rank-1.safetensors").stat().st_size
    assert size_of_rank_0 - size_of_rank_1 > common.nbytes
    check_no_leftovers(directory, [1])


def check_tied_shards_are_saved(directory: Path) -> None:
    """Even of a tied weight of which rank 1 has no row."""
    first = nn.Linear(3, 1)
    nn.init.constant_(first.weight, 7.0)
    second = nn.Linear(3, 1)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    fully_shard(model)
    Checkpoints(directory).save(1, step=make_step(model=model), model=model, wait=True)
    for part in ("step", "model"):
        plain = nn.Sequential(nn.Linear(3, 1), nn.Linear(3, 1))
        Checkpoints(directory).load_model(plain, part=part)
        for layer in plain:
            assert torch.equal(layer.get_parameter("weight"), torch.full((1, 3), 7.0))


def _step_in_a_different_order_on_each_rank(wrapper: str) -> TrainStep:
    model = wrapped(wrapper, Net())
    parameters = list(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters[rank() :] + parameters[: rank()])
    step = make_step(model=model, optimizer=optimizer)
    step(*batches(1))
    return step


def check_shards_in_other_orders_are_rejected(directory: Path) -> None:
    step = _step_in_a_different_order_on_each_rank("fsdp")
    checkpoints = Checkpoints(directory)
    message = "has its parameters in different orders on rank 0 and rank 1"
    error = error_of(checkpoints.save, 1, step=step, wait=True)
    assert f"step {message}" in error
    error = error_of(checkpoints.save, 1, optimizer=step.optimizer, wait=True)
    assert f"optimizer {message}" in error


def check_each_rank_may_have_another_order_under_ddp(directory: Path) -> None:
    """It saves its whole state, and gets it back."""
    step = _step_in_a_different_order_on_each_rank("ddp")
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, step=step, wait=True)
    assert checkpoints.load(step=step) == 1
    checkpoints.save(1, optimizer=step.optimizer, wait=True)
    assert checkpoints.load(optimizer=step.optimizer) == 1


# Failures, after which the next save is complete.


def _check_error_of_rank_1(error: str, message: str) -> None:
    assert message in error
    assert error.startswith("RuntimeError: rank 1 failed: ") == (rank() == 0)


def _check_error_of_all_ranks(error: str, message: str) -> None:
    assert message in error
    assert not error.startswith("RuntimeError: rank 1 failed")


def _on_rank_1(holder: Any, name: str, error: Exception) -> AbstractContextManager[Any]:
    """Let a function raise an error on rank 1."""
    if rank() == 1:
        return patch.object(holder, name, side_effect=error)
    return nullcontext()


class _Run:
    """Two parts, and their checkpoint 1."""

    def __init__(self, directory: Path) -> None:
        self.part = Part({"a": rank()})
        self.second = Part(OrderedDict(b=1))
        self.checkpoints = Checkpoints(directory)
        self.checkpoints.save(1, part=self.part, second=self.second, wait=True)

    def check_unchanged(self) -> None:
        assert self.part.state == {"a": rank()}
        assert self.second.state == {"b": 1}
        self.check_next_save()

    def check_next_save(self) -> None:
        distributed.barrier()
        assert self.checkpoints.steps() == [1]
        self.checkpoints.save(3, part=self.part, second=self.second, wait=True)
        assert self.checkpoints.steps() == [1, 3]
        check_no_leftovers(self.checkpoints.directory, [1, 3])


def check_error_of_a_state_is_raised_on_all(directory: Path) -> None:
    run = _Run(directory)
    with _on_rank_1(Part, "state_dict", OSError("none")):
        error = error_of(run.checkpoints.save, 2, part=run.part, second=run.second)
    _check_error_of_rank_1(error, "OSError: none")
    run.check_unchanged()


def check_error_of_writing_is_raised_on_all(directory: Path) -> None:
    run = _Run(directory)
    different = Part({"a": torch.ones(2) * rank()})
    with _on_rank_1(file_format, "save_file", OSError("the disk is full")):
        error = error_of(run.checkpoints.save, 2, part=different, second=run.second, wait=True)
    _check_error_of_rank_1(error, "OSError: the disk is full")
    run.check_unchanged()


def check_different_steps_are_rejected(directory: Path) -> None:
    run = _Run(directory)
    error = error_of(run.checkpoints.save, 2 + rank(), part=run.part, second=run.second)
    message = "rank 0 calls save with (step, parts) = (2, ['part', 'second']), and rank 1 with (3, "
    _check_error_of_all_ranks(error, message)
    run.check_unchanged()


def check_different_names_are_rejected(directory: Path) -> None:
    run = _Run(directory)
    parts: dict[str, Any] = {f"part{rank()}": run.part}
    error = error_of(run.checkpoints.load, None, **parts)
    message = "rank 0 calls load with (step, parts) = (None, ['part0']), and rank 1 with (None, "
    _check_error_of_all_ranks(error, message)
    run.check_unchanged()


def check_rejection_of_a_state_is_raised_on_all(directory: Path) -> None:
    """A part that rejects its state is not loaded; those before it are loaded."""
    run = _Run(directory)
    run.part.state = {"a": 7}
    run.second.state = {"b": 7}
    if rank() == 1:
        rejecting = Rejecting({"a": 7})
        error = error_of(run.checkpoints.load, second=run.second, part=rejecting)
        assert run.part.state == {"a": 7}
    else:
        error = error_of(run.checkpoints.load, second=run.second, part=run.part)
        assert run.part.state == {"a": 0}
    assert run.second.state == {"b": 1}
    _check_error_of_rank_1(error, "KeyError: 'a different one'")
    run.check_next_save()


def check_damage_is_known_to_all_ranks(directory: Path) -> None:
    """Each rank checks a share of the files."""
    part = Part({"of_rank": torch.full((3,), float(rank()))})
    model = build("blocks")
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, part=part, model=model, wait=True)
    before = gathered(model.state_dict())
    for path in sorted((directory / "1").iterdir()):
        content = path.read_bytes()
        distributed.barrier()
        if rank() == 0:
            flipped = bytearray(content)
            flipped[-3] ^= 1
            path.write_bytes(flipped)
        distributed.barrier()
        error = error_of(checkpoints.load, part=part, model=model)
        assert f"only damaged checkpoints: 1: {path.name} is damaged" in error
        error = error_of(checkpoints.merge, [1], [1.0], into=model, part="model")
        assert f"a damaged checkpoint: 1: {path.name} is damaged" in error
        assert equal_trees(gathered(model.state_dict()), before)
        distributed.barrier()
        path.write_bytes(content)


def check_unshared_folder_is_rejected(directory: Path) -> None:
    """As on several machines without a shared file system: no checkpoint would ever be complete."""
    part = Part(torch.full((3,), float(rank())))
    error = error_of(Checkpoints(directory / str(rank())).save, 1, part=part, wait=True)
    assert "rank-1.safetensors is missing in " in error
    assert f"the ranks do not share {directory / '0'}" in error


# Merges that are rejected.


def _with_three_models(directory: Path) -> Checkpoints:
    checkpoints = Checkpoints(directory)
    for step in (1, 2, 3):
        checkpoints.save(step, model=build("blocks", step), wait=True)
    return checkpoints


def _error_of_merge(directory: Path, weights_of_rank_1: list[float]) -> str:
    """Return the error of a merge, which leaves the model unchanged."""
    checkpoints = _with_three_models(directory)
    model = build("blocks", 99)
    before = gathered(model.state_dict())
    weights = [0.5, 0.25, 0.25]
    if rank() == 1:
        weights = weights_of_rank_1
    error = error_of(checkpoints.merge, [1, 2, 3], weights, into=model, part="model")
    assert equal_trees(gathered(model.state_dict()), before)
    return error


def check_merge_with_different_weights_is_rejected(directory: Path) -> None:
    error = _error_of_merge(directory, [0.25, 0.5, 0.25])
    message = "and rank 1 with ([1, 2, 3], [0.25, 0.5, 0.25], 'model')"
    _check_error_of_all_ranks(error, message)


def check_merge_with_wrong_weights_on_one_rank_is_rejected(directory: Path) -> None:
    error = _error_of_merge(directory, [0.5, 0.5, 0.5])
    _check_error_of_rank_1(error, "ValueError: weights add up to 1.5")


def check_error_of_a_merged_model_is_raised_on_all(directory: Path) -> None:
    """The model itself rejects what it has loaded."""
    checkpoints = _with_three_models(directory)
    model: Any = build("blocks", 99)
    if rank() == 1:
        model[2].register_load_state_dict_post_hook(_reject)
    weights = [0.5, 0.25, 0.25]
    error = error_of(checkpoints.merge, [1, 2, 3], weights, into=model, part="model")
    _check_error_of_rank_1(error, "KeyError: 'not this one'")


def _reject(*_: object) -> None:
    raise KeyError("not this one")


def check_save_of_destroyed_group_is_lost(directory: Path) -> None:
    """The last check, since it destroys the group."""
    checkpoints = Checkpoints(directory / "run")
    part = Part(torch.full((3,), float(rank())))
    signs = [directory / "destroyed 0", directory / "destroyed 1"]

    def save_late(*arguments: Any) -> None:
        while not (signs[0].exists() and signs[1].exists()):
            time.sleep(0.01)
        save_file(*arguments)

    checkpoints.save(1, part=part, wait=True)
    with patch.object(file_format, "save_file", save_late):
        checkpoints.save(2, part=part)
        sign_of_rank = signs[rank()]
        distributed.destroy_process_group()
        sign_of_rank.touch()
        error = error_of(checkpoints.steps)
    message = "checkpoint 2 is lost: the process group was destroyed before it was complete"
    assert message in error
    assert checkpoints.steps() == [1]
