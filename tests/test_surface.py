"""The public surface is the one in `surface.txt`, which a release must not change by accident."""

from support.surface import FILE, surface


def test_public_surface_is_the_recorded_one() -> None:
    recorded = set(FILE.read_text(encoding="utf-8").splitlines())
    current = set(surface().splitlines())
    changes = [f"- {line}" for line in sorted(recorded - current)]
    changes += [f"+ {line}" for line in sorted(current - recorded)]
    assert not changes, (
        "this changes what users see: if you mean it, add the line to CHANGELOG and run "
        "python -m support.surface in tests/\n" + "\n".join(changes)
    )
