"""Hypothesis draws the same examples whatever was imported before."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings, strategies as st


def drawn() -> list[int]:
    numbers = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.integers())
    def collect(number: int) -> None:
        numbers.append(number)

    collect()
    return numbers


def test_examples_do_not_depend_on_imported_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = drawn()
    module = ModuleType("numbers_of_a_module")
    module.__file__ = str(tmp_path / "numbers_of_a_module.py")
    Path(module.__file__).write_text(f"NUMBERS = {[10**6 + 7 * n for n in range(200)]}\n")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert drawn() == expected
