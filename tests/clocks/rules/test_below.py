"""`HoldBelow`: its spec, and wrong arguments."""

import math

import numpy as np
from clocks.rules.spec import VALUES, RuleSpec, metrics_in_a_reading, readings
from hypothesis import strategies as st
from support.curves.wrong_values import A_NUMBER
from support.wrong import wrong

from plateau_jax import HoldBelow


class _Below:
    """Holds for `steps` updates from the first reading of at most the value on."""

    def __init__(self, rule, starts):
        self.rule = rule
        self.metrics = []
        self.is_reached = False
        self.steps_left = rule.steps

    def holds(self, curve_step, metric):
        self.metrics.append(metric)
        value = np.float32(self.rule.value)
        if any(reading <= value for reading in readings(self.metrics, self.rule.every)):
            self.is_reached = True
        if not self.is_reached or self.steps_left == 0:
            return False
        self.steps_left -= 1
        return True


BELOW = RuleSpec(
    rule=HoldBelow,
    simulate=_Below,
    strategy=st.builds(
        HoldBelow, st.sampled_from(VALUES), st.integers(1, 9), every=metrics_in_a_reading
    ),
    samples=(HoldBelow(0.3, 4, every=3), HoldBelow(0.3, 4)),
)


# Wrong arguments.


@wrong(TypeError, "value = [(0.5, 3)]", A_NUMBER)
def test_pairs():
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
