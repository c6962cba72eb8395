"""Curves that would warn, in tests that are not about the warnings."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager

from plateau_jax import CurveWarning


@contextmanager
def ignore_curve_warnings() -> Generator[None]:
    """Ignore every `CurveWarning` in the block, or in the decorated function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)
        yield
