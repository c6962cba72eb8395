"""HTML of a curve for notebooks: an inline SVG and the table of its segments."""

from collections.abc import Sequence
from html import escape

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.table.exact_segments import ExactSegment
from plateau_jax.tools.drawing.plots import SPAN_STYLES
from plateau_jax.tools.drawing.sampling import shaded_spans
from plateau_jax.tools.drawing.segment_table import segment_table
from plateau_jax.tools.drawing.tables import as_html

# In pixels: the edges of the plot inside its axes.
_LEFT, _RIGHT = 50, 670
_TOP, _BOTTOM = 10, 190

# A notebook stores the HTML, and a browser lays out every row.
_MAX_ROWS = 200
_MAX_POINTS = 5000

# Text and axes use the notebook's text color, light or dark, and filled areas are translucent. The
# line has a contrast of 3.7 : 1 to white and of 5.7 : 1 to black.
_LINE = "#3b82f6"


def html(curve: Curve) -> str:
    """Return the plot of a curve, the expression that builds it, and the table of its segments."""
    description = escape(checks.short_text(repr(curve), 400))
    table = as_html(segment_table(curve.segments, most=_MAX_ROWS))
    return f"<div>{_svg(curve)}<div><code>{description}</code></div>{table}</div>"


def _svg(curve: Curve) -> str:
    segments = curve._exact_segments
    total = curve.total_steps
    steps = _steps_to_draw(segments)
    levels = curve(steps)
    top = float(levels.max()) or 1.0  # a curve may be 0 everywhere
    xs = _LEFT + steps * ((_RIGHT - _LEFT) / total)
    ys = _BOTTOM - levels * ((_BOTTOM - _TOP) / top)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    size = 'viewBox="0 0 680 215" style="width:100%;max-width:680px;height:auto"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-size="11">'
        f"<title>{escape(type(curve).__name__)}, {total} steps</title>{_shades(segments)}"
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="currentColor"/>'
        + _text(_LEFT - 6, _TOP + 4, "end", f"{top:.3g}")
        + _text(_LEFT - 6, _BOTTOM + 4, "end", "0")
        + _text(_LEFT, _BOTTOM + 16, "start", "0")
        + _text(_RIGHT, _BOTTOM + 16, "end", f"{total}")
        + f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/></svg>'
    )


def _steps_to_draw(segments: Sequence[ExactSegment]) -> np.ndarray:
    """Return a step for each pixel, and both sides of every border; at most `_MAX_POINTS`."""
    pixels = np.linspace(0, segments[-1].begin, _RIGHT - _LEFT + 1).astype(np.int64)
    begins = np.array([segment.begin for segment in segments])
    steps = np.unique(np.concatenate([pixels, begins - 1, begins]))
    steps = steps[steps >= 0]
    if len(steps) <= _MAX_POINTS:
        return steps
    return steps[np.linspace(0, len(steps) - 1, _MAX_POINTS).astype(np.int64)]


def _shades(segments: Sequence[ExactSegment]) -> str:
    """Return a rectangle for each warmup and plateau, with its name if that fits."""
    scale = (_RIGHT - _LEFT) / segments[-1].begin
    shades: list[str] = []
    for name, begin, after in shaded_spans(segments):
        color, opacity = SPAN_STYLES[name]["facecolor"]
        x = _LEFT + begin * scale
        width = (after - begin) * scale
        # The outline keeps spans visible that are too narrow to be filled.
        shades.append(
            f'<rect x="{x:.1f}" y="{_TOP}" width="{width:.1f}" height="{_BOTTOM - _TOP}" '
            f'fill="{color}" fill-opacity="{opacity}" stroke="{color}" stroke-width="0.5">'
            f"<title>{name}: steps {begin} to {after - 1}</title></rect>"
        )
        if width > 45:
            shades.append(_text(x + width / 2, _BOTTOM - 6, "middle", name))
    return "".join(shades)


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>'
