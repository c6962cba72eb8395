"""Tables as text, and as HTML for notebooks."""

import textwrap
from collections.abc import Collection, Sequence
from html import escape


def as_text(lines: Sequence[tuple[str, ...]], note: str = "", left: Collection[int] = (0,)) -> str:
    """Lay out a header and rows in columns, with the note below them.

    Args:
        lines: The cells of the header and of each row.
        note: Wrapped to 90 characters.
        left: The columns aligned to the left; the others are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text: list[str] = []
    for line in lines:
        cells: list[str] = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            if column in left:
                cells.append(cell.ljust(width))
            else:
                cells.append(cell.rjust(width))
        text.append("  ".join(cells).rstrip())
    if note:
        text += ["", *textwrap.wrap(note, 90)]
    return "\n".join(text)


def as_html(text: str) -> str:
    """Return HTML that shows the text of a table; a long table scrolls."""
    return f'<pre style="max-height:26em;overflow:auto">{escape(text)}</pre>'
