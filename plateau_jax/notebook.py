"""A curve in a notebook: an inline SVG and the table of its segments."""

from collections.abc import Iterator
from html import escape

from plateau_jax.curve import Curve
from plateau_jax.levels import is_above
from plateau_jax.plotting import steps_to_draw
from plateau_jax.rows import visible

_WIDTH, _HEIGHT, _LEFT, _TOP = 620, 180, 50, 10
_FILLS = {"warmup": "#f59e0b", "plateau": "#10b981"}
_MOST_ROWS = 200

# Text and axes take the notebook's own colour, light or dark; what is filled lets its ground through; the
# line stands out from white (3.7 : 1) and from black (5.7 : 1).
_LINE = "#3b82f6"


def html(curve: Curve) -> str:
    """The picture with warmups and plateaus shaded, and the table under it."""
    return (
        f"<div>{_svg(curve)}<div>{_legend(curve)}<code>{escape(_short(repr(curve)))}</code></div>"
        f"{_table(curve._table())}</div>"
    )


def _svg(curve: Curve) -> str:
    steps = steps_to_draw(curve)
    values = curve(steps)
    top = float(values.max()) or 1.0
    x = _LEFT + steps * (_WIDTH / curve.total_steps)
    y = _TOP + (1 - values / top) * _HEIGHT
    # Of points that fall into one of the picture's, the first.
    points = dict.fromkeys(zip(x.round().tolist(), y.round(1).tolist(), strict=True))
    drawn = " ".join(f"{x:g},{y:.1f}" for x, y in points)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + 25}" '
        f'style="width:100%;max-width:{_LEFT + _WIDTH + 10}px;height:auto" role="img" font-size="11">'
        f"<title>{escape(type(curve).__name__)}, {curve.total_steps} steps</title>"
        f"{''.join(_shades(curve))}{''.join(_axes(curve.total_steps, top))}"
        f'<polyline points="{drawn}" fill="none" stroke="{_LINE}" stroke-width="2"/></svg>'
    )


def _shaded(curve: Curve) -> Iterator[tuple[str, int, int]]:
    """(what it is, first step, first step after it) of each warmup and plateau."""
    for row, after in visible(curve.rows):
        if after is None:
            return
        if row.kind == "warmup" or (row.begin == 0 and is_above(row.end, row.start)):
            yield "warmup", row.begin, after
        elif row.kind in ("plateau", "hold"):
            yield "plateau", row.begin, after


def _shades(curve: Curve) -> Iterator[str]:
    scale = _WIDTH / curve.total_steps
    for name, begin, after in _shaded(curve):
        yield (
            f'<rect class="{name}" x="{_LEFT + begin * scale:.1f}" y="{_TOP}" '
            f'width="{(after - begin) * scale:.1f}" height="{_HEIGHT}" fill="{_FILLS[name]}" '
            f'fill-opacity="0.25"><title>{name}: steps {begin} to {after - 1}</title></rect>'
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
    for step in sorted({total * quarter // 4 for quarter in range(5)}):
        anchor = "end" if step == total else "middle" if step else "start"
        yield (
            f'<text x="{_LEFT + step * _WIDTH / total:.1f}" y="{bottom + 16}" text-anchor="{anchor}" '
            f'fill="currentColor">{step}</text>'
        )


def _legend(curve: Curve) -> str:
    names = {name for name, *_ in _shaded(curve)}
    return "".join(
        f'<span style="border-left:1em solid {fill};padding:0 1em 0 0.4em">{name}</span>'
        for name, fill in _FILLS.items()
        if name in names
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    header, *body = rows
    shown = body[:_MOST_ROWS]
    if len(shown) < len(body):
        shown = [*shown[:-1], ("…",) * len(header), body[-1]]
    lines = [_cells("th", header), *(_cells("td", row) for row in shown)]
    return f"<table>{''.join(lines)}</table>"


def _cells(tag: str, row: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>"


def _short(text: str, most: int = 400) -> str:
    return text if len(text) <= most else text[:most] + " …"
