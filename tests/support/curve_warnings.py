"""Curves that would warn, in tests that are not about the warnings; and advice of warnings."""

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from plateau_jax import CurveWarning


@contextmanager
def ignore_curve_warnings() -> Generator[None]:
    """Ignore every `CurveWarning` in the block, or in the decorated function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)
        yield


def warns(advice: str) -> pytest.WarningsRecorder:
    """Check that the block warns, and that the message contains this advice, word for word."""
    return pytest.warns(CurveWarning, match=re.escape(advice))
