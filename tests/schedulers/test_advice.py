"""Wrong programs, which `torch_bridge.advice` warns about once.

`test_silent_programs` has the right ones.
"""

import copy
import re
import warnings
from contextlib import contextmanager

import pytest
import torch
from schedulers.builders import (
    CURVE,
    LONG,
    MOMENTUM,
    SHORT,
    counting,
    every_builder,
    states_after_20_updates,
)
from support.schedulers import runs
from support.schedulers.runs import advance, lrs_of, optimizer_with, repeat
from support.training.steps import through_file
from support.trees import assert_equal_trees
from torch.optim import SGD, AdamW

from plateau_jax import CurveWarning, DataClock, PlateauCurve
from torch_bridge import follow, lambda_lr
from torch_bridge.advice.position_advice import end_message

pytestmark = [
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]


@pytest.fixture
def optimizer():
    return optimizer_with([torch.tensor(0.1), torch.tensor(0.1)])


@contextmanager
def warns_once(pattern):
    """Check that a program warns once, at the user's line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        yield
    curve_warnings = [item for item in caught if item.category is CurveWarning]
    assert len(curve_warnings) == 1, f"{len(curve_warnings)} warnings, expected 1"
    (warning,) = curve_warnings
    message = str(warning.message)
    assert re.search(pattern, message), message
    assert warning.filename in (__file__, runs.__file__)


WAY_OUT = r"To turn such warnings off, write lambda_lr\(\.\.\., advise=False\)$"

# Scheduler steps that do not fit the updates.


def called(times):
    """Return the pattern of how often `scheduler.step()` was called."""
    return rf"^scheduler\.step\(\) was called {times} times in \d+ optimizer steps"


def steps_do_not_fit(times):
    advice = r"\. Call it once after every optimizer\.step\(\).*"
    return rf"{called(times)}, and moved to step \d+ of the curve{advice}{WAY_OUT}"


MISTAKES = {
    "never": {"times": 200, "updates": 1, "steps": 0},
    "each epoch": {"times": 5, "updates": 60, "steps": 1},
    "one update in twenty": {"times": 20, "updates": 20, "steps": 1},
    "three times in two updates": {"times": 60, "updates": 2, "steps": 3},
    "each micro-batch": {"times": 60, "updates": 1, "steps": 4},
}
"""Repeated: these updates, and then these calls of `scheduler.step()`."""
every_mistake = pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)


@every_builder
@every_mistake
@pytest.mark.parametrize("is_resumed", [False, True])
def test_steps_that_do_not_fit(mistake, build, is_resumed):
    optimizer = optimizer_with([0.1, 0.1])
    scheduler = build(optimizer, LONG)
    if is_resumed:
        advance(optimizer, scheduler, 3)
        states = through_file([optimizer.state_dict(), scheduler.state_dict()])
        optimizer.load_state_dict(states[0])
        scheduler.load_state_dict(states[1])
    with warns_once(steps_do_not_fit(r"\d+")):
        repeat(optimizer, scheduler, **mistake)


def test_copy_that_is_not_stepped():
    optimizer = optimizer_with([0.1])
    pair = copy.deepcopy((optimizer, lambda_lr(optimizer, LONG)))
    with warns_once(steps_do_not_fit("0")):
        repeat(*pair, times=200, updates=1, steps=0)


@pytest.mark.parametrize("total", [11, 20, 100, 167, 168, 1000])
def test_warmup_that_is_never_stepped(optimizer, total):
    """However short the curve, every update would run at 0."""
    scheduler = lambda_lr(optimizer, PlateauCurve(total, warmup_steps=10))
    with warns_once(called("0")):
        repeat(optimizer, scheduler, times=1, updates=300, steps=0)


# Training past the end.


@pytest.mark.parametrize("is_in_charge", [True, False])
def test_training_past_the_end(is_in_charge):
    """The warning waits until the scheduler is in charge."""
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, PlateauCurve(20))
    past = "^the curve has total_steps = 20, but training continues at step {}, with every learning"
    with warns_once(past.format(31 if is_in_charge else 63)):
        advance(optimizer, scheduler, 31)
        if not is_in_charge:
            optimizer.param_groups[0]["lr"] = 1e-3
        advance(optimizer, scheduler, 69)


@pytest.mark.parametrize("total", [1, 112, 3000])
@pytest.mark.parametrize("unit", [None, 40])
def test_end_at_0_is_past_after_ten_steps_and_one_percent(total, unit):
    curves = [PlateauCurve(total)]
    last_silent_step = total + max(10, total // 100)
    for step in (total, last_silent_step):
        assert not end_message(curves, unit, step, step, "lambda_lr")
    step = last_silent_step + 1
    message = end_message(curves, unit, step, step, "lambda_lr")
    assert message
    assert ("in units of 40" in message) == (unit == 40)


@pytest.mark.parametrize("total", [112, 3000])
def test_floor_is_past_at_ten_times_the_steps(total):
    """And after 1000 updates at the floor."""
    floor = [PlateauCurve(total, min_lr_ratio=0.1), SHORT]
    for step in (10 * total, 10 * total + 20, 11 * total, 1001 * total, 1002 * total):
        for updates in (step, step // 7, 1000, 1100, 1101):  # at 11 · total, 10/11 are at the floor
            is_past = step > 10 * total and updates * (step - total) / step > 1000
            assert bool(end_message(floor, None, step, updates, "lambda_lr")) == is_past


# An optimizer that was loaded without the state of its scheduler.


def lacks_state(seen, peak=".*", alternative=".*"):
    """Return the pattern of the warning."""
    return (
        rf"^the optimizer {seen}, but the curve starts at step 0: .*"
        rf"scheduler\.load_state_dict\(state\){alternative}\. .*set_peak\({peak}\)$"
    )


@every_builder
def test_lost_state(build):
    """The optimizer is loaded before the scheduler is built, on a plateau."""
    plateau = PlateauCurve(10_000, plateaus=[(0, 50)])
    optimizer_state, _ = states_after_20_updates(AdamW, plateau)
    optimizer = optimizer_with([1e-5, 1e-5], AdamW)
    optimizer.load_state_dict(optimizer_state)
    alternative = "; or pass last_epoch=19"
    if build is counting:
        alternative = ""
    with warns_once(lacks_state("has made 20 updates", r"0\.01", alternative)):
        scheduler = build(optimizer, plateau)
        advance(optimizer, scheduler, 60)


@pytest.mark.parametrize("optimizer_class", [AdamW, MOMENTUM, SGD])
def test_lost_state_of_a_decayed_learning_rate(optimizer_class):
    optimizer_state, _ = states_after_20_updates(optimizer_class)
    optimizer = optimizer_with([1e-5, 1e-5], optimizer_class)
    optimizer.load_state_dict(optimizer_state)
    with warns_once(r"^param_groups\[0\] has lr = .* To resume a run, call scheduler.load"):
        scheduler = lambda_lr(optimizer, LONG)
        advance(optimizer, scheduler, 60)


def test_lost_state_of_an_optimizer_loaded_later():
    """SGD without momentum has no state: only its learning rate shows that it was trained."""
    optimizer_state, _ = states_after_20_updates(SGD)
    optimizer = optimizer_with([torch.tensor(1e-5), torch.tensor(1e-5)])
    scheduler = lambda_lr(optimizer, LONG)
    optimizer.load_state_dict(optimizer_state)
    with warns_once(lacks_state("was loaded", "1e-05")):
        advance(optimizer, scheduler, 60)


# Without advice, and with warnings as errors.


@every_mistake
@pytest.mark.parametrize("curve", [LONG, SHORT])
@pytest.mark.parametrize("clock", [None, DataClock(1, count=1), DataClock(10**6, count=1)])
def test_advice_changes_no_bit(mistake, curve, clock):
    """Without it, nothing warns: after a load without the scheduler's state, too."""
    results = []
    for advise in (False, True):
        optimizer_state, _ = states_after_20_updates(AdamW)
        optimizer = optimizer_with([0.1, 0.1], AdamW)
        scheduler = lambda_lr(optimizer, curve, clock=clock, advise=advise)
        optimizer.load_state_dict(optimizer_state)
        with warnings.catch_warnings():
            if advise:
                warnings.simplefilter("ignore", CurveWarning)
            repeat(optimizer, scheduler, **mistake)
        results.append([optimizer.state_dict(), scheduler.state_dict()])
    assert_equal_trees(results[0], results[1])


@every_mistake
def test_warning_as_error_changes_nothing(mistake):
    optimizer = optimizer_with([0.1, 0.1])
    scheduler = lambda_lr(optimizer, LONG)
    with pytest.raises(CurveWarning):
        repeat(optimizer, scheduler, **mistake)
    assert lrs_of(optimizer)[0] == LONG.learning_rate(scheduler.curve_step, 0.1)
    repeat(optimizer, scheduler, **mistake)


# A follower without effect.


def test_option_that_is_zero_in_every_group():
    optimizer = optimizer_with([0.1, 0.1])
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    with warns_once(r"^weight_decay is 0 in every group"):
        follow(optimizer, "weight_decay", CURVE)
    optimizer = optimizer_with([0.1, 0.1])
    optimizer.param_groups[0]["weight_decay"] = 0.5
    follow(optimizer, "weight_decay", CURVE)
