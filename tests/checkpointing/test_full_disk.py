"""The error of a save that the system stops names the file and the system's message."""

import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpointing.checkpoints import Part, leftovers

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import checkpoint_dirs, rank_files
from torch_bridge.checkpointing.parts import Snapshot
from torch_bridge.checkpointing.rank_content import RankContent


@contextmanager
def _file_size_limit(size: int) -> Generator[None]:
    """Make the system reject to write beyond `size` bytes of a file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(
    ("size", "state", "name"),
    [
        (0, 1, "rank-0.safetensors"),
        (3000, torch.ones(100_000), "rank-0.safetensors"),
        (900, list(range(10_000)), "rank-0.json"),
    ],
)
def test_full_disk_error_names_file(tmp_path: Path, size: int, state: Any, name: str) -> None:
    checkpoints, part = Checkpoints(tmp_path), Part("small")
    checkpoints.save(1, part=part, wait=True)
    with _file_size_limit(size), pytest.raises(OSError, match=rf"File too large: .*/{name}'"):
        checkpoints.save(2, part=Part(state), wait=True)
    assert checkpoints.counts() == [1]
    assert leftovers(tmp_path, [1]) == []
    assert checkpoints.load(part=part) == 1


def test_failed_rank_leaves_the_folder_to_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank may have found the folder, and not have written to it yet."""

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    save_id = "0" * 32
    folder = checkpoint_dirs.partial_path(tmp_path, 1, save_id)
    folder.mkdir()
    content = RankContent({"part": Snapshot.take("part", Part(torch.ones(2)))})
    monkeypatch.setattr(rank_files, "save_file", fail)
    with pytest.raises(OSError, match="the disk is full"):
        content.write_files(tmp_path, save_id, count=1, rank=1, ranks=2, keep=1)
    assert list(folder.iterdir()) == []
