"""The order of checkpoints is that of their saves, whatever their counts."""

from pathlib import Path

import pytest
from support.checkpoints import Part

from torch_bridge import Checkpoints


def _saved(directory: Path, counts: list[int], keep: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep=keep)
    for count in counts:
        checkpoints.save(count, part=Part(count), wait=True)
    return checkpoints


def test_one_whose_beginning_is_damaged_may_be_the_newest(tmp_path: Path) -> None:
    """Each load names it. It is not known as this library's any more, so it is never removed."""
    checkpoints, part = _saved(tmp_path, [1, 2, 3]), Part()
    path = tmp_path / "2" / "rank-0.json"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert checkpoints.counts() == [1, 3]
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"3(.1)? is loaded: newer ones are damaged: 2: rank-0.json"):
            assert checkpoints.load(part=part) == 3
        Checkpoints(tmp_path, keep=1).save(3, part=part, wait=True)
    assert checkpoints.counts() == [3]
    assert path.exists()
