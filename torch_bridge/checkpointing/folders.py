"""The folders of checkpoints: each is complete or has a name that says that it is not.

A checkpoint is written into a folder whose name begins with a dot. When it is complete the folder is
renamed: to `30`, or to `30.1` where there is a `30` already, which is removed afterwards if it is a
checkpoint. The process that writes holds a lock, which the system releases when the process ends, however it
ends. So a later save knows which folders nobody writes any more, and removes them. In the same way a load
marks the checkpoint that it reads, which is then not removed.

A folder is known as a checkpoint by its manifest. Any other folder with a number for a name is left alone.
"""

import itertools
import os
import re
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torch_bridge.checkpointing import files, locks, manifest

_COMPLETE = re.compile(r"(0|[1-9][0-9]*)(?:\.([1-9][0-9]*))?")
_UNFINISHED = re.compile(
    r"(?P<save>\.[0-9]+\.[0-9a-f]{32})(?P<rank>\.[0-9]+)?\.(?P<what>partial|removed|lock)"
)
_READING = re.compile(r"\.(?P<name>[0-9]+(?:\.[0-9]+)?)\.[0-9a-f]{32}\.reading")
STATE = "state.json"  # in each rank's folder, the parts as JSON


@dataclass(frozen=True)
class Complete:
    """The folder of a complete checkpoint."""

    number: int
    """Which save into this directory it was: the last one has the highest number."""
    count: int
    replaced: int
    """How many folders of this count there were before."""
    path: Path


class Unfinished:
    """A folder that this process is writing, under a lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     directory = Path(name)
    ...     folder = Unfinished(directory, 30)
    ...     clear(directory)  # leaves what somebody is writing
    ...     (folder.path / "0").mkdir()
    ...     manifest.write(folder.path / "0", 30, 1, ["step"], [], folder.save, folder.number)
    ...     folder.commit()
    ...     folder.unlock()
    ...     [found.count for found in complete(directory)]
    [30]
    """

    def __init__(self, directory: Path, count: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._count = count
        self.save = uuid.uuid4().hex
        self.number = 1 + max((found.number for found in complete(directory)), default=0)
        self.path = directory / f".{count}.{self.save}.partial"
        self._lock = locks.lock(lock_of_rank(self.path, 0))
        self._lock.acquire()
        try:
            self.path.mkdir()
        except BaseException:
            self.unlock()
            raise

    def commit(self) -> None:
        """Make the checkpoint complete, by a rename."""
        files.sync_folder(self.path)
        directory = self.path.parent
        there = [found.replaced for found in complete(directory) if found.count == self._count]
        for number in itertools.count(max(there) + 1 if there else 0):
            target = directory / (f"{self._count}.{number}" if number else f"{self._count}")
            if os.path.lexists(target):  # a rename would replace an empty folder
                continue
            try:
                self.path.rename(target)
                break
            except OSError:  # another process may have taken the name first
                if not target.exists():
                    raise
        files.sync_folder(directory)

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def unlock(self) -> None:
        """Release the lock, and remove its file."""
        locks.release(self._lock)


def lock_of_rank(unfinished: Path, rank: int) -> Path:
    """The file whose lock a rank holds while it writes into a folder."""
    return unfinished.with_suffix(f".{rank}.lock" if rank else ".lock")


def complete(directory: Path) -> list[Complete]:
    """The complete checkpoints in a directory, in the order in which they were saved."""
    return [found for found in with_damaged(directory) if manifest.is_there(found.path / "0")]


def with_damaged(directory: Path) -> list[Complete]:
    """The same, and folders of this project that have lost their manifest. These are never removed.

    A folder whose manifest does not tell its number is put in order by its count.
    """
    if not directory.is_dir():
        return []
    named = [(path, _COMPLETE.fullmatch(path.name)) for path in directory.iterdir() if path.is_dir()]
    found = [
        (int(match[1]), int(match[2] or 0), _number(path), path)
        for path, match in named
        if match and (manifest.is_there(path / "0") or _has_state(path / "0"))
    ]

    def number_of(count: int, number: int | None) -> int:
        if number is not None:
            return number
        return max((other for each, _, other, _ in found if other and each <= count), default=0)

    each = [
        Complete(number_of(count, number), count, replaced, path) for count, replaced, number, path in found
    ]
    return sorted(each, key=lambda one: (one.number, one.count, one.replaced))


def _number(path: Path) -> int | None:
    try:
        return manifest.read(path / "0")["number"]
    except (OSError, files.DamagedError):
        return None


def _has_state(folder: Path) -> bool:
    with suppress(OSError):
        path, begin = folder / STATE, b'{"parts":'
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(begin)) == begin
    return False


def prune(directory: Path, keep: int) -> None:
    """Keep the checkpoints of the `keep` counts that were saved last; remove the others.

    A checkpoint that another one of its count has replaced is removed too. One that is being read is left to
    a later call.
    """
    found = complete(directory)
    latest = {each.count: each for each in found}
    kept = sorted(latest.values(), key=found.index)[-keep:]
    for each in found:
        if each not in kept and not each.path.is_symlink() and not _is_read(each.path):
            remains = directory / f".{each.count}.{uuid.uuid4().hex}.removed"
            with suppress(FileNotFoundError):  # another process has removed it
                each.path.rename(remains)
            shutil.rmtree(remains, ignore_errors=True)


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Mark a checkpoint as being read, where this process may write beside it."""
    mark = locks.lock(path.with_name(f".{path.name}.{uuid.uuid4().hex}.reading"))
    with suppress(OSError, NotImplementedError):  # a folder may be for reading only, or without locks
        if os.access(path.parent, os.W_OK):
            mark.acquire(timeout=0)
    try:
        yield
    finally:
        if mark.is_locked:
            locks.release(mark)


def _is_read(path: Path) -> bool:
    marks = [(each, _READING.fullmatch(each.name)) for each in path.parent.iterdir()]
    return any(
        match is not None and match["name"] == path.name and locks.is_held(each) for each, match in marks
    )


def clear(directory: Path) -> None:
    """Remove what is left of saves, loads and removals that were killed."""
    for path in directory.iterdir():
        if _READING.fullmatch(path.name):
            locks.remove_free(path)
        if (match := _UNFINISHED.fullmatch(path.name)) is None:
            continue
        # Whether somebody writes is told by the lock of rank 0; those of other ranks may not be held yet.
        if match["what"] == "removed" or locks.remove_free(path.with_name(f"{match['save']}.lock")):
            if path.suffix != ".lock":
                shutil.rmtree(path, ignore_errors=True)
            elif match["rank"]:
                locks.remove_free(path)
