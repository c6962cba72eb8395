"""Any program of a scheduler or follower has the values of the curve, by definition, at any update.

Then states, which programs load, and the printed form.
"""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import VALUES, curves as held_curves, holds
from support.curves.descriptions import build, descriptions
from support.curves.strategies import magnitudes
from support.examples import examples
from support.schedulers.driven import FOLLOWED, ROUTES, Driven
from support.schedulers.runs import modest_peaks, optimizer_with
from support.training.optimizers import ADAGRAD_RECREATES_STATES
from torch import Tensor
from torch.optim import SGD, Adagrad, AdamW

from plateau_jax import Curve, CurveWarning, DataClock, PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")

OPTIMIZERS: list[Any] = [SGD, AdamW]
if ADAGRAD_RECREATES_STATES:  # else it could not train new groups
    OPTIMIZERS.append(Adagrad)

float32_tensor = partial(torch.tensor, dtype=torch.float32)
float64_tensor = partial(torch.tensor, dtype=torch.float64)
bfloat16_tensor = partial(torch.tensor, dtype=torch.bfloat16)

VALUE_FORMS: dict[str, Any] = {
    "number": st.sampled_from((float, float, np.float32, np.float64)),
    "tensor": st.sampled_from((float32_tensor, float64_tensor, bfloat16_tensor)),
}
"""What makes the value of a group from a number."""


# Runs.


@st.composite
def curves_with_clocks(draw: st.DrawFn, clock_kind: str) -> tuple[Curve, Any]:
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


last_epochs = st.one_of(
    magnitudes(-1, 2**31 - 3),
    st.sampled_from((np.int32(-1), 2**63 - 5, 2**80)),
)


@st.composite
def runs(draw: st.DrawFn, kind: str, clock_kind: str, form: str) -> Driven:
    """Draw a scheduler or follower of one to three groups."""
    num_groups = draw(st.integers(1, 3))
    curve, clock = draw(curves_with_clocks(clock_kind))
    curves: Any = curve
    if clock_kind != "hold" and curve.unit is None and draw(st.booleans()):
        curves = [curve]
        while len(curves) < num_groups:
            curves.append(build(draw(descriptions(range(4)))))
    if kind == "scheduler":
        optimizer_kind = draw(st.sampled_from(OPTIMIZERS))
        key: Any = "lr"
    else:
        optimizer_kind, key = draw(st.sampled_from(FOLLOWED))
    last_epoch = -1
    if kind == "scheduler" and clock_kind == "updates":
        last_epoch = draw(last_epochs)
    return Driven(
        kind,
        curves,
        draw(st.lists(bases_of(key), min_size=num_groups, max_size=num_groups)),
        clock=clock,
        form=draw(VALUE_FORMS[form]),
        optimizer_kind=optimizer_kind,
        key=key,
        last_epoch=last_epoch,
    )


def bases_of(key: Any) -> st.SearchStrategy[float]:
    """Draw values of an option with which the weights stay finite."""
    if isinstance(key, str):
        return modest_peaks
    return st.sampled_from((0.0, 0.3, 0.5, 0.9))  # a beta of 1 would divide by zero


# All that can happen in a run.


def metric_with_a_gradient(metric: float) -> Tensor:
    return torch.tensor(metric, requires_grad=True) * 1


count_forms: Any = st.sampled_from((int, np.int64, np.array, torch.tensor))
metric_forms: Any = st.sampled_from((float, np.float32, float64_tensor, metric_with_a_gradient))
counts = magnitudes(0, 2**45) | st.integers(0, 300)
metrics = st.sampled_from((*VALUES, float("nan"), float("inf")))
updates_with_metrics = st.lists(st.tuples(counts, metrics), min_size=1, max_size=6)


def trains(run: Driven, draw: st.DrawFn) -> None:
    count_form = draw(count_forms)
    metric_form = draw(metric_forms)
    for count, metric in draw(updates_with_metrics):
        run.update(count_form(count), metric_form(metric), check=True)
        run.check()


def resumes(run: Driven, draw: st.DrawFn) -> None:
    route = draw(st.sampled_from(ROUTES))
    getattr(run, route)()


def sets_peak(run: Driven, draw: st.DrawFn) -> None:
    if run.updates >= 0:
        run.set_peak(draw(bases_of(run.key)), one_for_each=draw(st.booleans()))


def adds_group(run: Driven, draw: st.DrawFn) -> None:
    has_common_curve = isinstance(run.curve, Curve)
    if has_common_curve:
        run.add_group(draw(bases_of(run.key)))


def jumps(run: Driven, draw: st.DrawFn) -> None:
    counts_updates = run.unit is None and not run.is_held
    if run.kind == "scheduler" and counts_updates:
        epoch_form: Any = draw(st.sampled_from((int, np.int64)))
        run.jump(epoch_form(draw(st.sampled_from(range(-80, 281, 40)))))


MOVES = [trains, trains, resumes, sets_peak, adds_group, jumps]


@pytest.mark.parametrize(
    ("kind", "clock_kind"),
    [
        ("scheduler", "updates"),
        ("scheduler", "unit"),
        ("scheduler", "hold"),
        ("follower", "updates"),
    ],
)
@pytest.mark.parametrize("form", VALUE_FORMS)
@examples(80)
@given(data=st.data())
def test_any_program_follows_the_curve(
    kind: str, clock_kind: str, form: str, data: st.DataObject
) -> None:
    run = data.draw(runs(kind, clock_kind, form))
    run.check()
    for move in data.draw(st.lists(st.sampled_from(MOVES), max_size=6)):
        move(run, data.draw)
        run.check()


# States.


@pytest.mark.parametrize("follow_up", [Driven.check, Driven.by_copy, Driven.by_pickle])
def test_trainer_loads_by_builders_strict(follow_up: Callable[[Driven], None]) -> None:
    saved = Driven("scheduler", CURVE)
    saved.advance(40)
    _, state = saved.saved()
    run = Driven("scheduler", LINEAR, strict=False)
    follow_up(run)
    strict_load = partial(run.part.load_state_dict, state, strict=True)
    run.rejects(ValueError, "cannot resume at step 40", strict_load)
    with pytest.warns(CurveWarning, match=r"differ from step 0 on\. .* continues at step 40"):
        run.part.load_state_dict(state)  # as a trainer does
    run.updates = 40
    run.check()


def test_state_and_pickle_are_small() -> None:
    run = Driven("scheduler", CURVE)
    run.advance(2000)
    file = io.BytesIO()
    torch.save(run.part.state_dict(), file)
    assert file.tell() < 10_000
    assert len(pickle.dumps(run.part)) < 10_000


def test_state_shares_nothing() -> None:
    saved = Driven("scheduler", CURVE)
    saved.advance(20)
    state = saved.part.state_dict()
    state_before = copy.deepcopy(state)
    resumed = Driven("scheduler", CURVE)
    resumed.part.load_state_dict(state)
    resumed.updates = 20
    assert resumed.part.state_dict() == state_before
    resumed.advance(3)
    assert state == state_before
    for name in ("base_lrs", "records", "_last_lr"):
        state[name].clear()
    for run in (saved, resumed):
        run.advance(1)
        run.check()


# The printed form.


@pytest.fixture(params=[float, torch.tensor])
def optimizer(request: pytest.FixtureRequest) -> Any:
    return optimizer_with([request.param(0.5)], momentum=0.5)


def test_print_shows_curve_clock_and_values(optimizer: Any) -> None:
    scheduler = lambda_lr(optimizer, CURVE, clock=DataClock(4))
    follower = follow(optimizer, "momentum", CURVE)
    optimizer.step()
    scheduler.step(count=20)
    follower.step(scheduler.curve_step)
    assert str(scheduler) == f"lambda_lr({CURVE}, curve_step=5, unit=4, lr=0.25)"
    assert str(follower) == f"follow({CURVE}, curve_step=5, momentum=0.25)"


def test_print_shows_the_curve_of_each_group() -> None:
    scheduler = lambda_lr(optimizer_with([0.5, 0.25]), [CURVE, LINEAR])
    assert str(scheduler) == f"lambda_lr([{CURVE}, {LINEAR}], curve_step=0, lr=[0.0, 0.25])"
