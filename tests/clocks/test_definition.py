"""Training steps, NumPy and JAX follow the definition of learning rates under every clock."""

import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clocks.numpy_run import NumPyRun
from clocks.step_run import StepRun
from hypothesis import given, strategies as st
from support.clocks.holds import STAIRS, curves, holds, metrics
from support.clocks.rules import ONE_OF_EACH
from support.curves.descriptions import scaled
from support.examples import examples
from support.runs.definition import RunOracle
from support.runs.run import Run
from support.trees import assert_equal_trees

from plateau_jax import DataClock, check_resume, resume_record, scale_by_curve

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


# JAX's transformation, update by update and in a compiled loop.


class OptaxRun(Run):
    """The transformation, whose state is saved with the record of the run."""

    keeps_peaks = True
    last_step = 2**31 - 1

    def build(self):
        (peak,) = self.peaks
        self.transform = _transformation(self.curve, peak, self.clock)
        self.state = self.transform.init(None)

    def update(self, count=1, metric=0.5):
        arguments = arguments_of_update(count, metric, counts_data=self.unit is not None)
        updates, self.state = self.transform.update(jnp.ones(2), self.state, **arguments)
        lr = self.state.learning_rate
        assert lr.dtype == jnp.float32
        assert (updates == -lr.astype(updates.dtype)).all()
        return [float(lr)]

    def curve_step(self):
        return int(self.state.curve_step)

    def consumed(self):
        if self.state.rest is None:
            return self.curve_step()
        return self.curve_step() * self.unit + int(self.state.rest)

    def record(self):
        return resume_record(self.curve, clock=self.clock)

    def save(self):
        return pickle.loads(pickle.dumps((jax.device_get(self.state), self.record())))

    def load(self, state, **options):
        on_host, record = state
        check_resume(record, self.record(), on_host.curve_step, **options)
        self.state = jax.device_put(on_host)


class ScannedRun(OptaxRun):
    """All updates in one compiled loop, under a peak that is traced, with x64 on."""

    keeps_peaks = False

    @staticmethod
    def context():
        return jax.enable_x64(True)

    def run(self, updates):
        counts, metrics = zip(*updates, strict=True)
        (peak,) = self.peaks
        scan = _scan(self.curve, self.clock, self.unit is not None)
        self.state, lrs = scan(
            np.float32(peak),
            self.state,
            np.array(counts, np.int32),
            np.array(metrics, np.float32),
        )
        return [[lr] for lr in lrs.tolist()]

    def set_peaks(self, peaks):
        self.peaks = list(peaks)


def arguments_of_update(count, metric, *, counts_data):
    if counts_data:
        return {"count": count}
    return {"value": metric}


_transformation = cache(scale_by_curve)


@cache
def _scan(curve, clock, counts_data):
    @jax.jit
    def scan(peak, state, counts, metrics):
        transformation = scale_by_curve(curve, peak, clock)

        def update(state, count_and_metric):
            arguments = arguments_of_update(*count_and_metric, counts_data=counts_data)
            _, state = transformation.update(jnp.ones(2), state, **arguments)
            return state, state.learning_rate

        return jax.lax.scan(update, state, (counts, metrics))

    return scan


# Drawn programs.

UPDATES = 6
"""In a row, between two moves; three rows are too few for a warning that a unit is too large."""

under_batch_plans = st.tuples(
    st.sampled_from([scaled(), scaled(0.3).cooldown(50, 20)]),
    st.sampled_from([None, DataClock(8)]),
)


def as_tuple(rules):
    """Return the rules of a list so that they can be hashed."""
    if isinstance(rules, list):
        return tuple(rules)
    return rules


def cases(max_unit):
    """Draw a curve and its clock, by the kind of the clock. Long curves have separate tests."""
    data_clocks = st.builds(DataClock, st.integers(1, max_unit))
    return {
        "updates": st.tuples(curves, st.none()),
        "samples": st.tuples(curves, data_clocks) | under_batch_plans,
        "held": st.tuples(curves, holds.map(as_tuple)),
    }


# A few that are compiled once.
COMPILED = {
    "updates": st.just((STAIRS, None)),
    "samples": st.just((scaled(), DataClock(8))),
    "held": st.just((STAIRS, ONE_OF_EACH)),
}
any_count = st.integers(0, 300) | st.integers(0, 2**45)
jax_counts = st.integers(0, 50) | st.sampled_from((0, 1, 2**30 - 1, 2**30))


def draw_updates(data, counts, skips_nonfinite):
    """Draw the count and the metric of each update."""
    drawn_counts = data.draw(st.lists(counts, min_size=UPDATES, max_size=UPDATES))
    drawn_metrics = data.draw(metrics(UPDATES))
    if skips_nonfinite:  # often
        for index in range(3):
            drawn_metrics[index] = 0.7
            if drawn_counts[index] % 4 == 0:
                drawn_metrics[index] = np.float32("nan")
    return list(zip(drawn_counts, drawn_metrics, strict=True))


def check(kind, case, counts, data):
    """Run a drawn program: updates, and between them a resume from a saved state, or a new peak."""
    curve, clock = data.draw(case)
    moves = st.lists(st.sampled_from(["none", "resume", "peak"]), min_size=1, max_size=3)
    with kind.context():
        run = kind(curve, [0.3], clock)
        oracle = RunOracle(curve, [0.3], clock, skips_nonfinite=run.skips_nonfinite)
        for move in data.draw(moves):
            if move == "resume":
                state = run.save()
                run.restart()
                assert_equal_trees(run.save(), state)
            if move == "peak" and not run.keeps_peaks:
                oracle.peaks = [1.3 - peak for peak in oracle.peaks]
                run.set_peaks(oracle.peaks)
            updates = draw_updates(data, counts, run.skips_nonfinite)
            assert run.run(updates) == oracle.run(updates)
            curve_step = oracle.curve_steps()[-1]
            assert run.curve_step() == min(curve_step, run.last_step)
            if run.unit is not None and run.curve_step() < run.last_step:
                assert run.consumed() == sum(oracle.counts)


@pytest.mark.parametrize("clock", COMPILED)
@examples(60)
@given(data=st.data())
def test_training_step_follows_its_definition(clock, data):
    check(StepRun, cases(2**40)[clock], any_count, data)


@pytest.mark.parametrize("clock", COMPILED)
@examples(60)
@given(data=st.data())
def test_numpy_scheduler_follows_its_definition(clock, data):
    check(NumPyRun, cases(2**40)[clock], any_count, data)


@pytest.mark.parametrize("kind", [OptaxRun, ScannedRun])
@pytest.mark.parametrize("clock", COMPILED)
@examples(40)
@given(data=st.data())
def test_jax_transformation_follows_its_definition(kind, clock, data):
    check(kind, COMPILED[clock], jax_counts, data)


@pytest.mark.slow
@pytest.mark.parametrize("clock", COMPILED)
@examples(10)
@given(data=st.data())
def test_scan_of_any_clock_follows_its_definition(clock, data):
    check(ScannedRun, cases(2**30)[clock], jax_counts, data)
