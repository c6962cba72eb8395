"""The table of a curve's segments, for text, notebooks and the design page.

The columns are named here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from plateau_jax.drawing.tables import as_html, as_text
from plateau_jax.numerics.exact import Level, from_decimal, nearest_float32
from plateau_jax.table.exact_segments import ExactSegment, nonempty_segments

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
    Column("from", "from", "level"),
    Column("to", "to", "level"),
)


def _cells(segment: ExactSegment, after: int | None, peak: np.float32 | None) -> dict[str, str]:
    """Return the text of each column; `after` is the first step after the segment, if it ends."""
    kind = segment.kind
    if segment.shape is not None:
        kind = f"{segment.shape} {kind}"
    if after is None:
        last_step = "…"
        end = segment.start
    else:
        last_step = str(after - 1)
        end = segment.at(after)
    return {
        "first_step": str(segment.begin),
        "last_step": last_step,
        "kind": kind,
        "from": _format_level(segment.at(segment.begin), peak),
        "to": _format_level(end, peak),
    }


def _format_level(level: Level, peak: np.float32 | None) -> str:
    multiplier = nearest_float32(from_decimal(level))
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
        lines: list[tuple[str, ...]] = []
        for row in self.rows:
            lines.append(tuple(row[column.name] for column in self.columns))
        return lines


def segment_table(
    segments: Sequence[ExactSegment], peak: np.float32 | None = None, most: int | None = None
) -> SegmentTable:
    """Describe the segments that are not empty, or the first `most` of them.

    With a peak, levels are shown as learning rates.
    """
    columns: list[Column] = []
    for column in _COLUMNS:
        if column.content == "level" and peak is not None:
            columns.append(column._replace(heading=f"lr {column.heading}"))
        else:
            columns.append(column)
    described = list(nonempty_segments(segments))
    rows = [_cells(segment, after, peak) for segment, after in described[:most]]
    note = ""
    if len(rows) < len(described):
        note = f"The table shows the first {len(rows)} of {len(described)} segments."
    return SegmentTable(tuple(columns), rows, note)
