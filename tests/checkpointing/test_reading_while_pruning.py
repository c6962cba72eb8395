"""A run saves and prunes while another process reads."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.checkpointing.checkpoints import Part, leftovers, same, save_each, state_of

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import folders, rank_files, reading
from torch_bridge.checkpointing.reading import SavedCheckpoint


@pytest.mark.parametrize("place", [(rank_files, "read_json"), (SavedCheckpoint, "verify_digests")])
def test_a_newer_one_is_saved_during_a_load(tmp_path: Path, place: tuple[Any, str]) -> None:
    """One that is open is read to the end though it is removed; before that the next one is taken."""
    save_each(tmp_path, [1], keep=1)
    counts, part = [2, 3], Part()
    working = getattr(*place)

    def works(*arguments: Any) -> Any:
        if counts:
            save_each(tmp_path, [counts.pop(0)], keep=1)
        return working(*arguments)

    with patch.object(*place, works):
        found = Checkpoints(tmp_path).load(part=part)
    assert found == (1 if place[1] == "verify_digests" else 3)
    assert same(part.state, state_of(found))
    save_each(tmp_path, [4], keep=1)
    assert leftovers(tmp_path, [4]) == []


def test_another_one_of_its_name_comes_during_a_load(tmp_path: Path) -> None:
    """Saves of one count take the names 1 and 1.1 in turn. The files of two saves are no damage."""
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


def test_one_is_renamed_during_a_load(tmp_path: Path) -> None:
    """The rank that ends last gives the folder its name, when a reader may have seen the first one."""
    with patch.object(folders, "commit"):
        save_each(tmp_path, [1], keep=1)
    (partial,) = tmp_path.iterdir()
    part, working = Part(), rank_files.read_json

    def works(*arguments: Any) -> Any:
        folders.commit(partial)
        return working(*arguments)

    with patch.object(rank_files, "read_json", works):
        assert Checkpoints(tmp_path).load(part=part) == 1
    assert same(part.state, state_of(1))


def test_one_that_was_not_renamed_is_complete(tmp_path: Path) -> None:
    """Its last rank was killed before it could rename the folder; the next save does."""
    for count in (1, 2):
        with patch.object(folders, "commit"):
            save_each(tmp_path, [count], keep=1)
        part = Part()
        assert Checkpoints(tmp_path).load(part=part) == count
        assert same(part.state, state_of(count))
    assert Checkpoints(tmp_path).counts() == [1, 2]
    Checkpoints(tmp_path).save(3, part=Part(), wait=True)
    assert leftovers(tmp_path, [1, 2, 3]) == []


def test_two_ranks_that_end_at_the_same_time(tmp_path: Path) -> None:
    """Both see all files, and one of them renames the folder."""
    with patch.object(folders, "commit"):
        save_each(tmp_path, [1], keep=1)
    (partial,) = tmp_path.iterdir()
    for _ in range(2):
        folders.commit(partial, 1)
    assert leftovers(tmp_path, [1]) == []
    assert Checkpoints(tmp_path).load(part=Part()) == 1


@pytest.mark.parametrize("moment", range(8))
def test_a_listing_sees_the_old_or_the_new_one(tmp_path: Path, moment: int) -> None:
    """Though the newer one gets its name, and the older one is removed, while the directory is looked at."""
    save_each(tmp_path, [1], keep=1)
    with patch.object(folders, "commit"):
        save_each(tmp_path, [2], keep=1)
    partial = next(path for path in tmp_path.iterdir() if path.name.endswith(".partial"))
    working, calls = rank_files.read_head, iter(range(99))

    def works(folder: Path) -> Any:
        if next(calls) == moment and partial.exists():
            folders.commit(partial, 1)
        return working(folder)

    with patch.object(rank_files, "read_head", works):
        assert Checkpoints(tmp_path).load(part=Part()) == 2
