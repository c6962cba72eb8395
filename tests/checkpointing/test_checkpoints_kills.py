"""Ranks killed at any moment of a save."""

import random
from pathlib import Path

import pytest
from support.checkpointing.checkpoints import Part, leftovers, run_and_kill, same_bits, save_each, state_of

from torch_bridge import Checkpoints

pytestmark = pytest.mark.slow

KILLS = 10  # of 20 moments


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
        part = Part()
        assert (loaded := Checkpoints(directory).load(part=part)) in (1, count)
        assert same_bits(part.state, state_of(loaded))
        save_each(directory, [3])
        counts = Checkpoints(directory).counts()
        assert counts in ([1, 3], [2, 3])
        assert leftovers(directory, counts) == []
        assert Checkpoints(directory).load(part=part) == 3
        assert same_bits(part.state, state_of(3))


def test_kill_moments_cover_whole_save(tmp_path: Path) -> None:
    """The first moment is before there is a checkpoint, and moment 200 is never reached."""
    assert run_and_kill(save_each, tmp_path / "first", [1], at=0)
    assert Checkpoints(tmp_path / "first").counts() == []
    assert not run_and_kill(save_each, tmp_path / "last", [1], at=200)
    assert Checkpoints(tmp_path / "last").counts() == [1]
