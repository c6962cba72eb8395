"""The folders of checkpoints: each is complete or has a name that says that it is not.

A checkpoint is written into a folder whose name begins with a dot. When it is complete the folder is
renamed: to `30`, or to `30.1` where there is a `30` already, which is removed afterwards. The process that
writes holds a lock, which the system releases when the process ends, however it ends. So a later save knows
which folders nobody writes any more, and removes them.
"""

import itertools
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_bridge.checkpointing import files

if TYPE_CHECKING:
    from filelock import FileLock

_COMPLETE = re.compile(r"(0|[1-9][0-9]*)(?:\.([1-9][0-9]*))?")
_UNFINISHED = re.compile(r"\.[0-9]+\.[0-9a-f]{32}\.(partial|removed|lock)")


@dataclass(frozen=True, order=True)
class Complete:
    """The folder of a complete checkpoint."""

    count: int
    replaced: int
    """How many checkpoints of this count it has replaced."""
    path: Path


class Unfinished:
    """A folder that this process is writing, under a lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     folder = Unfinished(Path(directory), 30)
    ...     clear(Path(directory))  # leaves what somebody is writing
    ...     folder.commit()
    ...     folder.unlock()
    ...     [found.count for found in complete(Path(directory))]
    [30]
    """

    def __init__(self, directory: Path, count: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._count = count
        self.path = directory / f".{count}.{uuid.uuid4().hex}.partial"
        self._lock = _lock_beside(self.path)
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
        for number in itertools.count(there[-1] + 1 if there else 0):
            target = directory / (f"{self._count}.{number}" if number else f"{self._count}")
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
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


def complete(directory: Path) -> list[Complete]:
    """The complete checkpoints in a directory: by count, of one count the oldest first."""
    if not directory.is_dir():
        return []
    names = [(path, _COMPLETE.fullmatch(path.name)) for path in directory.iterdir() if path.is_dir()]
    return sorted(Complete(int(match[1]), int(match[2] or 0), path) for path, match in names if match)


def prune(directory: Path, newest: int, keep: int) -> None:
    """Keep the `newest` checkpoint and those of the highest counts, `keep` in all; remove the others.

    A checkpoint that another one of its count has replaced is removed too.
    """
    found = complete(directory)
    latest = {each.count: each for each in found}
    others = sorted(latest.keys() - {newest}, reverse=True)[: keep - 1]
    kept = {latest[count] for count in {newest, *others} & latest.keys()}
    for each in found:
        if each not in kept:
            remains = directory / f".{each.count}.{uuid.uuid4().hex}.removed"
            with suppress(FileNotFoundError):  # another process has removed it
                each.path.rename(remains)
            shutil.rmtree(remains, ignore_errors=True)


def clear(directory: Path) -> None:
    """Remove what is left of saves and removals that were killed."""
    for path in directory.iterdir():
        if _UNFINISHED.fullmatch(path.name) and not (path.suffix != ".removed" and _is_locked(path)):
            shutil.rmtree(path, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    """Whether a process is writing this folder. Where none is, the lock's file is removed."""
    lock = _lock_beside(path)
    if Path(lock.lock_file).exists():
        try:
            lock.acquire(blocking=False)
        except TimeoutError:
            return True
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)
    return False


def _lock_beside(path: Path) -> "FileLock":
    """A lock that one thread may acquire and another release."""
    from filelock import FileLock  # optional: only checkpoints and cached arrays need it

    return FileLock(path.with_suffix(".lock"), thread_local=False)
