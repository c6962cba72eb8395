"""The warning about arguments that are valid, but probably a mistake."""

import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

_SKIPPED_PACKAGES = {"plateau_jax", "torch_bridge", "torch", "copy", "dataclasses"}
"""Packages whose frames may lie between the user's line and the warning: `copy.replace` and
`dataclasses.replace` construct curves too."""

_thread_registry: dict[Any, Any] = {}
"""The registry in which Python records warnings from other threads, so that each is shown once."""

_is_suppressed = ContextVar("is_suppressed", default=False)


class CurveWarning(UserWarning):
    """A warning about a likely mistake: the message says what is suspicious, and what to write instead.

    It points at the line of the user's call; inside a trainer, at the trainer's line. Each curve or scheduler
    warns once. Python's own filters turn it off:

    >>> import warnings
    >>> from plateau_jax import CurveWarning, PlateauCurve
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", CurveWarning)
    ...     curve = PlateauCurve(1000, plateaus=[(0.5, 0.3)])  # half a percent is meant
    """


def warn(message: str, category: type[Warning] = CurveWarning) -> None:
    """Warn at the user's line: the innermost one outside of `_SKIPPED_PACKAGES`."""
    if _is_suppressed.get():
        return
    # Python 3.11 has no `skip_file_prefixes`, which does the same.
    frame, level = sys._getframe(1), 2
    while frame is not None and _is_skipped(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_skipped(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _SKIPPED_PACKAGES


@contextmanager
def suppress_warnings() -> Generator[None]:
    """Suppress warnings while a curve that was constructed before is rebuilt, as a copy or from a state."""
    token = _is_suppressed.set(True)
    try:
        yield
    finally:
        _is_suppressed.reset(token)


def warner_at_this_line() -> Callable[[str], None]:
    """Return a `warn` for another thread: its warnings point at the user's line that led to this call."""
    # Another thread's frames do not lead back to the user's line, so it is recorded now.
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_skipped(frame):
        frame = frame.f_back
    filename, line = frame.f_code.co_filename, frame.f_lineno
    module = frame.f_globals.get("__name__")

    def warn_there(message: str) -> None:
        warnings.warn_explicit(message, CurveWarning, filename, line, module, _thread_registry)

    return warn_there
