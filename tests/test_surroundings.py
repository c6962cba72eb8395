"""Curves in unusual surroundings: threads, forked processes, folders with spaces."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax.numpy as jnp
import numpy as np
import pytest
from support.data.loaders import WORKERS
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from torch.utils.data import DataLoader, Dataset

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import Checkpoints, lambda_lr

pytestmark = WORKERS

PEAK = 3e-4
STEPS = range(61)
THREADS = 4


def new_curve():
    """Return a curve that nothing has computed yet."""
    cosine = PlateauCurve(60, warmup_steps=6, plateaus=[(10, 30)], min_lr_ratio=0.1)
    return cosine.cooldown(45, 15, shape="1-x^1.5")


CURVE = new_curve()
MULTIPLIERS = [CURVE(step) for step in STEPS]
LRS = [learning_rate(PEAK, CURVE, step) for step in STEPS]


# Threads.


def in_threads(function):
    """Call a function in several threads at the same time."""
    barrier = Barrier(THREADS)

    def call(_):
        barrier.wait()
        return function()

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(call, range(THREADS)))


def test_curve_that_several_threads_share():
    """Also what it computes on first use."""
    curve = new_curve()

    def look():
        values = [curve(step) for step in STEPS]
        return values, curve.flat_starts, curve.segments, curve.describe(), hash(curve)

    expected = MULTIPLIERS, CURVE.flat_starts, CURVE.segments, CURVE.describe(), hash(CURVE)
    assert in_threads(look) == [expected] * THREADS


def lrs_of_a_run():
    """Train with a separate optimizer, and return its learning rates."""
    optimizer = optimizer_with([PEAK])
    scheduler = lambda_lr(optimizer, CURVE)
    lrs = lrs_of(optimizer)
    for _ in STEPS[1:]:
        advance(optimizer, scheduler)
        lrs += lrs_of(optimizer)
    return lrs


def test_schedulers_in_several_threads():
    assert in_threads(lrs_of_a_run) == [LRS] * THREADS


@pytest.mark.slow
def test_schedule_that_several_threads_share():
    schedule = optax_schedule(CURVE, PEAK)
    steps = jnp.arange(len(STEPS))
    for values in in_threads(lambda: schedule(steps)):
        np.testing.assert_array_equal(values, LRS)


# Forked processes. JAX does not support them, so they use NumPy and torch alone.


class Multipliers(Dataset[float]):
    """The multiplier of each step, as for a loss whose weight follows a curve."""

    def __len__(self):
        return len(STEPS)

    def __getitem__(self, index):
        return CURVE(index)


@pytest.mark.slow
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork"
)
def test_curve_in_the_workers_of_a_loader():
    """The scheduler of their parent goes on."""
    optimizer = optimizer_with([PEAK])
    scheduler = lambda_lr(optimizer, CURVE)
    loader = DataLoader(Multipliers(), batch_size=16, num_workers=2, multiprocessing_context="fork")
    multipliers = []
    for update, batch in enumerate(loader):
        multipliers += batch.tolist()
        assert lrs_of(optimizer) == [LRS[update]]
        advance(optimizer, scheduler)
    assert multipliers == MULTIPLIERS


# Folders.


def test_checkpoints_in_a_folder_with_spaces(tmp_path):
    folder = tmp_path / "My runs (2), größer 100%"
    folder.mkdir()
    optimizer = optimizer_with([PEAK])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 30)
    checkpoints = Checkpoints(folder / "check points")
    checkpoints.save(30, wait=True, optimizer=optimizer, scheduler=scheduler)

    resumed_optimizer = optimizer_with([PEAK])
    resumed = lambda_lr(resumed_optimizer, CURVE)
    again = Checkpoints(folder / "check points")
    assert again.load(optimizer=resumed_optimizer, scheduler=resumed) == 30
    assert lrs_of(resumed_optimizer) == [LRS[30]]
