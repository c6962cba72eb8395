"""All that follows a curve has the values that the definition gives, under every clock.

A test draws a program: updates, and between them ways to resume, and new peaks.
"""

import pickle
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from clocks.numpy_run import NumPyRun
from clocks.step_run import StepRun
from hypothesis import assume, given, strategies as st
from support.clocks.holds import STAIRS, curves as held_curves, holds, metrics
from support.clocks.rules import ONE_OF_EACH
from support.curves.descriptions import build, descriptions, scaled
from support.examples import examples
from support.runs.definition import RunOracle
from support.runs.run import Run
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.trees import assert_equal_trees
from torch.optim import SGD, AdamW, RMSprop

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

    def check_reads(self, updates):
        assert self.state.curve_step.dtype == jnp.int32

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

    def run(self, updates):
        given_counts, metrics = zip(*updates, strict=True)
        counts = [self.usual_count if count is None else count for count in given_counts]
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
    if not counts_data:
        return {"value": metric}
    if count is None:
        return {}
    return {"count": count}


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


# Curves with clocks.

short_curves = held_curves | st.sampled_from([scaled(), scaled(0.3).cooldown(50, 20)])
"""Some batch plans scale. Training steps and JAX prepare every step of a curve."""
any_curve = descriptions(range(4), scaled=True).map(build)


def is_not_scaled(curve):
    return curve.unit is None


unscaled_curves = any_curve.filter(is_not_scaled)


def as_tuple(rules):
    """Return the rules of a list so that they can be hashed."""
    if isinstance(rules, list):
        return tuple(rules)
    return rules


@st.composite
def cases(draw, clock_name, curves, max_unit=2**40):
    """Draw a curve, and a clock that counts updates or samples, or holds."""
    if clock_name == "held":
        return draw(held_curves), as_tuple(draw(holds))
    if clock_name == "updates":
        return draw(curves.filter(is_not_scaled)), None
    curve = draw(curves)
    if curve.unit is not None and draw(st.booleans()):
        return curve, None
    unit = curve.unit or draw(st.integers(1, max_unit))
    usual_count = draw(st.none() | st.integers(1, 3 * unit))
    return curve, DataClock(unit, count=usual_count)


# A few that are compiled once.
COMPILED = {
    "updates": st.just((STAIRS, None)),
    "samples": st.sampled_from([(scaled(), None), (STAIRS, DataClock(8, count=20))]),
    "held": st.just((STAIRS, ONE_OF_EACH)),
}
every_clock = pytest.mark.parametrize("clock_name", COMPILED)


def of_one_group(run_class, drawn_cases):
    """Draw a run of one group."""

    def build_run(case):
        curve, clock = case
        return run_class(curve, [0.3], clock)

    return drawn_cases.map(build_run)


# Torch's schedulers, of several groups with values in any form.

FOLLOWED = [
    (SGD, "momentum"),
    (RMSprop, "alpha"),
    (AdamW, "weight_decay"),
    (AdamW, ("betas", 1)),
]
"""Optimizers, and options of theirs that a follower may set."""

FORMS = [
    float,
    np.float32,
    np.float64,
    partial(torch.tensor, dtype=torch.float32),
    partial(torch.tensor, dtype=torch.float64),
    partial(torch.tensor, dtype=torch.bfloat16),
]
"""Functions that make the value of a group from a number."""
forms = st.sampled_from(FORMS)

values = st.sampled_from([0.0, 1e-5, 3e-4, 0.7]) | st.floats(1e-6, 10)
betas = st.sampled_from([0.0, 0.3, 0.5, 0.9])
"""A beta of 1 would divide by zero."""


@st.composite
def groups(draw, curve, clock, peaks=values):
    """Draw the arguments of a run of one to three groups, which may have a curve each."""
    drawn_peaks = draw(st.lists(peaks, min_size=1, max_size=3))
    if clock is None and curve.unit is None and draw(st.booleans()):
        return [curve, *(draw(unscaled_curves) for _ in drawn_peaks[1:])], drawn_peaks
    return curve, drawn_peaks


@st.composite
def scheduler_runs(draw, clock_name):
    curve, clock = draw(cases(clock_name, any_curve))
    curves, peaks = draw(groups(curve, clock))
    optimizer = draw(st.sampled_from([SGD, AdamW]))
    return SchedulerRun(curves, peaks, clock, make_value=draw(forms), optimizer_class=optimizer)


@st.composite
def follower_runs(draw):
    optimizer, key = draw(st.sampled_from(FOLLOWED))
    peaks = values if isinstance(key, str) else betas
    curves, drawn_peaks = draw(groups(draw(unscaled_curves), None, peaks))
    assume(any(drawn_peaks))  # a follower warns if all are 0
    return FollowerRun(
        curves, drawn_peaks, key=key, make_value=draw(forms), optimizer_class=optimizer
    )


# Drawn programs.

UPDATES = 6
"""In a row, between two moves; three rows are too few for a warning that a unit is too large."""
UPDATES_WITH_RULES = 16
"""Enough for a rule to hold the curve, and to release it."""

any_count = st.integers(0, 300) | st.integers(0, 2**45)
jax_counts = st.integers(0, 50) | st.sampled_from((0, 1, 2**30 - 1, 2**30))


def draw_updates(data, run, counts):
    """Draw the count and the metric of each update."""
    size = UPDATES_WITH_RULES if run.has_hold_rules else UPDATES
    if run.usual_count is not None:
        counts = st.sampled_from([None, 0]) | counts
    drawn_counts = data.draw(st.lists(counts, min_size=size, max_size=size))
    drawn_metrics = data.draw(metrics(size))
    if run.skips_nonfinite:  # make skips frequent
        skipped = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
        for index, is_skipped in enumerate(skipped):
            drawn_metrics[index] = np.float32("nan" if is_skipped else 0.7)
    return list(zip(drawn_counts, drawn_metrics, strict=True))


def check(runs, counts, data):
    """Run a drawn program: updates, and between them a way to resume, or new peaks."""
    run = data.draw(runs)
    oracle = RunOracle(run)
    moves = st.sampled_from(["none", "resume", "peaks"])
    for move in data.draw(st.lists(moves, min_size=1, max_size=3)):
        if move == "resume":
            state = run.save()
            resume = data.draw(st.sampled_from(run.ways_to_resume()))
            resume()
            assert_equal_trees(run.save(), state)
        if move == "peaks" and not run.keeps_peaks:
            oracle.peaks = [peak / 2 for peak in reversed(oracle.peaks)]
            run.set_peaks(oracle.peaks)
        updates = draw_updates(data, run, counts)
        assert run.run(updates) == oracle.run(updates)
        curve_step = oracle.curve_steps()[-1]
        assert run.curve_step() == min(curve_step, run.last_step)
        if run.unit is not None and run.curve_step() < run.last_step:
            assert run.consumed() == sum(oracle.counts)
        run.check_reads(len(oracle.counts))


@every_clock
@examples(100)
@given(data=st.data())
def test_scheduler_follows_its_definition(clock_name, data):
    check(scheduler_runs(clock_name), any_count, data)


@examples(100)
@given(data=st.data())
def test_follower_follows_its_definition(data):
    check(follower_runs(), any_count, data)


@every_clock
@examples(60)
@given(data=st.data())
def test_training_step_follows_its_definition(clock_name, data):
    check(of_one_group(StepRun, cases(clock_name, short_curves)), any_count, data)


@every_clock
@examples(60)
@given(data=st.data())
def test_numpy_scheduler_follows_its_definition(clock_name, data):
    check(of_one_group(NumPyRun, cases(clock_name, any_curve)), any_count, data)


@every_clock
@examples(40)
@given(data=st.data())
def test_jax_transformation_follows_its_definition(clock_name, data):
    check(of_one_group(OptaxRun, COMPILED[clock_name]), jax_counts, data)


def check_scan(drawn_cases, data):
    with jax.enable_x64(True):
        check(of_one_group(ScannedRun, drawn_cases), jax_counts, data)


@every_clock
@examples(40)
@given(data=st.data())
def test_scan_follows_its_definition(clock_name, data):
    check_scan(COMPILED[clock_name], data)


@pytest.mark.slow
@every_clock
@examples(10)
@given(data=st.data())
def test_scan_of_any_clock_follows_its_definition(clock_name, data):
    check_scan(cases(clock_name, short_curves, max_unit=2**28), data)
