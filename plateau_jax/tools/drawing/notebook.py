"""HTML of a curve for notebooks: a picture and the table of its segments."""

import base64
import io
from html import escape

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.drawing import plots
from plateau_jax.tools.drawing.segment_table import segment_table
from plateau_jax.tools.drawing.tables import as_html

# A notebook stores the HTML, and a browser lays out every row.
_MAX_ROWS = 200


def html(curve: Curve) -> str:
    """Return a plot of a curve, the expression that builds it, and the table of its segments.

    Without matplotlib, the plot is left out.
    """
    description = escape(checks.short_text(repr(curve), 400))
    table = as_html(segment_table(curve.segments, most=_MAX_ROWS))
    return f"<div>{_picture(curve)}<div><code>{description}</code></div>{table}</div>"


def _picture(curve: Curve) -> str:
    try:
        from matplotlib.figure import Figure  # an optional dependency
    except ModuleNotFoundError:
        return ""
    figure = Figure(figsize=(7, 2.5), layout="constrained")
    plots.plot(curve, ax=figure.subplots())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="" width="700" src="data:image/png;base64,{data}"/>'
