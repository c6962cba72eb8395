"""Warnings of `torch_bridge.schedulers.step_warnings`: wrong programs warn once, right ones never.

A right program needs no assertion, because a warning is an error.
"""

import copy
import gc
import pickle
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers.runs import lrs_of, optimizer_with
from support.training.optimizers import ADAGRAD_RECREATES_STATES
from support.training.steps import through_file
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.swa_utils import SWALR

from plateau_jax import CurveWarning, DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr
from torch_bridge.clocks.position_warnings import end_message
from torch_bridge.param_groups import loaded_updates, updates_made

pytestmark = [
    # SequentialLR passes it.
    pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning"),
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]

LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
WARMUP = PlateauCurve(10_000, warmup_steps=100)
CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
SHORT = PlateauCurve(10)
FLOOR = PlateauCurve(10, min_lr_ratio=0.1)
MOMENTUM: Any = partial(SGD, momentum=0.9)


class Training:
    """A program that trains: an optimizer with two groups, and the schedulers that it steps."""

    def __init__(self, kind: Any = SGD, form: Any = float, lr: float = 0.1) -> None:
        options = {"weight_decay": 0.5}
        if kind is SGD:
            options["momentum"] = 0.5
        self.kind = kind
        self.form = form
        self.optimizer = optimizer_with([form(lr), form(lr)], kind, **options)
        self.schedulers: list[Any] = []

    def use(self, *schedulers: Any) -> None:
        """Step these schedulers from now on."""
        self.schedulers = list(schedulers)

    def update(self, count: int = 1) -> None:
        for _ in range(count):
            self.optimizer.step()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for scheduler in self.schedulers:
                scheduler.step()

    def train(self, count: int) -> None:
        """Make updates, and a scheduler step after each."""
        self.epochs(count, updates=1)

    def epochs(self, count: int, updates: int, steps: int = 1) -> None:
        """Make scheduler steps after these updates, `count` times."""
        for _ in range(count):
            self.update(updates)
            self.step(steps)

    def write(self, **options: float) -> None:
        """Write into the groups, as a user does."""
        for group in self.optimizer.param_groups:
            for name, value in options.items():
                if isinstance(group.get(name), torch.Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    def save(self) -> Any:
        schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        return through_file({"optimizer": self.optimizer.state_dict(), "schedulers": schedulers})

    def load_optimizer(self, states: Any) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(states["optimizer"]))

    def load_schedulers(self, states: Any) -> None:
        for scheduler, state in zip(self.schedulers, states["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))

    def load(self, states: Any) -> None:
        self.load_optimizer(states)
        self.load_schedulers(states)

    def resumed(self) -> "Training":
        """Return the program as another process starts it."""
        return Training(self.kind, self.form)

    def lr(self) -> float:
        return lrs_of(self.optimizer)[0]


def states_after_20_updates(kind: Any) -> Any:
    """Return the states of an earlier run with a different peak."""
    run = Training(kind, lr=0.01)
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(20)
    return run.save()


@pytest.fixture
def run() -> Training:
    return Training(form=torch.tensor)


@pytest.fixture
def adamw_run() -> Training:
    return Training(AdamW, torch.tensor)


@pytest.fixture(params=[(SGD, float), (AdamW, torch.tensor)], ids=["SGD", "AdamW"])
def right_run(request: pytest.FixtureRequest) -> Training:
    """A run on plain SGD, and one on AdamW with learning rates in tensors."""
    return Training(*request.param)


# The kinds of schedulers.


def with_arguments(scheduler: Any, **arguments: Any) -> Any:
    """Let a scheduler be stepped like all others, without its metric or count."""
    scheduler.step = partial(scheduler.step, **arguments)
    return scheduler


def sequence(optimizer: Any, *schedulers: Any, at: int) -> Any:
    return SequentialLR(optimizer, list(schedulers), [at])


def constant(optimizer: Any) -> Any:
    return ConstantLR(optimizer, factor=1.0, total_iters=10)


def held(optimizer: Any, curve: Any) -> Any:
    never_holds = HoldBelow(-1.0, 1)
    return with_arguments(lambda_lr(optimizer, curve, clock=never_holds), metric=0.5)


def counting(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, curve, clock=DataClock(8, count=8))


def curve_per_group(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, [curve, curve])


def chained(optimizer: Any, curve: Any) -> Any:
    return ChainedScheduler([lambda_lr(optimizer, curve), constant(optimizer)], optimizer)


def first_in_sequence(optimizer: Any, curve: Any) -> Any:
    return sequence(optimizer, lambda_lr(optimizer, curve), constant(optimizer), at=3000)


KINDS = [lambda_lr, held, counting, curve_per_group, chained, first_in_sequence]
every_kind = pytest.mark.parametrize("build", KINDS)


@contextmanager
def warns_once(pattern: str) -> Iterator[list[str]]:
    """Check that a program warns once, at the user's line, and says how to filter the warning.

    Yields a list, which has the message afterwards.
    """
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        yield messages
    (warning,) = [item for item in caught if item.category is CurveWarning]
    message = str(warning.message)
    assert re.search(pattern, message), message
    assert warning.filename == __file__
    for filtered in re.findall(r'filterwarnings\("ignore", "(.*)"\)', message):
        assert re.match(filtered, message)
    messages.append(message)


# Scheduler steps that do not fit the updates.


def called(times: str) -> str:
    """Return the pattern of how often `scheduler.step()` was called."""
    return rf"^scheduler\.step\(\) was called {times} times in the last \d+ optimizer steps"


def steps_do_not_fit(times: str) -> str:
    advice = r"\. Call scheduler\.step\((count=n)?\) once after every optimizer\.step\(\).*"
    way_out = r'turn this warning off: warnings\.filterwarnings\("ignore", "scheduler\.step"\)$'
    return called(times) + advice + way_out


def check_advice(message: str, build: Any, *, is_often: bool) -> None:
    """Check that the message speaks of accelerate, and of a count, where these may be the cause."""
    is_counting = build is counting
    assert ("accelerator.num_processes" in message) == (is_often and not is_counting)
    assert ("step(count=n)" in message) == is_counting


@every_kind
def test_scheduler_that_is_never_stepped(build: Any) -> None:
    run = Training()
    run.use(build(run.optimizer, LONG))
    with warns_once(steps_do_not_fit("0")) as messages:
        run.update(520)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_that_is_stepped_once_an_epoch(build: Any) -> None:
    run = Training()
    run.use(build(run.optimizer, LONG))
    with warns_once(steps_do_not_fit("[012]")) as messages:
        run.epochs(5, updates=60)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_that_is_stepped_in_one_of_ten_updates(build: Any) -> None:
    run = Training()
    run.use(build(run.optimizer, LONG))
    run.train(5)
    with warns_once(steps_do_not_fit(r"\d+")) as messages:
        run.epochs(70, updates=10)
    check_advice(messages[0], build, is_often=False)


@every_kind
def test_scheduler_that_is_stepped_three_times_in_two_updates(build: Any) -> None:
    run = Training()
    run.use(build(run.optimizer, LONG))
    with warns_once(steps_do_not_fit(r"\d+")) as messages:
        run.epochs(60, updates=2, steps=3)
    check_advice(messages[0], build, is_often=True)


@every_kind
def test_scheduler_that_is_never_stepped_after_a_resume(build: Any) -> None:
    run = Training()
    run.use(build(run.optimizer, LONG))
    run.train(3)
    run.load(run.save())
    with warns_once(steps_do_not_fit("0")) as messages:
        run.update(520)
    check_advice(messages[0], build, is_often=False)


def test_scheduler_that_is_never_stepped_in_a_run_that_rolls_back() -> None:
    """Each update counts, although the load before it has replaced the groups."""
    run = Training()
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(3)
    states = run.save()
    with warns_once(steps_do_not_fit("0")):
        for _ in range(520):
            run.update()
            run.load_optimizer(states)


@pytest.mark.parametrize("build", [lambda_lr, curve_per_group])
def test_copy_does_not_repeat_the_warning(build: Any) -> None:
    run = Training()
    run.use(build(run.optimizer, LONG))
    with warns_once(steps_do_not_fit("0")):
        run.update(520)
    run.optimizer, run.schedulers = copy.deepcopy((run.optimizer, run.schedulers))
    run.epochs(9, updates=60)
    run.epochs(90, updates=1, steps=2)


def test_unit_that_is_too_large(run: Training) -> None:
    run.use(lambda_lr(run.optimizer, CURVE, clock=DataClock(10**6, count=10)))
    stuck = (
        ", and the curve stays at step 0, where every learning rate is 0, so no weight changes: "
        "the updates consumed 420 in all, with unit = 1000000. Choose a"
    )
    with warns_once(called(r"\d+") + stuck):
        run.train(99)


def test_scheduler_that_counts_epochs_on_a_plateau(run: Training) -> None:
    run.use(lambda_lr(run.optimizer, PlateauCurve(5000, plateaus=[(0, 80)])))
    with warns_once(called(r"\d")):
        run.epochs(25, updates=250)


def test_sequence_that_counts_epochs(run: Training) -> None:
    first = lambda_lr(run.optimizer, LONG)
    second = lambda_lr(run.optimizer, LONG)
    run.use(sequence(run.optimizer, first, second, at=3))
    with warns_once(called(r"\d")):
        run.epochs(9, updates=60)


def test_curve_that_never_reaches_its_spike(run: Training) -> None:
    spike = StagedCurve([(100,), (100, 1.0), (0, 0.5), (9000,)], start=0.5)
    run.use(lambda_lr(run.optimizer, spike))
    with warns_once(called("0")):
        run.update(520)


# Training past the end.

PAST = r"^the curve has total_steps = 10, but training continues at step \d+, with every learning "


def test_training_past_the_end(run: Training) -> None:
    run.use(lambda_lr(run.optimizer, SHORT))
    with warns_once(f"{PAST}rate at 0"):
        run.train(170)


def test_training_past_the_end_at_a_floor(run: Training) -> None:
    run.use(lambda_lr(run.optimizer, FLOOR))
    question = "rate at its final value since step 10: does the curve count epochs.*"
    way_out = r'turn this warning off: warnings\.filterwarnings\("ignore", "the curve has total'
    with warns_once(PAST + question + way_out):
        run.train(1350)


def test_training_past_the_end_at_a_floor_in_units(run: Training) -> None:
    run.use(lambda_lr(run.optimizer, FLOOR, clock=DataClock(8, count=8)))
    with warns_once("is the unit too small"):
        run.train(1350)


@pytest.mark.parametrize("total", [1, 112, 3000])
@pytest.mark.parametrize("unit", [None, 40])
def test_end_at_0_is_past_after_ten_steps_and_one_percent(total: int, unit: int | None) -> None:
    last_silent_step = total + max(10, total // 100)
    assert not end_message([PlateauCurve(total)], unit, total, total)
    assert not end_message([PlateauCurve(total)], unit, last_silent_step, last_silent_step)
    step = last_silent_step + 1
    message = end_message([PlateauCurve(total)], unit, step, step)
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
            assert bool(end_message(floor, unit, step, updates)) == is_past


def test_end_of_a_curve_above_0_is_not_an_end_at_0() -> None:
    """One group still trains."""
    curves = [PlateauCurve(112), PlateauCurve(112, min_lr_ratio=0.1)]
    assert not end_message(curves, None, 200, 200)
    assert "every learning rate at its final value" in end_message(curves, None, 2000, 2000)


# An optimizer that was loaded without the state of its scheduler.


def lacks_state(seen: str, peak: str, alternative: str = ".*") -> str:
    """Return the pattern of the warning."""
    return (
        rf"^the optimizer {seen}, but the curve starts at step 0: .*"
        rf"scheduler\.load_state_dict\(state\){alternative}\. .*set_peak\({peak}\)$"
    )


@every_kind
def test_lost_state(build: Any) -> None:
    run = Training(AdamW, torch.tensor, lr=1e-5)
    run.load_optimizer(states_after_20_updates(AdamW))
    alternative = "; or pass last_epoch=19"
    if build is counting:
        alternative = ""
    with warns_once(lacks_state("has made 20 updates", r"0\.01", alternative)):
        run.use(build(run.optimizer, LONG))
        run.train(60)


def test_lost_state_of_an_optimizer_that_is_loaded_later() -> None:
    run = Training(AdamW, torch.tensor, lr=1e-5)
    run.use(lambda_lr(run.optimizer, LONG))
    run.load_optimizer(states_after_20_updates(AdamW))
    with warns_once(lacks_state("has made 20 updates", "1e-05", "; or pass last_epoch=19")):
        run.train(60)


def test_lost_state_of_momentum() -> None:
    """SGD does not count its updates."""
    run = Training(MOMENTUM, torch.tensor)
    run.load_optimizer(states_after_20_updates(MOMENTUM))
    with warns_once(lacks_state("was loaded", r"0\.01", "")):
        run.use(lambda_lr(run.optimizer, LONG))
        run.train(9)


def test_lost_state_of_sgd_that_is_loaded_later() -> None:
    run = Training(SGD, torch.tensor, lr=0.01)
    run.use(lambda_lr(run.optimizer, LONG))
    run.load_optimizer(states_after_20_updates(SGD))
    with warns_once(lacks_state("was loaded", r"0\.01", "")):
        run.train(9)


def test_lost_state_of_groups_whose_options_change_their_order(adamw_run: Training) -> None:
    """As torch.distributed.checkpoint loads them."""
    run = adamw_run
    run.load_optimizer(states_after_20_updates(AdamW))
    for group in run.optimizer.param_groups:
        group["params"] = group.pop("params")
        group["initial_lr"] = group.pop("initial_lr")
    with warns_once(lacks_state("has made 20 updates", ".*")):
        run.use(lambda_lr(run.optimizer, LONG))
        run.train(9)


def test_lost_state_of_an_older_torch(adamw_run: Training) -> None:
    """Its groups have fewer options."""
    run = adamw_run
    states = states_after_20_updates(AdamW)
    for group in states["optimizer"]["param_groups"]:
        del group["maximize"]
    run.load_optimizer(states)
    with warns_once(lacks_state("has made 20 updates", ".*")):
        run.use(lambda_lr(run.optimizer, LONG))
        run.train(9)


def test_lost_state_and_a_peak_set_by_hand(run: Training) -> None:
    run.load_optimizer(states_after_20_updates(SGD))
    run.write(lr=0.1, initial_lr=0.1)
    with warns_once(lacks_state("was loaded", r"0\.1", "")):
        run.use(lambda_lr(run.optimizer, LONG))
        run.train(60)


def test_lost_state_of_the_second_in_a_sequence(adamw_run: Training) -> None:
    run = adamw_run
    run.load_optimizer(states_after_20_updates(AdamW))
    first = constant(run.optimizer)
    second = lambda_lr(run.optimizer, LONG)
    run.use(sequence(run.optimizer, first, second, at=15))
    with warns_once(lacks_state("has made 20 updates", ".*")):
        run.train(20)


def test_lost_state_and_a_new_peak_of_the_first_in_a_sequence(adamw_run: Training) -> None:
    run = adamw_run
    run.load_optimizer(states_after_20_updates(AdamW))
    first = lambda_lr(run.optimizer, LONG)
    second = lambda_lr(run.optimizer, LONG)
    run.use(sequence(run.optimizer, first, second, at=10))
    first.set_peak(1.0)
    with warns_once(lacks_state("has made 20 updates", ".*")):
        run.train(20)


def resumed_without_scheduler(states: Any) -> Training:
    run = Training(AdamW, lr=1e-5)
    run.load_optimizer(states)
    return run


def test_advice_to_load_the_state_works() -> None:
    states = states_after_20_updates(AdamW)
    run = resumed_without_scheduler(states)
    run.use(lambda_lr(run.optimizer, LONG))
    run.load_schedulers(states)
    run.train(5)
    assert run.lr() == pytest.approx(0.01 * LONG(25))


def test_advice_to_pass_last_epoch_works() -> None:
    run = resumed_without_scheduler(states_after_20_updates(AdamW))
    run.use(lambda_lr(run.optimizer, LONG, last_epoch=19))
    run.train(5)
    assert run.lr() == pytest.approx(0.01 * LONG(25))


def test_advice_to_set_the_peak_works() -> None:
    run = resumed_without_scheduler(states_after_20_updates(AdamW))
    scheduler = lambda_lr(run.optimizer, LONG)
    scheduler.set_peak(1e-5)
    run.use(scheduler)
    run.train(5)
    assert run.lr() == pytest.approx(1e-5 * LONG(5))


# Warnings as errors.


@pytest.mark.parametrize(
    ("updates", "steps", "last_epoch"),
    [(60, 1, -1), (1, 2, -1), (1, 1, 1000)],
    ids=["rarely", "often", "past the end"],
)
def test_warning_as_error_changes_nothing(updates: int, steps: int, last_epoch: int) -> None:
    run = Training()
    scheduler = lambda_lr(run.optimizer, FLOOR, last_epoch)
    follower = follow(run.optimizer, "weight_decay", LONG)
    run.use(scheduler, follower)
    events = [run.update] * updates + [run.step] * steps
    for event in events * 300:
        before = run.save()["schedulers"], lrs_of(run.optimizer)
        try:
            event()
        except CurveWarning:
            assert (run.save()["schedulers"], lrs_of(run.optimizer)) == before
            return
    pytest.fail("no warning")


# Right programs: scheduler steps that fit the updates.


@every_kind
def test_step_after_every_update(build: Any, right_run: Training) -> None:
    right_run.use(build(right_run.optimizer, CURVE))
    right_run.train(105)


def test_step_for_each_of_four_processes(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG, clock=DataClock(4, count=1)))
    run.epochs(700, updates=1, steps=4)


def test_no_steps_after_the_end_at_a_floor(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, FLOOR))
    run.train(15)
    run.update(700)


def test_unit_of_20_updates(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, CURVE, clock=DataClock(200, count=10)))
    run.train(100)


def test_range_test_of_learning_rates(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(30)
    before = run.lr()
    for update in range(200):
        run.write(lr=1e-6 * 1.01**update)
        run.update()
    run.write(lr=before)
    run.train(60)


def test_averaging_of_weights(right_run: Training) -> None:
    run = right_run
    averaging = SWALR(run.optimizer, swa_lr=0.05, anneal_epochs=3)
    scheduler = lambda_lr(run.optimizer, CURVE)
    for _ in range(4):
        run.use(scheduler)
        run.train(20)
        run.use(averaging)
        run.epochs(1, updates=20)


def test_plots_of_the_learning_rates_to_come(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, CURVE))
    for updates in (0, 2, 30, 1):
        run.train(updates)
        run.step(50)


def test_sequence_that_fades(right_run: Training) -> None:
    run = right_run
    fading = LinearLR(run.optimizer, start_factor=1.0, end_factor=0.0, total_iters=1)
    run.use(sequence(run.optimizer, fading, lambda_lr(run.optimizer, CURVE), at=3))
    run.epochs(1, updates=31)


def test_skipped_updates_of_fp16(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, CURVE))
    for update in range(100):
        if update not in (10, 12, 30, 31, 32, 50):
            run.update()
        run.step()


def test_two_epochs_above_0(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.epochs(2, updates=30)
    run.use(lambda_lr(run.optimizer, [CURVE, LONG]))
    run.epochs(2, updates=30)


def test_too_many_steps_now_and_then(right_run: Training) -> None:
    """In windows that do not follow each other: they end after 21, 42, 84 and 168 updates."""
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(21)
    run.epochs(21, updates=1, steps=2)
    run.train(42)
    run.epochs(84, updates=1, steps=2)
    run.train(168)


def test_frozen_past_the_end(right_run: Training) -> None:
    run = right_run
    run.write(lr=0.0)
    run.use(lambda_lr(run.optimizer, SHORT))
    run.train(200)


def test_step_that_is_late_now_and_then(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    for _ in range(60):
        run.epochs(1, updates=12)
        run.train(1)


def test_accumulation(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.epochs(150, updates=9)


def test_plateau_without_steps(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, PlateauCurve(10_000, plateaus=[(0, 50)])))
    run.update(1350)


def test_plateau_of_the_first_in_a_sequence(right_run: Training) -> None:
    run = right_run
    first = lambda_lr(run.optimizer, StagedCurve([(5000, 1.0)], start=1.0))
    second = lambda_lr(run.optimizer, LONG)
    run.use(sequence(run.optimizer, first, second, at=5000))
    run.update(1350)


def test_unit_that_lasts(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG, clock=DataClock(10**6, count=1)))
    run.epochs(9, updates=60)


def test_curve_held_for_long(right_run: Training) -> None:
    run = right_run
    scheduler = lambda_lr(run.optimizer, LONG, clock=HoldBelow(1.0, 99))
    run.use(with_arguments(scheduler, metric=0.5))
    run.epochs(9, updates=60)


def test_curve_that_ends_at_its_highest_level(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, [FLOOR, StagedCurve([(5, 1.0)])]))
    run.train(1350)


def test_jump_past_the_end(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, FLOOR, last_epoch=5000))
    run.train(90)


def test_resume_past_the_end(right_run: Training) -> None:
    right_run.use(lambda_lr(right_run.optimizer, FLOOR, last_epoch=5000))
    right_run.train(1)
    resumed = right_run.resumed()
    resumed.use(lambda_lr(resumed.optimizer, FLOOR))
    resumed.load(right_run.save())
    resumed.train(90)


# Right programs: several schedulers, and groups that change.


def test_phases(right_run: Training) -> None:
    run = right_run
    to_a_plateau = StagedCurve([(5, 1.0), (9000,)])
    for curve in (LONG, WARMUP, to_a_plateau):
        run.use(lambda_lr(run.optimizer, curve))
        run.train(700)


def test_phases_between_those_of_torch(right_run: Training) -> None:
    run = right_run
    run.use(CosineAnnealingLR(run.optimizer, T_max=2000))
    run.train(20)
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(20)
    run.use(lambda_lr(run.optimizer, WARMUP))
    run.train(20)
    run.use(LinearLR(run.optimizer, start_factor=0.5, total_iters=9))
    run.train(20)


def test_phases_built_at_once(right_run: Training) -> None:
    run = right_run
    first = lambda_lr(run.optimizer, StagedCurve([(100, 1.0), (900,)]))
    second = lambda_lr(run.optimizer, LONG)
    run.use(first)
    run.train(1000)
    run.use(second)
    run.train(1000)


def test_second_phase_that_begins_when_the_first_ends(right_run: Training) -> None:
    run = right_run
    first = lambda_lr(run.optimizer, StagedCurve([(50, 1.0)]))
    second = lambda_lr(run.optimizer, LONG)
    run.use(first)
    run.train(50)
    run.use(first, second)
    run.train(850)


def test_reduce_on_plateau_takes_over(right_run: Training) -> None:
    run = right_run
    warmup = lambda_lr(run.optimizer, StagedCurve([(20, 1.0)]))
    reduce_on_plateau = with_arguments(ReduceLROnPlateau(run.optimizer), metrics=0.5)
    run.use(warmup)
    run.train(20)
    run.use(reduce_on_plateau)
    run.train(1100)


def test_group_that_is_added(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(50)
    run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-3})
    run.train(600)
    run.use(CosineAnnealingLR(run.optimizer, T_max=2000))
    run.train(600)


def test_updates_before_the_scheduler(right_run: Training) -> None:
    run = right_run
    run.update(30)
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(60)


def test_set_peak_of_a_second_phase(right_run: Training) -> None:
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(30)
    run.write(lr=1e-4)
    scheduler = lambda_lr(run.optimizer, WARMUP)
    scheduler.set_peak(1e-4)
    run.use(scheduler)
    run.train(60)


# Right programs: states.


def test_best_state_comes_back(right_run: Training) -> None:
    """With the learning rate of its time; and another phase begins."""
    run = right_run
    scheduler = lambda_lr(run.optimizer, LONG)
    run.use(scheduler)
    run.train(20)
    scheduler.set_peak(0.5)
    run.train(20)
    best = run.save()
    run.train(20)
    run.load_optimizer(best)
    run.use(lambda_lr(run.optimizer, WARMUP))
    run.train(30)
    run.use(lambda_lr(run.optimizer, LONG))
    run.load_optimizer(best)
    run.train(30)


def test_initial_state_comes_back(right_run: Training) -> None:
    run = right_run
    states = run.save()
    run.use(lambda_lr(run.optimizer, WARMUP))
    run.load_optimizer(states)
    run.train(60)


def test_optimizer_that_loads_its_own_state(right_run: Training) -> None:
    """As accelerate does."""
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.load_optimizer(run.save())
    run.train(60)


def test_last_epoch_of_a_loaded_optimizer(right_run: Training) -> None:
    run = right_run
    run.load_optimizer(states_after_20_updates(run.kind))
    run.use(lambda_lr(run.optimizer, LONG, last_epoch=19))
    run.train(60)


def test_fast_forward(right_run: Training) -> None:
    run = right_run
    run.load_optimizer(states_after_20_updates(run.kind))
    run.use(lambda_lr(run.optimizer, LONG))
    run.step(20)
    run.train(60)


def test_new_peaks_of_a_loaded_optimizer(right_run: Training) -> None:
    run = right_run
    run.load_optimizer(states_after_20_updates(run.kind))
    first = lambda_lr(run.optimizer, LONG)
    second = lambda_lr(run.optimizer, LONG)
    run.use(sequence(run.optimizer, first, second, at=15))
    first.set_peak(1.0)
    second.set_peak(1.0)
    run.train(60)


def test_scheduler_that_is_loaded_after_an_update(right_run: Training) -> None:
    states = states_after_20_updates(right_run.kind)
    run = Training(right_run.kind, right_run.form, lr=0.01)
    run.use(lambda_lr(run.optimizer, LONG))
    run.load_optimizer(states)
    run.update()
    run.load_schedulers(states)
    run.train(60)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("copy_of", [copy.deepcopy, pickled])
def test_copies_are_not_watched(copy_of: Any, updates: int, right_run: Training) -> None:
    """Torch does not note the steps of a copied optimizer either."""
    run = right_run
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(updates)
    run.optimizer, run.schedulers = copy_of((run.optimizer, run.schedulers))
    run.epochs(9, updates=60)
    run.epochs(90, updates=1, steps=2)


@dataclass(frozen=True)
class Resume:
    build: Callable[..., Any]
    optimizer: Any


RESUMES = [
    *(Resume(build, AdamW) for build in KINDS),
    Resume(lambda_lr, Adagrad),
    Resume(lambda_lr, MOMENTUM),
]


@pytest.mark.parametrize("resume", RESUMES)
@pytest.mark.parametrize("updates", [0, 1, 20])
def test_run_that_loads_its_states_is_silent(resume: Resume, updates: int) -> None:
    """In every order."""
    run = Training(resume.optimizer)
    run.use(resume.build(run.optimizer, CURVE))
    run.train(updates)
    states = run.save()

    built_after_loading = run.resumed()
    built_after_loading.load_optimizer(states)
    built_after_loading.use(resume.build(built_after_loading.optimizer, CURVE))
    built_after_loading.load_schedulers(states)
    built_after_loading.train(30)

    built_before_loading = run.resumed()
    built_before_loading.use(resume.build(built_before_loading.optimizer, CURVE))
    built_before_loading.load(states)
    built_before_loading.train(30)

    optimizer_last = run.resumed()
    optimizer_last.use(resume.build(optimizer_last.optimizer, CURVE))
    optimizer_last.load_schedulers(states)
    optimizer_last.load_optimizer(states)
    optimizer_last.train(30)


@pytest.mark.usefixtures("frozen")
def test_collected_schedulers_are_not_kept() -> None:
    """One that was stepped lives no longer than the user's reference; another one replaces it."""
    optimizer = optimizer_with([0.1])

    def collect_garbage(*_: Any) -> None:
        gc.collect()

    optimizer.register_step_post_hook(collect_garbage)  # while the hooks are iterated over
    for _ in range(3):
        scheduler: Any = lambda_lr(optimizer, CURVE)
        reference = weakref.ref(scheduler)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        scheduler.cycle = scheduler
        for _ in range(21):
            optimizer.step()
            scheduler.step()
        del scheduler
        optimizer.step()
        assert reference() is None


# How many updates an optimizer's state shows.

FUSED_ADAMW: Any = partial(AdamW, fused=True)


@pytest.mark.parametrize("kind", [Adagrad, Adam, FUSED_ADAMW, Adafactor, NAdam, RMSprop])
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_updates_made_are_read_before_and_after_a_load(kind: Any, updates: int) -> None:
    optimizer = optimizer_with([0.1], kind)
    for _ in range(updates):
        optimizer.step()
    assert updates_made(optimizer) == updates
    assert loaded_updates(optimizer) == 0
    loaded = optimizer_with([0.1], kind)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    assert updates_made(loaded) == updates
    assert loaded_updates(loaded) == updates


@pytest.mark.parametrize("kind", [Adagrad, Adam, FUSED_ADAMW, Adafactor, NAdam, RMSprop])
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_parameter_that_is_trained_later_hides_no_update(kind: Any, updates: int) -> None:
    if kind is Adagrad and not ADAGRAD_RECREATES_STATES:
        return  # it could not train another parameter
    optimizer = optimizer_with([0.1], kind)
    for _ in range(updates):
        optimizer.step()
    (trained_later,) = optimizer_with([0.1]).param_groups[0]["params"]
    optimizer.add_param_group({"params": [trained_later]})
    optimizer.step()
    optimizer.step()
    assert updates_made(optimizer) == updates + 2


def parameters_of(optimizer: torch.optim.Optimizer) -> Sequence[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_state_of_a_fresh_optimizer_shows_no_updates() -> None:
    assert updates_made(optimizer_with([0.1, 0.1])) == 0


@pytest.mark.parametrize("momentum", [torch.zeros(3), None])
def test_states_that_prove_nothing_count_as_none(momentum: Any) -> None:
    optimizer = optimizer_with([0.1, 0.1])
    first, second = parameters_of(optimizer)
    optimizer.state[first] = {"start": torch.ones(3), "step": torch.ones(3)}
    step_without_a_value = torch.ones((), device="meta")
    optimizer.state[second] = {"step": step_without_a_value, "momentum_buffer": momentum}
    optimizer.state["k"] = torch.tensor([4])
    assert updates_made(optimizer) == 0


def test_group_written_by_hand_shows_no_loaded_updates() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([{"lr": 0.1, "initial_lr": 0.1, "params": [parameter]}])
    assert loaded_updates(optimizer) == 0
