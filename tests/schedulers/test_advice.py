"""Wrong programs, which `torch_bridge.advice` warns about once.

`test_silent_programs` has the right ones.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from schedulers import kinds
from schedulers.kinds import CURVE, FLOOR, LONG, SHORT, every_kind, states_after_20_updates
from support.runs import torch_run
from support.runs.torch_run import TorchRun
from torch.optim import SGD, AdamW

from plateau_jax import CurveWarning, DataClock, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr
from torch_bridge.advice.position_warnings import end_message

pytestmark = [
    # SequentialLR passes it.
    pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning"),
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]


@pytest.fixture
def run() -> TorchRun:
    return TorchRun(form=torch.tensor)


@contextmanager
def warns_once(pattern: str) -> Iterator[list[str]]:
    """Check that a program warns once, at the user's line.

    Yields a list, which has the message afterwards.
    """
    messages: list[str] = []
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


def called(times: str) -> str:
    """Return the pattern of how often `scheduler.step()` was called."""
    return rf"^scheduler\.step\(\) was called {times} times in \d+ optimizer steps"


def steps_do_not_fit(times: str) -> str:
    advice = r"\. Call scheduler\.step\((count=n)?\) once after every optimizer\.step\(\).*"
    return called(times) + advice + WAY_OUT


def check_advice(message: str, build: Any, *, is_often: bool) -> None:
    """Check that the message names accumulation, accelerate and a count if they may be causes."""
    is_counting = build is kinds.counting
    may_accumulate = is_often and not is_counting
    assert ("gradient accumulation" in message) == may_accumulate
    assert ("accelerator.num_processes" in message) == may_accumulate
    assert ("step(count=n)" in message) == is_counting


@every_kind
def test_scheduler_never_stepped(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    with warns_once(steps_do_not_fit("0")) as messages:
        run.step_optimizer(520)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_stepped_once_an_epoch(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    with warns_once(steps_do_not_fit("[012]")) as messages:
        run.repeat(5, updates=60)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_stepped_in_one_of_twenty_updates(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    run.train(5)
    with warns_once(steps_do_not_fit(r"\d+")) as messages:
        run.repeat(10, updates=20)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_stepped_three_times_in_two_updates(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    with warns_once(steps_do_not_fit(r"\d+")) as messages:
        run.repeat(60, updates=2, steps=3)
    check_advice(messages[0], build, is_often=True)


@every_kind
def test_scheduler_never_stepped_after_a_resume(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    run.train(3)
    run.load(run.save())
    with warns_once(steps_do_not_fit("0")) as messages:
        run.step_optimizer(520)
    check_advice(messages[0], build, is_often=False)


def test_unit_that_is_too_large(run: TorchRun) -> None:
    scheduler = lambda_lr(run.optimizer, CURVE, clock=DataClock(10**6, count=10))
    run.use(scheduler)
    stuck = (
        ", and the curve stays at step 0, where every learning rate is 0, so no weight changes: "
        "the updates consumed 1680 in all, with unit = 1000000. Choose a"
    )
    with warns_once(called("168") + stuck):
        run.train(180)


def test_curve_that_never_reaches_its_spike(run: TorchRun) -> None:
    spike = StagedCurve([(100,), (100, 1.0), (0, 0.5), (9000,)], start=0.5)
    scheduler = lambda_lr(run.optimizer, spike)
    run.use(scheduler)
    with warns_once(called("0")):
        run.step_optimizer(520)


# Training past the end.

PAST = r"^the curve has total_steps = 10, but training continues at step \d+, with every learning "


def test_training_past_the_end(run: TorchRun) -> None:
    scheduler = lambda_lr(run.optimizer, SHORT)
    run.use(scheduler)
    with warns_once(f"{PAST}rate at 0"):
        run.train(170)


def test_training_past_the_end_at_a_floor(run: TorchRun) -> None:
    scheduler = lambda_lr(run.optimizer, FLOOR)
    run.use(scheduler)
    question = "rate at its final value since step 10: does the curve count epochs.*"
    with warns_once(PAST + question + WAY_OUT):
        run.train(1350)


def test_training_past_the_end_at_a_floor_in_units(run: TorchRun) -> None:
    scheduler = lambda_lr(run.optimizer, FLOOR, clock=DataClock(8, count=8))
    run.use(scheduler)
    with warns_once("is the unit too small"):
        run.train(1350)


@pytest.mark.parametrize("total", [1, 112, 3000])
@pytest.mark.parametrize("unit", [None, 40])
def test_end_at_0_is_past_after_ten_steps_and_one_percent(total: int, unit: int | None) -> None:
    curves = [PlateauCurve(total)]
    last_silent_step = total + max(10, total // 100)
    for step in (total, last_silent_step):
        assert not end_message(curves, unit, step, step, "lambda_lr")
    step = last_silent_step + 1
    message = end_message(curves, unit, step, step, "lambda_lr")
    assert message
    assert ("in units of 40" in message) == (unit == 40)


@pytest.mark.parametrize("total", [112, 3000])
@pytest.mark.parametrize("unit", [None, 40])
def test_floor_is_past_at_ten_times_the_steps(total: int, unit: int | None) -> None:
    """And after 1000 updates at the floor."""
    floor = [PlateauCurve(total, min_lr_ratio=0.1), SHORT]
    for step in (10 * total, 10 * total + 20, 1001 * total, 1002 * total):
        for updates in (step, step // 7):
            updates_at_the_floor = updates * (step - total) / step
            is_past = step > 10 * total and updates_at_the_floor > 1000
            message = end_message(floor, unit, step, updates, "lambda_lr")
            assert bool(message) == is_past


def test_end_of_a_curve_above_0_is_not_an_end_at_0() -> None:
    """One group still trains."""
    curves = [PlateauCurve(112), PlateauCurve(112, min_lr_ratio=0.1)]
    assert not end_message(curves, None, 200, 200, "lambda_lr")
    message = end_message(curves, None, 2000, 2000, "lambda_lr")
    assert "every learning rate at its final value" in message


# An optimizer that was loaded without the state of its scheduler.


def lacks_state(seen: str, peak: str = ".*", alternative: str = ".*") -> str:
    """Return the pattern of the warning."""
    return (
        rf"^the optimizer {seen}, but the curve starts at step 0: .*"
        rf"scheduler\.load_state_dict\(state\){alternative}\. .*set_peak\({peak}\)$"
    )


@every_kind
def test_lost_state(build: Any) -> None:
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
def test_lost_state_of_a_decayed_learning_rate(optimizer_class: Any) -> None:
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
def test_lost_state_of_an_optimizer_loaded_later(optimizer_class: Any, seen: str) -> None:
    """SGD without momentum has no state: only its learning rate shows that it was trained."""
    run = TorchRun(optimizer_class, torch.tensor, lr=1e-5)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_optimizer(states_after_20_updates(optimizer_class))
    with warns_once(lacks_state(seen, "1e-05")):
        run.train(60)


def test_lost_state_saved_before_a_scheduler_was_built() -> None:
    earlier = TorchRun(lr=0.01)
    earlier.step_optimizer(20)
    run = TorchRun(form=torch.tensor, lr=0.1)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_optimizer(earlier.save())
    with warns_once(lacks_state("was loaded", r"0\.1", "")):
        run.train(9)


def resumed_without_scheduler(states: Any) -> TorchRun:
    run = TorchRun(AdamW, lr=1e-5)
    run.load_optimizer(states)
    return run


def test_advice_to_load_the_state_works() -> None:
    states = states_after_20_updates(AdamW)
    run = resumed_without_scheduler(states)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_schedulers(states)
    run.train(5)
    assert run.values()[0] == pytest.approx(0.01 * LONG(25))


def test_advice_to_pass_last_epoch_works() -> None:
    run = resumed_without_scheduler(states_after_20_updates(AdamW))
    scheduler = lambda_lr(run.optimizer, LONG, last_epoch=19)
    run.use(scheduler)
    run.train(5)
    assert run.values()[0] == pytest.approx(0.01 * LONG(25))


def test_advice_to_set_the_peak_works() -> None:
    run = resumed_without_scheduler(states_after_20_updates(AdamW))
    scheduler = lambda_lr(run.optimizer, LONG)
    scheduler.set_peak(1e-5)
    run.use(scheduler)
    run.train(5)
    assert run.values()[0] == pytest.approx(1e-5 * LONG(5))


# Without advice.


def never_stepped(run: TorchRun) -> None:
    run.step_optimizer(520)


def stepped_often(run: TorchRun) -> None:
    run.repeat(60, updates=2, steps=3)


def past_the_end(run: TorchRun) -> None:
    run.train(170)


@pytest.mark.parametrize("program", [never_stepped, stepped_often, past_the_end])
@pytest.mark.parametrize("clock", [None, DataClock(1, count=1), DataClock(10**6, count=1)])
def test_scheduler_without_advice_is_silent(program: Any, clock: Any) -> None:
    """After a load without its state, too."""
    run = TorchRun(AdamW)
    scheduler = lambda_lr(run.optimizer, SHORT, clock=clock, advise=False)
    run.use(scheduler)
    run.load_optimizer(states_after_20_updates(AdamW))
    program(run)


# Warnings as errors.
