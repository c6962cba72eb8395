"""The public surface, which a release must not change by accident, is the recorded one.

`surface.txt` has attributes, entries of states and the command line; the reference in `docs/` has
the signatures, which `docs/test_reference` compares.
"""

from difflib import ndiff

import pytest
from support.surface.sections import SECTIONS, current_lines, recorded_lines

ADVICE = (
    "this changes what users see: if you mean it, add the line to CHANGELOG and run "
    "python -m support.surface in tests/"
)


def assert_same(current, recorded):
    changes = [line for line in ndiff(recorded, current) if line.startswith(("- ", "+ "))]
    assert not changes, "\n".join([ADVICE, *changes])


@pytest.mark.parametrize("heading", SECTIONS)
def test_public_surface_is_the_recorded_one(heading):
    current = current_lines(heading)
    recorded = recorded_lines(heading)
    assert_same(current, recorded)
