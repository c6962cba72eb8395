"""Values of every kind of curve against the exact formulas, for every kind of step."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import randoms
from support.examples import examples
from support.numerics.oracle import (
    Oracle,
    are_equal,
    is_nearest_float32,
    is_promised,
)

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve


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


LINE = {"kind": "plateau", "total_steps": 40, "decay_shape": "linear"}
CURVE = PlateauCurve(40, decay_shape="linear")
PAIRS = [(0, 2), (160, 8)]


@pytest.mark.parametrize(
    ("description", "curve"),
    [
        ({"kind": "staged", "stages": [[40, 1.0]]}, StagedCurve([(40, 1.0)])),
        ({"kind": "cooldown", "curve": LINE, "at": 9, "steps": 20}, CURVE.cooldown(9, 20)),
        ({"kind": "then", "curve": LINE, "other": LINE}, CURVE.then(CURVE)),
        ({"kind": "part", "curve": LINE}, CURVE.part()),
        (
            {"kind": "scaled", "curve": LINE, "pairs": PAIRS, "unit": 8, "reference": 8},
            BatchPlan(PAIRS).scale(CURVE, 8, reference=8),
        ),
    ],
    ids=["staged", "cooldown", "then", "part", "scaled"],
)
def test_defaults_are_those_of_the_methods(description, curve):
    assert build(description) == curve
    check_values(description, range(90))


@given(
    low=st.floats(5e-324, 1e-30),
    high=st.floats(1e-3, 1),
    length=st.integers(2, 3000),
    rises=st.booleans(),
    data=st.data(),
)
def test_exponential_between_tiny_levels_is_as_exact(low, high, length, rises, data):
    """Like ExponentialLR over many steps, with a cooldown to even smaller levels."""
    start = high
    end = low
    if rises:
        start = low
        end = high
    staged = {"kind": "staged", "stages": [(length, end, "exponential")], "start": start}
    steps = range(0, length + 50, 1 + length // 40)
    check_values(staged, steps)
    at = data.draw(st.integers(1, length))
    to = low / 16
    if to == 0:
        if rises:
            return  # no smaller level
        to = low
    cooldown = {
        "kind": "cooldown",
        "curve": staged,
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


@given(descriptions_and_steps(size=8, scaled=True))
@example(({"kind": "staged", "stages": [(2,), (2, 0.2), (2, 0.5), (2,)], "start": 0.5}, [1]))
def test_flat_runs_are_flat(case):
    description, steps = case
    curve = build(description)
    flat_runs = Oracle(description).flat_runs()
    assert curve.flat_starts == tuple(begin for begin, _ in flat_runs)
    for begin, length in flat_runs:
        offsets = np.array([0, length - 1, *(step % length for step in steps)])
        assert np.unique(curve(begin + offsets)).size == 1


@examples(140)
@given(descriptions(scaled=True), randoms)
def test_segments_are_monotone_and_within_0_and_1(description, random):
    curve = build(description)
    oracle = Oracle(description)
    for segment, stop in oracle.with_stops():
        begin = segment.begin
        last = stop - 1
        # It ends at the first level of the next one, unless it is cut short or followed by a jump.
        is_cut_short = stop < begin + segment.length - segment.skipped
        if not is_cut_short and are_equal(oracle(stop), segment.end):
            last = stop
        middle = (begin + last) // 2
        anywhere = [random.randint(begin, last), random.randint(begin, last)]
        centers = np.array([begin, last, middle, *anywhere])
        around = centers[:, None] + np.arange(-100, 100)
        steps = around.clip(begin, last)
        values = curve(steps)
        check_monotone(values, segment.start, segment.end)
        assert (values >= 0).all()
        assert (values <= 1).all()
