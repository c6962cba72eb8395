"""HTML of a curve for notebooks: an inline SVG and the table of its segments."""

from collections.abc import Sequence
from html import escape

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.table.exact_segments import ExactSegment
from plateau_jax.tools.drawing.sampling import FILLS, OPACITY, shaded_spans, thin_out
from plateau_jax.tools.drawing.segment_table import segment_table

# In pixels: the size of the plot inside its axes, and its upper left corner.
_WIDTH = 620
_HEIGHT = 180
_LEFT = 50
_TOP = 10

# A notebook stores the HTML, and a browser lays out every row.
_MAX_ROWS = 200
_MAX_POINTS = 5000
_MAX_CHARACTERS = 400

# Text and axes use the notebook's text color, light or dark, and filled areas are translucent. The
# line has a contrast of 3.7 : 1 to white and of 5.7 : 1 to black.
_LINE = "#3b82f6"


def html(curve: Curve) -> str:
    """Return the plot of a curve, the expression that builds it, and the table of its segments."""
    description = repr(curve)
    if len(description) > _MAX_CHARACTERS:
        description = description[:_MAX_CHARACTERS] + " …"
    plot = _svg(curve)
    legend = _legend(curve._exact_segments)
    table = segment_table(curve.segments, most=_MAX_ROWS).as_html()
    return f"<div>{plot}{legend}<div><code>{escape(description)}</code></div>{table}</div>"


def _svg(curve: Curve) -> str:
    segments = curve._exact_segments
    total = curve.total_steps
    steps = _steps_to_draw(segments)
    values = curve(steps)
    top = float(values.max()) or 1.0  # a curve may be 0 everywhere
    xs = _LEFT + steps * (_WIDTH / total)
    ys = _TOP + (1 - values / top) * _HEIGHT
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))

    full_width = _LEFT + _WIDTH + 10
    full_height = _TOP + _HEIGHT + 25
    size = f'viewBox="0 0 {full_width} {full_height}"'
    style = f'style="width:100%;max-width:{full_width}px;height:auto"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style} role="img" font-size="11">'
        f"<title>{escape(type(curve).__name__)}, {total} steps</title>"
        f"{_shades(segments)}{_axes(total, top)}"
        f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/></svg>'
    )


def _steps_to_draw(segments: Sequence[ExactSegment]) -> np.ndarray:
    """Return a step for each pixel, and both sides of every border."""
    pixels = np.linspace(0, segments[-1].begin, _WIDTH + 1).astype(np.int64)
    begins = np.array([segment.begin for segment in segments])
    steps = np.unique(np.concatenate([pixels, begins - 1, begins]))
    return thin_out(steps[steps >= 0], _MAX_POINTS)


def _shades(segments: Sequence[ExactSegment]) -> str:
    """Return a rectangle for each warmup and plateau."""
    scale = _WIDTH / segments[-1].begin
    rectangles: list[str] = []
    for name, begin, after in shaded_spans(segments):
        fill = FILLS[name]
        x = _LEFT + begin * scale
        width = (after - begin) * scale
        # The outline keeps spans visible that are too narrow to be filled.
        rectangles.append(
            f'<rect class="{name}" x="{x:.1f}" y="{_TOP}" width="{width:.1f}" height="{_HEIGHT}" '
            f'stroke-width="0.5" fill="{fill}" fill-opacity="{OPACITY}" stroke="{fill}" '
            f'stroke-opacity="{2 * OPACITY}">'
            f"<title>{name}: steps {begin} to {after - 1}</title></rect>"
        )
    return "".join(rectangles)


def _axes(total: int, top: float) -> str:
    """Return a line and two labels, of the level and of the step, at the ends and in the middle."""
    bottom = _TOP + _HEIGHT
    right = _LEFT + _WIDTH
    elements: list[str] = []
    for fraction, anchor, opacity in ((0, "start", 0.6), (0.5, "middle", 0.2), (1, "end", 0.2)):
        level = fraction * top
        y = bottom - fraction * _HEIGHT
        step = round(fraction * total)
        x = _LEFT + step * _WIDTH / total
        elements.append(
            f'<line x1="{_LEFT}" x2="{right}" y1="{y:g}" y2="{y:g}" stroke="currentColor" '
            f'stroke-opacity="{opacity}"/>'
        )
        elements.append(_label(f"{_LEFT - 6}", f"{y + 4:g}", "end", f"{level:.3g}"))
        elements.append(_label(f"{x:.1f}", f"{bottom + 16}", anchor, f"{step}"))
    return "".join(elements)


def _label(x: str, y: str, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>'


def _legend(segments: Sequence[ExactSegment]) -> str:
    opacity = f"{round(255 * OPACITY):02x}"  # CSS takes it in hexadecimal, behind the color
    names = sorted({name for name, _, _ in shaded_spans(segments)})
    entries: list[str] = []
    for name in names:
        style = f"background:{FILLS[name]}{opacity};margin-right:1.5em"
        entries.append(f'<span style="{style}">{name}</span>')
    return f"<div>{''.join(entries)}</div>"
