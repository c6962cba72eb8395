"""Training steps and JAX, under every kind of clock, have the learning rates of the definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.clocks.drivers import Definition, Eager, Scanned, Step
from support.clocks.holds import BELOW, STAIRS, UNTIL, curves, holds, metrics
from support.curves.descriptions import scaled
from support.curves.strategies import magnitudes
from support.examples import examples
from support.training.steps import equal_trees

from plateau_jax import DataClock

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

UPDATES = 6
"""In a row, between two moves; three rows are too few for a warning about a unit that is too large."""


def cases(max_unit: int) -> dict[str, st.SearchStrategy[tuple[Any, Any]]]:
    """Draw a curve and its clock, by the kind of the clock. Long curves have separate tests."""
    of_plan = st.sampled_from([scaled(), scaled(0.3).cooldown(50, 20)])
    counted = st.tuples(curves, magnitudes(1, max_unit).map(DataClock))
    return {
        "updates": st.tuples(curves, st.none()),
        "samples": counted | st.tuples(of_plan, st.sampled_from([None, DataClock(8)])),
        "held": st.tuples(curves, holds.map(lambda hold: tuple(hold) if isinstance(hold, list) else hold)),
    }


# A few that are compiled once.
COMPILED: dict[str, st.SearchStrategy[tuple[Any, Any]]] = {
    "updates": st.just((STAIRS, None)),
    "samples": st.just((scaled(), DataClock(8))),
    "held": st.just((STAIRS, (UNTIL, BELOW))),
}
jax_counts = st.integers(0, 50) | st.sampled_from((0, 1, 2**30 - 1, 2**30))


def check(driver: Any, case: Any, counts: st.SearchStrategy[int], data: st.DataObject) -> None:
    """Run a drawn program: updates, and between them a resume from the saved state, or another peak."""
    curve, clock = data.draw(case)
    with driver.context():
        run = driver(curve, 0.3, clock)
        wanted = Definition(curve, 0.3, clock, skips_nonfinite=driver.skips_nonfinite)
        for move in data.draw(st.lists(st.sampled_from(["none", "resume", "peak"]), min_size=1, max_size=3)):
            if move == "resume":
                state = run.save()
                run.start()
                run.load(state)
                assert equal_trees(run.save(), state)
            if move == "peak" and not run.keeps_peak:
                wanted.peak = 1.3 - wanted.peak
                run.set_peak(wanted.peak)
            given_counts = data.draw(st.lists(counts, min_size=UPDATES, max_size=UPDATES))
            given_metrics = data.draw(metrics(UPDATES))
            if driver.skips_nonfinite:  # often
                given_metrics[:3] = [
                    np.float32("nan") if count % 4 == 0 else 0.7 for count in given_counts[:3]
                ]
            updates = list(zip(given_counts, given_metrics, strict=True))
            assert run.run(updates) == wanted.run(updates)
            assert run.curve_step() == min(wanted.curve_steps()[-1], driver.last_step)
            if run.counts_data and run.curve_step() < driver.last_step:
                assert run.consumed() == sum(wanted.counts)


@pytest.mark.parametrize("clock", COMPILED)
@examples(60)
@given(data=st.data())
def test_training_step_follows_its_definition(clock: str, data: st.DataObject) -> None:
    check(Step, cases(2**40)[clock], st.integers(0, 300) | magnitudes(0, 2**45), data)


@pytest.mark.parametrize("driver", [Eager, Scanned])
@pytest.mark.parametrize("clock", COMPILED)
@examples(40)
@given(data=st.data())
def test_jax_driver_follows_its_definition(driver: Any, clock: str, data: st.DataObject) -> None:
    check(driver, COMPILED[clock], jax_counts, data)


@pytest.mark.slow
@pytest.mark.parametrize("clock", COMPILED)
@examples(10)
@given(data=st.data())
def test_scan_of_any_clock_follows_its_definition(clock: str, data: st.DataObject) -> None:
    check(Scanned, cases(2**30)[clock], jax_counts, data)
