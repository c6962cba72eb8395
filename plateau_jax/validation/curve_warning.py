"""The warning about arguments that are allowed, but seldom meant."""

import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

_INSIDE = {"plateau_jax", "torch_bridge", "torch", "copy", "dataclasses"}
"""Packages that may lie between the user's line and the warning; the last two by way of `replace`."""

_said: dict[Any, Any] = {}
"""Where Python keeps what was said from other threads, so that it says it once."""

_silent = ContextVar("silent", default=False)


class CurveWarning(UserWarning):
    """A warning of likely mistakes: the message says what was found, and what to write instead.

    It points at the line of the user's call; inside a trainer, at the trainer's line. Each curve or scheduler
    gives a warning once. Python's own filters turn it off:

    >>> import warnings
    >>> from plateau_jax import CurveWarning, PlateauCurve
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", CurveWarning)
    ...     curve = PlateauCurve(1000, plateaus=[(0.5, 0.3)])  # half a percent is meant
    """


def warn(message: str, category: type[Warning] = CurveWarning) -> None:
    """Warn at the innermost line outside of those packages."""
    if _silent.get():
        return
    # From Python 3.12 on `skip_file_prefixes` would do the same.
    frame, level = sys._getframe(1), 2
    while frame is not None and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    code = frame.f_code
    # The `__init__` that `dataclass` writes for a user's derived class has the user's module.
    is_generated = (code.co_filename, code.co_name) == ("<string>", "__init__")
    return is_generated or str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE


@contextmanager
def suppress_warnings() -> Generator[None]:
    """No warnings inside: for curves that were constructed before, such as copies and saved states."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def warner_at_this_line() -> Callable[[str], None]:
    """What `warn` does, from another thread: its warning points at the line where this was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame):
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    module = frame.f_globals.get("__name__")

    def warn_there(message: str) -> None:
        warnings.warn_explicit(message, CurveWarning, name, line, module, _said)

    return warn_there
