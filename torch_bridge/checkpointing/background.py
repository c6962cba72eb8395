"""One piece of work at a time beside the program, whose error is never lost."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

_all: "dict[str, Background]" = {}


class Background:
    """Work in a thread that the program waits for at its end.

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
        """The one for what has this name, in all of the program."""
        return _all.setdefault(name, cls())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to finish."""
        return self._pending is None

    def start(self, work: Callable[[], object]) -> None:
        """Begin; what came before must be finished."""
        self._pending = pending = Future[None]()
        try:
            Thread(target=_run, args=(pending, work)).start()
        except BaseException:
            if pending.cancel():  # else it has begun, and an interrupt came in between
                self._pending = None
            raise

    def finish(self) -> None:
        """Wait for what is pending, and raise its error; that once."""
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


def _forget() -> None:
    """In a forked process: it has none of the threads, and would wait for them for ever."""
    for background in _all.values():
        background._pending = None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _print_errors() -> None:
    """What no call was left to raise. The threads have ended by now."""
    for background in _all.values():
        try:
            background.finish()
        except BaseException:
            traceback.print_exc()
