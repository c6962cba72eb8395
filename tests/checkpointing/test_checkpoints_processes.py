"""Checkpoints of several processes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpointing import checkpoints as support
from support.distributed import processes
from support.distributed.distributed_updates import Case

from torch_bridge import Checkpoints

pytestmark = pytest.mark.slow


def test_each_rank_gets_own_values_back(tmp_path: Path) -> None:
    """A value that is equal on all ranks is written once."""
    assert processes.run(support.own_and_common, tmp_path) == [[True] * 3, [True] * 3]
    sizes = [(tmp_path / "1" / f"rank-{rank}.safetensors").stat().st_size for rank in range(2)]
    assert sizes[0] - sizes[1] > 1000 * 4
    assert not support.leftovers(tmp_path, [1])


@pytest.mark.parametrize("part", ["step", "model"])
def test_tied_sharded_weights_are_saved(tmp_path: Path, part: str) -> None:
    processes.run(support.tied_shards, tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(3, 1))
    Checkpoints(tmp_path).load_model(model, part=part)
    assert all(torch.equal(layer.weight, torch.full((1, 3), 7.0)) for layer in model)


def test_shards_in_other_orders_are_rejected(tmp_path: Path) -> None:
    """Under DDP each rank saves its whole state, and gets it back."""
    assert processes.run(support.saved_with_other_orders, tmp_path / "ddp", "ddp") == [[], []]
    for errors in processes.run(support.saved_with_other_orders, tmp_path / "fsdp", "fsdp"):
        for name, error in zip(["step", "optimizer"], errors, strict=True):
            assert error.startswith(f"{name} has its parameters in different orders on rank 0 and rank 1")


_DDP, _FSDP, _HYBRID = Case(wrapper="ddp"), Case(wrapper="fsdp"), Case(wrapper="hybrid")
_PLAIN = Case(wrapper="plain", processes=1)
# For each number of processes that save: how many load, and under which wrappers.
_LATER = {
    1: [(2, [_DDP, _FSDP])],
    2: [(1, [_PLAIN]), (2, [_DDP, _FSDP]), (3, [_FSDP])],
    4: [(1, [_PLAIN]), (2, [_FSDP])],
}


def test_load_under_other_world_size_and_wrapper(tmp_path: Path) -> None:
    """From every wrapper to every other, with optimizers that have not stepped yet.

    A rank gets its own random numbers, if it saved any. Under FSDP2 it reads only its shards.
    """
    kept = {
        1: support.trained(tmp_path / "1", [_PLAIN]),
        2: processes.run(support.trained, tmp_path / "2", [_DDP, _FSDP]),
        4: processes.run(support.trained, tmp_path / "4", [_HYBRID], processes=4),
    }
    kept[1] = [kept[1]]
    for before, trained in kept.items():
        numbers = range(len(trained[0]))
        for now, cases in _LATER[before]:
            directory = tmp_path / str(before)
            asked = [(number, case) for number in numbers for case in cases]
            by_rank = (
                [support.loaded(directory, asked)]
                if now == 1
                else processes.run(support.loaded, directory, asked, processes=now)
            )
            for rank, steps in enumerate(by_rank):
                for (number, case), (tensors, counts, numbers_of, is_kept, warned, elements) in zip(
                    asked, steps, strict=True
                ):
                    expected, counts_before, _ = trained[0][number]
                    assert counts == counts_before
                    assert tensors.keys() == expected.keys()
                    for key, value in expected.items():
                        np.testing.assert_array_equal(tensors[key], value)
                    if rank < before:
                        assert numbers_of == trained[rank][number][2]
                    else:
                        assert is_kept
                    _check_warnings(before, now, warned)
                    total = sum(value.size for value in expected.values())
                    assert (elements < 0.8 * total) == (case.wrapper == "fsdp"), (elements, total)


def _check_warnings(before: int, now: int, warned: list[str]) -> None:
    if before == now:
        assert warned == []
    elif now < before:
        assert all("step.random are dropped" in message for message in warned)
    else:
        (message,) = warned
        assert f"saved by {before} processes, and now there are {now}" in message
        assert "the new processes keep the random numbers" in message


@pytest.mark.parametrize(
    ("how", "who", "message"),
    [
        ("state", 1, "OSError: none"),
        (
            "count",
            None,
            "rank 0 calls save with (count, parts) = (2, ['part', 'second']), and rank 1 with (3, ",
        ),
        ("names", None, "rank 0 calls load with (count, parts) = (None, ['part0']), and rank 1 with (None, "),
        ("writing", 1, "OSError: the disk is full"),
        ("earlier", 1, "OSError: the disk is full"),
        ("rejection", 1, "KeyError: 'another one'"),
    ],
)
def test_failure_on_one_rank_raises_on_all(tmp_path: Path, how: str, who: int | None, message: str) -> None:
    """All ranks raise, all parts are as they were, and the next save is complete.

    The save that raises the error of an earlier one is complete too.
    """
    saved = [1, 4] if how == "earlier" else [1]
    for rank, (raised, state, counts, later) in enumerate(
        processes.run(support.fail_on_one_rank, tmp_path, how)
    ):
        assert message in raised
        assert raised.startswith("RuntimeError: rank 1 failed") == (who is not None and who != rank)
        assert state == (({"a": 7}, {"b": 7}) if how == "rejection" else ({"a": rank}, {"b": 1}))
        assert (counts, later) == (saved, sorted([*saved, 3]))
    assert support.leftovers(tmp_path, [*saved, 3]) == []


def test_damage_is_known_to_all_ranks(tmp_path: Path) -> None:
    """Each rank checks a share of the files."""
    processes.run(support.own_and_common, tmp_path)
    for path in sorted((tmp_path / "1").iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for raised in processes.run(support.load_any, tmp_path):
            assert "only damaged checkpoints: 1: " in raised
            assert f"{path.name} is damaged" in raised
        path.write_bytes(content)


def test_rank_files_of_two_saves_are_rejected(tmp_path: Path) -> None:
    """An interrupted copy may leave a file of one save next to that of another save of the same count."""
    for run in ("one", "other"):
        processes.run(support.own_and_common, tmp_path / run)
    shutil.copy(tmp_path / "other" / "1" / "rank-1.json", tmp_path / "one" / "1")
    message = "1: rank-1.json and rank 0's file are of different saves of 1"
    assert [message in raised for raised in processes.run(support.load_any, tmp_path / "one")] == [True] * 2


def test_unshared_folder_is_rejected(tmp_path: Path) -> None:
    """As on several machines without a shared file system: no checkpoint would ever be complete."""
    for raised in processes.run(support.unshared, tmp_path):
        assert f"{tmp_path / '1'} is not a directory that all ranks share" in raised


def test_save_outlives_process_group(tmp_path: Path) -> None:
    processes.run(support.without_group, tmp_path)
    assert Checkpoints(tmp_path).counts() == [1]
    part: Any = support.Part()
    with pytest.warns(UserWarning, match="part are dropped"):
        Checkpoints(tmp_path).load(part=part, model=support.Part())
    assert part.state.tolist() == [0, 0, 0]
    assert torch.is_tensor(part.state)
