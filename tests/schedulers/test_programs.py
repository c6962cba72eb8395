"""Schedulers and followers under generated curves, clocks and values, resumed in every way.

`test_model` changes the groups. Then states, and the printed form.
"""

import copy
import io
import json
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import curves as held_curves, holds
from support.curves.descriptions import build, descriptions
from support.curves.strategies import magnitudes
from support.examples import examples
from support.runs.definition import RunOracle
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.wrong import raises
from torch import Tensor
from torch.optim import SGD, AdamW, RMSprop

from plateau_jax import CurveWarning, DataClock, PlateauCurve
from torch_bridge import follow

pytestmark = pytest.mark.usefixtures("short_windows")

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")

FOLLOWED = [
    (SGD, "momentum"),
    (RMSprop, "alpha"),
    (AdamW, "weight_decay"),
    (AdamW, ("betas", 1)),
]
"""Optimizers, and options of theirs that a follower may set."""

FORMS = {
    "number": st.sampled_from((float, np.float32, np.float64)),
    "tensor": st.sampled_from(
        (
            partial(torch.tensor, dtype=torch.float32),
            partial(torch.tensor, dtype=torch.float64),
            partial(torch.tensor, dtype=torch.bfloat16),
        )
    ),
}
"""Functions that make the value of a group from a number."""


@st.composite
def curves_with_clocks(draw, clock_kind):
    """Draw a curve, and a clock or None."""
    if clock_kind == "hold":
        return draw(held_curves), draw(holds)
    curve = build(draw(descriptions(range(4), scaled=clock_kind == "unit")))
    if clock_kind == "updates":
        return curve, None
    if curve.unit is None:
        return curve, DataClock(draw(magnitudes(1, 2**40)))
    if draw(st.booleans()):
        return curve, DataClock(curve.unit)
    return curve, None


@st.composite
def runs(draw, kind, clock_kind, form):
    """Draw a scheduler or follower of one to three groups."""
    curve, clock = draw(curves_with_clocks(clock_kind))
    curves = curve
    num_groups = draw(st.integers(1, 3))
    if clock_kind != "hold" and curve.unit is None and draw(st.booleans()):
        curves = [curve]
        while len(curves) < num_groups:
            curves.append(build(draw(descriptions(range(4)))))
    make_value = draw(FORMS[form])
    if kind == "follower":
        optimizer_kind, key = draw(st.sampled_from(FOLLOWED))
        peaks = draw(peaks_of(key, num_groups))
        return FollowerRun(curves, peaks, key=key, make_value=make_value, kind=optimizer_kind)
    optimizer_kind = draw(st.sampled_from((SGD, AdamW)))
    peaks = draw(peaks_of("lr", num_groups))
    return SchedulerRun(curves, peaks, clock, make_value=make_value, kind=optimizer_kind)


def peaks_of(key, count):
    """Draw values of an option with which the weights stay finite."""
    values = st.sampled_from((0.0, 1e-5, 3e-4, 0.7)) | st.floats(1e-6, 10)
    if not isinstance(key, str):
        values = st.sampled_from((0.0, 0.3, 0.5, 0.9))  # a beta of 1 would divide by zero
    return st.lists(values, min_size=count, max_size=count)


# Ways to resume, and a new peak.


def resumes_from_a_file(run):
    state = run.save()
    run.start()
    run.load_optimizer(state)
    run.load_scheduler(state)


def resumes_before_building(run):
    state = run.save()
    run.start(state["optimizer"])
    run.load_scheduler(state)


def resumes_from_json(run):
    state = json.loads(json.dumps(run.scheduler.state_dict()))
    run.start()
    run.scheduler.load_state_dict(state)


def sets_peak(run):
    run.set_peaks([run.peak_of(0.5 / 2**index) for index in range(len(run.peaks))])


ACTIONS = [
    resumes_from_a_file,
    resumes_before_building,
    resumes_from_json,
    sets_peak,
]


def metric_with_a_gradient(metric):
    return torch.tensor(metric, requires_grad=True) * 1


count_forms = st.sampled_from((int, np.int64, np.array, torch.tensor))
metric_forms = st.sampled_from((float, np.float32, torch.tensor, metric_with_a_gradient))
counts = magnitudes(0, 2**45) | st.integers(0, 300)
metrics = st.sampled_from((2.0, 1.0, 0.7, 0.1, 0.0, -2.0, float("nan"), float("inf")))
updates_with_metrics = st.lists(st.tuples(counts, metrics), min_size=1, max_size=6)
KINDS = [
    ("scheduler", "updates"),
    ("scheduler", "unit"),
    ("scheduler", "hold"),
    ("follower", "updates"),
]


@pytest.mark.parametrize(("kind", "clock_kind"), KINDS)
@pytest.mark.parametrize("form", FORMS)
@examples(80)
@given(data=st.data())
def test_resumed_run_follows_its_definition(kind, clock_kind, form, data):
    run = data.draw(runs(kind, clock_kind, form))
    oracle = RunOracle(run.curve, run.peaks, run.clock)
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=4)):
        count_form, metric_form = data.draw(count_forms), data.draw(metric_forms)
        for count, metric in data.draw(updates_with_metrics):
            values = run.update(count_form(count), metric_form(metric))
            assert [values] == in_form(run, oracle.run([(count, metric)]))
        action(run)
        oracle.peaks = list(run.peaks)
        check(run, oracle)


def in_form(run, values):
    """Round the values of updates as the groups of the run do."""
    return [[float(run.make_value(number)) for number in numbers] for numbers in values]


def check(run, oracle):
    scheduler = run.scheduler
    curve_step = oracle.curve_steps()[-1]
    consumed = updates = len(oracle.counts)
    if run.unit is not None:
        consumed = sum(oracle.counts)
    assert [run.values()] == in_form(run, [oracle.values_at(curve_step)])
    assert scheduler.get_last_lr() == run.raw_values()
    assert scheduler.base_lrs == run.peaks
    assert (scheduler.curve_step, scheduler.last_epoch) == (curve_step, updates)
    assert (scheduler.consumed, scheduler.unit) == (consumed, run.unit)
    for number in (scheduler.curve_step, scheduler.last_epoch, scheduler.consumed):
        assert type(number) is int
    value_type = type(run.make_value(0.5)) if isinstance(run.make_value(0.5), Tensor) else float
    for value in run.raw_values():
        assert type(value) is value_type
    for group in run.groups:
        assert run.other_options(group) == run.fresh_options


last_epochs = st.one_of(magnitudes(-1, 2**31 - 3), st.sampled_from((np.int32(-1), 2**63 - 5)))


@given(curve=descriptions(range(4)).map(build), last_epoch=last_epochs)
def test_run_begins_after_last_epoch(curve, last_epoch):
    run = SchedulerRun(curve, last_epoch=last_epoch)
    oracle = RunOracle(curve, run.peaks)
    first = int(last_epoch) + 1
    assert run.values() == oracle.values_at(first)
    run.train(2)
    assert (run.scheduler.curve_step, run.scheduler.last_epoch) == (first + 2, first + 2)
    assert run.values() == oracle.values_at(first + 2)
    optimizer_state = run.save()["optimizer"]
    run.start(optimizer_state, last_epoch=first + 1)
    assert run.values() == oracle.values_at(first + 2)


# States.


def test_trainer_loads_by_builders_strict():
    saved = SchedulerRun(CURVE)
    saved.train(40)
    state = saved.save()
    run = SchedulerRun(LINEAR, strict=False)
    run.optimizer, run.scheduler = copy.deepcopy((run.optimizer, run.scheduler))
    with raises(ValueError, "differ from", unchanged=[run]):
        run.load_scheduler(state, strict=True)
    with pytest.warns(CurveWarning, match=r"differ from step 0 on\. .* continues at step 40"):
        run.load_scheduler(state)  # as a trainer does
    assert run.values() == RunOracle(LINEAR, run.peaks).values_at(40)


def test_state_and_pickle_are_small_and_share_nothing():
    run = SchedulerRun(CURVE)
    run.train(200)
    file = io.BytesIO()
    state = run.scheduler.state_dict()
    torch.save(state, file)
    assert file.tell() < 10_000
    assert len(pickle.dumps(run.scheduler)) < 10_000
    before = copy.deepcopy(state)
    run.scheduler.load_state_dict(state)
    run.train(1)
    assert state == before


# The printed form.


@pytest.mark.parametrize("make_value", [float, torch.tensor])
def test_print_shows_curve_clock_and_values(make_value):
    kind = partial(SGD, momentum=0.5)
    run = SchedulerRun(CURVE, [0.5], DataClock(4), make_value=make_value, kind=kind)
    follower = follow(run.optimizer, "momentum", CURVE)
    run.update(count=20)
    follower.step(run.scheduler.curve_step)
    assert str(run.scheduler) == f"lambda_lr({CURVE}, curve_step=5, unit=4, lr=0.25)"
    assert str(follower) == f"follow({CURVE}, curve_step=5, momentum=0.25)"
