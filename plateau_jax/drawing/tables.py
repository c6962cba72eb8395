"""Tables as text, and as HTML for notebooks."""

import textwrap
from collections.abc import Collection, Sequence
from html import escape

import numpy as np

from plateau_jax.numerics.exact_segments import ExactSegment, describe_segments

# For pages without a style sheet, and for tables longer than a screen.
_STYLE = "text-align:right;border-spacing:1em 0;font-variant-numeric:tabular-nums"
_SCROLLED = "display:inline-block;max-height:26em;overflow:auto"


def as_text(lines: Sequence[tuple[str, ...]], note: str = "", left: Collection[int] = (0,)) -> str:
    """Lay out a header and rows in columns, with the note below them.

    Args:
        lines: The cells of the header and of each row.
        note: Wrapped to 90 characters.
        left: The columns aligned to the left; the others are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(
            f"{cell:{'<' if column in left else '>'}{width}}"
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*table, "", *textwrap.wrap(note, 90)] if note else table)


def as_html(lines: Sequence[tuple[str, ...]], note: str = "") -> str:
    """Return HTML of a header and rows, with the note below them."""
    header, *body = lines
    cells = [_cells("th", header), *(_cells("td", line) for line in body)]
    table = f'<div style="{_SCROLLED}"><table style="{_STYLE}">{"".join(cells)}</table></div>'
    return f"<div>{table}<div>{escape(note)}</div></div>" if note else table


def _cells(tag: str, line: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in line)}</tr>"


def segments_as_text(segments: Sequence[ExactSegment], peak: np.float32 | None = None) -> str:
    """Return the table of segments; with a peak, levels are shown as learning rates."""
    (first, last, kind, start, end), *rows = describe_segments(segments, peak)
    # The least widths make the tables of most curves line up with each other.
    return as_text([(first, last, f"{kind:13}", f"{start:>10}", f"{end:>10}"), *rows], left=(2,))
