"""What a notebook shows of a curve: a line, shaded spans, and the table of segments."""

import re
from functools import cached_property
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve, StagedCurve

SVG = "{http://www.w3.org/2000/svg}"
TWO_PLATEAUS = PlateauCurve(
    1000,
    warmup_steps=100,
    plateaus=[(50, 20), (80, 10)],
    min_lr_ratio=0.1,
)


class ParsedHtml:
    """The HTML of a curve, parsed."""

    def __init__(self, curve):
        self.html = curve._repr_html_()
        self.root = ElementTree.fromstring(self.html)
        (self.svg,) = self.root.iter(f"{SVG}svg")
        # The plot in pixels, from the left and from the top.
        (axes,) = self.elements("path")
        self.left, self.top, self.bottom, self.right = map(int, re.findall(r"\d+", axes.get("d")))

    def elements(self, name):
        return list(self.svg.iter(f"{SVG}{name}"))

    @property
    def table(self):
        (table,) = self.root.iter("pre")
        return table.text

    @cached_property
    def points(self):
        """The points of the line in pixels, from the left and from the top."""
        (line,) = self.elements("polyline")
        points = [point.split(",") for point in line.get("points").split()]
        return np.array(points, float)


@examples(25)
@given(descriptions(scaled=True))
def test_line_and_table_match_the_curve(description):
    curve = build(description)
    shown = ParsedHtml(curve)
    assert shown.table == curve.describe()
    points = shown.points
    across, _ = points.T
    assert np.all(np.diff(across) >= 0)
    assert min(curve.total_steps, 600) < len(points) < 10_000
    check_points(shown, curve)


def check_points(shown, curve):
    """Check that points lie on the curve, at a step that rounds to them or between two steps."""
    borders = np.concatenate([curve.table.begin - 1, curve.table.begin])
    highest = float(curve(borders).max()) or 1.0
    pixel = curve.total_steps / (shown.right - shown.left)
    level_of_pixel = highest / (shown.bottom - shown.top)
    points = shown.points
    for x, y in points[:: len(points) // 40 + 1].tolist():
        step = (x - shown.left) * pixel
        level = (shown.bottom - y) * level_of_pixel
        around = np.linspace(step - pixel, step + pixel, 33).astype(np.int64)
        near_borders = borders[np.abs(borders - step) <= pixel]
        values = curve(np.concatenate([around, near_borders]))
        margin = 0.001 * highest
        assert values.min() - margin <= level <= values.max() + margin


def test_warmup_and_plateaus_are_shaded_in_place():
    shown = ParsedHtml(TWO_PLATEAUS)
    warmup, first, second = shown.elements("rect")
    check_span(shown, warmup, "warmup", 0, 100)
    check_span(shown, first, "plateau", 550, 180)
    check_span(shown, second, "plateau", 820, 90)


def check_span(shown, rectangle, kind, begin, length):
    pixels_per_step = (shown.right - shown.left) / 1000
    left = shown.left + begin * pixels_per_step
    width = length * pixels_per_step
    assert float(rectangle.get("x")) == pytest.approx(left, abs=0.1)
    assert float(rectangle.get("width")) == pytest.approx(width, abs=0.1)
    assert float(rectangle.get("stroke-width")) > 0  # a narrow one is visible
    (title,) = rectangle.iter(f"{SVG}title")
    assert title.text == f"{kind}: steps {begin} to {begin + length - 1}"


def test_long_curve_has_short_html():
    """The line has both ends; the table and the spans show the beginning."""
    levels = np.random.default_rng(0).random(1500).repeat(2)
    steps = np.arange(3000) // 2 * 10 + 5 * (np.arange(3000) % 2)
    curve = StagedCurve.through(zip(steps, levels, strict=True))
    shown = ParsedHtml(curve)
    assert len(shown.html) < 200_000
    rows, _, note = shown.table.partition("\n\n")
    assert rows.split() == " ".join(curve.describe().splitlines()[:201]).split()
    assert note == "The table shows the first 200 of 3000 segments."
    assert len(shown.elements("rect")) == 200
    assert 4000 < len(shown.points) <= 5000
    assert shown.points[0, 0] == shown.left
    assert shown.points[-1, 0] == shown.right


def test_text_and_axes_use_page_colour():
    shown = ParsedHtml(TWO_PLATEAUS)
    texts = shown.elements("text")
    assert {text.text for text in texts} == {"0", "1000", "1", "warmup", "plateau"}
    assert {text.get("fill") for text in texts} == {"currentColor"}
    assert {path.get("stroke") for path in shown.elements("path")} == {"currentColor"}


def test_text_lies_inside_the_picture():
    shown = ParsedHtml(TWO_PLATEAUS)
    left, top, width, height = map(float, shown.svg.get("viewBox").split())
    for text in shown.elements("text"):
        assert left <= float(text.get("x")) <= left + width
        assert top <= float(text.get("y")) <= top + height
