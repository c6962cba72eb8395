"""Wrong programs, which `torch_bridge.advice` warns about once.

`test_silent_programs` has the right ones.
"""

import re
import warnings
from contextlib import contextmanager

import pytest
import torch
from schedulers import kinds, torch_run
from schedulers.kinds import CURVE, FLOOR, LONG, SHORT, every_kind, states_after_20_updates
from schedulers.torch_run import TorchRun
from support.trees import assert_equal_trees
from torch.optim import SGD, AdamW

from plateau_jax import CurveWarning, DataClock, PlateauCurve
from torch_bridge import lambda_lr
from torch_bridge.advice.position_advice import end_message

pytestmark = [
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]


@pytest.fixture
def run():
    return TorchRun(make_value=torch.tensor)


@contextmanager
def warns_once(pattern):
    """Check that a program warns once, at the user's line.

    Yields a list, which has the message afterwards.
    """
    messages = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        yield messages
    curve_warnings = [item for item in caught if item.category is CurveWarning]
    assert len(curve_warnings) == 1, f"{len(curve_warnings)} warnings, expected 1"
    (warning,) = curve_warnings
    message = str(warning.message)
    assert re.search(pattern, message), message
    assert warning.filename in (__file__, torch_run.__file__)
    messages.append(message)


WAY_OUT = r"To turn such warnings off, write lambda_lr\(\.\.\., advise=False\)$"

# Scheduler steps that do not fit the updates.


def called(times):
    """Return the pattern of how often `scheduler.step()` was called."""
    return rf"^scheduler\.step\(\) was called {times} times in \d+ optimizer steps"


def steps_do_not_fit(times):
    advice = r"\. Call scheduler\.step\((count=n)?\) once after every optimizer\.step\(\).*"
    return called(times) + advice + WAY_OUT


def check_advice(message, build, *, is_often):
    """Check that the message names accumulation, accelerate and a count if they may be causes."""
    is_counting = build is kinds.counting
    may_accumulate = is_often and not is_counting
    assert ("gradient accumulation" in message) == may_accumulate
    assert ("accelerator.num_processes" in message) == may_accumulate
    assert ("step(count=n)" in message) == is_counting


MISTAKES = {
    "never": {"times": 200, "updates": 1, "steps": 0},
    "each epoch": {"times": 5, "updates": 60, "steps": 1},
    "one update in twenty": {"times": 20, "updates": 20, "steps": 1},
    "three times in two updates": {"times": 60, "updates": 2, "steps": 3},
    "each micro-batch": {"times": 60, "updates": 1, "steps": 4},
}
"""Repeated: these updates, and then these calls of `scheduler.step()`."""
every_mistake = pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)


@every_kind
@every_mistake
@pytest.mark.parametrize("is_resumed", [False, True])
def test_steps_that_do_not_fit(mistake, build, is_resumed):
    run = TorchRun()
    run.use(build(run.optimizer, LONG))
    if is_resumed:
        run.train(3)
        run.load(run.save())
    with warns_once(steps_do_not_fit(r"\d+")) as messages:
        run.repeat(**mistake)
    check_advice(messages[0], build, is_often=mistake["steps"] > mistake["updates"])


def test_unit_that_is_too_large(run):
    scheduler = lambda_lr(run.optimizer, CURVE, clock=DataClock(10**6, count=10))
    run.use(scheduler)
    stuck = (
        ", and the curve stays at step 0, where every learning rate is 0, so no weight changes: "
        "the updates consumed 1680 in all, with unit = 1000000. Choose a"
    )
    with warns_once(called("168") + stuck):
        run.train(180)


# Training past the end.


def test_warning_waits_until_the_scheduler_is_in_charge():
    optimizer = SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.5)
    scheduler = lambda_lr(optimizer, PlateauCurve(20))
    with warns_once("has total_steps = 20, but training continues at step 64"):
        for update in range(100):
            if update == 32:  # when the first warning would be due
                optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.step()
            scheduler.step()


PAST = r"^the curve has total_steps = 10, but training continues at step \d+, with every learning "


def test_training_past_the_end(run):
    scheduler = lambda_lr(run.optimizer, SHORT)
    run.use(scheduler)
    with warns_once(f"{PAST}rate at 0"):
        run.train(170)


def test_training_past_the_end_at_a_floor(run):
    scheduler = lambda_lr(run.optimizer, FLOOR)
    run.use(scheduler)
    question = "rate at its final value since step 10: does the curve count epochs.*"
    with warns_once(PAST + question + WAY_OUT):
        run.train(1350)


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
    for step in (10 * total, 10 * total + 20, 1001 * total, 1002 * total):
        for updates in (step, step // 7):
            is_past = step > 10 * total and updates * (step - total) / step > 1000
            assert bool(end_message(floor, None, step, updates, "lambda_lr")) == is_past


# An optimizer that was loaded without the state of its scheduler.


def lacks_state(seen, peak=".*", alternative=".*"):
    """Return the pattern of the warning."""
    return (
        rf"^the optimizer {seen}, but the curve starts at step 0: .*"
        rf"scheduler\.load_state_dict\(state\){alternative}\. .*set_peak\({peak}\)$"
    )


@every_kind
def test_lost_state(build):
    """The optimizer is loaded before the scheduler is built, on a plateau."""
    plateau = PlateauCurve(10_000, plateaus=[(0, 50)])
    earlier = TorchRun(AdamW, lr=0.01)
    earlier.use(lambda_lr(earlier.optimizer, plateau))
    earlier.train(20)
    run = TorchRun(AdamW, torch.tensor, lr=1e-5)
    run.load_optimizer(earlier.save())
    alternative = "; or pass last_epoch=19"
    if build is kinds.counting:
        alternative = ""
    with warns_once(lacks_state("has made 20 updates", r"0\.01", alternative)):
        scheduler = build(run.optimizer, plateau)
        run.use(scheduler)
        run.train(60)


@pytest.mark.parametrize("optimizer_class", [AdamW, kinds.MOMENTUM, SGD])
def test_lost_state_of_a_decayed_learning_rate(optimizer_class):
    run = TorchRun(optimizer_class, torch.tensor, lr=1e-5)
    run.load_optimizer(states_after_20_updates(optimizer_class))
    with warns_once(r"^param_groups\[0\] has lr = .* To resume a run, load the scheduler's state"):
        scheduler = lambda_lr(run.optimizer, LONG)
        run.use(scheduler)
        run.train(60)


@pytest.mark.parametrize(
    ("optimizer_class", "seen"),
    [(AdamW, "has made 20 updates"), (SGD, "was loaded")],
)
def test_lost_state_of_an_optimizer_loaded_later(optimizer_class, seen):
    """SGD without momentum has no state: only its learning rate shows that it was trained."""
    run = TorchRun(optimizer_class, torch.tensor, lr=1e-5)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_optimizer(states_after_20_updates(optimizer_class))
    with warns_once(lacks_state(seen, "1e-05")):
        run.train(60)


def test_set_peak_starts_another_run():
    run = TorchRun(AdamW, lr=1e-5)
    run.load_optimizer(states_after_20_updates(AdamW))
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    scheduler.set_peak(1e-5)
    run.train(5)
    assert run.values()[0] == LONG.learning_rate(5, 1e-5)


# Without advice, and with warnings as errors.


@every_mistake
@pytest.mark.parametrize("curve", [LONG, SHORT])
@pytest.mark.parametrize("clock", [None, DataClock(1, count=1), DataClock(10**6, count=1)])
def test_advice_changes_no_bit(mistake, curve, clock):
    """Without it, nothing warns: after a load without the scheduler's state, too."""
    results = []
    for advise in (False, True):
        run = TorchRun(AdamW)
        run.use(lambda_lr(run.optimizer, curve, clock=clock, advise=advise))
        run.load_optimizer(states_after_20_updates(AdamW))
        with warnings.catch_warnings():
            if advise:
                warnings.simplefilter("ignore", CurveWarning)
            run.repeat(**mistake)
        results.append((run.values(), run.save()))
    assert_equal_trees(results[0], results[1])


@every_mistake
def test_warning_as_error_changes_nothing(mistake):
    run = TorchRun()
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    with pytest.raises(CurveWarning):
        run.repeat(**mistake)
    assert run.values()[0] == LONG.learning_rate(scheduler.curve_step, 0.1)
    run.repeat(**mistake)
