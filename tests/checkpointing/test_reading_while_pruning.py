"""A run saves and prunes while another process reads."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.checkpointing.checkpoints import Part, leftovers, same_bits, save_each, state_of

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import checkpoint_dirs, rank_files, reading
from torch_bridge.checkpointing.reading import SavedCheckpoint


@pytest.mark.parametrize("place", [(rank_files, "read_json"), (SavedCheckpoint, "verify_digests")])
def test_newer_checkpoint_is_saved_during_load(tmp_path: Path, place: tuple[Any, str]) -> None:
    """A checkpoint removed while open is read to the end; one removed before that is replaced by the next."""
    save_each(tmp_path, [1], keep=1)
    counts, part = [2, 3], Part()
    working = getattr(*place)

    def works(*arguments: Any) -> Any:
        if counts:
            save_each(tmp_path, [counts.pop(0)], keep=1)
        return working(*arguments)

    with patch.object(*place, works):
        count = Checkpoints(tmp_path).load(part=part)
    assert count == (1 if place[1] == "verify_digests" else 3)
    assert same_bits(part.state, state_of(count))
    save_each(tmp_path, [4], keep=1)
    assert leftovers(tmp_path, [4]) == []


def test_checkpoint_is_replaced_during_load(tmp_path: Path) -> None:
    """Saves of one count are named 1 and 1.1 in turn. Files of two saves do not count as damage."""
    save_each(tmp_path, [1], keep=1)
    part, opening = Part(), reading.safe_open
    left = [1, 1]

    def opens(*arguments: Any, **settings: Any) -> Any:
        while left:
            Checkpoints(tmp_path, keep=1).save(left.pop(), part=Part(["later"]), wait=True)
        return opening(*arguments, **settings)

    with patch.object(reading, "safe_open", opens):
        assert Checkpoints(tmp_path).load(part=part) == 1
    assert part.state == ["later"]


def test_folder_is_renamed_during_load(tmp_path: Path) -> None:
    """The last rank renames the folder, which a reader may have listed under its temporary name."""
    with patch.object(checkpoint_dirs, "commit"):
        save_each(tmp_path, [1], keep=1)
    (partial,) = tmp_path.iterdir()
    part, working = Part(), rank_files.read_json

    def works(*arguments: Any) -> Any:
        checkpoint_dirs.commit(partial)
        return working(*arguments)

    with patch.object(rank_files, "read_json", works):
        assert Checkpoints(tmp_path).load(part=part) == 1
    assert same_bits(part.state, state_of(1))


def test_uncommitted_folder_is_complete(tmp_path: Path) -> None:
    """Its last rank was killed before the rename; the next save does it."""
    for count in (1, 2):
        with patch.object(checkpoint_dirs, "commit"):
            save_each(tmp_path, [count], keep=1)
        part = Part()
        assert Checkpoints(tmp_path).load(part=part) == count
        assert same_bits(part.state, state_of(count))
    assert Checkpoints(tmp_path).counts() == [1, 2]
    Checkpoints(tmp_path).save(3, part=Part(), wait=True)
    assert leftovers(tmp_path, [1, 2, 3]) == []


def test_two_ranks_commit_at_once(tmp_path: Path) -> None:
    """Both see all files, and one of them renames the folder."""
    with patch.object(checkpoint_dirs, "commit"):
        save_each(tmp_path, [1], keep=1)
    (partial,) = tmp_path.iterdir()
    for _ in range(2):
        checkpoint_dirs.commit(partial, 1)
    assert leftovers(tmp_path, [1]) == []
    assert Checkpoints(tmp_path).load(part=Part()) == 1


@pytest.mark.parametrize("moment", range(8))
def test_listing_sees_old_or_new_checkpoint(tmp_path: Path, moment: int) -> None:
    """Even if the newer one is renamed and the older one removed during the listing."""
    save_each(tmp_path, [1], keep=1)
    with patch.object(checkpoint_dirs, "commit"):
        save_each(tmp_path, [2], keep=1)
    partial = next(path for path in tmp_path.iterdir() if path.name.endswith(".partial"))
    working, calls = checkpoint_dirs.read_head, iter(range(99))

    def works(folder: Path) -> Any:
        if next(calls) == moment and partial.exists():
            checkpoint_dirs.commit(partial, 1)
        return working(folder)

    with patch.object(checkpoint_dirs, "read_head", works):
        assert Checkpoints(tmp_path).load(part=Part()) == 2
