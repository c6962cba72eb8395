"""Right programs, which `torch_bridge.advice` must not warn about.

They need no assertion, because a warning is an error. `test_advice` has the wrong ones.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from schedulers import kinds
from support.runs.torch_run import TorchRun
from support.schedulers.runs import optimizer_with
from torch.optim import SGD, Adagrad, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from plateau_jax import DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

pytestmark = [
    # SequentialLR passes it.
    pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning"),
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]


@pytest.fixture(params=[(SGD, float), (AdamW, torch.tensor)], ids=["SGD", "AdamW"])
def run(request: pytest.FixtureRequest) -> TorchRun:
    """A run on plain SGD, and one on AdamW with learning rates in tensors."""
    return TorchRun(*request.param)


# Scheduler steps that fit the updates.


@kinds.every_kind
def test_step_after_every_update(build: Any, run: TorchRun) -> None:
    run.use(build(run.optimizer, kinds.CURVE))
    run.train(105)


def test_no_steps_after_the_end_at_a_floor(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.FLOOR))
    run.train(15)
    run.step_optimizer(700)


def test_unit_of_20_updates(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.CURVE, clock=DataClock(200, count=10)))
    run.train(100)


def test_range_test_of_learning_rates(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(30)
    before = run.values()[0]
    for update in range(200):
        run.write(lr=1e-6 * 1.01**update)
        run.step_optimizer()
    run.write(lr=before)
    run.train(60)


def test_averaging_of_weights(run: TorchRun) -> None:
    averaging = SWALR(run.optimizer, swa_lr=0.05, anneal_epochs=3)
    scheduler = lambda_lr(run.optimizer, kinds.CURVE)
    for _ in range(4):
        run.use(scheduler)
        run.train(20)
        run.use(averaging)
        run.repeat(1, updates=20)


def test_plots_of_the_learning_rates_to_come(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.CURVE))
    for updates in (0, 2, 30, 1):
        run.train(updates)
        run.step_schedulers(50)


def test_sequence_that_fades(run: TorchRun) -> None:
    fading = LinearLR(run.optimizer, start_factor=1.0, end_factor=0.0, total_iters=1)
    run.use(kinds.sequence(run.optimizer, fading, lambda_lr(run.optimizer, kinds.CURVE), at=3))
    run.repeat(1, updates=31)


def test_skipped_updates_of_fp16(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.CURVE))
    for update in range(100):
        if update not in (10, 12, 30, 31, 32, 50):
            run.step_optimizer()
        run.step_schedulers()


def test_two_epochs_above_0(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.repeat(2, updates=30)
    run.use(lambda_lr(run.optimizer, [kinds.CURVE, kinds.LONG]))
    run.repeat(2, updates=30)


def test_frozen_past_the_end(run: TorchRun) -> None:
    run.write(lr=0.0)
    run.use(lambda_lr(run.optimizer, kinds.SHORT))
    run.train(200)


def test_step_that_is_late_now_and_then(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    for _ in range(60):
        run.repeat(1, updates=12)
        run.train(1)


def test_accumulation(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.repeat(150, updates=9)


def test_iterations_of_ppo(run: TorchRun) -> None:
    """Each makes many updates, and one step of the curve: the updates outnumber its steps."""
    run.use(lambda_lr(run.optimizer, PlateauCurve(100)))
    run.repeat(20, updates=320)


def test_plateau_without_steps(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, PlateauCurve(10_000, plateaus=[(0, 50)])))
    run.step_optimizer(1350)


def test_plateau_of_the_first_in_a_sequence(run: TorchRun) -> None:
    first = lambda_lr(run.optimizer, StagedCurve([(5000, 1.0)], start=1.0))
    second = lambda_lr(run.optimizer, kinds.LONG)
    run.use(kinds.sequence(run.optimizer, first, second, at=5000))
    run.step_optimizer(1350)


def test_unit_that_lasts(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG, clock=DataClock(10**6, count=1)))
    run.repeat(9, updates=60)


def test_curve_held_for_long(run: TorchRun) -> None:
    scheduler = lambda_lr(run.optimizer, kinds.LONG, clock=HoldBelow(1.0, 99))
    run.use(kinds.with_arguments(scheduler, metric=0.5))
    run.repeat(9, updates=60)


def test_curve_that_ends_at_its_highest_level(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, [kinds.FLOOR, StagedCurve([(5, 1.0)])]))
    run.train(1350)


def test_constant_learning_rate(run: TorchRun) -> None:
    """Its curve stays at its highest level from the first step on."""
    run.use(lambda_lr(run.optimizer, StagedCurve([(10,)], start=1.0)))
    run.train(1350)


def test_jump_past_the_end(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.FLOOR, last_epoch=5000))
    run.train(90)


def test_resume_past_the_end(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.FLOOR, last_epoch=5000))
    run.train(1)
    resumed = run.in_a_new_process()
    resumed.use(lambda_lr(resumed.optimizer, kinds.FLOOR))
    resumed.load(run.save())
    resumed.train(90)


# Several schedulers, and groups that change.


def test_phases(run: TorchRun) -> None:
    to_a_plateau = StagedCurve([(5, 1.0), (9000,)])
    for curve in (kinds.LONG, kinds.WARMUP, to_a_plateau):
        run.use(lambda_lr(run.optimizer, curve))
        run.train(700)


def test_phases_between_those_of_torch(run: TorchRun) -> None:
    run.use(CosineAnnealingLR(run.optimizer, T_max=2000))
    run.train(20)
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(20)
    run.use(lambda_lr(run.optimizer, kinds.WARMUP))
    run.train(20)
    run.use(LinearLR(run.optimizer, start_factor=0.5, total_iters=9))
    run.train(20)


def test_phases_built_at_once(run: TorchRun) -> None:
    first = lambda_lr(run.optimizer, StagedCurve([(100, 1.0), (900,)]))
    second = lambda_lr(run.optimizer, kinds.LONG)
    run.use(first)
    run.train(1000)
    run.use(second)
    run.train(1000)


def test_second_phase_that_begins_when_the_first_ends(run: TorchRun) -> None:
    first = lambda_lr(run.optimizer, StagedCurve([(50, 1.0)]))
    second = lambda_lr(run.optimizer, kinds.LONG)
    run.use(first)
    run.train(50)
    run.use(first, second)
    run.train(850)


def test_reduce_on_plateau_takes_over(run: TorchRun) -> None:
    warmup = lambda_lr(run.optimizer, StagedCurve([(20, 1.0)]))
    reduce_on_plateau = kinds.with_arguments(ReduceLROnPlateau(run.optimizer), metrics=0.5)
    run.use(warmup)
    run.train(20)
    run.use(reduce_on_plateau)
    run.train(1100)


def test_group_that_is_added(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(50)
    run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-3})
    run.train(600)
    run.use(CosineAnnealingLR(run.optimizer, T_max=2000))
    run.train(600)


def test_updates_before_the_scheduler(run: TorchRun) -> None:
    run.step_optimizer(30)
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(60)


def test_set_peak_of_a_second_phase(run: TorchRun) -> None:
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(30)
    run.write(lr=1e-4)
    scheduler = lambda_lr(run.optimizer, kinds.WARMUP)
    scheduler.set_peak(1e-4)
    run.use(scheduler)
    run.train(60)


# States.


def test_initial_state_comes_back(run: TorchRun) -> None:
    states = run.save()
    run.use(lambda_lr(run.optimizer, kinds.WARMUP))
    run.load_optimizer(states)
    run.train(60)


def test_optimizer_that_loads_its_own_state(run: TorchRun) -> None:
    """As accelerate does."""
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.load_optimizer(run.save())
    run.train(60)


def test_last_epoch_of_a_loaded_optimizer(run: TorchRun) -> None:
    run.load_optimizer(kinds.states_after_20_updates(run.kind))
    run.use(lambda_lr(run.optimizer, kinds.LONG, last_epoch=19))
    run.train(60)


def test_fast_forward(run: TorchRun) -> None:
    run.load_optimizer(kinds.states_after_20_updates(run.kind))
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.step_schedulers(20)
    run.train(60)


def test_new_peaks_of_a_loaded_optimizer(run: TorchRun) -> None:
    run.load_optimizer(kinds.states_after_20_updates(run.kind))
    first = lambda_lr(run.optimizer, kinds.LONG)
    second = lambda_lr(run.optimizer, kinds.LONG)
    run.use(kinds.sequence(run.optimizer, first, second, at=15))
    first.set_peak(1.0)
    second.set_peak(1.0)
    run.train(60)


def test_scheduler_that_is_loaded_after_an_update(run: TorchRun) -> None:
    states = kinds.states_after_20_updates(run.kind)
    resumed = TorchRun(run.kind, run.form, lr=0.01)
    resumed.use(lambda_lr(resumed.optimizer, kinds.LONG))
    resumed.load_optimizer(states)
    resumed.step_optimizer()
    resumed.load_schedulers(states)
    resumed.train(60)


@dataclass(frozen=True)
class Resume:
    build: Callable[..., Any]
    optimizer: Any


RESUMES = [
    *(Resume(build, AdamW) for build in kinds.KINDS),
    Resume(lambda_lr, Adagrad),
    Resume(lambda_lr, kinds.MOMENTUM),
]


@pytest.mark.parametrize("resume", RESUMES)
@pytest.mark.parametrize("updates", [0, 1, 20])
def test_run_that_loads_its_states_is_silent(resume: Resume, updates: int) -> None:
    """In every order."""
    run = TorchRun(resume.optimizer)
    run.use(resume.build(run.optimizer, kinds.CURVE))
    run.train(updates)
    states = run.save()

    built_after_loading = run.in_a_new_process()
    built_after_loading.load_optimizer(states)
    built_after_loading.use(resume.build(built_after_loading.optimizer, kinds.CURVE))
    built_after_loading.load_schedulers(states)
    built_after_loading.train(30)

    built_before_loading = run.in_a_new_process()
    built_before_loading.use(resume.build(built_before_loading.optimizer, kinds.CURVE))
    built_before_loading.load(states)
    built_before_loading.train(30)

    optimizer_last = run.in_a_new_process()
    optimizer_last.use(resume.build(optimizer_last.optimizer, kinds.CURVE))
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
        scheduler: Any = lambda_lr(optimizer, kinds.CURVE)
        reference = weakref.ref(scheduler)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        scheduler.cycle = scheduler
        for _ in range(21):
            optimizer.step()
            scheduler.step()
        del scheduler
        optimizer.step()
        assert reference() is None
