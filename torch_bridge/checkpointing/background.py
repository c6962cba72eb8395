"""Run one background task at a time, whichever threads start them, and re-raise their errors."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from threading import RLock, Thread

_tasks_by_name: "dict[str, BackgroundTask]" = {}


class BackgroundTask:
    """A task in a thread, completed before the program ends.

    >>> task, done = BackgroundTask.named("a directory"), []
    >>> task.start(lambda: done.append(1))
    >>> task.finish()
    >>> done
    [1]
    >>> task.start(lambda: done[1])
    >>> task is BackgroundTask.named("a directory")
    True
    >>> task.finish()
    Traceback (most recent call last):
    IndexError: list index out of range
    >>> task.finish()
    """

    def __init__(self) -> None:
        self.lock = RLock()
        """Held by a thread from its `wait` until its `start`, so that no other starts a task in between."""
        self._pending: Future[None] | None = None

    @classmethod
    def named(cls, name: str) -> "BackgroundTask":
        """Return the only task of this name in the program."""
        return _tasks_by_name.setdefault(name, cls())

    def wait(self) -> BaseException | None:
        """Wait for the task, and return its error."""
        while (pending := self._pending) is not None:
            error = pending.exception()
            if self._pending is pending:  # else a signal handler started another one meanwhile
                return error
        return None

    def start(self, work: Callable[[], object]) -> None:
        """Run `work` in a thread, after an earlier task, whose error is dropped: see `wait`."""
        self.wait()
        earlier, pending = self._pending, Future[None]()
        try:
            self._pending = pending
            Thread(target=_run, args=(pending, work)).start()
        except BaseException:
            # An interrupt may come when the thread already runs. Its task can no longer be cancelled, and a
            # later `finish` still has to wait for it.
            if pending.cancel():
                self._pending = earlier
            raise

    def finish(self) -> None:
        """Wait for the task, and raise its error once."""
        with self.lock:
            error = self.wait()
            self._pending = None
            if error is not None:
                raise error


def _run(pending: "Future[None]", work: Callable[[], object]) -> None:
    if pending.set_running_or_notify_cancel():
        try:
            work()
        except BaseException as error:
            # Its traceback would keep the copied state alive, next to the copy of the next save.
            traceback.clear_frames(error.__traceback__)
            del work
            pending.set_exception(error)
        else:
            pending.set_result(None)


def _forget_pending() -> None:
    # A forked process has none of its parent's threads, so waiting for one, or for its lock, would never end.
    for task in _tasks_by_name.values():
        task.lock, task._pending = RLock(), None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_pending)


@atexit.register
def _print_errors() -> None:
    """Print the errors that no later call has raised."""
    # Python joins all non-daemon threads before it calls atexit functions, so nothing is waited for here; and
    # a daemon thread may hold the lock for ever.
    for task in _tasks_by_name.values():
        if (error := task.wait()) is not None:
            traceback.print_exception(error)
