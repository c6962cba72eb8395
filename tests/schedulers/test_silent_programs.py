"""Right programs, which `torch_bridge.advice` must not warn about.

They need no assertion, because a warning is an error. `test_advice` has the wrong ones.
"""

import gc
import weakref
from functools import partial

import pytest
import torch
from schedulers import kinds
from schedulers.torch_run import TorchRun
from support.schedulers.runs import optimizer_with
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from plateau_jax import DataClock, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

bfloat16_tensor = partial(torch.tensor, dtype=torch.bfloat16)

pytestmark = [
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]


@pytest.fixture(params=[(SGD, float), (AdamW, torch.tensor)], ids=["SGD", "AdamW"])
def run(request):
    """A run on plain SGD, and one on AdamW with learning rates in tensors."""
    return TorchRun(*request.param)


# Scheduler steps that fit the updates.


@kinds.every_kind
def test_step_after_every_update(build, run):
    run.use(build(run.optimizer, kinds.CURVE))
    run.train(105)


def test_averaging_of_weights(run):
    averaging = SWALR(run.optimizer, swa_lr=0.05, anneal_epochs=3)
    scheduler = lambda_lr(run.optimizer, kinds.CURVE)
    for _ in range(4):
        run.use(scheduler)
        run.train(20)
        run.use(averaging)
        run.repeat(1, updates=20)


def test_skipped_updates_of_fp16(run):
    run.use(lambda_lr(run.optimizer, kinds.CURVE))
    for update in range(100):
        if update not in (10, 12, 30, 31, 32, 50):
            run.step_optimizer()
        run.step_schedulers()


def test_iterations_of_ppo(run):
    """Each makes many updates, and one step of the curve: the updates outnumber its steps."""
    run.use(lambda_lr(run.optimizer, PlateauCurve(100)))
    run.repeat(20, updates=320)


def test_plateau_without_steps(run):
    run.use(lambda_lr(run.optimizer, PlateauCurve(10_000, plateaus=[(0, 50)])))
    run.step_optimizer(1350)


def test_unit_that_lasts(run):
    run.use(lambda_lr(run.optimizer, kinds.LONG, clock=DataClock(10**6, count=1)))
    run.repeat(9, updates=60)


def test_curve_that_ends_at_its_highest_level(run):
    run.use(lambda_lr(run.optimizer, [kinds.FLOOR, StagedCurve([(5, 1.0)])]))
    run.train(1350)


class SharpnessAware(Optimizer):
    """Like SAM: programs call two steps around a second backward pass, and torch sees no `step`."""

    def __init__(self, base):
        super().__init__(base.param_groups, base.defaults)
        self.base_optimizer = base
        self.param_groups = base.param_groups

    def first_step(self): ...

    def second_step(self):
        self.base_optimizer.step()


def test_optimizer_of_two_steps(run):
    optimizer = SharpnessAware(run.optimizer)
    scheduler = lambda_lr(optimizer, kinds.CURVE)
    for step in range(25):
        optimizer.first_step()
        optimizer.second_step()
        assert run.values()[0] == kinds.CURVE.learning_rate(step, 0.1)
        scheduler.step()


# Several schedulers, and groups that change.


def test_phases(run):
    to_a_plateau = StagedCurve([(5, 1.0), (9000,)])
    for curve in (kinds.LONG, kinds.WARMUP, to_a_plateau):
        run.use(lambda_lr(run.optimizer, curve))
        run.train(700)


def test_reduce_on_plateau_takes_over(run):
    warmup = lambda_lr(run.optimizer, StagedCurve([(20, 1.0)]))
    reduce_on_plateau = kinds.with_arguments(ReduceLROnPlateau(run.optimizer), metrics=0.5)
    run.use(warmup)
    run.train(20)
    run.use(reduce_on_plateau)
    run.train(1100)


def test_group_that_is_added(run):
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(50)
    run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-3})
    run.train(600)
    run.use(CosineAnnealingLR(run.optimizer, T_max=2000))
    run.train(600)


def test_updates_before_the_scheduler(run):
    run.step_optimizer(30)
    run.use(lambda_lr(run.optimizer, kinds.LONG))
    run.train(60)


# States.


@pytest.mark.parametrize("make_value", [float, torch.tensor, bfloat16_tensor])
def test_last_epoch_of_a_loaded_optimizer(make_value):
    falling = StagedCurve([(100, 0.0, "linear")], start=1.0)
    earlier = TorchRun(AdamW, make_value)
    earlier.use(lambda_lr(earlier.optimizer, falling))
    earlier.train(20)
    run = earlier.in_a_new_process()
    run.load_optimizer(earlier.save())
    run.use(lambda_lr(run.optimizer, falling, last_epoch=19))
    run.train(60)


def test_scheduler_that_is_loaded_after_an_update(run):
    states = kinds.states_after_20_updates(run.kind)
    resumed = TorchRun(run.kind, run.make_value, lr=0.01)
    resumed.use(lambda_lr(resumed.optimizer, kinds.LONG))
    resumed.load_optimizer(states)
    resumed.step_optimizer()
    resumed.load_schedulers(states)
    resumed.train(60)


RESUMES = [
    *((build, AdamW) for build in kinds.KINDS),
    (lambda_lr, Adagrad),
    (lambda_lr, kinds.MOMENTUM),
]


@pytest.mark.parametrize(("build", "optimizer"), RESUMES)
@pytest.mark.parametrize("updates", [0, 1, 20])
def test_run_that_loads_its_states_is_silent(build, optimizer, updates):
    """In every order."""
    run = TorchRun(optimizer)
    run.use(build(run.optimizer, kinds.CURVE))
    run.train(updates)
    states = run.save()

    def build_and_load(order):
        resumed = run.in_a_new_process()
        for part in order.split(", "):
            if part == "optimizer":
                resumed.load_optimizer(states)
            elif part == "build":
                resumed.use(build(resumed.optimizer, kinds.CURVE))
            else:
                resumed.load_schedulers(states)
        resumed.train(30)

    build_and_load("optimizer, build, scheduler")
    build_and_load("build, optimizer, scheduler")
    build_and_load("build, scheduler, optimizer")


def test_collected_schedulers_are_not_kept():
    """One that was stepped lives no longer than the user's reference; another one replaces it."""
    gc.collect()
    gc.freeze()  # the collections below then search only the objects of this test
    optimizer = optimizer_with([0.1])

    def collect_garbage(*_):
        gc.collect()

    optimizer.register_step_post_hook(collect_garbage)  # while the hooks are iterated over
    for _ in range(3):
        scheduler = lambda_lr(optimizer, kinds.CURVE)
        reference = weakref.ref(scheduler)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        scheduler.cycle = scheduler
        for _ in range(21):
            optimizer.step()
            scheduler.step()
        del scheduler
        optimizer.step()
        assert reference() is None
