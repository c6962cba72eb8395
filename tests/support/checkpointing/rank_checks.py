"""Checks of wrapped models, states and checkpoints that every rank of one group makes in turn."""

import io
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from support.checkpointing.checkpoints import Part, Rejecting, leftovers, same_bits, gathered
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
    options: dict[str, Any] = {"device": "cpu"}
    if wrapper == "hybrid":
        options["mesh"] = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "shard"))
    if wrapper in ("blocks", "hybrid"):
        options["blocks"] = [nn.Linear]
    return distribute(net(seed), "ddp" if wrapper == "ddp" else "fsdp", **options)


def check_every_rank_gets_the_weights_of_rank_0(_: Path) -> None:
    """Each rank builds its model from another seed."""
    assert is_main() == (rank() == 0)
    for wrapper in WRAPPERS:
        assert equal_trees(gathered(plain_state(build(wrapper, seed=10 * rank()))), net(0).state_dict())


def _update(step: TrainStep, number: int) -> float:
    return step(*batches(1, seed=2 * number + rank())).loss.item()


def check_resume_matches_uninterrupted_run(_: Path) -> None:
    """Also from a state with all DTensors gathered."""
    for wrapper in WRAPPERS:
        step, other, gathered = (make_step(model=build(wrapper)) for _ in range(3))
        for number in range(3):
            _update(step, number)
        state = step.state_dict()
        other.load_state_dict(state)
        gathered.load_state_dict(gathered(state))
        expected = [_update(step, number) for number in (3, 4)]
        for resumed in (other, gathered):
            assert [_update(resumed, number) for number in (3, 4)] == expected
            assert equal_trees(gathered(resumed.state_dict()), gathered(step.state_dict()))


def check_shards_are_loaded_only_where_they_belong(_: Path) -> None:
    """Not by a model that is not sharded, nor by another rank, whose state came through a file."""
    step = make_step(model=build("fsdp"))
    _update(step, 0)
    message = error_of(make_step(model=build("ddp")).load_state_dict, step.state_dict())
    assert re.search(r"shards of tensors, placed as .*Shard.*; save and load through Checkpoints", message)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    sent = [file.getvalue()]
    distributed.broadcast_object_list(sent)
    before = step.state_dict()
    state = torch.load(io.BytesIO(sent[0]), weights_only=True)
    message = error_of(step.load_state_dict, state)
    assert ("each rank must load its own state" in message) == (rank() == 1)
    assert equal_trees(gathered(step.state_dict()), gathered(before))


def check_each_rank_gets_own_values_back(directory: Path) -> None:
    """A value that is equal on all ranks is written once."""
    common, own = torch.arange(1000.0), torch.full((3,), float(rank()))
    state: dict[str, Any] = {"common": common, "own": own, "rank": [rank()], "e": {}}
    part, values = Part(state), {"rank": rank(), "all": [1]}
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, part=part, values=values)
    part.state = None
    values.clear()
    assert checkpoints.load(part=part, values=values) == 1
    assert same_bits(part.state, state)
    assert values == {"rank": rank(), "all": [1]}
    sizes = [(directory / "1" / f"rank-{number}.safetensors").stat().st_size for number in range(2)]
    assert sizes[0] - sizes[1] > common.nbytes
    assert leftovers(directory, [1]) == []


def check_tied_shards_are_saved(directory: Path) -> None:
    """Even of a tied weight of which rank 1 has no row."""
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    second.weight = first.weight
    nn.init.constant_(first.weight, 7.0)
    model = nn.Sequential(first, second)
    fully_shard(model)
    Checkpoints(directory).save(1, step=make_step(model=model), model=model, wait=True)
    for part in ("step", "model"):
        plain = nn.Sequential(nn.Linear(3, 1), nn.Linear(3, 1))
        Checkpoints(directory).load_model(plain, part=part)
        assert all(torch.equal(layer.get_parameter("weight"), torch.full((1, 3), 7.0)) for layer in plain)


def check_shards_in_other_orders_are_rejected(directory: Path) -> None:
    """Under DDP each rank saves its whole state, and gets it back."""
    for wrapper in ("ddp", "fsdp"):
        model = wrapped(wrapper, Net())
        named = list(model.named_parameters())
        optimizer = torch.optim.AdamW(named[rank() :] + named[: rank()])
        step = make_step(model=model, optimizer=optimizer)
        step(*batches(1))
        checkpoints = Checkpoints(directory / wrapper)
        parts: list[dict[str, Any]] = [{"step": step}, {"optimizer": optimizer}]
        for part in parts:
            error = error_of(checkpoints.save, 1, wait=True, **part)
            expected = f"{next(iter(part))} has its parameters in different orders on rank 0 and rank 1"
            assert (expected if wrapper == "fsdp" else "") in error
            assert wrapper == "fsdp" or checkpoints.load(**part) == 1


def _on_rank_1(holder: Any, name: str, error: Exception) -> AbstractContextManager[Any]:
    return patch.object(holder, name, side_effect=error) if rank() == 1 else nullcontext()


def _state(checkpoints: Checkpoints, part: Part, second: Part) -> None:
    with _on_rank_1(Part, "state_dict", OSError("none")):
        checkpoints.save(2, part=part, second=second)


def _count(checkpoints: Checkpoints, part: Part, second: Part) -> None:
    checkpoints.save(2 + rank(), part=part, second=second)


def _names(checkpoints: Checkpoints, part: Part, second: Part) -> None:
    parts: dict[str, Any] = {f"part{rank()}": part}
    checkpoints.load(None, **parts)


def _writing(checkpoints: Checkpoints, part: Part, second: Part) -> None:
    with _on_rank_1(file_format, "save_file", OSError("the disk is full")):
        checkpoints.save(2, part=Part({"a": torch.ones(2) * rank()}), second=second, wait=True)


def _rejection(checkpoints: Checkpoints, part: Part, second: Part) -> None:
    part.state, second.state = {"a": 7}, {"b": 7}
    checkpoints.load(second=second, part=Rejecting({"a": 7}) if rank() == 1 else part)


# A call, True if only rank 1 fails, and what is said.
FAILURES: list[tuple[Callable[..., None], bool, str]] = [
    (_state, True, "OSError: none"),
    (_count, False, "rank 0 calls save with (step, parts) = (2, ['part', 'second']), and rank 1 with (3, "),
    (_names, False, "rank 0 calls load with (step, parts) = (None, ['part0']), and rank 1 with (None, "),
    (_writing, True, "OSError: the disk is full"),
    (_rejection, True, "KeyError: 'another one'"),
]


def check_failure_on_one_rank_raises_on_all(directory: Path) -> None:
    """The next save is complete."""
    for fail, is_of_rank_1, message in FAILURES:
        checkpoints = Checkpoints(directory / fail.__name__)
        part, second = Part({"a": rank()}), Part(OrderedDict(b=1))
        checkpoints.save(1, part=part, second=second, wait=True)
        error = error_of(fail, checkpoints, part, second)
        assert message in error
        assert error.startswith("RuntimeError: rank 1 failed") == (is_of_rank_1 and rank() == 0)
        # A part that rejects its state on rank 1 is not loaded there; those before it are loaded.
        keeps_its_state = fail is _rejection and rank() == 1
        assert part.state == {"a": 7 if keeps_its_state else rank()}
        assert second.state == {"b": 1}
        distributed.barrier()
        assert checkpoints.steps() == [1]
        checkpoints.save(3, part=part, second=second, wait=True)
        assert checkpoints.steps() == [1, 3]
        assert leftovers(checkpoints.directory, [1, 3]) == []


def check_damage_is_known_to_all_ranks(directory: Path) -> None:
    """Each rank checks a share of the files."""
    part, model = Part({"own": torch.full((3,), float(rank()))}), build("blocks")
    Checkpoints(directory).save(1, part=part, model=model, wait=True)
    before = gathered(model.state_dict())
    for path in sorted((directory / "1").iterdir()):
        content = path.read_bytes()
        distributed.barrier()
        if rank() == 0:
            path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        distributed.barrier()
        error = error_of(Checkpoints(directory).load, part=part, model=model)
        assert f"only damaged checkpoints: 1: {path.name} is damaged" in error
        error = error_of(Checkpoints(directory).merge, [1], [1.0], into=model, part="model")
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


_GOOD: dict[str, Any] = {"steps": [1, 2, 3], "weights": [0.5, 0.25, 0.25]}
# Other arguments of rank 1, True if only rank 1 fails, and what is said.
_REJECTIONS: list[tuple[dict[str, Any], bool, str]] = [
    ({"weights": [0.25, 0.5, 0.25]}, False, "and rank 1 with ([1, 2, 3], [0.25, 0.5, 0.25], 'model')"),
    ({"weights": [0.5, 0.5, 0.5]}, True, "ValueError: weights add up to 1.5"),
    ({}, True, "KeyError: 'not this one'"),  # the model rejects the state
]


def check_rejected_merge_leaves_model_unchanged(directory: Path) -> None:
    checkpoints = Checkpoints(directory)
    for count in _GOOD["steps"]:
        checkpoints.save(count, model=build("blocks", count), wait=True)
    for other, is_of_rank_1, message in _REJECTIONS:
        model: Any = build("blocks", 99)
        before = gathered(model.state_dict())
        arguments = {"into": model, **_GOOD, **(other if rank() == 1 else {})}
        if not other and rank() == 1:
            model[2].register_load_state_dict_post_hook(_reject)
        error = error_of(checkpoints.merge, **arguments, part="model")
        assert message in error
        assert error.startswith("RuntimeError: rank 1 failed: ") == (is_of_rank_1 and rank() == 0)
        if other:  # otherwise the model itself rejects what it has loaded
            assert equal_trees(gathered(model.state_dict()), before)


def _reject(*_: object) -> None:
    raise KeyError("not this one")


def check_save_of_destroyed_group_is_lost(directory: Path) -> None:
    """The last check, since it destroys the group."""
    checkpoints = Checkpoints(directory / "run")
    part = Part(torch.full((3,), float(rank())))
    signs = [directory / f"destroyed {number}" for number in range(2)]

    def save_late(*arguments: Any) -> None:
        while not all(sign.exists() for sign in signs):
            time.sleep(0.01)
        save_file(*arguments)

    checkpoints.save(1, part=part, wait=True)
    with patch.object(file_format, "save_file", save_late):
        checkpoints.save(2, part=part)
        sign = signs[rank()]
        distributed.destroy_process_group()
        sign.touch()
        error = error_of(checkpoints.steps)
    assert "checkpoint 2 is lost: the process group was destroyed before it was complete" in error
    assert checkpoints.steps() == [1]
