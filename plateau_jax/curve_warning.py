"""The warning for what is allowed, and seldom meant."""

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_INSIDE = {"plateau_jax", "torch_bridge", "torch", "copy", "dataclasses"}
"""The packages that a call passes through: the last two by `replace`."""

_silent = ContextVar("silent", default=False)


class CurveWarning(UserWarning):
    """What is allowed, and seldom meant: the message says what was seen, and what to write instead.

    It points at the line of the user's call; inside a trainer, at the trainer's. A curve, or a scheduler,
    warns once. Python's own filters turn it off:

    >>> import warnings
    >>> from plateau_jax import CurveWarning, PlateauCurve
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", CurveWarning)
    ...     curve = PlateauCurve(1000, plateaus=[(0.5, 0.3)])  # half a percent is meant
    """


def warn(message: str) -> None:
    """Warn at the first line outside of what is ours and torch's."""
    if _silent.get():
        return
    # What `skip_file_prefixes` would do, from Python 3.12 on.
    frame, level = sys._getframe(1), 2
    while frame is not None and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CurveWarning, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    code = frame.f_code
    # What `dataclass` writes for a subclass of the user's belongs to the user's module.
    is_generated = (code.co_filename, code.co_name) == ("<string>", "__init__")
    return is_generated or package_of(frame) in _INSIDE


def package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


@contextmanager
def silent() -> Generator[None]:
    """For curves that the user constructed, and was warned of, before: copies, pickles, saved states."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)
