"""Folders that are there whole or not at all, and what is left of those that were never finished.

A checkpoint is written under a name that begins with a dot, and renamed when it is complete: `30`, or
`30.1` where a `30` was there already, which goes afterwards. Whoever writes holds a lock, which ends with
its process.
"""

import itertools
import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock

_COMPLETE = re.compile(r"(0|[1-9][0-9]*)(?:\.([1-9][0-9]*))?")
_UNFINISHED = re.compile(r"\.[0-9]+\.[0-9a-f]{32}\.(partial|removed|lock)")


@dataclass(frozen=True, order=True)
class Complete:
    """A complete checkpoint: which one, how many of this count came before it, and where it is."""

    count: int
    replaced: int
    path: Path


class Unfinished:
    """A folder that is being written, locked by this process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     folder = Unfinished(Path(directory), 30)
    ...     clear(Path(directory))  # not those that are being written
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
        """It is complete: the rename is the moment."""
        sync(self.path)
        directory = self.path.parent
        there = [found.replaced for found in complete(directory) if found.count == self._count]
        for number in itertools.count(there[-1] + 1 if there else 0):
            target = directory / (f"{self._count}.{number}" if number else f"{self._count}")
            try:
                self.path.rename(target)
                break
            except OSError:  # where another process was faster
                if not target.exists():
                    raise
        sync(directory)

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def unlock(self) -> None:
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


def complete(directory: Path) -> list[Complete]:
    """The oldest first."""
    if not directory.is_dir():
        return []
    names = [(path, _COMPLETE.fullmatch(path.name)) for path in directory.iterdir() if path.is_dir()]
    return sorted(Complete(int(match[1]), int(match[2] or 0), path) for path, match in names if match)


def prune(directory: Path, newest: int, keep: int) -> None:
    """Remove what was replaced, and of the oldest counts what is beyond `keep`; never the `newest` one."""
    found = complete(directory)
    latest = {each.count: each for each in found}
    others = sorted(latest.keys() - {newest}, reverse=True)[: keep - 1]
    kept = {latest[count] for count in {newest, *others} & latest.keys()}
    for each in found:
        if each not in kept:
            remains = directory / f".{each.count}.{uuid.uuid4().hex}.removed"
            with suppress(FileNotFoundError):  # another process was faster
                each.path.rename(remains)
            shutil.rmtree(remains, ignore_errors=True)


def clear(directory: Path) -> None:
    """Remove what saves and removals that were killed have left behind."""
    for path in directory.iterdir():
        if _UNFINISHED.fullmatch(path.name) and not (path.suffix != ".removed" and _is_locked(path)):
            shutil.rmtree(path, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    """Whether a process is writing there; else the lock goes too."""
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
    """One that a process may take in one thread and give back in another."""
    from filelock import FileLock  # imported when asked for

    return FileLock(path.with_suffix(".lock"), thread_local=False)


def write(path: Path, content: bytes) -> None:
    """The whole file or none, on the disk when this returns."""
    unfinished = path.with_name(f"{path.name}.tmp")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def sync(folder: Path) -> None:
    """Put a folder's names on the disk, where the system opens folders."""
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
