"""What a notebook shows of a curve: a line, shaded spans, and the table of segments."""

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

    def elements(self, name):
        return list(self.svg.iter(f"{SVG}{name}"))

    @cached_property
    def rows(self):
        """The words of each row of the table."""
        rows = []
        for row in self.root.iter("tr"):
            text = " ".join(cell.text for cell in row)
            rows.append(text.split())
        return rows

    @cached_property
    def points(self):
        """The points of the line in pixels, from the left and from the top."""
        (line,) = self.elements("polyline")
        points = [point.split(",") for point in line.get("points").split()]
        return np.array(points, float)


def described(curve):
    return [line.split() for line in curve.describe().splitlines()]


@examples(25)
@given(descriptions(scaled=True))
def test_line_and_table_match_the_curve(description):
    curve = build(description)
    shown = ParsedHtml(curve)
    assert shown.rows == described(curve)
    points = shown.points
    across, _ = points.T
    assert np.all(np.diff(across) >= 0)
    assert min(curve.total_steps, 600) < len(points) < 10_000
    check_points(points, curve)


def check_points(points, curve):
    """Check that points lie on the curve, at a step that rounds to them or between two steps."""
    borders = np.concatenate([curve.table.begin - 1, curve.table.begin])
    highest = float(curve(borders).max()) or 1.0
    left = points[0, 0]
    right = points[-1, 0]
    bottom = 190
    pixel = curve.total_steps / (right - left)
    for x, y in points[:: len(points) // 40 + 1].tolist():
        step = (x - left) * pixel
        level = (bottom - y) / 180 * highest
        around = np.linspace(step - pixel, step + pixel, 33).astype(np.int64)
        near_borders = borders[np.abs(borders - step) <= pixel]
        values = curve(np.concatenate([around, near_borders]))
        margin = 0.001 * highest
        assert values.min() - margin <= level <= values.max() + margin


def test_warmup_and_plateaus_are_shaded_in_place():
    warmup, first, second = ParsedHtml(TWO_PLATEAUS).elements("rect")
    check_span(warmup, "warmup", 0, 100)
    check_span(first, "plateau", 550, 180)
    check_span(second, "plateau", 820, 90)


def check_span(rectangle, kind, begin, length):
    pixels_per_step = 620 / 1000
    left = 50 + begin * pixels_per_step
    width = length * pixels_per_step
    assert rectangle.get("class") == kind
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
    assert shown.rows == described(curve)[:201]
    text = "".join(shown.root.itertext())
    assert "The table shows the first 200 of 3000 segments." in text
    assert len(shown.elements("rect")) == 200
    assert 4000 < len(shown.points) <= 5000
    assert shown.points[0, 0] == 50
    assert shown.points[-1, 0] == 670


def test_text_and_axes_use_page_colour():
    shown = ParsedHtml(TWO_PLATEAUS)
    texts = shown.elements("text")
    assert {text.text for text in texts} == {"0", "500", "1000", "1", "0.5"}
    assert {text.get("fill") for text in texts} == {"currentColor"}
    assert {line.get("stroke") for line in shown.elements("line")} == {"currentColor"}
