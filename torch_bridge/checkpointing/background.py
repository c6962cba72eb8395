"""Run one background task at a time and re-raise its errors."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

_by_name: "dict[str, Background]" = {}


class Background:
    """A task in a thread. The program waits for it before it ends.

    >>> background, done = Background.of("a folder"), []
    >>> background.start(lambda: done.append(1))
    >>> background.finish()
    >>> done
    [1]
    >>> background.start(lambda: done[1])
    >>> background is Background.of("a folder")
    True
    >>> background.finish()
    Traceback (most recent call last):
    IndexError: list index out of range
    >>> background.finish()
    """

    def __init__(self) -> None:
        self._pending: Future[None] | None = None

    @classmethod
    def of(cls, name: str) -> "Background":
        """Return the program's one background of this name."""
        return _by_name.setdefault(name, cls())

    def start(self, work: Callable[[], object]) -> None:
        """Start a task in a thread, after `finish` of the one before."""
        pending = Future[None]()
        try:
            self._pending = pending
            Thread(target=_run, args=(pending, work)).start()
        except BaseException:
            if pending.cancel():  # it fails where the thread runs, and an interrupt came after its start
                self._pending = None
            raise

    def finish(self) -> None:
        """Wait for the task that was started, and raise its error, once."""
        if self._pending is not None:
            error = self._pending.exception()
            self._pending = None
            if error is not None:
                raise error


def _run(pending: "Future[None]", work: Callable[[], object]) -> None:
    if pending.set_running_or_notify_cancel():
        try:
            work()
        except BaseException as error:
            pending.set_exception(error)
        else:
            pending.set_result(None)


def _forget_pending() -> None:
    """A forked process has none of its parent's threads: waiting for one would never end."""
    for background in _by_name.values():
        background._pending = None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_pending)


@atexit.register
def _print_errors() -> None:
    """Print the errors that no later call was there to raise. All threads have ended by now."""
    for background in _by_name.values():
        try:
            background.finish()
        except BaseException:
            traceback.print_exc()
