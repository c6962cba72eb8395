"""The folders of checkpoints in a directory.

A checkpoint is written into `.30.<save>.partial`. It is complete as soon as it has the JSON files of all
ranks. The rank that finds them all renames it to `30`, or to `30.1` if `30` exists; the older checkpoint of
the same count is removed afterwards. If that rank is killed before the rename, a later save renames the
folder, and until then it is read under its first name.
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

from torch_bridge.checkpointing import rank_files

_COMPLETE = re.compile(r"(0|[1-9][0-9]*)(?:\.[1-9][0-9]*)?")
_TEMPORARY = re.compile(r"\.(?P<count>[0-9]+)\.(?P<save>[0-9a-f]{32})\.(?P<state>partial|removed)")
_LISTINGS = 10  # attempts to list a directory that another process changes
_OLD_MANIFEST = re.compile(rb"[0-9a-f]{64}\n")


@dataclass(frozen=True, order=True)
class CheckpointFolder:
    """The folder of a checkpoint. They sort in the order in which they were saved."""

    number: float
    """The number of the save; infinite if damage hides it, since this could be the newest."""
    count: int
    path: Path


def partial(directory: Path, count: int, save: str) -> Path:
    """Return the folder in which a checkpoint is written."""
    return directory / f".{count}.{save}.partial"


def check_shared(path: Path) -> None:
    """Refuse a directory in which this rank does not see the folder that rank 0 has made.

    Raises:
        RuntimeError: The ranks have different directories under one name, on several machines for instance.
    """
    # Not path.exists(): for seconds a network file system may remember that a folder is missing.
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return
    path.rmdir()
    raise RuntimeError(
        f"{path.parent} is not a folder that all ranks share, so no checkpoint in it would become complete"
    )


def complete(directory: Path) -> list[CheckpointFolder]:
    """Return the complete checkpoints that this library has written, the last one last."""
    return [folder for folder in with_damaged(directory) if isfinite(folder.number)]


def with_damaged(directory: Path) -> list[CheckpointFolder]:
    """The same, with folders that have files of ranks, but not a readable one of rank 0."""
    found: list[CheckpointFolder] = []
    for _ in range(_LISTINGS):
        paths = _entries(directory)
        found = [folder for path in paths if (folder := recognized(path)) is not None]
        # A run that saves meanwhile renames one folder and then removes another: both could be missed.
        if _entries(directory) == paths:
            break
    return sorted(found)


def recognized(path: Path) -> CheckpointFolder | None:
    """Return the checkpoint that a folder is, as its name and its files of rank 0 say; or None."""
    head = rank_files.read_head(path)
    if match := _COMPLETE.fullmatch(path.name):
        if head is not None:
            return CheckpointFolder(head.number, int(match[1]), path)
        if any(map(rank_files.is_rank_file, _entries(path))):
            return CheckpointFolder(inf, int(match[1]), path)
    elif (match := _TEMPORARY.fullmatch(path.name)) and head is not None and is_complete(path):
        return CheckpointFolder(head.number, int(match["count"]), path)
    return None


def of_version_0_2(directory: Path) -> list[int]:
    """Return the counts of checkpoints in the format of version 0.2.0."""
    found: list[int] = []
    for path in _entries(directory):
        with suppress(OSError):
            manifest = path / "0" / "manifest.json"
            if _COMPLETE.fullmatch(path.name) and manifest.is_file():
                with manifest.open("rb") as file:
                    if _OLD_MANIFEST.fullmatch(file.read(65)):
                        found.append(int(path.name.partition(".")[0]))
    return sorted(found)


def is_complete(path: Path) -> bool:
    """Whether an unfinished folder has the files of all ranks."""
    head = rank_files.read_head(path)
    return head is not None and all(rank_files.json_path(path, rank).exists() for rank in range(head.ranks))


def commit(path: Path, keep: int | None = None) -> None:
    """Give a complete folder its final name, unless another rank does. Then remove older checkpoints.

    Args:
        path: A folder from `partial`.
        keep: The number of counts to keep, those that were saved last; None keeps all.
    """
    directory, count = path.parent, path.name.split(".")[1]
    try:
        sync(path)
        for number in itertools.count():
            target = directory / (f"{count}.{number}" if number else count)
            if not os.path.lexists(target):  # a rename would replace an empty folder
                path.rename(target)
                break
    except FileNotFoundError:
        return  # two ranks saw all files, and the other one was first
    sync(directory)
    if keep is not None:
        _prune(directory, keep)


def _prune(directory: Path, keep: int) -> None:
    there = complete(directory)
    latest = {folder.count: folder for folder in there}
    kept = sorted(latest.values())[-keep:]
    for folder in there:
        if folder not in kept and not folder.path.is_symlink():
            # Renamed first, so that it is never seen with a part of its files.
            removed = directory / f".{folder.count}.{uuid.uuid4().hex}.removed"
            with suppress(FileNotFoundError):
                folder.path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)


def clear(directory: Path, save: str) -> None:
    """Finish or remove the folders that killed processes have left.

    Args:
        directory: The directory.
        save: The save that is under way, whose folder stays.
    """
    for path in _entries(directory):
        if (match := _TEMPORARY.fullmatch(path.name)) and match["save"] != save:
            if match["state"] == "partial" and is_complete(path):
                commit(path)
            else:
                shutil.rmtree(path, ignore_errors=True)


def sync(folder: Path) -> None:
    """Put the names in a folder on the disk, on systems that can open folders."""
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
