"""The segments of a curve as a table, for text, notebooks and the design page."""

from collections.abc import Sequence

import numpy as np

from plateau_jax.table.segments import Segment
from plateau_jax.tools.drawing.tables import as_text


def segment_table(
    segments: Sequence[Segment], peak: np.float32 | None = None, most: int | None = None
) -> str:
    """Return the table of `segment_cells` as text."""
    (header, *rows), note = segment_cells(segments, peak, most)
    first, last, kind, start, end = header
    # With these minimum widths, the tables of most curves line up with each other.
    header = (first, last, kind.ljust(13), start.rjust(10), end.rjust(10))
    return as_text([header, *rows], note, left=[2])


def segment_cells(
    segments: Sequence[Segment], peak: np.float32 | None = None, most: int | None = None
) -> tuple[list[tuple[str, str, str, str, str]], str]:
    """Return the cells of a header and a row per segment, and a note on the rows left out.

    With a peak, levels are shown as learning rates. There are at most `most` rows.
    """
    level = "" if peak is None else "lr "
    header = ("first step", "last step", "kind", f"{level}from", f"{level}to")
    rows = [_cells(segment, peak) for segment in segments[:most]]
    note = ""
    if len(rows) < len(segments):
        note = f"The table shows the first {len(rows)} of {len(segments)} segments."
    return [header, *rows], note


def _cells(segment: Segment, peak: np.float32 | None) -> tuple[str, str, str, str, str]:
    last_step = "…"
    if segment.last_step is not None:
        last_step = str(segment.last_step)
    return (
        str(segment.first_step),
        last_step,
        segment.kind,
        _format_level(segment.start, peak),
        _format_level(segment.end, peak),
    )


def _format_level(level: float, peak: np.float32 | None) -> str:
    multiplier = np.float32(level)
    if peak is not None:
        multiplier = peak * multiplier
    return f"{multiplier:.6g}"
