"""HTML of a curve for notebooks: an inline SVG and the table of its segments."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from plateau_jax.drawing.sampling import FILLS, OPACITY, shaded_spans, steps_to_draw
from plateau_jax.drawing.tables import as_html
from plateau_jax.numerics.exact_segments import ExactSegment, describe_segments

_WIDTH, _HEIGHT, _LEFT, _TOP = 620, 180, 50, 10

# Text and axes use the notebook's text colour, light or dark, and filled areas are translucent. The line has
# a contrast of 3.7 : 1 to white and of 5.7 : 1 to black.
_LINE = "#3b82f6"


def html(rows: Sequence[ExactSegment], values_at: Callable[[Any], Any], name: str, description: str) -> str:
    """Return the plot, with warmups and plateaus shaded, and the table below it.

    Args:
        rows: The segments.
        values_at: The curve as a function from an array of steps to an array of multipliers.
        name: The kind of curve, for the title of the plot.
        description: The expression that builds the curve.
    """
    return (
        f"<div>{_svg(rows, values_at, name)}{_legend(rows)}"
        f"<div><code>{escape(_truncated(description))}</code></div>{as_html(describe_segments(rows))}</div>"
    )


def _svg(rows: Sequence[ExactSegment], values_at: Callable[[Any], Any], name: str) -> str:
    total = rows[-1].begin
    steps = steps_to_draw(rows)
    values = values_at(steps)
    top = float(values.max()) or 1.0
    x = _LEFT + steps * (_WIDTH / total)
    y = _TOP + (1 - values / top) * _HEIGHT
    # Keep the first point of each pixel: further ones would only make the page longer.
    points: dict[tuple[float, float], tuple[float, float]] = {}
    for point in zip(x.tolist(), y.tolist(), strict=True):
        points.setdefault((round(point[0]), round(point[1], 1)), point)
    polyline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*points.values(), (x[-1], y[-1])])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + 25}" '
        f'style="width:100%;max-width:{_LEFT + _WIDTH + 10}px;height:auto" role="img" font-size="11">'
        f"<title>{escape(name)}, {total} steps</title>"
        f"{''.join(_shades(rows))}{''.join(_axes(total, top))}"
        f'<polyline points="{polyline}" fill="none" stroke="{_LINE}" stroke-width="2"/></svg>'
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
    bottom = _TOP + _HEIGHT
    for share in (0, 0.5, 1):
        y = bottom - share * _HEIGHT
        yield (
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:g}" y2="{y:g}" stroke="currentColor" '
            f'stroke-opacity="{0.2 if share else 0.6}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end" fill="currentColor">'
            f"{share * top:.3g}</text>"
        )
    for step in _ticks(total):
        anchor = "end" if step == total else "middle" if step else "start"
        yield (
            f'<text x="{_LEFT + step * _WIDTH / total:.1f}" y="{bottom + 16}" text-anchor="{anchor}" '
            f'fill="currentColor">{step}</text>'
        )


def _ticks(total: int) -> list[int]:
    """Return about five round steps, and the end."""
    magnitude = 10 ** (len(str(total)) - 1)
    candidates = magnitude // 5, magnitude // 2, magnitude, 2 * magnitude
    spacing = next(candidate for candidate in candidates if 5 * candidate >= total)
    # The last round step stays 3/4 of the spacing away from the end, or their labels would overlap.
    return [*range(0, total - 3 * spacing // 4, spacing), total]


def _legend(rows: Sequence[ExactSegment]) -> str:
    names = {name for name, *_ in shaded_spans(rows)}
    entries = (
        f'<span style="display:inline-block;width:2em;height:0.8em;margin-right:0.4em;'
        f"background:{_translucent(fill, OPACITY)};"
        f'border:1px solid {_translucent(fill, 2 * OPACITY)}"></span>'
        f'<span style="margin-right:1.5em">{name}</span>'
        for name, fill in FILLS.items()
        if name in names
    )
    return f"<div>{''.join(entries)}</div>"


def _translucent(colour: str, opacity: float) -> str:
    return f"{colour}{round(255 * opacity):02x}"


def _truncated(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[:limit] + " …"
