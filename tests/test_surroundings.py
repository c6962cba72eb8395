"""Curves in unusual surroundings: threads and forked processes."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from support.data.loaders import WORKERS
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from torch.utils.data import DataLoader, Dataset

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

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
