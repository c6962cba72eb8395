"""The segments of a curve as a table, for text, notebooks and the design page."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plateau_jax.table.segments import Segment
from plateau_jax.tools.drawing.tables import as_text


class SegmentTable(NamedTuple):
    """A table with a row for each segment that is not empty.

    Attributes:
        headings: Those of the first step, the last step, the kind, and the levels at both ends.
        rows: The cells of each row.
        note: The number of segments that the table leaves out; empty if it has all of them.
    """

    headings: tuple[str, str, str, str, str]
    rows: list[tuple[str, str, str, str, str]]
    note: str

    def as_text(self) -> str:
        """Lay out the table in columns."""
        first, last, kind, start, end = self.headings
        # With these minimum widths, the tables of most curves line up with each other.
        header = (first, last, kind.ljust(13), start.rjust(10), end.rjust(10))
        return as_text([header, *self.rows], self.note, left=[2])


def segment_table(
    segments: Sequence[Segment], peak: np.float32 | None = None, most: int | None = None
) -> SegmentTable:
    """Describe segments, or the first `most` of them.

    With a peak, levels are shown as learning rates.
    """
    level = "" if peak is None else "lr "
    headings = ("first step", "last step", "kind", f"{level}from", f"{level}to")
    rows = [_cells(segment, peak) for segment in segments[:most]]
    note = ""
    if len(rows) < len(segments):
        note = f"The table shows the first {len(rows)} of {len(segments)} segments."
    return SegmentTable(headings, rows, note)


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
