"""Tables as text, and as HTML for notebooks."""

import textwrap
from collections.abc import Collection, Sequence
from html import escape

# Inline styles, for pages without a style sheet; long tables scroll.
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


def as_html(lines: Sequence[tuple[str, ...]], note: str = "") -> str:
    """Return HTML of a header and rows, with the note below them."""
    header, *body = lines
    rows = _row("th", header) + "".join(_row("td", line) for line in body)
    table = f'<div style="{_SCROLLED}"><table style="{_STYLE}">{rows}</table></div>'
    if not note:
        return table
    return f"<div>{table}<div>{escape(note)}</div></div>"


def _row(tag: str, line: tuple[str, ...]) -> str:
    cells = [f"<{tag}>{escape(cell)}</{tag}>" for cell in line]
    return f"<tr>{''.join(cells)}</tr>"
