"""Shaded warmups and plateaus in plots, readable in black and white."""

import matplotlib as mpl
import numpy as np
from hypothesis import given
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve, plot
from plateau_jax.drawing.sampling import shaded_spans

mpl.use("Agg")

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 30)])


def _axes():
    return Figure().subplots()


@examples(25)
@given(descriptions(scaled=True))
def test_single_curve_has_shaded_and_named_spans(description):
    curve = build(description)
    ax = plot(curve, ax=_axes())
    shaded = [(span.get_x(), span.get_x() + span.get_width()) for span in ax.patches]
    assert shaded == [(begin, after) for _, begin, after in shaded_spans(curve.rows)]
    legend = ax.get_legend()
    names = [text.get_text() for text in legend.get_texts()] if legend else []
    assert sorted(names) == sorted({name for name, *_ in shaded_spans(curve.rows)})


@examples(25)
@given(descriptions(scaled=True))
def test_plateau_spans_are_flat_and_warmup_spans_rise(description):
    curve = build(description)
    inside = set()
    for name, begin, after in shaded_spans(curve.rows):
        values = curve([begin, (begin + after) // 2, after - 1])
        assert begin < after
        assert (np.ptp(values) == 0) if name == "plateau" else (np.diff(values) >= 0).all()
        inside.add((begin, after))
    assert len(inside) == sum(1 for _ in shaded_spans(curve.rows))


def test_several_curves_are_not_shaded():
    ax = plot([CURVE, PlateauCurve(10, warmup_steps=5)], ax=_axes())
    assert not ax.patches
    plot(CURVE, ax=ax)  # with other lines in the plot, spans would be ambiguous
    assert not ax.patches


def _grey(colour):
    return np.dot(to_rgb(colour), (0.299, 0.587, 0.114))


def test_lines_and_spans_differ_without_colour():
    many = plot([PlateauCurve(100 + index) for index in range(6)], ax=_axes())
    assert len({str(line._unscaled_dash_pattern) for line in many.lines}) == 6
    warmup, plateau = plot(CURVE, ax=_axes()).patches
    assert warmup.get_hatch() != plateau.get_hatch()
    # Lighter than the line and darker than a white page.
    (line,) = plot(CURVE, ax=_axes()).lines
    for span in (warmup, plateau):
        *colour, opacity = span.get_facecolor()
        assert _grey(line.get_color()) + 0.4 < 1 - opacity * (1 - _grey(colour)) < 0.95
