"""The system's Chromium, without a window."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright


@contextmanager
def chromium() -> Generator[Browser]:
    """A browser; the test is skipped where the system has none."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no chromium on this system")
    with sync_playwright() as tools:
        window = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])  # for root, in CI
        yield window
        window.close()
