"""`HoldUntilFlat`: its spec, and wrong arguments."""

import numpy as np
from clocks.rules.spec import RuleSpec, metrics_in_a_reading, readings
from hypothesis import strategies as st
from support.curves.strategies import MAX_STEP
from support.curves.wrong_values import AN_INTEGER, in_range
from support.wrong import wrong

from plateau_jax import HoldUntilFlat


class _UntilFlat:
    """At the start of a plateau: holds until `patience` readings in a row are no better."""

    def __init__(self, rule, starts):
        self.rule = rule
        self.starts = starts
        self.curve_step = -1
        self.metrics = []
        """The metrics of the updates at this curve_step."""
        self.released = set()

    def holds(self, curve_step, metric):
        if curve_step not in self.starts or curve_step in self.released:
            return False
        if curve_step != self.curve_step:
            self.curve_step = curve_step
            self.metrics = []
        self.metrics.append(metric)
        is_flat = self.readings_without_improvement() == self.rule.patience
        if is_flat or len(self.metrics) == self.rule.limit:
            self.released.add(curve_step)
            return False
        return True

    def readings_without_improvement(self):
        best = None
        count = 0
        for reading in readings(self.metrics, self.rule.every):
            if best is None or self.improves(reading, best):
                best = reading
                count = 0
            else:
                count += 1
        return count

    def improves(self, reading, best):
        with np.errstate(over="ignore", invalid="ignore"):
            if self.rule.threshold_mode == "abs":
                bound = np.float32(best - np.float32(self.rule.threshold))
            else:
                bound = np.float32(best * np.float32(1 - self.rule.threshold))
            return bool(reading < bound)


def _drawn(every, more, **arguments):
    limit = min(every + more, 2**31 - 1)
    return HoldUntilFlat(every=every, limit=limit, **arguments)


UNTIL_FLAT = RuleSpec(
    rule=HoldUntilFlat,
    simulate=_UntilFlat,
    strategy=st.builds(
        _drawn,
        metrics_in_a_reading,
        st.one_of(st.integers(0, 11), st.just(2**31 - 1)),
        patience=st.integers(1, 4),
        threshold=st.sampled_from((0, 1e-4, 0.1, 0.3, 1 / 3, 0.5, 1, 1e-7)),
        threshold_mode=st.sampled_from(("rel", "abs")),
    ),
    samples=(
        HoldUntilFlat(2, threshold=0.1, every=3, limit=12),
        HoldUntilFlat(2, threshold=0.1, limit=9),
        HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", every=3, limit=12),
        HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", limit=9),
    ),
)


# Wrong arguments.


@wrong(ValueError, f"patience = 0 {in_range(1, MAX_STEP)}")
def test_patience_out_of_range():
    HoldUntilFlat(0, limit=9)


@wrong(TypeError, f"limit = None {AN_INTEGER}")
def test_hold_without_a_limit():
    HoldUntilFlat(2, limit=None)


@wrong(ValueError, "threshold = -1e-09 must not be negative")
def test_negative_threshold():
    HoldUntilFlat(2, limit=9, threshold=-1e-9)


@wrong(ValueError, "threshold = 1.5 must ", 'above 1 for threshold_mode="rel"')
def test_relative_threshold_above_one():
    HoldUntilFlat(2, limit=9, threshold=1.5)


@wrong(ValueError, "threshold_mode = 'low' must be one of 'rel', 'abs'")
def test_unknown_threshold_mode():
    HoldUntilFlat(2, limit=9, threshold_mode="low")


@wrong(ValueError, "every = 10", "limit = 9", "no reading")
def test_hold_that_ends_before_a_reading():
    HoldUntilFlat(2, every=10, limit=9)
