"""Which checkpoint is the newest, in a run that went back and in folders of earlier versions."""

import json
from pathlib import Path

import pytest
from support.checkpoints import Part, as_before, leftovers

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import manifest


def _saved(directory: Path, counts: list[int], keep: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep=keep)
    for count in counts:
        checkpoints.save(count, part=Part(count), wait=True)
    return checkpoints


def test_after_going_back_the_last_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints, part = _saved(tmp_path, [10, 20, 30]), Part()
    assert checkpoints.load(part=part) == 30
    assert checkpoints.load(10, part=part) == 10
    checkpoints.save(15, part=Part("new"))
    assert Checkpoints(tmp_path).load(part=part) == 15
    assert part.state == "new"
    assert checkpoints.counts() == [10, 15, 20, 30]
    Checkpoints(tmp_path, keep=2).save(16, part=part, wait=True)
    assert checkpoints.counts() == [15, 16]
    assert leftovers(tmp_path, [15, 16]) == []


def test_those_of_earlier_versions_are_older_and_go_by_their_counts(tmp_path: Path) -> None:
    checkpoints, part = _saved(tmp_path, [30, 10, 20]), Part()
    for path in tmp_path.iterdir():
        as_before(path)
    assert checkpoints.load(part=part) == 30
    assert part.state == 30
    checkpoints.save(15, part=Part(15))
    assert checkpoints.load(part=part) == 15
    Checkpoints(tmp_path, keep=3).save(16, part=part, wait=True)
    assert checkpoints.counts() == [15, 16, 30]


def test_a_damaged_one_stands_where_its_count_does(tmp_path: Path) -> None:
    """Its number can't be trusted, and without one it is not kept for ever."""
    checkpoints, part = _saved(tmp_path, [1, 2, 3]), Part()
    path = tmp_path / "2" / "0" / manifest.NAME
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoints.load(part=part) == 3
    Checkpoints(tmp_path, keep=2).save(4, part=part, wait=True)
    assert checkpoints.counts() == [3, 4]
    path = tmp_path / "4" / "0" / manifest.NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="newer ones are damaged: 4: 0/manifest.json is damaged"):
        assert checkpoints.load(part=part) == 3


def test_the_numbers_are_part_of_what_the_digest_covers(tmp_path: Path) -> None:
    _saved(tmp_path, [7, 3])
    found = [manifest.read(tmp_path / count / "0") for count in ("7", "3")]
    assert [each["number"] for each in found] == [1, 2]
    assert len({each["save"] for each in found}) == 2
    content = json.loads((tmp_path / "3" / "0" / manifest.NAME).read_text().partition("\n")[2])
    assert content["number"] == 2
