"""Values of every kind of curve against the exact formulas, for every kind of step."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP, randoms
from support.examples import examples
from support.numerics.borders import steps_near_midpoints
from support.numerics.oracle import (
    Oracle,
    are_equal,
    can_join,
    is_nearest_float32,
    is_promised,
)
from support.numerics.shapes import SAMPLES

from plateau_jax import StagedCurve
from plateau_jax.shapes.known_shapes import SHAPES


def check_values(description, steps):
    """Check that each value is within 0.500000001 units in the last place, or 0 below 2⁻¹²⁶."""
    curve = build(description)
    oracle = Oracle(description)
    values = curve(steps)
    for step, value in zip(steps, values, strict=True):
        assert is_promised(float(value), oracle(step)), step
        assert curve(step) == value


def check_monotone(values, start, end):
    """Check that values between two levels never turn."""
    if start < end:
        assert (np.diff(values) >= 0).all()
    else:
        assert (np.diff(values) <= 0).all()


@examples(240)
@given(st.one_of(descriptions_and_steps(), descriptions_and_steps(scaled=True)))
def test_values_are_within_the_promised_error(case):
    description, steps = case
    check_values(description, steps)


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_values_near_rounding_borders_are_exact_and_monotone(shape, data):
    description, step = data.draw(steps_near_midpoints((shape,)))
    check_values(description, [step])
    curve = build(description)
    spans = Oracle(description).spans()
    (span,) = [span for span in spans if span[0] <= step < span[1]]
    begin, end, part = span
    near = np.clip(step + np.arange(-300, 300), begin, end - 1)
    check_monotone(curve(near), part.start, part.end)


@given(
    low=st.floats(5e-324, 1e-30),
    high=st.floats(1e-3, 1),
    length=st.integers(2, 3000),
    rises=st.booleans(),
    data=st.data(),
)
def test_exponential_between_tiny_levels_is_as_exact(low, high, length, rises, data):
    """Like ExponentialLR over many steps, with a cooldown to even smaller levels."""
    if rises:
        stage = {"stages": [(length, high, "exponential")], "start": low}
    else:
        stage = {"stages": [(length, low, "exponential")], "start": high}
    steps = range(0, length + 50, 1 + length // 40)
    check_values(stage, steps)
    at = data.draw(st.integers(1, length))
    to = low / 16
    if to == 0:
        if rises:
            return  # no smaller level
        to = low
    cooldown = {
        "cooldown": stage,
        "at": at,
        "steps": 50,
        "to": to,
        "shape": "exponential",
    }
    check_values(cooldown, steps)


@given(descriptions(scaled=True))
def test_first_step_of_every_segment_is_nearest_float32(description):
    """The last segment is the end, so this holds for both ends of the curve too."""
    curve = build(description)
    oracle = Oracle(description)
    assert curve.total_steps == oracle.total_steps
    for border in oracle.borders:
        assert is_nearest_float32(curve(border), oracle(border)), border


@given(steps_near_midpoints(least=Fraction(1, 2**38)))
def test_cooldown_starts_at_nearest_float32_near_borders(case):
    parent, at = case
    cooldown = {"cooldown": parent, "at": at, "steps": 1, "to": 0.0, "shape": "1-sqrt"}
    curve = build(cooldown)
    oracle = Oracle(cooldown)
    assert is_nearest_float32(curve(at), oracle(at))


@given(descriptions_and_steps(size=8, scaled=True))
@example(({"stages": [(2,), (2, 0.2), (2, 0.5), (2,)], "start": 0.5}, [1]))
def test_flat_parts_are_flat(case):
    description, steps = case
    curve = build(description)
    flat_runs = Oracle(description).flat_runs()
    assert curve.flat_starts == tuple(begin for begin, _ in flat_runs)
    for begin, length in flat_runs:
        offsets = np.array([0, length - 1, *(step % length for step in steps)])
        assert np.unique(curve(begin + offsets)).size == 1


@examples(140)
@given(descriptions(scaled=True), randoms)
def test_stages_are_monotone_and_within_0_and_1(description, random):
    curve = build(description)
    oracle = Oracle(description)
    for begin, end, part in oracle.spans():
        last = end - 1
        # A stage ends at the next one's first level, unless it is cut short or followed by a jump.
        is_cut_short = end < part.begin + part.length - part.skipped
        if not is_cut_short and are_equal(oracle(end), part.end):
            last = end
        middle = (begin + last) // 2
        anywhere = [random.randint(begin, last), random.randint(begin, last)]
        centers = np.array([begin, last, middle, *anywhere])
        around = centers[:, None] + np.arange(-100, 100)
        steps = around.clip(begin, last)
        values = curve(steps)
        check_monotone(values, part.start, part.end)
        assert (values >= 0).all()
        assert (values <= 1).all()


def check_stage(length, start, end, shape):
    """Check that a stage between tiny levels is monotone, and exact at both ends."""
    with ignore_curve_warnings():
        curve = StagedCurve([(length, end, shape)], start=start)
    for first in (0, length // 4, length // 2 - 500, length - 1000):
        steps = np.arange(first, first + 1001).clip(0, MAX_STEP)
        check_monotone(curve(steps), start, end)
    assert curve([0, length]).tolist() == [np.float32(start), np.float32(end)]


@pytest.mark.parametrize("shape", SAMPLES)
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (1e-12, 2e-12),
        (1e-20, 1.5e-19),
        (2.0**-126, 2.0**-61),
    ],
)
def test_tiny_levels_are_monotone_in_both_directions(shape, low, high):
    if not can_join(shape, low, high):
        return
    check_stage(1000, low, high, shape)
    check_stage(10**6, high, low, shape)
    check_stage(MAX_STEP, high, low, shape)


def test_border_of_tiny_levels_does_not_rise():
    """The first stage ends where the second begins, to the last bit of both."""
    first = 2.182832815997069e-16
    second = 2.034716295652536e-16
    with ignore_curve_warnings():
        curve = StagedCurve([(130, second), (130, 0.0)], start=first)
    check_monotone(curve(range(261)), first, 0.0)
