"""The ranks that write a checkpoint: each holds a lock, so that the others notice when its process ends."""

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torch_bridge.checkpointing import folders, locks

if TYPE_CHECKING:
    from filelock import FileLock

_PAUSE = 2.0  # seconds between two looks at the locks
_FREE_FOR = 10.0  # seconds that a lock is seen free before its rank counts as ended


class WritingRanks:
    """The locks of the ranks that write into a folder.

    Where the folder lies on a file system that several machines share, a lock may be seen on its own
    machine alone. There the lock of rank 0 looks free to others, though rank 0 lives. A rank that sees it so
    takes no lock and watches none. Rank 0 then never takes that rank as ended.

    Args:
        folder: The unfinished folder. Rank 0 holds its lock already.
        rank: This rank.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._seen: set[int] = set()
        self._free_since: dict[int, float] = {}
        self._next_look = 0.0
        self._own: FileLock | None = None
        self._is_watching = True
        if rank > 0:
            with suppress(OSError, NotImplementedError):  # a file system without locks
                self._is_watching = locks.is_held(folders.lock_of_rank(folder, 0))
                if self._is_watching:
                    self._seen.add(0)
                    own = locks.lock(folders.lock_of_rank(folder, rank))
                    own.acquire()
                    self._own = own

    def release(self) -> None:
        """This rank has ended its part."""
        own, self._own = self._own, None
        if own is not None:
            locks.release(own)

    def ended(self, ranks: Collection[int]) -> int | None:
        """One of these ranks whose process has ended, if there is one. Locks are tried every two seconds."""
        now = time.monotonic()
        if not self._is_watching or now < self._next_look:
            return None
        self._next_look = now + _PAUSE
        for rank in ranks:
            path = folders.lock_of_rank(self._folder, rank)
            if locks.is_held(path):
                self._seen.add(rank)
                self._free_since.pop(rank, None)
            # A rank whose file is there may be about to take the lock; one without a file may use no locks.
            elif (rank in self._seen or path.exists()) and now - self._free_since.setdefault(
                rank, now
            ) >= _FREE_FOR:
                return rank
        return None
