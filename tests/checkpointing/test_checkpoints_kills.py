"""Processes killed in the middle of a save, and at their end."""

import random
from pathlib import Path

import pytest
from support.checkpoints import Part, killed, leftovers, same, save_two, state_of

from torch_bridge import Checkpoints

pytestmark = pytest.mark.slow

# Of 40: a longer look takes them all.
KILLS = 8


@pytest.mark.parametrize("count", [2, 1], ids=["the next", "the same"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_leaves_a_complete_one(tmp_path: Path, count: int, number: int) -> None:
    """At any moment that the save touches the disk; 1 is there, and has been replaced or not by 1 again."""
    moments = list(range(40))
    random.Random(number).shuffle(moments)
    for at in moments[: KILLS // number]:
        directory = tmp_path / str(at)
        Checkpoints(directory, keep=1).save(1, part=Part(state_of(1)), wait=True)
        killed(save_two, directory, [count], at=at, rank=at % number, number=number)
        part = Part()
        assert (found := Checkpoints(directory).load(part=part)) in (1, count)
        assert same(part.state, state_of(found))
        save_two(directory, [3])
        counts = Checkpoints(directory).counts()
        assert counts in ([1, 3], [2, 3])
        assert leftovers(directory, counts) == []
        assert Checkpoints(directory).load(part=part) == 3
        assert same(part.state, state_of(3))


def test_the_moments_are_those_of_a_whole_save(tmp_path: Path) -> None:
    """Some are before anything is there, and the last are after the end."""
    assert killed(save_two, tmp_path / "first", [1], at=0)
    assert Checkpoints(tmp_path / "first").counts() == []
    assert not killed(save_two, tmp_path / "last", [1], at=200)
    assert Checkpoints(tmp_path / "last").counts() == [1]
