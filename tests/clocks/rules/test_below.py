"""`HoldBelow`: its spec, and wrong arguments."""

import math
from typing import Any

import numpy as np
import pytest
from clocks.rules.spec import VALUES, RuleSpec, metrics_in_a_reading, readings
from hypothesis import strategies as st
from support.wrong import wrong

from plateau_jax import HoldBelow


class _Below:
    """Each pair (value, steps) adds its steps at the first reading of at most its value."""

    def __init__(self, rule: HoldBelow, starts: set[int]) -> None:
        self.rule = rule
        self.metrics: list[Any] = []
        self.reached: set[tuple[float, int]] = set()
        self.steps_left = 0

    def holds(self, curve_step: int, metric: Any) -> bool:
        readings_before = readings(self.metrics, self.rule.every)
        self.metrics.append(metric)
        readings_now = readings(self.metrics, self.rule.every)
        for reading in readings_now[len(readings_before) :]:
            self.add_steps(reading)
        if self.steps_left == 0:
            return False
        self.steps_left -= 1
        return True

    def add_steps(self, reading: Any) -> None:
        for pair in self.rule.pairs:
            value, steps = pair
            if reading <= np.float32(value) and pair not in self.reached:
                self.reached.add(pair)
                self.steps_left += steps


def _in_falling_order(pairs: list[tuple[float, int]]) -> list[tuple[float, int]]:
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
def test_no_pairs(value: Any) -> None:
    HoldBelow(value)


@wrong(TypeError, "value[0] = 0.5", "pair (value, steps)")
def test_numbers_instead_of_pairs() -> None:
    HoldBelow([0.5, 3])


@wrong(ValueError, "the sum of all steps = 0")
def test_empty_list_of_pairs() -> None:
    HoldBelow([])


@wrong(TypeError, "value = [(0.5, 3)]", "number")
def test_pairs_next_to_steps() -> None:
    HoldBelow([(0.5, 3)], 3)


@wrong(ValueError, "value = nan")
def test_value_that_is_not_a_number() -> None:
    HoldBelow(math.nan, 3)


@wrong(ValueError, "value = -1e+39", "float32")
def test_value_beyond_float32() -> None:
    HoldBelow(-1e39, 3)


@wrong(ValueError, "steps = 0")
def test_no_steps() -> None:
    HoldBelow(0.5, 0)


@wrong(TypeError, "steps = 3.0")
def test_fractional_steps() -> None:
    HoldBelow(0.5, 3.0)


@wrong(ValueError, "every = 0")
def test_readings_of_no_metric() -> None:
    HoldBelow(0.5, 3, every=0)


@wrong(ValueError, "value[1].steps = -1")
def test_negative_steps_of_a_pair() -> None:
    HoldBelow([(0.5, 3), (0.2, -1)])


@wrong(ValueError, "falling", "0.5 follows 0.5")
def test_equal_values() -> None:
    HoldBelow([(0.5, 3), (0.5, 3)])


@wrong(ValueError, "falling", "0.3 follows 0.2")
def test_rising_values() -> None:
    HoldBelow([(0.5, 3), (0.2, 3), (0.3, 3)])


@wrong(ValueError, "the sum of all steps = 2147483648")
def test_more_steps_than_int32_holds() -> None:
    HoldBelow([(0.5, 2**31 - 1), (0.2, 1)])
