"""The public surface is the one in `surface.txt`, which a release must not change by accident."""

import pytest
from support.surface.sections import SECTIONS, recorded_lines


@pytest.mark.parametrize("heading", SECTIONS)
def test_public_surface_is_the_recorded_one(heading: str) -> None:
    recorded = recorded_lines()[heading]
    current = set(SECTIONS[heading]())
    changes = [f"- {line}" for line in sorted(recorded - current)]
    changes += [f"+ {line}" for line in sorted(current - recorded)]
    assert not changes, (
        "this changes what users see: if you mean it, add the line to CHANGELOG and run "
        "python -m support.surface in tests/\n" + "\n".join(changes)
    )


def test_every_recorded_section_is_compared() -> None:
    assert list(recorded_lines()) == list(SECTIONS)
