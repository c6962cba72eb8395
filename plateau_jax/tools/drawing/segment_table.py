"""The segments of a curve as a table, for text, notebooks and the design page.

The columns are named here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from plateau_jax.table.segments import Segment
from plateau_jax.tools.drawing.tables import as_html, as_text

Content = Literal["step", "text", "level"]


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        name: The key of its cells.
        heading: The text above it.
        content: What the cells contain: it decides how they are aligned, and how the page shows
            them. A learning rate is a level too.
    """

    name: str
    heading: str
    content: Content


_COLUMNS = (
    Column("first_step", "first step", "step"),
    Column("last_step", "last step", "step"),
    Column("kind", "kind", "text"),
    Column("start", "from", "level"),
    Column("end", "to", "level"),
)


def _cells(segment: Segment, peak: np.float32 | None) -> dict[str, str]:
    """Return the text of each column."""
    last_step = "…"
    if segment.last_step is not None:
        last_step = str(segment.last_step)
    return {
        "first_step": str(segment.first_step),
        "last_step": last_step,
        "kind": segment.kind,
        "start": _format_level(segment.start, peak),
        "end": _format_level(segment.end, peak),
    }


def _format_level(level: float, peak: np.float32 | None) -> str:
    multiplier = np.float32(level)
    if peak is not None:
        multiplier = peak * multiplier
    return f"{multiplier:.6g}"


@dataclass(frozen=True)
class SegmentTable:
    """A table with a row for each segment that is not empty.

    Attributes:
        columns: From left to right.
        rows: The cells of each row, by the name of their column.
        note: The number of segments that the table leaves out; empty if it has all of them.
    """

    columns: tuple[Column, ...]
    rows: list[dict[str, str]]
    note: str

    def as_text(self) -> str:
        """Lay out the table in columns."""
        headings: list[str] = []
        left: list[int] = []
        # With these minimum widths, the tables of most curves line up with each other.
        for place, column in enumerate(self.columns):
            if column.content == "text":
                left.append(place)
                headings.append(column.heading.ljust(13))
            elif column.content == "level":
                headings.append(column.heading.rjust(10))
            else:
                headings.append(column.heading)
        return as_text([tuple(headings), *self._lines()], self.note, left)

    def as_html(self) -> str:
        """Return HTML for notebooks."""
        headings = tuple(column.heading for column in self.columns)
        return as_html([headings, *self._lines()], self.note)

    def _lines(self) -> list[tuple[str, ...]]:
        return [tuple(row[column.name] for column in self.columns) for row in self.rows]


def segment_table(
    segments: Sequence[Segment], peak: np.float32 | None = None, most: int | None = None
) -> SegmentTable:
    """Describe segments, or the first `most` of them.

    With a peak, levels are shown as learning rates.
    """
    columns: list[Column] = []
    for column in _COLUMNS:
        if column.content == "level" and peak is not None:
            columns.append(column._replace(heading=f"lr {column.heading}"))
        else:
            columns.append(column)
    rows = [_cells(segment, peak) for segment in segments[:most]]
    note = ""
    if len(rows) < len(segments):
        note = f"The table shows the first {len(rows)} of {len(segments)} segments."
    return SegmentTable(tuple(columns), rows, note)
