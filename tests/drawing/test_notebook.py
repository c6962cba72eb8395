"""HTML for notebooks: well-formed, escaped, and true to the curve."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve, StagedCurve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20), (80, 10)], min_lr_ratio=0.1)
SVG = "{http://www.w3.org/2000/svg}"


def parsed(curve):
    """Return the root element, its SVG, and the cells of the table."""
    root = ElementTree.fromstring(curve._repr_html_())
    (svg,) = root.iter(f"{SVG}svg")
    return root, svg, [[cell.text for cell in row] for row in root.iter("tr")]


@examples(25)
@given(descriptions(scaled=True))
def test_line_and_table_match_the_curve(description):
    curve = build(description)
    _, svg, cells = parsed(curve)
    assert [" ".join(row).split() for row in cells] == list(map(str.split, curve.describe().splitlines()))
    (line,) = svg.iter(f"{SVG}polyline")
    points = np.array([point.split(",") for point in line.get("points").split()], float)
    assert np.all(np.diff(points[:, 0]) >= 0)
    assert min(curve.total_steps, 600) < len(points) < 10_000
    left, right, bottom = points[0, 0], points[-1, 0], 190
    points = points[:: len(points) // 40 + 1]
    # A point lies on the curve at a step that rounds to it, or between two such steps.
    borders = [row.begin + side for row in curve.rows for side in (-1, 0)]
    top = float(curve(np.array(borders)).max()) or 1.0
    heights = (bottom - points[:, 1]) / 180 * top
    steps = (points[:, 0] - left) / (right - left) * curve.total_steps
    pixel = curve.total_steps / (right - left)
    for step, height in zip(steps.tolist(), heights.tolist(), strict=True):
        around = np.unique(np.linspace(step - pixel, step + pixel, 33).astype(np.int64))
        around = np.unique([*around, *(border for border in borders if abs(border - step) <= pixel)])
        values = curve(around)
        assert values.min() - 0.001 * top <= height <= values.max() + 0.001 * top


def test_warmup_and_plateaus_are_shaded_in_place():
    _, svg, _ = parsed(CURVE)
    scale = 620 / 1000
    shaded = [(r.get("class"), float(r.get("x")), float(r.get("width"))) for r in svg.iter(f"{SVG}rect")]
    assert shaded == [
        ("warmup", 50.0, pytest.approx(100 * scale, abs=0.1)),
        ("plateau", pytest.approx(50 + 550 * scale, abs=0.1), pytest.approx(180 * scale, abs=0.1)),
        ("plateau", pytest.approx(50 + 820 * scale, abs=0.1), pytest.approx(90 * scale, abs=0.1)),
    ]
    titles = [next(r.iter(f"{SVG}title")).text for r in svg.iter(f"{SVG}rect")]
    assert all(float(rectangle.get("stroke-width")) > 0 for rectangle in svg.iter(f"{SVG}rect"))  # if narrow
    assert titles == ["warmup: steps 0 to 99", "plateau: steps 550 to 729", "plateau: steps 820 to 909"]


def test_stages_and_branches_are_shaded_too():
    stable = StagedCurve([(500, 1.0), (9_500,)])
    for curve, kinds in (
        (stable, ["warmup", "plateau"]),
        (stable.cooldown(300, 100), ["warmup"]),
        (CURVE.then(CURVE), ["warmup", "plateau", "plateau"] * 2),
        (PlateauCurve(10), []),
    ):
        assert [rectangle.get("class") for rectangle in parsed(curve)[1].iter(f"{SVG}rect")] == kinds


def test_long_curve_has_short_html():
    """The line has both ends and stays near the curve; the table and the spans are those of the beginning."""
    levels = np.random.default_rng(0).random(1500).repeat(2)
    steps = np.arange(3000) // 2 * 10 + 5 * (np.arange(3000) % 2)
    curve = StagedCurve.through(zip(steps, levels, strict=True))
    root, svg, cells = parsed(curve)
    assert len(curve._repr_html_()) < 200_000
    assert [" ".join(row).split() for row in cells] == [*map(str.split, curve.describe().splitlines())][:201]
    assert "The table shows the first 200 of 3000 segments." in "".join(root.itertext())
    assert len(list(svg.iter(f"{SVG}rect"))) == 200
    (line,) = svg.iter(f"{SVG}polyline")
    points = line.get("points").split()
    assert 4000 < len(points) <= 5000
    assert (points[0].split(",")[0], points[-1].split(",")[0]) == ("50.0", "670.0")


def test_text_and_axes_use_page_colour():
    _, svg, _ = parsed(CURVE)
    texts = list(svg.iter(f"{SVG}text"))
    assert {"0", "500", "1000", "1", "0.5"} == {text.text for text in texts}
    assert {text.get("fill") for text in texts} == {"currentColor"}
    assert {line.get("stroke") for line in svg.iter(f"{SVG}line")} == {"currentColor"}
