"""Warnings of `TrainStep` and its log: their advice is silent and right.

`test_curves` says how to read these tests. `train_step/test_warnings` follows the advice about a
resumed optimizer for all optimizers, and `train_step/cuda_graphs` that about captured updates.
"""

import warnings

import pytest
import torch
from support.curve_warnings import warns
from support.training.models import Net, batches, mean_loss, square_loss
from support.training.steps import train
from torch import nn
from torch.optim import SGD, AdamW

from plateau_jax import DataClock, PlateauCurve, StagedCurve
from torch_bridge import MetricLog, TrainStep, count_updates

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(20, 30)], min_lr_ratio=0.1)
(BATCH,) = batches(1)
LOADER = range(5)
"""A loader with 5 batches."""


def build(optimizer_class=SGD, curve=CURVE, loss_fn=mean_loss, **options):
    model = Net()
    return TrainStep(model, optimizer_class(model.parameters(), lr=0.1), loss_fn, curve, **options)


def check_next_lrs(step, curve_step, peaks=(0.1,), curve=CURVE):
    lrs = [curve.learning_rate(curve_step, peak) for peak in peaks]
    assert step(BATCH).lr.tolist() == lrs


# An optimizer from an earlier run.


def optimizers_with_written_lr(model):
    """Return optimizers after a scheduler has left its peaks, and the program has written `lr`."""
    first = SGD(model.first.parameters(), lr=0.25)
    last = SGD(model.last.parameters(), lr=0.25)
    first.param_groups[0]["initial_lr"] = 0.1
    last.param_groups[0]["initial_lr"] = 0.2
    return first, last


def build_with_written_lr():
    model = Net()
    return TrainStep(model, optimizers_with_written_lr(model), mean_loss, CURVE)


def test_overwritten_learning_rate():
    step = build_with_written_lr()
    with warns(
        'To schedule 0.25, write del group["initial_lr"] before you build train_step or add the '
        "group. To schedule 0.1, call train_step.set_peak([0.1, 0.2]). To resume a run, call "
        "train_step.load_state_dict(state)."
    ):
        step(BATCH)
    train(step, [BATCH] * 6)
    state = step.state_dict()

    model = Net()
    optimizers = optimizers_with_written_lr(model)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            del group["initial_lr"]
    step = TrainStep(model, optimizers, mean_loss, CURVE)
    train(step, [BATCH] * 4)
    check_next_lrs(step, 4, [0.25, 0.25])

    step = build_with_written_lr()
    step.set_peak([0.1, 0.2])
    train(step, [BATCH] * 4)
    check_next_lrs(step, 4, [0.1, 0.2])

    step = build_with_written_lr()
    step.load_state_dict(state)
    check_next_lrs(step, 7, [0.1, 0.2])


@pytest.fixture(scope="module")
def states():
    """The states of a step and of its optimizer, after 25 updates."""
    step = build(AdamW)
    train(step, [BATCH] * 25)
    return step.state_dict(), step.optimizer.state_dict()


def test_peak_that_differs_from_the_saved_one(states):
    model = Net()
    step = TrainStep(model, AdamW(model.parameters(), lr=0.2), mean_loss, CURVE)
    with warns(
        "The run continues with 0.1: start with this peak, or call train_step.set_peak(…) after "
        "the load"
    ):
        step.load_state_dict(states[0])

    step = build(AdamW)
    step.load_state_dict(states[0])
    check_next_lrs(step, 25)
    step = build(AdamW)
    step.load_state_dict(states[0])
    step.set_peak(0.2)
    check_next_lrs(step, 25, [0.2])


def build_with_factors():
    model = Net()
    groups = [
        {"params": model.first.parameters(), "lr_scale": 0.5},
        {"params": model.last.parameters()},
    ]
    return model, SGD(groups, lr=0.1)


def test_factor_of_the_learning_rate():
    with warns(
        'write for each group that has it: group["lr"] = group["initial_lr"] = '
        'group.get("initial_lr", group["lr"]) * group.pop("lr_scale")'
    ):
        TrainStep(*build_with_factors(), mean_loss, CURVE)

    model, optimizer = build_with_factors()
    group = optimizer.param_groups[0]
    group["lr"] = group["initial_lr"] = group.get("initial_lr", group["lr"]) * group.pop("lr_scale")
    step = TrainStep(model, optimizer, mean_loss, CURVE)
    train(step, [BATCH] * 4)
    check_next_lrs(step, 4, [0.05, 0.1])


# A run past the end of its curve, or at its start.


def save_after(updates, **options):
    """Return a step whose state was saved after these updates."""
    step = build(**options)
    train(step, [BATCH] * updates)
    step.state_dict()
    return step


def test_past_an_end_at_0():
    epochs = 10
    with warns(
        "Give the curve as many steps as the training has updates: total_steps = "
        "count_updates(loader, epochs); or end it above 0 (min_lr_ratio)"
    ):
        save_after(50, curve=PlateauCurve(20))
    longer = PlateauCurve(count_updates(LOADER, epochs))
    above_0 = PlateauCurve(20, min_lr_ratio=0.1)
    for curve in (longer, above_0):
        check_next_lrs(save_after(50, curve=curve), 50, curve=curve)


def test_far_past_a_floor():
    floor = PlateauCurve(20, min_lr_ratio=0.1)
    with warns("To turn such warnings off, write TrainStep(..., advise=False)"):
        save_after(1100, curve=floor)
    check_next_lrs(save_after(1100, curve=floor, advise=False), 1100, curve=floor)


def test_past_the_end_of_a_clock():
    clock = DataClock(16, count=8)
    with warns("Give the curve as many steps as the training consumes, in units of 16;"):
        save_after(40, curve=PlateauCurve(4), clock=clock)
    curve = PlateauCurve(40 * 8 // 16)
    check_next_lrs(save_after(40, curve=curve, clock=clock), 20, curve=curve)


def test_unit_that_is_too_large():
    with warns("Choose a unit of at most what an update consumes, and check the counts"):
        save_after(20, clock=DataClock(1000, count=4))
    check_next_lrs(save_after(20, clock=DataClock(4, count=4)), 20)


# Results of the loss function, and updates that are skipped.


def loss_and_accuracy(model, batch):
    return mean_loss(model, batch), torch.tensor(0.75)


def test_accuracy_as_a_weight():
    step = build(loss_fn=loss_and_accuracy)
    with warns(
        "To return more than the loss, build the step with has_aux=True and return (loss, aux), "
        "with tensors in aux. If fractions are meant, turn this warning off: "
        'warnings.filterwarnings("ignore", "loss_fn returned a weight")'
    ):
        step(BATCH)

    step = build(loss_fn=loss_and_accuracy, has_aux=True)
    result = step(BATCH)
    assert result.aux == (0.75,)
    assert result.loss == mean_loss(Net(), BATCH)

    step = build(loss_fn=loss_and_accuracy)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loss_fn returned a weight")
        assert step(BATCH).loss == mean_loss(Net(), BATCH) / 0.75


def build_that_diverges(**options):
    """Return a step whose weight gets larger in each update, until its square is not finite."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, square_loss, StagedCurve([(100,)], start=1.0), **options)


def log_updates(step):
    log = MetricLog(every=10)
    for _ in range(40):
        log(step(torch.full((1, 1), 1e4)))
    return log


def test_updates_that_are_all_skipped():
    step = build_that_diverges()
    state = step.state_dict()
    with warns(
        "Resume from a checkpoint before the first of them, and after the load call "
        "train_step.set_peak(…) with a lower peak, or build the step with max_norm=1.0; "
        'on_nonfinite="raise" ends a run at the first nonfinite loss'
    ):
        log_updates(step)

    step = build_that_diverges()
    step.load_state_dict(state)
    step.set_peak(1e-9)
    assert log_updates(step).rows[-1]["loss"] < 1e8
    step = build_that_diverges(max_norm=1.0)
    step.load_state_dict(state)
    assert log_updates(step).rows[-1]["skipped"] == 0
    step = build_that_diverges(on_nonfinite="raise")
    with pytest.raises(FloatingPointError):
        log_updates(step)
