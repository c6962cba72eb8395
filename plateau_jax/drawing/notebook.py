"""HTML of a curve for notebooks: an inline SVG and the table of its segments."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from plateau_jax.drawing.sampling import FILLS, OPACITY, shaded_spans, thin_out
from plateau_jax.drawing.tables import as_html
from plateau_jax.numerics.exact_segments import ExactSegment, describe_segments, nonempty_segments

_WIDTH, _HEIGHT, _LEFT, _TOP = 620, 180, 50, 10

# A notebook stores the HTML, and a browser lays out every row.
_MOST_ROWS, _MOST_POINTS = 200, 5000

# Text and axes use the notebook's text colour, light or dark, and filled areas are translucent. The
# line has a contrast of 3.7 : 1 to white and of 5.7 : 1 to black.
_LINE = "#3b82f6"


def html(
    rows: Sequence[ExactSegment], values_at: Callable[[Any], Any], name: str, description: str
) -> str:
    """Return the plot of a kind of curve, the expression that describes it, and the table of its segments."""
    shown = description if len(description) <= 400 else description[:400] + " …"
    count = sum(1 for _ in nonempty_segments(rows))
    note = (
        f"The table shows the first {_MOST_ROWS} of {count} segments." if count > _MOST_ROWS else ""
    )
    table = as_html(describe_segments(rows, most=_MOST_ROWS), note)
    return (
        f"<div>{_svg(rows, values_at, name)}{_legend(rows)}"
        f"<div><code>{escape(shown)}</code></div>{table}</div>"
    )


def _svg(rows: Sequence[ExactSegment], values_at: Callable[[Any], Any], name: str) -> str:
    total = rows[-1].begin
    # A step for each pixel, and both sides of every border.
    borders = [row.begin + side for row in rows for side in (-1, 0)]
    steps = np.unique([*np.linspace(0, total, _WIDTH + 1).astype(np.int64), *borders])
    steps = thin_out(steps[steps >= 0], _MOST_POINTS)
    values = values_at(steps)
    top = float(values.max()) or 1.0
    x = _LEFT + steps * (_WIDTH / total)
    y = _TOP + (1 - values / top) * _HEIGHT
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(x.tolist(), y.tolist(), strict=True))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + 25}" '
        f'style="width:100%;max-width:{_LEFT + _WIDTH + 10}px;height:auto" role="img" font-size="11">'
        f"<title>{escape(name)}, {total} steps</title>"
        f"{''.join(_shades(rows))}{''.join(_axes(total, top))}"
        f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="2"/></svg>'
    )


def _shades(rows: Sequence[ExactSegment]) -> Iterator[str]:
    scale = _WIDTH / rows[-1].begin
    for name, begin, after in shaded_spans(rows):
        fill = FILLS[name]
        # The outline keeps spans visible that are too narrow to be filled.
        yield (
            f'<rect class="{name}" x="{_LEFT + begin * scale:.1f}" y="{_TOP}" '
            f'width="{(after - begin) * scale:.1f}" height="{_HEIGHT}" stroke-width="0.5" '
            f'fill="{fill}" fill-opacity="{OPACITY}" stroke="{fill}" stroke-opacity="{2 * OPACITY}">'
            f"<title>{name}: steps {begin} to {after - 1}</title></rect>"
        )


def _axes(total: int, top: float) -> Iterator[str]:
    """Yield a line and two labels, of the level and of the step, at the ends and in the middle."""
    bottom = _TOP + _HEIGHT
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        y, step = bottom - share * _HEIGHT, round(share * total)
        yield (
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:g}" y2="{y:g}" stroke="currentColor" '
            f'stroke-opacity="{0.2 if share else 0.6}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end" fill="currentColor">'
            f"{share * top:.3g}</text>"
            f'<text x="{_LEFT + step * _WIDTH / total:.1f}" y="{bottom + 16}" text-anchor="{anchor}" '
            f'fill="currentColor">{step}</text>'
        )


def _legend(rows: Sequence[ExactSegment]) -> str:
    alpha = f"{round(255 * OPACITY):02x}"
    entries = (
        f'<span style="background:{FILLS[name]}{alpha};margin-right:1.5em">{name}</span>'
        for name in sorted({name for name, *_ in shaded_spans(rows)})
    )
    return f"<div>{''.join(entries)}</div>"
