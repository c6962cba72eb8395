"""The warning about arguments that are valid, but probably a mistake."""

import math
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from plateau_jax.arguments.checks import Message

_SKIPPED_PACKAGES = {"plateau_jax", "torch_bridge", "torch", "copy", "dataclasses"}
"""Packages whose frames may lie between the user's line and the warning: `copy.replace` and
`dataclasses.replace` construct curves too."""

KEEP_FRACTION = "if you mean this fraction, ignore the CurveWarning"
"""Because a quotient may look like a learning rate too."""

_is_suppressed = ContextVar("is_suppressed", default=False)


class CurveWarning(UserWarning):
    """A `UserWarning` about a likely mistake.

    The message says what is suspicious, and what to write instead. It points at the line of the
    user's call; inside a trainer, at the trainer's line. A curve gives each of its warnings once,
    when it is built.

    To turn off all of them, write `warnings.filterwarnings("ignore", category=CurveWarning)` at the
    start of the program. `advise=False` turns off those that `lambda_lr` and `TrainStep` list under
    `advise`. For a few lines:

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
    frame = sys._getframe(1)
    level = 2
    # Python 3.11 has no `skip_file_prefixes`.
    while frame.f_back is not None and _package_of(frame) in _SKIPPED_PACKAGES:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def warn_of_small_end(ratio: float, argument: str = "min_lr_ratio") -> None:
    """Warn about a ratio in (0, 1e-4), which looks like a learning rate."""
    # Recipes end at 0.1, 0.01 or 0.001 of the peak, or at 0. A quotient such as 1e-6 / 0.01 is
    # meant as 1e-4, but may round to a little less. A curve may start at any fraction: starts at
    # 1e-5 of the peak are common.
    if 0 < ratio < 1e-4 and not math.isclose(ratio, 1e-4):
        problem = f" = {ratio!r} looks like a learning rate, but is a fraction of the peak"
        advice = f"For a learning rate write {argument}={ratio!r} / peak; {KEEP_FRACTION}"
        warn(Message(argument, f"{problem}. {advice}"))


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


@contextmanager
def suppress_warnings() -> Generator[None]:
    """Suppress warnings about a curve that has warned before, or that the user did not write."""
    token = _is_suppressed.set(True)
    try:
        yield
    finally:
        _is_suppressed.reset(token)
