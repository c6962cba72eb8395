"""`python -m support.peers.aged` names the rows whose libraries give other learning rates now."""

from copy import deepcopy
from importlib.metadata import version
from typing import Any

import pytest
from support.peers.aged import changed_rows, report
from support.peers.record import INSTALLED, read_record

pytestmark = pytest.mark.slow

_, LINES = read_record()


def recorded_line(library: str, original: str) -> dict[str, Any]:
    """Return a copy of the line, which a test may change."""
    lines = [line for line in LINES if line["library"] == library]
    (line,) = [line for line in lines if line["original"] == original]
    return deepcopy(line)


@pytest.mark.parametrize("library", INSTALLED)
def test_no_row_of_an_installed_library_has_aged(library: str) -> None:
    assert changed_rows(library, LINES) == []


def test_rows_that_have_aged_are_named() -> None:
    """One gives other learning rates than recorded, and the call of another fails."""
    lower = recorded_line("torch", "CosineAnnealingLR(optimizer, total, eta_min=floor)")
    lower["cases"][0]["levels"][3] -= 1e-3
    removed = recorded_line("torch", "PolynomialLR(optimizer, total, power=power)")
    removed["original"] = "PolyLR(optimizer, total, power=power)"
    same = recorded_line("torch", "ExponentialLR(optimizer, gamma)")
    (reported, *_) = report({"torch": "torch==1.0.0"}, [lower, removed, same])
    first, *rows = reported.split("\n    ")
    assert first.startswith("torch 1.0.0 recorded, ")
    assert first.endswith(" installed: 2 rows differ")
    assert rows == [
        lower["original"],
        f"{removed['original']}: NameError: name 'PolyLR' is not defined",
    ]


def test_libraries_that_do_not_run_again_are_listed() -> None:
    numpy_version = version("numpy")
    sources = {
        "numpy": f"numpy=={numpy_version}",
        "pytest": "pytest==1.0.0",
        "absent": "a-distribution-that-is-absent==2.0",
        "nanoGPT": "karpathy/nanoGPT@3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    }
    assert list(report(sources, [])) == [
        f"numpy {numpy_version} recorded, {numpy_version} installed",
        f"pytest 1.0.0 recorded, {version('pytest')} installed: record its rows again",
        "Not installed: absent 2.0",
        "Recorded at a commit: nanoGPT 3adf61e",
    ]
