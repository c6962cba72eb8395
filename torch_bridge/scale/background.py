"""One piece of work at a time beside the program, whose error is never lost."""

import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread


class Background:
    """Work in a thread that the program waits for at its end.

    >>> background, done = Background(), []
    >>> background.start(lambda: done.append(1))
    >>> background.finish()
    >>> done
    [1]
    >>> background.start(lambda: [][0])
    >>> background.finish()
    Traceback (most recent call last):
    IndexError: list index out of range
    >>> background.finish()
    """

    def __init__(self) -> None:
        self._pending: list[Future[None]] = []
        weakref.finalize(self, _report, self._pending)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to finish."""
        return not self._pending

    def start(self, work: Callable[[], object]) -> None:
        """Begin; what came before must be finished."""
        pending: Future[None] = Future()
        self._pending.append(pending)
        try:
            Thread(target=self._run, args=(pending, work)).start()
        except BaseException:
            if pending.cancel():  # else it has begun, and an interrupt came in between
                self._pending.clear()
            raise

    def finish(self) -> None:
        """Wait for what is pending, and raise its error; that once."""
        if self._pending:
            error = self._pending[0].exception()
            self._pending.clear()
            if error is not None:
                raise error

    def _run(self, pending: "Future[None]", work: Callable[[], object]) -> None:
        if pending.set_running_or_notify_cancel():
            try:
                work()
            except BaseException as error:
                pending.set_exception(error)
            else:
                pending.set_result(None)


def _report(pending: "list[Future[None]]") -> None:
    """Print an error that no call was left to raise."""
    if pending and pending[0].done() and (error := pending[0].exception()) is not None:
        traceback.print_exception(error)
