"""Ranks killed at any moment of a save."""

import itertools
import random
from pathlib import Path

import pytest
from support.checkpointing.checkpoints import Part, leftovers, run_and_kill, same_bits, save_each, state_of

from torch_bridge import Checkpoints

pytestmark = pytest.mark.slow

KILLS = 10  # of 20 moments


def check_each(directory: Path) -> list[int]:
    """Load every listed checkpoint, and return their counts."""
    counts, part = Checkpoints(directory).counts(), Part()
    for count in counts:
        assert Checkpoints(directory).load(count, part=part) == count
        assert same_bits(part.state, state_of(count))
    return counts


@pytest.mark.parametrize("count", [2, 1], ids=["the next", "the same"])
@pytest.mark.parametrize("number", [1, 2])
def test_kill_leaves_complete_checkpoint(tmp_path: Path, count: int, number: int) -> None:
    """With checkpoint 1 saved, a save of 2, or of 1 again, is killed just before it touches the disk."""
    moments = list(range(20))
    random.Random(number).shuffle(moments)
    for at in moments[: KILLS // number]:
        directory = tmp_path / str(at)
        Checkpoints(directory, keep=1).save(1, part=Part(state_of(1)), wait=True)
        run_and_kill(save_each, directory, [count], at=at, rank=at % number, number=number)
        assert check_each(directory) in ([1], [count], [1, count])
        assert Checkpoints(directory).load(part=Part()) in (1, count)
        save_each(directory, [3])
        counts = check_each(directory)
        assert counts in ([1, 3], [2, 3])
        assert leftovers(directory, counts) == []


def test_kill_at_each_step_of_pruning(tmp_path: Path) -> None:
    """Checkpoint 1 is whole or absent, until the save ends by itself and has removed its folder."""
    seen: list[list[str]] = []
    for at in itertools.count(15):  # the rename of the new checkpoint is earlier
        directory = tmp_path / str(at)
        save_each(directory, [1], keep=1)
        was_killed = run_and_kill(save_each, directory, [2], 1, at=at)
        assert check_each(directory) in ([1, 2], [2])
        seen.append(sorted(path.name for folder in directory.glob(".1.*") for path in folder.iterdir()))
        if not was_killed:
            break
    assert seen[0] == seen[-1] == []
    assert ["rank-0.json", "rank-0.safetensors"] in seen
    assert any(len(names) == 1 for names in seen), "one file removed, the other left"


def test_kill_moments_cover_whole_save(tmp_path: Path) -> None:
    """The first moment is before there is a checkpoint, and moment 200 is never reached."""
    assert run_and_kill(save_each, tmp_path / "first", [1], at=0)
    assert Checkpoints(tmp_path / "first").counts() == []
    assert not run_and_kill(save_each, tmp_path / "last", [1], at=200)
    assert Checkpoints(tmp_path / "last").counts() == [1]
