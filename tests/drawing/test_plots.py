"""`plot` and HTML for notebooks: lines that match the curves, shaded spans, and distinct labels."""

import inspect
import warnings
from functools import partial
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from support.curves.descriptions import build, descriptions
from support.errors import check_error, each_row, pairs
from support.examples import examples

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare, plot
from plateau_jax.drawing.sampling import shaded_spans

mpl.use("Agg")

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 30)])


def _axes():
    return Figure().subplots()


def _points(line):
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def _labels(ax):
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


@examples(40)
@given(st.lists(descriptions(), min_size=1, max_size=3), st.sampled_from((0.0, 1.0, 3e-4, 1e-7, 123.0)))
def test_points_lie_on_the_curve_and_include_borders(cases, peak):
    curves = [build(description) for description in cases]
    ax = plot(curves, peak_value=peak, ax=_axes())
    for line, curve in pairs(ax.lines, curves):
        steps, rates = _points(line)
        assert np.issubdtype(steps.dtype, np.integer)
        assert (steps[0], steps[-1]) == (0, curve.total_steps)
        assert (np.diff(steps) > 0).all()
        assert set(curve.table.begin) <= set(steps)
        assert len(steps) >= min(curve.total_steps, 1000)
        np.testing.assert_array_equal(rates, np.float32(peak) * curve(steps))


@examples(8)
@given(st.lists(descriptions(), min_size=1, max_size=3), st.sampled_from((1.0, 3e-4)))
def test_all_forms_of_curves_draw_the_same(cases, peak):
    curves = list(map(build, cases))
    named = {f"curve {index}": curve for index, curve in enumerate(curves)}
    forms = [(curves,), curves, (tuple(curves),), (iter(curves),), (named.values(),), (named,)]
    drawn = [plot(*form, peak_value=peak, ax=_axes()) for form in forms]
    if len(curves) == 1:
        drawn.insert(0, curves[0].plot(peak_value=peak, ax=_axes()))
    names = [_labels(ax) for ax in drawn]
    looks = [
        ([line.get_xydata().tolist() for line in ax.lines], [span.get_xy() for span in ax.patches])
        for ax in drawn
    ]
    assert looks == [looks[0]] * len(looks)
    assert names[:-1] == [names[0]] * (len(names) - 1)
    assert names[-1][-len(named) :] == list(named) == list(compare(named).names)
    for ax in drawn:
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "multiplier" if peak == 1 else "learning rate")
    if len(curves) > 1:
        assert names[0] == list(compare(*curves).names) == list(compare(curves).names)


def test_plot_without_axes_uses_current_ones():
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert plot(CURVE, peak_value=1e-3) is ax
    plt.close(figure)


def test_method_and_function_take_the_same_arguments():
    function, method = inspect.signature(plot), inspect.signature(Curve.plot)
    assert list(function.parameters.values())[1:] == list(method.parameters.values())[1:]


STABLE, CYCLE = StagedCurve([(50, 1.0), (950,)]), PlateauCurve(300, warmup_steps=30)
BRANCH, TWICE = STABLE.cooldown(500, 100), CYCLE.then(CYCLE, scale=0.5)
LEGENDS = [
    ((PlateauCurve(1000), PlateauCurve(1000, plateaus=[(50, 30)])), ["no plateau", "plateau 50–80 %"]),
    (
        (PlateauCurve(1000, min_lr_ratio=0.1), PlateauCurve(1000, warmup_steps=9, decay_shape="linear")),
        ["no warmup, cosine decay to 0.1", "linear warmup from 0 over 9 steps, linear decay to 0"],
    ),
    (
        (STABLE, BRANCH, STABLE.cooldown(500, 200, to=0.1, shape="linear")),
        ["1000 steps", "1-sqrt cooldown 500–600 to 0", "linear cooldown 500–700 to 0.1"],
    ),
    (
        (CYCLE, TWICE, TWICE.then(CYCLE), CYCLE.then(StagedCurve([(100,)], start=0.2))),
        [
            *("300 steps", "then 300–600 × 0.5", "then 300–600 × 0.5, then 600–900"),
            "then 300–400: from 0.2, hold 100",
        ],
    ),
    (
        [StagedCurve([(100,), (steps, 0.5), (100,), (50, 0.1, "cosine")], start=1) for steps in (0, 50)],
        ["250 steps, jump to 0.5", "300 steps, linear to 0.5 in 50"],
    ),
]


@pytest.mark.parametrize(("curves", "labels"), LEGENDS)
def test_legend_has_what_sets_curves_apart(curves, labels):
    assert _labels(plot(curves, ax=_axes())) == labels


def test_labels_are_short_and_unique():
    saws = [StagedCurve([(20, 0.5), (20, 0.8)] * 20 + [(last, 0.0)]) for last in (10, 20, 30)]
    many = [PlateauCurve(1000, plateaus=[(10 * index, length) for index in range(9)]) for length in (4, 5, 5)]
    labels = _labels(plot([*saws, *many], ax=_axes()))
    assert all(labels)
    assert len(set(labels)) == len(labels) == 6
    assert max(map(len, labels)) < 90


def test_plot_of_many_stages_stays_small():
    many = [StagedCurve.through((step, step % factor / 9) for step in range(3000)) for factor in (2, 3)]
    ax = plot(many, ax=_axes())
    assert all(len(line.get_xdata()) <= 3001 for line in ax.lines)
    assert _labels(ax) == ["1: 2999 steps, from 0, 2999 stages", "2: 2999 steps, from 0, 2999 stages"]
    stairs = StagedCurve.through((step // 2, step % 4 / 4) for step in range(3000))
    assert len(stairs.plot(ax=_axes()).patches) <= 200


FALLS = [
    *((0, "1-sqrt"), (0, "cosine"), (0.5, "linear"), (1e-9, "exponential"), (1e-9, "t^-0.5")),
    *((0, "1-x^0.05"), (0, "1-x^20"), (0, "(1-x)^0.05"), (0, "(1-x)^20"), (1e-4, "t^-0.25")),
]


@pytest.mark.parametrize(("to", "shape"), FALLS)
def test_line_is_smooth_and_jumps_with_the_curve(to, shape):
    steep = [StagedCurve([(10**6, 1.0), (steps, to, shape), (10**6,)]) for steps in (20, 10**4, 10**9)]
    for curve in (*steep, StagedCurve([(10**5, 1, "exponential")], start=1e-9)):
        jumping = curve.then(StagedCurve([(0, 0.5), (10**6, 0.2), (0, 0.7), (10,)], start=0.1))
        steps, rates = _points(plot(jumping, ax=_axes()).lines[0])
        apart = np.diff(steps) > 1
        assert np.abs(np.diff(rates))[apart].max() < 0.04


@examples(10)
@given(st.lists(descriptions(range(7)), min_size=2, max_size=5))
def test_legend_names_every_curve_without_squeezing_the_axes(cases):
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    ax = plot(list(map(build, cases)), ax=figure.subplots())
    figure.draw_without_rendering()
    assert len(set(_labels(ax))) == len(cases)
    assert ax.get_window_extent().width > 400


def test_axes_stay_as_the_user_set_them():
    ax = _axes()
    ax.set_yscale("log")
    with warnings.catch_warnings(action="error"):
        plot([CURVE, PlateauCurve(1000, min_lr_ratio=0.1)], peak_value=1e-3, ax=ax)
    assert ax.get_yscale() == "log"
    assert ax.get_ylim()[0] > 0
    ax = _axes()
    ax.set_ylim(0.1, 0.3)
    ax.set_xlim(10, 20)
    plot(CURVE, ax=ax)
    assert (ax.get_xlim(), ax.get_ylim()) == ((10, 20), (0.1, 0.3))


@examples(25)
@given(descriptions(scaled=True))
def test_single_curve_has_shaded_and_named_spans(description):
    curve = build(description)
    ax, spans = plot(curve, ax=_axes()), list(shaded_spans(curve._rows))
    shaded = [(span.get_x(), span.get_x() + span.get_width()) for span in ax.patches]
    assert shaded == [(begin, after) for _, begin, after in spans]
    assert sorted(_labels(ax)) == sorted({name for name, *_ in spans})
    for name, begin, after in spans:
        assert begin < after
        values = curve([begin, (begin + after) // 2, after - 1])
        assert (np.ptp(values) == 0) if name == "plateau" else (np.diff(values) >= 0).all()
    assert len(set(shaded)) == len(spans)


def test_several_curves_are_not_shaded():
    ax = plot([CURVE, PlateauCurve(10, warmup_steps=5)], ax=_axes())
    plot(CURVE, ax=ax)  # with other lines in the plot, spans would be ambiguous
    assert not ax.patches


def test_lines_and_spans_differ_without_colour():
    many = plot([PlateauCurve(100 + index) for index in range(6)], ax=_axes())
    assert len({str(line._unscaled_dash_pattern) for line in many.lines}) == 6
    ax = plot(CURVE, ax=_axes())
    (line,), (warmup, plateau) = ax.lines, ax.patches
    assert warmup.get_hatch() != plateau.get_hatch()
    # Lighter than the line and darker than a white page.
    grey = 0.299, 0.587, 0.114
    for span in (warmup, plateau):
        *colour, opacity = span.get_facecolor()
        assert np.dot(to_rgb(line.get_color()), grey) + 0.4 < 1 - opacity * (1 - np.dot(colour, grey)) < 0.95


ERRORS = [
    *((partial(plot, *curves), TypeError, f"curves[{key}] = ", "must be a Curve")
      for curves, key in (((5,), 0), (([None],), 0), ((CURVE, 3), 1), ((np.array(3),), 0),
                          (({"cosine": 5},), "'cosine'"), (([CURVE], CURVE), 0))),
    *((partial(plot, *curves), ValueError, "there is no curve") for curves in ((), ([],), ({},))),
    (lambda ax: plot(CURVE, peak_value=-1.0, ax=ax), ValueError, "peak_value = -1.0"),
    (lambda ax: CURVE.plot(peak_value="0.1", ax=ax), TypeError, "peak_value = '0.1'", "number"),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row):
    check_error(row, ax=_axes(), CURVE=CURVE)


TWO_PLATEAUS = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20), (80, 10)], min_lr_ratio=0.1)
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
    borders = [begin + side for begin in curve.table.begin for side in (-1, 0)]
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
    _, svg, _ = parsed(TWO_PLATEAUS)
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
        (TWO_PLATEAUS.then(TWO_PLATEAUS), ["warmup", "plateau", "plateau"] * 2),
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
    _, svg, _ = parsed(TWO_PLATEAUS)
    texts = list(svg.iter(f"{SVG}text"))
    assert {"0", "500", "1000", "1", "0.5"} == {text.text for text in texts}
    assert {text.get("fill") for text in texts} == {"currentColor"}
    assert {line.get("stroke") for line in svg.iter(f"{SVG}line")} == {"currentColor"}
