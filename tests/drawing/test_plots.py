"""`plot`: lines that match the curves, shaded spans, distinct labels, and its errors."""

import warnings

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Oracle, lowest_level
from support.numerics.shapes import SAMPLES
from support.raises import raises

from plateau_jax import PlateauCurve, StagedCurve, compare, plot

mpl.use("Agg")

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 30)])


@pytest.fixture
def ax():
    return new_axes()


def new_axes():
    return Figure().subplots()


def labels_of(ax):
    legend = ax.get_legend()
    if legend is None:
        return []
    return [text.get_text() for text in legend.get_texts()]


# Lines.


one_to_three = st.lists(descriptions(), min_size=1, max_size=3)


@examples(40)
@given(one_to_three, st.sampled_from((0.0, 1.0, 3e-4, 1e-7, 123.0)))
def test_points_lie_on_the_curve_and_include_borders(cases, peak):
    curves = list(map(build, cases))
    ax = plot(curves, peak_value=peak, ax=new_axes())
    for line, curve in zip(ax.lines, curves, strict=True):
        steps = np.asarray(line.get_xdata())
        assert np.issubdtype(steps.dtype, np.integer)
        assert steps[0] == 0
        assert steps[-1] == curve.total_steps
        assert (np.diff(steps) > 0).all()
        assert {segment.first_step for segment in curve.segments} <= set(steps)
        assert len(steps) >= min(curve.total_steps, 1000)
        lrs = np.float32(peak) * curve(steps)
        np.testing.assert_array_equal(line.get_ydata(), lrs)


def look_of(ax):
    """Return the points of all lines, and the corners of all spans."""
    lines = [line.get_xydata().tolist() for line in ax.lines]
    spans = [span.get_xy() for span in ax.patches]
    return lines, spans


@examples(8)
@given(one_to_three, st.sampled_from((1.0, 3e-4)))
def test_all_forms_of_curves_draw_the_same(cases, peak):
    curves = list(map(build, cases))
    named = {f"curve {index}": curve for index, curve in enumerate(curves)}
    in_a_list = plot(curves, peak_value=peak, ax=new_axes())
    look = look_of(in_a_list)
    labels = labels_of(in_a_list)
    unnamed = [
        plot(*curves, peak_value=peak, ax=new_axes()),
        plot(iter(curves), peak_value=peak, ax=new_axes()),
    ]
    if len(curves) == 1:
        (curve,) = curves
        unnamed.append(curve.plot(peak_value=peak, ax=new_axes()))
    for ax in unnamed:
        assert look_of(ax) == look
        assert labels_of(ax) == labels
    if len(curves) > 1:
        assert labels == list(compare(*curves).names)
        assert labels == list(compare(curves).names)
    in_a_dictionary = plot(named, peak_value=peak, ax=new_axes())
    names = list(named)
    assert look_of(in_a_dictionary) == look
    assert labels_of(in_a_dictionary)[-len(names) :] == names
    assert list(compare(named).names) == names


def test_axes_stay_as_the_user_set_them(ax):
    ax.set_yscale("log")
    ax.set_xlim(10, 20)
    above_0 = PlateauCurve(1000, min_lr_ratio=0.1)
    with warnings.catch_warnings(action="error"):
        plot([CURVE, above_0], peak_value=1e-3, ax=ax)
    assert ax.get_xlim() == (10, 20)
    assert ax.get_yscale() == "log"
    assert ax.get_ylim()[0] > 0


def test_curve_without_a_peak_has_multipliers(ax):
    plot(CURVE, ax=ax)
    assert ax.get_ylabel() == "multiplier"


def test_plot_without_axes_uses_current_ones():
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert plot(CURVE, peak_value=1e-3) is ax
    plt.close(figure)


@pytest.mark.parametrize("shape", SAMPLES)
def test_line_is_smooth_and_jumps_with_the_curve(shape):
    to = lowest_level(shape)
    if to > 0:
        to = max(to, 1e-9)
    for steps in (20, 10**4, 10**9):
        curve = StagedCurve([(10**6, 1.0), (steps, to, shape), (10**6,)])
        check_line_with_jumps(curve)


def check_line_with_jumps(curve):
    jumps = StagedCurve([(0, 0.5), (10**6, 0.2), (0, 0.7), (10,)], start=0.1)
    ax = plot(curve.then(jumps), ax=new_axes())
    (line,) = ax.lines
    is_gap = np.diff(line.get_xdata()) > 1
    changes = np.abs(np.diff(line.get_ydata()))
    assert changes[is_gap].max() < 0.04


# Legends: the arguments that distinguish the curves.


def test_legend_names_the_arguments_that_differ(ax):
    cosine = PlateauCurve(1000, min_lr_ratio=0.1)
    linear = PlateauCurve(1000, warmup_steps=9, decay_shape="linear")
    stable = PlateauCurve(1000, min_lr_ratio=0.1, plateaus=[(50, 30), (90, 5)])
    plot([cosine, linear, stable], ax=ax)
    assert labels_of(ax) == [
        "warmup steps 0, no plateaus, min lr ratio 0.1, decay shape cosine",
        "warmup steps 9, no plateaus, min lr ratio 0.0, decay shape linear",
        "warmup steps 0, plateau (50, 30), plateau (90, 5), min lr ratio 0.1, decay …",
    ]


def test_legend_names_cooldowns(ax):
    stable = StagedCurve([(50, 1.0), (950,)])
    long_cooldown = stable.cooldown(500, 200, to=0.1, shape="linear")
    plot([stable, stable.cooldown(500, 100), long_cooldown], ax=ax)
    assert labels_of(ax) == [
        "StagedCurve",
        "Cooldown, at 500, steps 100, to 0.0, shape 1-sqrt",
        "Cooldown, at 500, steps 200, to 0.1, shape linear",
    ]


def test_legend_names_continuations(ax):
    cycle = PlateauCurve(300, warmup_steps=30)
    flat = StagedCurve([(100,)], start=0.2)
    plot([cycle, cycle.then(cycle, scale=0.5), cycle.then(flat)], ax=ax)
    assert labels_of(ax) == [
        "PlateauCurve",
        "Then, scale 0.5",
        "Then, StagedCurve, stage (100, linear), start 0.2, scale 1.0",
    ]


def test_legend_numbers_equal_descriptions(ax):
    plot([CURVE, CURVE], ax=ax)
    assert labels_of(ax) == ["1: PlateauCurve", "2: PlateauCurve"]


def test_plot_of_many_stages_stays_small(ax):
    halves = StagedCurve.through((step, step % 2 / 9) for step in range(3000))
    thirds = StagedCurve.through((step, step % 3 / 9) for step in range(3000))
    plot([halves, thirds], ax=ax)
    for label in labels_of(ax):
        assert len(label) <= 80
    for line in ax.lines:
        assert len(line.get_xdata()) <= 3001


def test_plot_of_many_long_stages_stays_small(ax):
    plot(StagedCurve.through((100 * index, index % 2) for index in range(1500)), ax=ax)
    (line,) = ax.lines
    assert len(line.get_xdata()) <= 2 * 1500 + 1001


@examples(10)
@given(st.lists(descriptions(range(7)), min_size=2, max_size=5))
def test_legend_names_every_curve_without_squeezing_the_axes(cases):
    curves = list(map(build, cases))
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    ax = plot(curves, ax=figure.subplots())
    figure.draw_without_rendering()
    assert len(set(labels_of(ax))) == len(cases)
    assert ax.get_window_extent().width > 400


# Spans.


def expected_spans(description, curve):
    """Return (name, begin, after) of each warmup, or first stage that rises, and each plateau."""
    first, _ = Oracle(description).with_stops()[0]
    spans = []
    for segment in curve.segments[:-1]:
        rises_at_once = segment.first_step == 0 and first.end > first.start
        if "warmup" in segment.kind or rises_at_once:
            spans.append(("warmup", segment.first_step, segment.last_step + 1))
        elif segment.kind == "plateau":
            spans.append(("plateau", segment.first_step, segment.last_step + 1))
    return spans


@examples(25)
@given(descriptions(scaled=True))
def test_single_curve_has_shaded_and_named_spans(description):
    curve = build(description)
    ax = plot(curve, ax=new_axes())
    spans = expected_spans(description, curve)
    names = {name for name, _, _ in spans}
    assert sorted(labels_of(ax)) == sorted(names)
    ends = set()
    for patch, (name, begin, after) in zip(ax.patches, spans, strict=True):
        assert patch.get_x() == begin
        assert patch.get_x() + patch.get_width() == after
        assert begin < after
        values = curve([begin, (begin + after) // 2, after - 1])
        if name == "plateau":
            assert np.ptp(values) == 0
        else:
            assert (np.diff(values) >= 0).all()
        ends.add((begin, after))
    assert len(ends) == len(spans)


def test_several_curves_are_not_shaded(ax):
    plot([CURVE, PlateauCurve(10, warmup_steps=5)], ax=ax)
    plot(CURVE, ax=ax)  # with other lines in the plot, spans would be ambiguous
    assert not ax.patches


def test_lines_and_spans_differ_without_colour(ax):
    plot(CURVE, ax=ax)
    warmup, plateau = ax.patches
    assert warmup.get_hatch() != plateau.get_hatch()
    ax = plot([PlateauCurve(100 + index) for index in range(6)], ax=new_axes())
    dashes = {str(line._unscaled_dash_pattern) for line in ax.lines}
    assert len(dashes) == 6


# Errors.


def test_wrong_call(ax):
    with raises(ValueError, "there is no curve"):
        plot()
    with raises(TypeError, "curves[0] = 'curve.json' must be a"):
        plot("curve.json")
    with raises(TypeError, "curves[0] = 5 must be a"):
        plot(5)
    with raises(ValueError, "peak_value = -1.0", unchanged=[ax]):
        plot(CURVE, peak_value=-1.0, ax=ax)
