"""The public surface, which a release must not change by accident, is the recorded one.

`surface.txt` has names, entries of states and the command line, and `surface/` has calls.
"""

from difflib import ndiff
from pathlib import Path

import pytest
from support.surface.programs import PROGRAMS, with_outcomes
from support.surface.sections import FILE, SECTIONS, current_lines, recorded_lines

ADVICE = (
    "this changes what users see: if you mean it, add the line to CHANGELOG and run "
    "python -m support.surface in tests/"
)


def assert_same(current: list[str], recorded: list[str]) -> None:
    changes = [line for line in ndiff(recorded, current) if line.startswith(("- ", "+ "))]
    assert not changes, "\n".join([ADVICE, *changes])


@pytest.mark.parametrize("heading", SECTIONS)
def test_public_surface_is_the_recorded_one(heading: str) -> None:
    current = current_lines(heading)
    recorded = recorded_lines(heading)
    assert_same(current, recorded)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_calls_have_their_recorded_outcomes(program: Path) -> None:
    current = with_outcomes(program)
    recorded = program.read_text(encoding="utf-8")
    assert_same(current.splitlines(), recorded.splitlines())


def test_every_recorded_section_is_compared() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    headings = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    assert headings == list(SECTIONS)
