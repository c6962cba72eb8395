"""The segments of a curve as a table, for text, notebooks and the design page."""

from collections.abc import Sequence

import numpy as np

from plateau_jax.table.segments import Segment
from plateau_jax.tools.drawing.tables import as_text


def segment_table(
    segments: Sequence[Segment], peak: np.float32 | None = None, most: int | None = None
) -> str:
    """Return a table of segments, or of the first `most` of them, as text.

    With a peak, levels are shown as learning rates.
    """
    level = "" if peak is None else "lr "
    # With these minimum widths, the tables of most curves line up with each other.
    start = f"{level}from".rjust(10)
    end = f"{level}to".rjust(10)
    header = ("first step", "last step", "kind".ljust(13), start, end)
    rows = [_cells(segment, peak) for segment in segments[:most]]
    note = ""
    if len(rows) < len(segments):
        note = f"The table shows the first {len(rows)} of {len(segments)} segments."
    return as_text([header, *rows], note, left=[2])


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
