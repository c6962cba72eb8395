"""Warnings of `torch_bridge.advice.step_warnings`: wrong programs warn once.

`test_silent_programs` has the right ones.
"""

import copy
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from schedulers import kinds
from schedulers.kinds import CURVE, FLOOR, LONG, SHORT, every_kind, states_after_20_updates
from support.runs import torch_run
from support.runs.torch_run import TorchRun
from support.schedulers.runs import lrs_of
from torch.optim import SGD, AdamW

from plateau_jax import CurveWarning, DataClock, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr
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
    return rf"^scheduler\.step\(\) was called {times} times in the last \d+ optimizer steps"


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


def test_short_curve_never_stepped() -> None:
    """Its updates soon outnumber its steps, as those of PPO do."""
    run = TorchRun()
    scheduler = lambda_lr(run.optimizer, CURVE)
    run.use(scheduler)
    with warns_once(steps_do_not_fit("0")):
        run.step_optimizer(4100)


@every_kind
def test_scheduler_stepped_once_an_epoch(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    with warns_once(steps_do_not_fit("[012]")) as messages:
        run.repeat(5, updates=60)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_stepped_in_one_of_ten_updates(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    run.train(5)
    with warns_once(steps_do_not_fit(r"\d+")) as messages:
        run.repeat(70, updates=10)
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


def test_scheduler_never_stepped_in_a_run_that_rolls_back() -> None:
    """Each update counts, although the load before it has replaced the groups."""
    run = TorchRun()
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.train(3)
    states = run.save()
    with warns_once(steps_do_not_fit("0")):
        for _ in range(170):
            run.step_optimizer()
            run.load_optimizer(states)


@pytest.mark.parametrize("build", [lambda_lr, kinds.curve_per_group])
def test_copy_does_not_repeat_the_warning(build: Any) -> None:
    run = TorchRun()
    scheduler = build(run.optimizer, LONG)
    run.use(scheduler)
    with warns_once(steps_do_not_fit("0")):
        run.step_optimizer(520)
    run.optimizer, run.schedulers = copy.deepcopy((run.optimizer, run.schedulers))
    run.repeat(9, updates=60)
    run.repeat(90, updates=1, steps=2)


def test_unit_that_is_too_large(run: TorchRun) -> None:
    scheduler = lambda_lr(run.optimizer, CURVE, clock=DataClock(10**6, count=10))
    run.use(scheduler)
    stuck = (
        ", and the curve stays at step 0, where every learning rate is 0, so no weight changes: "
        "the updates consumed 420 in all, with unit = 1000000. Choose a"
    )
    with warns_once(called(r"\d+") + stuck):
        run.train(99)


def test_clock_of_processes_that_is_stepped_once(
    run: TorchRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by accelerate with `split_batches=True`."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    scheduler = lambda_lr(run.optimizer, LONG, clock=DataClock(2, count=1))
    run.use(scheduler)
    needed = r", but DataClock\(2, count=1\) needs 2 calls .*accelerate"
    with warns_once(called(r"\d+") + needed):
        run.train(400)


def test_scheduler_that_counts_epochs_on_a_plateau(run: TorchRun) -> None:
    curve = PlateauCurve(10_000, plateaus=[(0, 40)])
    scheduler = lambda_lr(run.optimizer, curve)
    run.use(scheduler)
    with warns_once(called(r"\d")):
        run.repeat(25, updates=250)


def test_sequence_that_counts_epochs(run: TorchRun) -> None:
    first = lambda_lr(run.optimizer, LONG)
    second = lambda_lr(run.optimizer, LONG)
    sequence = kinds.sequence(run.optimizer, first, second, at=3)
    run.use(sequence)
    with warns_once(called(r"\d")):
        run.repeat(9, updates=60)


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


@pytest.fixture
def resumed() -> TorchRun:
    """A run that has loaded the state of its optimizer, which has made 20 updates."""
    run = TorchRun(AdamW, torch.tensor, lr=1e-5)
    run.load_optimizer(states_after_20_updates(AdamW))
    return run


@every_kind
def test_lost_state(resumed: TorchRun, build: Any) -> None:
    alternative = "; or pass last_epoch=19"
    if build is kinds.counting:
        alternative = ""
    with warns_once(lacks_state("has made 20 updates", r"0\.01", alternative)):
        scheduler = build(resumed.optimizer, LONG)
        resumed.use(scheduler)
        resumed.train(60)


def test_lost_state_of_an_optimizer_that_is_loaded_later() -> None:
    run = TorchRun(AdamW, torch.tensor, lr=1e-5)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_optimizer(states_after_20_updates(AdamW))
    with warns_once(lacks_state("has made 20 updates", "1e-05", "; or pass last_epoch=19")):
        run.train(60)


def test_lost_state_of_momentum() -> None:
    """SGD does not count its updates."""
    run = TorchRun(kinds.MOMENTUM, torch.tensor)
    run.load_optimizer(states_after_20_updates(kinds.MOMENTUM))
    with warns_once(lacks_state("was loaded", r"0\.01", "")):
        scheduler = lambda_lr(run.optimizer, LONG)
        run.use(scheduler)
        run.train(9)


def test_lost_state_of_sgd_that_is_loaded_later() -> None:
    run = TorchRun(SGD, torch.tensor, lr=0.01)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_optimizer(states_after_20_updates(SGD))
    with warns_once(lacks_state("was loaded", r"0\.01", "")):
        run.train(9)


def test_lost_state_of_sgd_without_momentum() -> None:
    """SGD without momentum has no state: only its learning rate shows that it was trained."""
    plain_sgd = partial(SGD, momentum=0.0)
    earlier = TorchRun(plain_sgd, lr=0.01)
    earlier.step_optimizer(20)
    run = TorchRun(plain_sgd, torch.tensor, lr=0.1)
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.load_optimizer(earlier.save())
    with warns_once(lacks_state("was loaded", r"0\.1", "")):
        run.train(9)


def test_lost_state_of_groups_with_reordered_options(resumed: TorchRun) -> None:
    """As torch.distributed.checkpoint loads them."""
    for group in resumed.optimizer.param_groups:
        group["params"] = group.pop("params")
        group["initial_lr"] = group.pop("initial_lr")
    with warns_once(lacks_state("has made 20 updates")):
        scheduler = lambda_lr(resumed.optimizer, LONG)
        resumed.use(scheduler)
        resumed.train(9)


def test_lost_state_of_an_older_torch() -> None:
    """Its groups have fewer options."""
    run = TorchRun(AdamW, torch.tensor)
    states = states_after_20_updates(AdamW)
    for group in states["optimizer"]["param_groups"]:
        del group["maximize"]
    run.load_optimizer(states)
    with warns_once(lacks_state("has made 20 updates")):
        scheduler = lambda_lr(run.optimizer, LONG)
        run.use(scheduler)
        run.train(9)


def test_lost_state_and_a_peak_set_by_hand(run: TorchRun) -> None:
    run.load_optimizer(states_after_20_updates(SGD))
    run.write(lr=0.1, initial_lr=0.1)
    with warns_once(lacks_state("was loaded", r"0\.1", "")):
        scheduler = lambda_lr(run.optimizer, LONG)
        run.use(scheduler)
        run.train(60)


def test_lost_state_of_the_second_in_a_sequence(resumed: TorchRun) -> None:
    first = kinds.constant(resumed.optimizer)
    second = lambda_lr(resumed.optimizer, LONG)
    sequence = kinds.sequence(resumed.optimizer, first, second, at=15)
    resumed.use(sequence)
    with warns_once(lacks_state("has made 20 updates")):
        resumed.train(20)


def test_lost_state_after_a_new_peak_in_a_sequence(resumed: TorchRun) -> None:
    first = lambda_lr(resumed.optimizer, LONG)
    second = lambda_lr(resumed.optimizer, LONG)
    sequence = kinds.sequence(resumed.optimizer, first, second, at=10)
    resumed.use(sequence)
    first.set_peak(1.0)
    with warns_once(lacks_state("has made 20 updates")):
        resumed.train(20)


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


@pytest.mark.parametrize(
    ("curve", "updates", "steps", "last_epoch"),
    [(LONG, 60, 1, -1), (FLOOR, 1, 2, -1), (FLOOR, 1, 1, 1000)],
    ids=["rarely", "often", "past the end"],
)
def test_warning_as_error_changes_nothing(
    curve: PlateauCurve, updates: int, steps: int, last_epoch: int
) -> None:
    run = TorchRun()
    scheduler = lambda_lr(run.optimizer, curve, last_epoch)
    follower = follow(run.optimizer, "weight_decay", LONG)
    run.use(scheduler, follower)
    events = [run.step_optimizer] * updates + [run.step_schedulers] * steps
    for event in events * 300:
        states = run.save()["schedulers"]
        lrs = lrs_of(run.optimizer)
        try:
            event()
        except CurveWarning:
            assert run.save()["schedulers"] == states
            assert lrs_of(run.optimizer) == lrs
            return
    pytest.fail("no warning")
