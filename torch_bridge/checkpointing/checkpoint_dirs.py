"""Checkpoints in a directory: their names, their files' names, and whether they are complete.

The ranks write checkpoint 30 into `.30.<save id>.partial`. It is complete as soon as it has the JSON file of
every rank. The rank that sees them all renames the directory to `30`, or to `30.1` if `30` exists; the older
checkpoint of the same count is removed afterwards. If that rank is killed before the rename, a later save
renames the directory; until then it is read under its temporary name.
"""

import itertools
import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

FORMAT = "torch_bridge 1"
_COMPLETE_NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.[1-9][0-9]*)?")
_TEMPORARY_NAME = re.compile(r"\.(?P<count>[0-9]+)\.(?P<save>[0-9a-f]{32})\.(?P<state>partial|removed)")
_RANK_FILE = re.compile(r"rank-[0-9]+\.(json|safetensors)")
_HEAD = re.compile(
    rb'\{"format":"%s","save":"[0-9a-f]{32}","number":([0-9]{1,18}),"count":[0-9]+,'
    rb'"ranks":([0-9]{1,18}),"rank":0,' % FORMAT.encode()
)
_HEAD_BYTES = 512  # enough for the longest match
_LISTING_ATTEMPTS = 10  # while another process changes the directory


@dataclass(frozen=True, order=True)
class CheckpointDir:
    """The directory of one checkpoint. They sort in the order in which they were saved."""

    save_index: float
    """The index of the save. Infinite if damage hides it: it could be the newest."""
    count: int
    path: Path


class Head(NamedTuple):
    """The first entries of rank 0's JSON file."""

    save_index: int
    """The index of the save in the checkpoints directory; the newest has the highest."""
    world_size: int


def json_path(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"rank-{rank}.json"


def unfinished_path(path: Path) -> Path:
    """Return the name of a JSON file while it is written."""
    return path.with_suffix(".tmp")


def tensors_path(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"rank-{rank}.safetensors"


def partial_path(directory: Path, count: int, save_id: str) -> Path:
    """Return the directory that the ranks of one save write into."""
    return directory / f".{count}.{save_id}.partial"


def list_complete(directory: Path) -> list[CheckpointDir]:
    """Return the complete checkpoints that this library has written, in the order of their saves."""
    return [item for item in list_with_damaged(directory) if isfinite(item.save_index)]


def list_with_damaged(directory: Path) -> list[CheckpointDir]:
    """Return the complete checkpoints, and those of which rank 0's JSON file is damaged."""
    checkpoints: list[CheckpointDir] = []
    for _ in range(_LISTING_ATTEMPTS):
        paths = _list_entries(directory)
        checkpoints = [item for path in paths if (item := identify_checkpoint(path)) is not None]
        # A save renames the new directory and then removes the old one. A listing that runs meanwhile could
        # miss both: the new one under its old name, and the old one once it is gone. So list until nothing
        # moves.
        if _list_entries(directory) == paths:
            break
    return sorted(checkpoints)


def identify_checkpoint(path: Path) -> CheckpointDir | None:
    """Identify a checkpoint by its directory's name and rank 0's JSON file; None if it is not one."""
    head = read_head(path)
    if match := _COMPLETE_NAME.fullmatch(path.name):
        if head is not None:
            return CheckpointDir(head.save_index, int(match[1]), path)
        if any(_RANK_FILE.fullmatch(entry.name) for entry in _list_entries(path)):
            return CheckpointDir(inf, int(match[1]), path)
    # A removed checkpoint may have lost its tensors, and still have its JSON files.
    match = _TEMPORARY_NAME.fullmatch(path.name)
    if match and match["state"] == "partial" and head is not None and is_complete(path):
        return CheckpointDir(head.save_index, int(match["count"]), path)
    return None


def read_head(checkpoint: Path) -> Head | None:
    """Return the head of rank 0's JSON file; None if this library has not written it."""
    try:
        with json_path(checkpoint, 0).open("rb") as file:
            match = _HEAD.match(file.read(_HEAD_BYTES))
    except OSError:
        return None
    return None if match is None else Head(save_index=int(match[1]), world_size=int(match[2]))


def is_complete(path: Path) -> bool:
    """Return True if a partial checkpoint has the files of all ranks."""
    head = read_head(path)
    return head is not None and all(json_path(path, rank).exists() for rank in range(head.world_size))


def begin_save(directory: Path, count: int, save_id: str, rank: int) -> tuple[Path, int]:
    """Create the directory of one save; rank 0 first commits or removes those of killed saves.

    Returns:
        The directory, and the index of the save: one more than that of the last save. Only rank 0's counts;
        it is 0 on other ranks.

    Raises:
        RuntimeError: This rank does not see the directory that rank 0 created: the path names a different one
            here, such as one on another machine's local disk.
    """
    path = partial_path(directory, count, save_id)
    if rank == 0:
        _clean_up_leftovers(directory, save_id)
        path.mkdir(parents=True, exist_ok=True)
        return path, 1 + max((int(item.save_index) for item in list_complete(directory)), default=0)
    # mkdir, not path.exists(): a network file system may cache for seconds that a directory is missing.
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return path, 0
    path.rmdir()
    raise RuntimeError(
        f"{path.parent} is not a directory that all ranks share, so no checkpoint in it would become complete"
    )


def discard(path: Path, rank: int, world_size: int) -> None:
    """Remove the files of a rank that could not write all of them."""
    with suppress(OSError):
        for file in (tensors_path(path, rank), unfinished_path(json_path(path, rank))):
            file.unlink(missing_ok=True)
        if world_size == 1:  # another rank may be about to write here; the next save removes the directory
            path.rmdir()


def commit(path: Path, keep: int | None = None) -> None:
    """Give a complete checkpoint its final name, unless another rank did so first, then prune older ones.

    Args:
        path: Its path from `partial_path`.
        keep: The number of counts to keep, those saved last; None keeps all.
    """
    directory, count = path.parent, path.name.split(".")[1]
    try:
        _fsync_directory(path)
        for number in itertools.count():
            target = directory / (f"{count}.{number}" if number else count)
            if not os.path.lexists(target):  # a rename would replace an empty directory
                path.rename(target)
                break
    except FileNotFoundError:
        return  # another rank also saw all files, and was first
    # The rename reaches the disk before the older checkpoint of this count is removed.
    _fsync_directory(directory)
    if keep is not None:
        _prune(directory, keep)


def _prune(directory: Path, keep: int) -> None:
    checkpoints = list_complete(directory)
    latest = {checkpoint.count: checkpoint for checkpoint in checkpoints}  # the last save wins
    kept = sorted(latest.values())[-keep:]
    for checkpoint in checkpoints:
        if checkpoint not in kept and not checkpoint.path.is_symlink():
            # Rename first: a checkpoint must never be seen with only some of its files.
            removed = directory / f".{checkpoint.count}.{uuid.uuid4().hex}.removed"
            with suppress(FileNotFoundError):
                checkpoint.path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)


def _clean_up_leftovers(directory: Path, save_id: str) -> None:
    """Commit or remove the temporary directories that killed processes left behind.

    Args:
        directory: The checkpoints directory.
        save_id: The save in progress, whose directory stays.
    """
    for path in _list_entries(directory):
        if (match := _TEMPORARY_NAME.fullmatch(path.name)) and match["save"] != save_id:
            if match["state"] == "partial" and is_complete(path):
                commit(path)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _fsync_directory(directory: Path) -> None:
    """Flush the names in a directory to disk, on systems that can open directories."""
    with suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _list_entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
