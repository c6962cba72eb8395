"""A run saves and prunes while another process reads: what is read is there until it was read."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.checkpoints import Part, leftovers, same, state_of

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import folders, locks, manifest, tensor_files


def _save(directory: Path, count: int) -> None:
    Checkpoints(directory, keep=1).save(count, part=Part(state_of(count)), wait=True)


@pytest.mark.parametrize("place", ["check", "fill"])
@pytest.mark.parametrize("marked", [True, False])
def test_a_newer_one_is_saved_during_a_load(tmp_path: Path, place: str, marked: bool) -> None:
    """A marked one stays; where nothing can be marked, as in a folder for reading only, the next is read."""
    _save(tmp_path, 1)
    counts, part = [2, 3], Part()
    module: Any = manifest if place == "check" else tensor_files
    working = getattr(module, place)

    def works(*arguments: Any) -> Any:
        if counts:
            _save(tmp_path, counts.pop(0))
        return working(*arguments)

    with patch.object(module, place, works), patch.object(folders.os, "access", lambda *_: marked):
        found = Checkpoints(tmp_path).load(part=part)
    assert found == (1 if marked else 3)
    assert same(part.state, state_of(found))
    _save(tmp_path, 4)
    assert leftovers(tmp_path, [4]) == []


def test_a_mark_of_a_reader_that_was_killed_keeps_nothing(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    (tmp_path / f".1.{'0' * 32}.reading").touch()
    held = locks.lock(tmp_path / f".5.{'1' * 32}.reading")
    held.acquire()
    _save(tmp_path, 2)
    assert Checkpoints(tmp_path).counts() == [2]
    locks.release(held)
    assert leftovers(tmp_path, [2]) == []
