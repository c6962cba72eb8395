"""`HoldBelow`: its spec, and wrong arguments."""

import math

import numpy as np
import pytest
from clocks.rules.spec import VALUES, RuleSpec, metrics_in_a_reading, readings
from hypothesis import strategies as st
from support.wrong import wrong

from plateau_jax import HoldBelow


class _Below:
    """Each pair (value, steps) adds its steps at the first reading of at most its value."""

    def __init__(self, rule, starts):
        self.rule = rule
        self.metrics = []
        self.reached = set()
        self.steps_left = 0

    def holds(self, curve_step, metric):
        readings_before = readings(self.metrics, self.rule.every)
        self.metrics.append(metric)
        readings_now = readings(self.metrics, self.rule.every)
        for reading in readings_now[len(readings_before) :]:
            self.add_steps(reading)
        if self.steps_left == 0:
            return False
        self.steps_left -= 1
        return True

    def add_steps(self, reading):
        for pair in self.rule.pairs:
            value, steps = pair
            if reading <= np.float32(value) and pair not in self.reached:
                self.reached.add(pair)
                self.steps_left += steps


def _in_falling_order(pairs):
    """Return one pair for each value."""
    return sorted(dict(pairs).items(), reverse=True)


_pairs = st.lists(st.tuples(st.sampled_from(VALUES), st.integers(1, 9)), min_size=1, max_size=4)

BELOW = RuleSpec(
    rule=HoldBelow,
    simulate=_Below,
    strategy=st.builds(HoldBelow, _pairs.map(_in_falling_order), every=metrics_in_a_reading),
    samples=(
        HoldBelow([(0.3, 2), (0.25, 4)], every=3),
        HoldBelow([(0.3, 2), (0.25, 4)]),
        HoldBelow(0.3, 4),
    ),
    changes={"every": 7},
)


# Wrong arguments.


@pytest.mark.parametrize("value", [0.5, "0.5", {0.5: 3}])
@wrong(TypeError, "value = {value}", "sequence of pairs (value, steps)", "if steps is not given")
def test_no_pairs(value):
    HoldBelow(value)


@wrong(ValueError, "the sum of all steps = 0")
def test_empty_list_of_pairs():
    HoldBelow([])


@wrong(TypeError, "value = [(0.5, 3)]", "number")
def test_pairs_next_to_steps():
    HoldBelow([(0.5, 3)], 3)


@wrong(ValueError, "value = nan")
def test_value_that_is_not_a_number():
    HoldBelow(math.nan, 3)


@wrong(ValueError, "value = -1e+39", "float32")
def test_value_beyond_float32():
    HoldBelow(-1e39, 3)


@wrong(ValueError, "steps = 0")
def test_no_steps():
    HoldBelow(0.5, 0)


@wrong(ValueError, "falling", "0.5 follows 0.5")
def test_equal_values():
    HoldBelow([(0.5, 3), (0.5, 3)])


@wrong(ValueError, "the sum of all steps = 2147483648")
def test_more_steps_than_int32_holds():
    HoldBelow([(0.5, 2**31 - 1), (0.2, 1)])
