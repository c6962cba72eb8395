"""Warnings of a training step: a wrong program warns once, at its line; a right one never."""

from functools import partial

import pytest
import torch
from support.training.models import Net, batches, mean_loss, square_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, through_file, train
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import SGD, Adafactor, Adagrad, AdamW, RMSprop

from plateau_jax import CurveWarning, DataClock, PlateauCurve
from torch_bridge import TrainStep, lambda_lr

END = PlateauCurve(20)
WARMUP = PlateauCurve(40, warmup_steps=4)
ABOVE_ZERO = PlateauCurve(40, warmup_steps=4, init_lr_ratio=0.5)


def zero(batch):
    return 0


def zero_on_device(batch):
    return torch.tensor(0)


# Runs whose learning rate, or whose curve, stands still.


def check_save_warns_once(step, silent, updates, message):
    """Check that a save warns after these updates, but not after the silent ones before."""
    (batch,) = batches(1)
    train(step, [batch] * silent)
    step.state_dict()
    train(step, [batch] * updates)
    with pytest.warns(CurveWarning, match=message) as caught:
        step.state_dict()
    (warning,) = caught
    assert warning.filename == __file__, "the line of the call"
    step.state_dict()


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_run_past_an_end_at_zero(name):
    step = make_step(name, curve=END)
    check_save_warns_once(step, 30, 1, "has total_steps = 20, .*so no weight changes")


def test_run_past_its_end_goes_back_in_silence():
    step = make_step(curve=END)
    state = step.state_dict()
    train(step, batches(31))
    step.load_state_dict(state)
    assert step.state_dict()["applied"] == 0


@pytest.mark.parametrize(
    ("unit", "count", "consumed"), [(1000, len, 40), (1, zero, 0), (1, zero_on_device, 0)]
)
def test_unit_that_is_never_full(unit, count, consumed):
    step = make_step(curve=WARMUP, clock=DataClock(unit), count=count)
    message = (
        rf"after 20 updates the curve stays at step 0, .* "
        rf"consumed {consumed} in all, with unit = {unit}\..*check the counts"
    )
    check_save_warns_once(step, 19, 1, message)


def test_new_start_counts_anew():
    step = make_step(curve=WARMUP, clock=DataClock(1000), count=len)
    (batch,) = batches(1)
    train(step, [batch] * 19)
    step.load_state_dict(step.state_dict())
    train(step, [batch] * 19)
    step.state_dict()


@pytest.mark.parametrize(
    ("curve", "unit", "peak"),
    [
        pytest.param(WARMUP, 40, 0.01, id="moves after 20 updates of 2"),
        pytest.param(WARMUP, 1000, 0.0, id="peak of zero"),
        pytest.param(ABOVE_ZERO, 1000, 0.01, id="starts above zero"),
        pytest.param(PlateauCurve(40), 1000, 0.01, id="starts at the peak"),
    ],
)
def test_right_run_is_silent(curve, unit, peak):
    step = make_step(curve=curve, clock=DataClock(unit), count=len)
    (batch,) = batches(1)
    step.set_peak(peak)
    train(step, [batch] * 120)
    step.state_dict()


# Optimizers that are resumed without the step of their curve.


def saved_after(updates, name="adamw"):
    """Return the states of the optimizer and of the step after a short run."""
    step = make_step(name)
    train(step, batches(updates))
    optimizer_state = through_file(step.optimizer.state_dict())
    return optimizer_state, through_file(step.state_dict())


def loaded_first(state, name="adamw", **options):
    model = Net()
    optimizer = make_optimizer(name, model)
    optimizer.load_state_dict(state)
    return TrainStep(model, optimizer, mean_loss, CURVE, **options)


def loaded_later(state, name="adamw", **options):
    step = make_step(name, **options)
    step.optimizer.load_state_dict(state)
    return step


both_orders = pytest.mark.parametrize("resume", [loaded_first, loaded_later])
COUNTED = (
    r"has made 3 updates, but the curve starts at step 0: .*load the TrainStep's state, "
    r"train_step\.load_state_dict\(state\); or build it with initial_updates=3; or, if the curve "
    r"is meant to start there with the peak [\d.]+, build it with initial_updates=0$"
)
MESSAGES = {
    "adamw": COUNTED,
    "adagrad": COUNTED,
    "plain adam": COUNTED,
    "rmsprop": COUNTED,
    "momentum": r"has made updates, .*initial_updates=n; or",
}
"""The warning for each optimizer; the states of the last one do not count the updates."""


def check_update_warns_once(step, message, **options):
    (batch,) = batches(1)
    with pytest.warns(CurveWarning, match=message) as caught:
        step(batch, **options)
    (warning,) = caught
    assert warning.filename == __file__, "the line of the call"
    for _ in range(3):
        step(batch, **options)


@both_orders
@pytest.mark.parametrize("name", MESSAGES)
def test_resumed_optimizer_warns_once(resume, name):
    optimizer_state, _ = saved_after(3, name)
    step = resume(optimizer_state, name)
    check_update_warns_once(step, MESSAGES[name])


@both_orders
def test_resumed_optimizer_under_data_clock(resume):
    optimizer_state, _ = saved_after(3)
    step = resume(optimizer_state, clock=DataClock(2))
    message = r"load_state_dict\(state\); or, if .*initial_updates=0$"
    check_update_warns_once(step, message, count=4)


FUSED_ADAMW = partial(AdamW, fused=True)
MOMENTUM = partial(SGD, momentum=0.9)


@pytest.mark.parametrize("kind", [Adafactor, Adagrad, FUSED_ADAMW, RMSprop, MOMENTUM])
def test_states_created_for_a_save_bring_no_warning(kind):
    """torch steps an optimizer without states once, with gradients and learning rates of zero."""
    model = torch.nn.Linear(4, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    get_optimizer_state_dict(model, optimizer)
    assert optimizer.state
    loaded = kind(model.parameters(), lr=0.1)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    for group in loaded.param_groups:
        group["initial_lr"] = 0.1
    TrainStep(model, loaded, square_loss, CURVE)(torch.ones(3, 4))

    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    scheduler.step()


# Each way out that the message names is silent.


@both_orders
@pytest.mark.parametrize("name", MESSAGES)
def test_resumed_optimizer_with_its_curve_is_silent(resume, name):
    optimizer_state, state = saved_after(3, name)
    (batch,) = batches(1)
    for initial_updates in (0, 3):
        step = resume(optimizer_state, name, initial_updates=initial_updates)
        assert step(batch).curve_step == initial_updates
    loaded = resume(optimizer_state, name)
    loaded.load_state_dict(state)
    for curve_step in (3, 4):
        assert loaded(batch).curve_step == curve_step
    loaded.optimizer.load_state_dict(optimizer_state)  # rolled back, or loaded after the step
    train(loaded, [batch] * 2)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("has_state", [True, False], ids=["loaded", "new"])
def test_learning_rate_that_the_program_has_written_warns(name, has_state):
    model = Net()
    optimizer = make_optimizer(name, model)
    options = {}
    if has_state:
        optimizer_state, _ = saved_after(3, name)
        optimizer.load_state_dict(optimizer_state)
        options["initial_updates"] = 3
    for group in optimizer.param_groups:
        group["initial_lr"] = 0.01
        group["lr"] = 0.25
    step = TrainStep(model, optimizer, mean_loss, CURVE, **options)
    message = r"param_groups\[0\] has lr = 0.25, but .* initial_lr = 0.01"
    check_update_warns_once(step, rf"{message}.* call train_step\.set_peak\(")
