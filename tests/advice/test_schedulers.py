"""Warnings of `lambda_lr` and `follow`: their advice is silent and right.

`test_curves` says how to read these tests. `schedulers/test_writes` follows the advice about values
that the program has written, and about groups that it has added.
"""

import pytest
from support.curve_warnings import warns
from support.schedulers.runs import advance, lrs_of, optimizer_with, repeat
from torch.optim import SGD, AdamW

from plateau_jax import DataClock, PlateauCurve
from torch_bridge import count_updates, follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
LOADER = range(20)
"""A loader with 20 batches."""


def check_lrs(optimizer, curve, step, peaks):
    assert lrs_of(optimizer) == [curve.learning_rate(step, peak) for peak in peaks]


def start(curve, peak=0.1, **options):
    """Return an optimizer of one group, and its scheduler."""
    optimizer = optimizer_with([peak])
    return optimizer, lambda_lr(optimizer, curve, **options)


def check_run(curve, updates, **options):
    """Check that a run is silent, and is on the curve after these updates."""
    optimizer, scheduler = start(curve, **options)
    advance(optimizer, scheduler, updates)
    check_lrs(optimizer, curve, updates, [0.1])


# A learning rate that is overwritten.


def trained_optimizer(updates=70, lrs=(0.1, 0.1), curve=CURVE, optimizer_class=SGD):
    """Return a new optimizer with the state of an earlier run, and the state of its scheduler."""
    optimizer = optimizer_with(lrs, optimizer_class)
    scheduler = lambda_lr(optimizer, curve)
    advance(optimizer, scheduler, updates)
    loaded = optimizer_with(lrs, optimizer_class)
    loaded.load_state_dict(optimizer.state_dict())
    return loaded, scheduler.state_dict()


@pytest.mark.parametrize(("lrs", "peak"), [((0.1, 0.1), "0.1"), ((0.1, 0.2), "[0.1, 0.2]")])
def test_overwritten_learning_rate(lrs, peak):
    optimizer, _ = trained_optimizer(lrs=lrs)
    current = lrs_of(optimizer)
    scheduler = lambda_lr(optimizer, CURVE)
    with warns(
        'write del group["initial_lr"] before you build scheduler or add the group. To '
        f"schedule 0.1, call scheduler.set_peak({peak}). To resume a run, call "
        "scheduler.load_state_dict(state)."
    ):
        advance(optimizer, scheduler)

    optimizer, _ = trained_optimizer(lrs=lrs)
    for group in optimizer.param_groups:
        del group["initial_lr"]
    advance(optimizer, lambda_lr(optimizer, CURVE), 10)
    check_lrs(optimizer, CURVE, 10, current)

    optimizer, _ = trained_optimizer(lrs=lrs)
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.set_peak(lrs)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, CURVE, 10, lrs)

    optimizer, state = trained_optimizer(lrs=lrs)
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.load_state_dict(state)
    advance(optimizer, scheduler, 10)
    check_lrs(optimizer, CURVE, 80, lrs)


# An optimizer that was loaded without its scheduler.


PLATEAU = PlateauCurve(400, plateaus=[(0, 50)])


def build_and_load(states, curve, *, loads_first, last_epoch=-1):
    """Return an optimizer that is loaded before or after its scheduler is built, and both."""
    lrs = [group["initial_lr"] for group in states[0]["param_groups"]]
    optimizer = optimizer_with(lrs, AdamW)
    if loads_first:
        optimizer.load_state_dict(states[0])
    scheduler = lambda_lr(optimizer, curve, last_epoch=last_epoch)
    if not loads_first:
        optimizer.load_state_dict(states[0])
    return optimizer, scheduler


@pytest.mark.parametrize(("loads_first", "curve"), [(True, PLATEAU), (False, LONG)])
@pytest.mark.parametrize(
    ("lrs", "peak"), [((0.1, 0.1), "0.1"), ((0.1, 0.2), "[0.1, 0.2]")], ids=["one", "two"]
)
def test_lost_position(loads_first, curve, lrs, peak):
    optimizer, state = trained_optimizer(20, lrs, curve, AdamW)
    states = optimizer.state_dict(), state
    optimizer, scheduler = build_and_load(states, curve, loads_first=loads_first)
    advance(optimizer, scheduler)
    with warns(
        "load the scheduler's state, scheduler.load_state_dict(state); or pass last_epoch=19. To "
        f"start at step 0, set the peak, which is {peak} now: scheduler.set_peak({peak})"
    ):
        advance(optimizer, scheduler)

    optimizer, scheduler = build_and_load(states, curve, loads_first=loads_first)
    scheduler.load_state_dict(state)
    advance(optimizer, scheduler, 280)
    check_lrs(optimizer, curve, 300, lrs)

    optimizer, scheduler = build_and_load(states, curve, loads_first=True, last_epoch=19)
    advance(optimizer, scheduler, 280)
    check_lrs(optimizer, curve, 300, lrs)

    optimizer, scheduler = build_and_load(states, curve, loads_first=loads_first)
    scheduler.set_peak(lrs)
    advance(optimizer, scheduler, 300)
    check_lrs(optimizer, curve, 300, lrs)


def test_last_epoch_past_the_end():
    optimizer = optimizer_with([0.1])
    optimizer.param_groups[0]["initial_lr"] = 0.1
    with warns("last_epoch is the number of updates so far, minus 1"):
        lambda_lr(optimizer, CURVE, last_epoch=100)
    for updates in (50, 100):
        lambda_lr(optimizer, CURVE, last_epoch=updates - 1)
        check_lrs(optimizer, CURVE, updates, [0.1])


def test_peak_that_differs_from_the_saved_one():
    optimizer, scheduler = start(CURVE)
    advance(optimizer, scheduler, 20)
    states = optimizer.state_dict(), scheduler.state_dict()

    optimizer, scheduler = start(CURVE, peak=0.2)
    optimizer.load_state_dict(states[0])
    with warns(
        "The run continues with 0.1: start with this peak, or call scheduler.set_peak(…) after the "
        "load"
    ):
        scheduler.load_state_dict(states[1])

    for new_peak in (0.1, 0.2):
        optimizer, scheduler = start(CURVE)
        optimizer.load_state_dict(states[0])
        scheduler.load_state_dict(states[1])
        if new_peak == 0.2:
            scheduler.set_peak(0.2)
        advance(optimizer, scheduler, 10)
        check_lrs(optimizer, CURVE, 30, [new_peak])


def test_rollback_to_before_a_new_peak_is_silent():
    optimizer, scheduler = start(CURVE)
    advance(optimizer, scheduler, 20)
    before = scheduler.state_dict()
    scheduler.set_peak(0.2)
    after = scheduler.state_dict()
    scheduler.load_state_dict(before)
    for state, peak in ((before, 0.1), (after, 0.2)):
        optimizer, scheduler = start(CURVE)
        scheduler.load_state_dict(state)
        check_lrs(optimizer, CURVE, 20, [peak])


def follow_weight_decay(base):
    optimizer = optimizer_with([0.1], weight_decay=base)
    return optimizer, follow(optimizer, "weight_decay", CURVE)


def test_base_that_differs_from_the_saved_one():
    optimizer, follower = follow_weight_decay(0.1)
    advance(optimizer, follower, 20)
    state = follower.state_dict()

    optimizer, follower = follow_weight_decay(0.2)
    with warns(
        "The run continues with 0.1: start with this base, or call follower.set_base_value(…) "
        "after the load"
    ):
        follower.load_state_dict(state)

    for new_base in (0.1, 0.2):
        optimizer, follower = follow_weight_decay(0.1)
        follower.load_state_dict(state)
        if new_base == 0.2:
            follower.set_base_value(0.2)
        advance(optimizer, follower, 10)
        expected = CURVE.learning_rate(30, new_base)
        assert optimizer.param_groups[0]["weight_decay"] == expected
        resumed = follow_weight_decay(0.1)[1]
        resumed.load_state_dict(follower.state_dict())
        follower.load_state_dict(state)  # back to before the new base


# Scheduler steps that do not fit the updates.


def test_scheduler_steps_after_each_micro_batch():
    optimizer, scheduler = start(LONG)
    with warns("Under gradient accumulation, do not call it after each micro-batch."):
        repeat(optimizer, scheduler, times=60, updates=1, steps=4)

    optimizer, scheduler = start(LONG)
    for micro_batch in range(4 * 200):
        if micro_batch % 4 == 3:
            optimizer.step()
            scheduler.step()
    check_lrs(optimizer, LONG, 200, [0.1])


def test_scheduler_steps_in_each_process():
    """As accelerate makes them, with a prepared scheduler."""
    num_processes = 4
    optimizer, scheduler = start(LONG)
    with warns("build the scheduler with clock=DataClock(accelerator.num_processes, count=1)"):
        repeat(optimizer, scheduler, times=200, updates=1, steps=num_processes)

    optimizer, scheduler = start(LONG, clock=DataClock(num_processes, count=1))
    repeat(optimizer, scheduler, times=200, updates=1, steps=num_processes)
    check_lrs(optimizer, LONG, 200, [0.1])


def test_scheduler_steps_once_per_epoch():
    epochs = 10
    optimizer, scheduler = start(LONG)
    with warns(
        'Call it once after every optimizer.step() (in Lightning "interval": "step"), with '
        "total_steps = count_updates(loader, epochs)"
    ):
        repeat(optimizer, scheduler, times=epochs, updates=len(LOADER), steps=1)

    total = count_updates(LOADER, epochs)
    check_run(PlateauCurve(total, warmup_steps=10, min_lr_ratio=0.1), epochs * len(LOADER))


@pytest.mark.parametrize("steps_per_update", [0, 3])
def test_steps_of_something_else(steps_per_update):
    """Such as an epoch, or one of several environments."""
    mistake = {"times": 200, "updates": 1, "steps": steps_per_update}
    with warns("To turn such warnings off, write lambda_lr(..., advise=False)"):
        repeat(*start(LONG), **mistake)
    optimizer, scheduler = start(LONG, advise=False)
    repeat(optimizer, scheduler, **mistake)
    check_lrs(optimizer, LONG, 200 * steps_per_update, [0.1])


def test_steps_with_a_clock_that_do_not_fit():
    clock = DataClock(8, count=8)
    with warns("with a DataClock, step(count=n), where n is what the update consumed"):
        repeat(*start(LONG, clock=clock), times=20, updates=20, steps=1)
    optimizer, scheduler = start(LONG, clock=clock)
    for _ in range(400):
        optimizer.step()
        scheduler.step(count=16)
    check_lrs(optimizer, LONG, 800, [0.1])


def test_unit_that_is_too_large():
    optimizer, scheduler = start(CURVE, clock=DataClock(10**6))
    with warns(
        "with a DataClock, step(count=n), where n is what the update consumed, and a unit of at "
        "most n",
    ):
        for _ in range(200):
            optimizer.step()
            scheduler.step(count=32)
    curve = PlateauCurve(200, warmup_steps=10, min_lr_ratio=0.1)
    optimizer, scheduler = start(curve, clock=DataClock(32))
    for _ in range(200):
        optimizer.step()
        scheduler.step(count=32)
    check_lrs(optimizer, curve, 200, [0.1])


# A run past the end of its curve.


def test_past_an_end_at_0():
    epochs = 5
    with warns(
        "Give the curve as many steps as the training has updates: total_steps = "
        "count_updates(loader, epochs); or end it above 0 (min_lr_ratio)"
    ):
        advance(*start(PlateauCurve(20)), 100)
    check_run(PlateauCurve(count_updates(LOADER, epochs)), 100)
    check_run(PlateauCurve(20, min_lr_ratio=0.1), 100)


def test_far_past_a_floor():
    epochs = 75
    floor = PlateauCurve(20, min_lr_ratio=0.1)
    with warns(
        "with every learning rate at its final value since step 20: does the curve count epochs? "
        "Give the curve as many steps as the training has updates: total_steps = "
        "count_updates(loader, epochs). To turn such warnings off, write "
        "lambda_lr(..., advise=False)"
    ):
        advance(*start(floor), 1500)
    check_run(PlateauCurve(count_updates(LOADER, epochs), min_lr_ratio=0.1), 1500)
    check_run(floor, 1500, advise=False)


def test_past_the_end_of_a_clock():
    clock, updates = DataClock(40, count=8), 400
    with warns("Give the curve as many steps as the training consumes, in units of 40;"):
        advance(*start(PlateauCurve(20), clock=clock), updates)

    curve = PlateauCurve(8 * updates // 40)
    optimizer, scheduler = start(curve, clock=clock)
    advance(optimizer, scheduler, updates)
    check_lrs(optimizer, curve, 80, [0.1])


# As in torch.


def test_epoch_as_an_argument():
    optimizer, scheduler = start(CURVE)
    optimizer.step()
    message = (
        r"^The epoch parameter in `scheduler.step\(\)` is deprecated: call `scheduler\.step\(\)`$"
    )
    with pytest.warns(UserWarning, match=message):
        scheduler.step(1)
    check_run(CURVE, 1)


def test_step_of_the_scheduler_before_the_optimizer():
    _, scheduler = start(CURVE)
    with pytest.warns(UserWarning, match=r"`optimizer\.step\(\)` before `lr_scheduler\.step\(\)`"):
        scheduler.step()
    for _ in range(5):
        scheduler.step()  # torch warns once
    check_run(CURVE, 1)
