"""Locks on files, which the system releases when a process ends, however it ends."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock


def lock(path: Path) -> "FileLock":
    """A lock that one thread may acquire and another release."""
    from filelock import FileLock  # optional: only checkpoints and cached arrays need it

    return FileLock(path, thread_local=False)


def release(held: "FileLock") -> None:
    """Release a lock, and remove its file."""
    held.release()
    Path(held.lock_file).unlink(missing_ok=True)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of this file. No file is made."""
    if not path.exists():
        return False
    found = lock(path)
    try:
        found.acquire(blocking=False)
    except TimeoutError:
        return True
    found.release()
    return False


def remove_free(path: Path) -> bool:
    """Whether the lock of this file is free. Its file is then removed."""
    if is_held(path):
        return False
    path.unlink(missing_ok=True)
    return True
