"""Warnings of `lambda_lr` and `follow`: their advice is silent and right.

`test_curves` says how to read these tests.
"""

import pytest
from support.curve_warnings import warns
from support.schedulers.runs import advance, lrs_of, new_parameter, optimizer_with, repeat
from torch.optim import SGD, AdamW

from plateau_jax import DataClock, PlateauCurve
from torch_bridge import count_updates, follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
LOADER = range(20)
"""A loader with 20 batches."""


def check_lrs(optimizer, curve, step, peaks):
    assert lrs_of(optimizer) == [curve.learning_rate(step, peak) for peak in peaks]


# A learning rate that is overwritten.


def trained_optimizer(updates=70, lrs=(0.1, 0.1), curve=CURVE, optimizer_class=SGD):
    """Return a new optimizer with the state of an earlier run, and the state of its scheduler."""
    optimizer = optimizer_with(lrs, optimizer_class)
    scheduler = lambda_lr(optimizer, curve)
    advance(optimizer, scheduler, updates)
    loaded = optimizer_with(lrs, optimizer_class)
    loaded.load_state_dict(optimizer.state_dict())
    return loaded, scheduler.state_dict()


def test_schedule_the_overwritten_value():
    optimizer, _ = trained_optimizer()
    current = lrs_of(optimizer)
    scheduler = lambda_lr(optimizer, CURVE)
    with warns('write del group["initial_lr"] before scheduler is built or the group is added'):
        advance(optimizer, scheduler)

    optimizer, _ = trained_optimizer()
    for group in optimizer.param_groups:
        del group["initial_lr"]
    advance(optimizer, lambda_lr(optimizer, CURVE), 10)
    check_lrs(optimizer, CURVE, 10, current)


@pytest.mark.parametrize(
    ("lrs", "call"), [((0.1, 0.1), "set_peak(0.1)"), ((0.1, 0.2), "set_peak([0.1, 0.2])")]
)
def test_keep_the_peak_in_spite_of_the_overwritten_value(lrs, call):
    optimizer, _ = trained_optimizer(lrs=lrs)
    scheduler = lambda_lr(optimizer, CURVE)
    with warns(f"To schedule 0.1, call scheduler.{call}."):
        advance(optimizer, scheduler)

    optimizer, _ = trained_optimizer(lrs=lrs)
    scheduler = lambda_lr(optimizer, CURVE)
    peaks = 0.1 if call == "set_peak(0.1)" else [0.1, 0.2]
    scheduler.set_peak(peaks)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, CURVE, 10, lrs)


def test_resume_with_the_state_of_the_scheduler():
    optimizer, _ = trained_optimizer()
    scheduler = lambda_lr(optimizer, CURVE)
    with warns("To resume a run, call scheduler.load_state_dict(state)."):
        advance(optimizer, scheduler)

    optimizer, state = trained_optimizer()
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.load_state_dict(state)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, CURVE, 80, [0.1, 0.1])


def copied_group(optimizer):
    """Return a group with the options of another one, but a lower learning rate."""
    return {**optimizer.param_groups[0], "params": [new_parameter()], "lr": 0.03}


def test_added_group_with_the_base_of_another():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.add_param_group(copied_group(optimizer))
    optimizer.step()
    with warns("To schedule 0.1, call scheduler.set_peak(0.1)."):
        scheduler.step()

    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    group = copied_group(optimizer)
    del group["initial_lr"]
    optimizer.add_param_group(group)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, CURVE, 10, [0.1, 0.03])

    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.add_param_group(copied_group(optimizer))
    scheduler.set_peak(0.1)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, CURVE, 10, [0.1, 0.1])


def optimizer_with_decayed_weight_decay():
    """Return it as loaded, and the state of its follower."""
    optimizer = optimizer_with([0.1], weight_decay=0.5)
    follower = follow(optimizer, "weight_decay", CURVE)
    advance(optimizer, follower, 60)
    loaded = optimizer_with([0.1], weight_decay=0.5)
    loaded.load_state_dict(optimizer.state_dict())
    return loaded, follower.state_dict()


def test_overwritten_weight_decay():
    optimizer, _ = optimizer_with_decayed_weight_decay()
    current = optimizer.param_groups[0]["weight_decay"]
    follower = follow(optimizer, "weight_decay", CURVE)
    with warns(
        'write del group["initial_weight_decay"] before follower is built or the group is added. '
        "To schedule 0.5, call follower.set_base_value(0.5). To resume a run, call "
        "follower.load_state_dict(state)."
    ):
        advance(optimizer, follower)

    optimizer, _ = optimizer_with_decayed_weight_decay()
    del optimizer.param_groups[0]["initial_weight_decay"]
    advance(optimizer, follow(optimizer, "weight_decay", CURVE), 5)
    assert optimizer.param_groups[0]["weight_decay"] == CURVE.learning_rate(5, current)

    optimizer, _ = optimizer_with_decayed_weight_decay()
    follower = follow(optimizer, "weight_decay", CURVE)
    follower.set_base_value(0.5)
    advance(optimizer, follower, 5)
    assert optimizer.param_groups[0]["weight_decay"] == CURVE.learning_rate(5, 0.5)

    optimizer, state = optimizer_with_decayed_weight_decay()
    follower = follow(optimizer, "weight_decay", CURVE)
    follower.load_state_dict(state)
    advance(optimizer, follower, 20)
    assert optimizer.param_groups[0]["weight_decay"] == CURVE.learning_rate(80, 0.5)


# An optimizer that was loaded without its scheduler.


PLATEAU = PlateauCurve(400, plateaus=[(0, 50)])


def loaded_on_a_plateau(lrs=(0.1, 0.1)):
    return trained_optimizer(20, lrs, PLATEAU, AdamW)


def test_lost_position():
    optimizer, _ = loaded_on_a_plateau()
    scheduler = lambda_lr(optimizer, PLATEAU)
    advance(optimizer, scheduler)
    with warns(
        "load the scheduler's state, scheduler.load_state_dict(state); or pass last_epoch=19. To "
        "start at step 0, set the peak, which is 0.1 now: scheduler.set_peak(0.1)"
    ):
        advance(optimizer, scheduler)

    optimizer, state = loaded_on_a_plateau()
    scheduler = lambda_lr(optimizer, PLATEAU)
    scheduler.load_state_dict(state)
    advance(optimizer, scheduler, 280)
    check_lrs(optimizer, PLATEAU, 300, [0.1, 0.1])

    optimizer, _ = loaded_on_a_plateau()
    scheduler = lambda_lr(optimizer, PLATEAU, last_epoch=19)
    advance(optimizer, scheduler, 280)
    check_lrs(optimizer, PLATEAU, 300, [0.1, 0.1])

    optimizer, _ = loaded_on_a_plateau()
    scheduler = lambda_lr(optimizer, PLATEAU)
    scheduler.set_peak(0.1)
    advance(optimizer, scheduler, 300)
    check_lrs(optimizer, PLATEAU, 300, [0.1, 0.1])


def test_lost_position_with_two_peaks():
    optimizer, _ = loaded_on_a_plateau([0.1, 0.2])
    scheduler = lambda_lr(optimizer, PLATEAU)
    advance(optimizer, scheduler)
    with warns("set the peak, which is [0.1, 0.2] now: scheduler.set_peak([0.1, 0.2])"):
        advance(optimizer, scheduler)

    optimizer, _ = loaded_on_a_plateau([0.1, 0.2])
    scheduler = lambda_lr(optimizer, PLATEAU)
    scheduler.set_peak([0.1, 0.2])
    advance(optimizer, scheduler, 300)
    check_lrs(optimizer, PLATEAU, 300, [0.1, 0.2])


def test_optimizer_that_is_loaded_later():
    """After the scheduler is built."""
    trained, state = trained_optimizer(20, curve=LONG, optimizer_class=AdamW)

    def build_and_load():
        optimizer = optimizer_with([0.1, 0.1], AdamW)
        scheduler = lambda_lr(optimizer, LONG)
        optimizer.load_state_dict(trained.state_dict())
        return optimizer, scheduler

    optimizer, scheduler = build_and_load()
    advance(optimizer, scheduler)
    with warns("or pass last_epoch=19. To start at step 0, set the peak, which is 0.1 now"):
        advance(optimizer, scheduler)

    optimizer, scheduler = build_and_load()
    scheduler.load_state_dict(state)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, LONG, 30, [0.1, 0.1])

    optimizer, _ = build_and_load()
    advance(optimizer, lambda_lr(optimizer, LONG, last_epoch=19), 10)
    check_lrs(optimizer, LONG, 30, [0.1, 0.1])

    optimizer, scheduler = build_and_load()
    scheduler.set_peak(0.1)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, LONG, 10, [0.1, 0.1])


def test_last_epoch_past_the_end():
    optimizer = optimizer_with([0.1])
    optimizer.param_groups[0]["initial_lr"] = 0.1
    with warns("last_epoch is the number of updates so far, minus 1"):
        lambda_lr(optimizer, CURVE, last_epoch=100)
    for updates in (50, 100):
        lambda_lr(optimizer, CURVE, last_epoch=updates - 1)
        check_lrs(optimizer, CURVE, updates, [0.1])


@pytest.mark.parametrize("option", ["lr", "weight_decay"])
def test_base_that_differs_from_the_saved_one(option):
    def build(base):
        optimizer = optimizer_with([0.1], weight_decay=0.1)
        optimizer.param_groups[0][option] = base
        if option == "lr":
            return optimizer, lambda_lr(optimizer, CURVE)
        return optimizer, follow(optimizer, option, CURVE)

    optimizer, part = build(0.1)
    advance(optimizer, part, 20)
    states = optimizer.state_dict(), part.state_dict()
    name = {"lr": "peak", "weight_decay": "base"}[option]
    setter = {"lr": "scheduler.set_peak", "weight_decay": "follower.set_base_value"}[option]

    optimizer, part = build(0.2)
    optimizer.load_state_dict(states[0])
    with warns(
        f"The run continues with 0.1: build it with this {name}; to change it, call {setter}(…) "
        "after the load"
    ):
        part.load_state_dict(states[1])

    for new_base in (0.1, 0.2):
        optimizer, part = build(0.1)
        optimizer.load_state_dict(states[0])
        part.load_state_dict(states[1])
        if new_base == 0.2 and option == "lr":
            part.set_peak(0.2)
        elif new_base == 0.2:
            part.set_base_value(0.2)
        advance(optimizer, part, 10)
        assert optimizer.param_groups[0][option] == CURVE.learning_rate(30, new_base)
        part.load_state_dict(part.state_dict())


# Scheduler steps that do not fit the updates.


def test_scheduler_steps_after_each_micro_batch():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, LONG)
    with warns(
        "Call scheduler.step() once after every optimizer.step() (in Lightning "
        '"interval": "step"). Under gradient accumulation, do not call it after each micro-batch.'
    ):
        repeat(optimizer, scheduler, times=60, updates=1, steps=4)

    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, LONG)
    for micro_batch in range(4 * 200):
        if micro_batch % 4 == 3:
            optimizer.step()
            scheduler.step()
    check_lrs(optimizer, LONG, 200, [0.1])


def test_scheduler_steps_in_each_process():
    """As accelerate makes them, with a prepared scheduler."""
    num_processes = 4
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, LONG)
    with warns("build the scheduler with clock=DataClock(accelerator.num_processes, count=1)"):
        repeat(optimizer, scheduler, times=200, updates=1, steps=num_processes)

    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, LONG, clock=DataClock(num_processes, count=1))
    repeat(optimizer, scheduler, times=200, updates=1, steps=num_processes)
    check_lrs(optimizer, LONG, 200, [0.1])


def test_scheduler_steps_once_per_epoch():
    epochs = 10
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, LONG)
    with warns(
        "Call scheduler.step() once after every optimizer.step() (in Lightning "
        '"interval": "step"), with total_steps = count_updates(loader, epochs).'
    ):
        repeat(optimizer, scheduler, times=epochs, updates=len(LOADER), steps=1)

    optimizer = optimizer_with([0.1])
    curve = PlateauCurve(count_updates(LOADER, epochs), warmup_steps=10, min_lr_ratio=0.1)
    scheduler = lambda_lr(optimizer, curve)
    for _ in range(epochs):
        for _ in LOADER:
            optimizer.step()
            scheduler.step()
    check_lrs(optimizer, curve, curve.total_steps, [0.1])


@pytest.mark.parametrize("steps_per_update", [0, 3])
def test_steps_of_something_else(steps_per_update):
    """Such as an epoch, or one of several environments."""
    mistake = {"times": 200, "updates": 1, "steps": steps_per_update}
    optimizer = optimizer_with([0.1])
    with warns("To turn such warnings off, write lambda_lr(..., advise=False)"):
        repeat(optimizer, lambda_lr(optimizer, LONG), **mistake)
    optimizer = optimizer_with([0.1])
    repeat(optimizer, lambda_lr(optimizer, LONG, advise=False), **mistake)
    check_lrs(optimizer, LONG, 200 * steps_per_update, [0.1])


def test_steps_with_a_clock_that_do_not_fit():
    clock = DataClock(8, count=8)
    optimizer = optimizer_with([0.1])
    with warns(
        "Call scheduler.step(count=n) once after every optimizer.step() (in Lightning "
        '"interval": "step"), where n is what it consumed'
    ):
        repeat(optimizer, lambda_lr(optimizer, LONG, clock=clock), times=20, updates=20, steps=1)
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, LONG, clock=clock)
    for _ in range(400):
        optimizer.step()
        scheduler.step(count=16)
    check_lrs(optimizer, LONG, 800, [0.1])


def test_unit_that_is_too_large():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE, clock=DataClock(10**6))
    with warns("Choose a unit of at most what an update consumes, and check the counts"):
        for _ in range(200):
            optimizer.step()
            scheduler.step(count=32)
    optimizer = optimizer_with([0.1])
    curve = PlateauCurve(200, warmup_steps=10, min_lr_ratio=0.1)
    scheduler = lambda_lr(optimizer, curve, clock=DataClock(32))
    for _ in range(200):
        optimizer.step()
        scheduler.step(count=32)
    check_lrs(optimizer, curve, 200, [0.1])


# A run past the end of its curve.


def test_past_an_end_at_0():
    epochs = 5
    optimizer = optimizer_with([0.1])
    with warns(
        "Give the curve as many steps as the training has updates: total_steps = "
        "count_updates(loader, epochs); or end it above 0 (min_lr_ratio)"
    ):
        advance(optimizer, lambda_lr(optimizer, PlateauCurve(20)), 100)

    longer = PlateauCurve(count_updates(LOADER, epochs))
    above_0 = PlateauCurve(20, min_lr_ratio=0.1)
    for curve in (longer, above_0):
        optimizer = optimizer_with([0.1])
        advance(optimizer, lambda_lr(optimizer, curve), 100)
        check_lrs(optimizer, curve, 100, [0.1])


def test_far_past_a_floor():
    epochs = 75
    floor = PlateauCurve(20, min_lr_ratio=0.1)
    optimizer = optimizer_with([0.1])
    with warns(
        "Give the curve as many steps as the training has updates: total_steps = "
        "count_updates(loader, epochs). To turn such warnings off, write "
        "lambda_lr(..., advise=False)"
    ):
        advance(optimizer, lambda_lr(optimizer, floor), 1500)

    optimizer = optimizer_with([0.1])
    curve = PlateauCurve(count_updates(LOADER, epochs), min_lr_ratio=0.1)
    advance(optimizer, lambda_lr(optimizer, curve), 1500)
    check_lrs(optimizer, curve, 1500, [0.1])
    optimizer = optimizer_with([0.1])
    advance(optimizer, lambda_lr(optimizer, floor, advise=False), 1500)
    check_lrs(optimizer, floor, 1500, [0.1])


def test_past_the_end_of_a_clock():
    unit, updates = 40, 400
    optimizer = optimizer_with([0.1])
    with warns("Give the curve as many steps as the training consumes, in units of 40;"):
        clock = DataClock(unit, count=8)
        advance(optimizer, lambda_lr(optimizer, PlateauCurve(20), clock=clock), updates)

    optimizer = optimizer_with([0.1])
    curve = PlateauCurve(8 * updates // unit)
    advance(optimizer, lambda_lr(optimizer, curve, clock=DataClock(unit, count=8)), updates)
    check_lrs(optimizer, curve, 80, [0.1])


# As in torch.


def test_epoch_as_an_argument():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    with pytest.warns(UserWarning, match=r"is deprecated: call `scheduler\.step\(\)`$"):
        scheduler.step(1)
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    scheduler.step()
    check_lrs(optimizer, CURVE, 1, [0.1])


def test_step_of_the_scheduler_before_the_optimizer():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    with pytest.warns(UserWarning, match=r"`optimizer\.step\(\)` before `lr_scheduler\.step\(\)`"):
        scheduler.step()
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    scheduler.step()
    check_lrs(optimizer, CURVE, 1, [0.1])
