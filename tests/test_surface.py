"""The public surface is the one in `surface.txt`, which a release must not change by accident."""

from support.surface import FILE, surface


def test_public_surface_is_the_recorded_one() -> None:
    recorded = set(FILE.read_text(encoding="utf-8").splitlines())
    current = set(surface().splitlines())
    removed = "".join(f"\n- {line}" for line in sorted(recorded - current))
    added = "".join(f"\n+ {line}" for line in sorted(current - recorded))
    assert recorded == current, (
        "this changes what users see: if you mean it, add the line to CHANGELOG and run "
        f"python -m support.surface in tests/{removed}{added}"
    )
