"""What ranks do together, on threads in place of processes. Programs for processes are slow."""

import copy
import math
from unittest.mock import patch

import pytest
import torch
from support.distributed.threads import on_ranks
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, device_pair_loss, mean_loss
from support.training.reads import Reads
from support.training.steps import make_step
from support.trees import assert_equal_trees

from plateau_jax import DataClock, PlateauCurve
from torch_bridge.training.distributed import processes

CURVE = PlateauCurve(40, warmup_steps=4, min_lr_ratio=0.1)
# A model that is built on a thread would draw from random numbers that all threads share.
NET = Net()


def step_of(**options):
    return make_step(model=copy.deepcopy(NET), curve=CURVE, **options)


@pytest.mark.parametrize(
    ("loss_fn", "precision", "multiplications"),
    [
        (mean_loss, "fp32", 1),  # to clip
        (mean_loss, "fp16", 2),
        (device_pair_loss, "fp32", 2),
        (device_pair_loss, "fp16", 2),
    ],
)
def test_update_neither_reads_nor_multiplies_too_much(loss_fn, precision, multiplications):
    """Factors have the dtype of the gradients."""
    dtypes = []
    multiply = torch._foreach_mul_

    def recorded(gradients, factor):
        dtypes.append(factor.dtype)
        multiply(gradients, factor)

    def reads():
        step = step_of(loss_fn=loss_fn, precision=precision, max_norm=0.1)
        micro_batches = batches(2)
        step(*micro_batches)
        with Reads() as reads:
            step(*micro_batches)
        return reads.names

    with patch.object(torch, "_foreach_mul_", recorded):
        assert on_ranks(reads, 2) == [[], []]
    updates = 2 * 2  # of each of two ranks
    assert dtypes == [torch.float32] * updates * multiplications


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("first_loss", [None, mean_loss, device_pair_loss])
def test_mixed_means_and_pairs_are_skipped_on_all_ranks(first_loss, precision):
    """Under fp16, ranks with pairs communicate once more."""

    def update():
        loss_of_now = first_loss

        def loss_fn(model, batch):
            return loss_of_now(model, batch)

        step = step_of(loss_fn=loss_fn, precision=precision)
        micro_batches = batches(2)
        if first_loss is not None:
            step(micro_batches[0])
        if processes.rank() == 0:
            loss_of_now = mean_loss
        else:
            loss_of_now = device_pair_loss
        state = step.state_dict()
        step(*micro_batches)
        result = step(*micro_batches)
        assert result.loss.isnan()
        assert result.applied == state["applied"]
        assert result.skipped == state["skipped"] + 2
        assert_equal_trees(step.state_dict()["model"], state["model"])

    on_ranks(update, 2)


# Counts of data.


def test_rank_with_a_wrong_count_ends():
    """The other rank has begun its update: with its next batch, this one would be behind."""
    (batch,) = batches(1)

    def update():
        step = step_of(clock=DataClock(5))
        step(batch, count=3)
        if processes.rank() == 1:
            with pytest.raises(ValueError, match="count = -1"):
                step(batch, count=-1)
            with pytest.raises(RuntimeError, match="restart the program"):
                step(batch, count=3)

    on_ranks(update, 2)


# The sum of both ranks is the largest odd integer of an update. In float32 it would be rounded.
LARGE = 2**52 - 1


def count_of(rank, update):
    if update == 1:
        return LARGE + rank
    return 7 * rank + 3 * update


def expected_clock():
    """Return the samples, the curve's step and the learning rate of nine updates.

    Two ranks make the first six, and one rank makes the others.
    """
    clock = []
    consumed = 0
    for update in range(9):
        curve_step = consumed // 5
        if update != 3:  # skipped
            consumed += count_of(0, update)
            if update < 6:
                consumed += count_of(1, update)
        clock.append((consumed, curve_step, learning_rate(0.01, CURVE, curve_step)))
    return clock


@pytest.mark.parametrize("loss_fn", [mean_loss, device_pair_loss])
def test_ranks_add_up_their_counts(loss_fn):
    """The run resumes on fewer ranks: the learning rate is that of the samples so far."""

    def update(step, number):
        rank = processes.rank()
        micro_batches = batches(2)
        if number == 3 and rank == 1:  # skipped on all ranks
            inputs, targets = micro_batches[-1]
            micro_batches[-1] = inputs * math.nan, targets
        count = count_of(rank, number)
        if rank == 1:
            count = torch.tensor(count)
        result = step(*micro_batches, count=count)
        return int(result.consumed), int(result.curve_step), result.lr.item()

    def begin():
        step = step_of(loss_fn=loss_fn, clock=DataClock(5))
        clock = [update(step, number) for number in range(6)]
        return clock, step.state_dict()

    (clock, state), (clock_of_rank_1, _) = on_ranks(begin, 2)
    assert clock == clock_of_rank_1
    resumed = step_of(loss_fn=loss_fn, clock=DataClock(5))
    resumed.load_state_dict(state)
    for number in range(6, 9):
        clock.append(update(resumed, number))
    assert clock == expected_clock()


def test_count_of_the_clock_is_that_of_all_ranks():
    (batch,) = batches(1)

    def consumed():
        step = step_of(clock=DataClock(5, count=7))
        results = [step(batch), step(batch), step(batch, count=2)]
        if processes.rank() == 0:
            results.append(step(batch, count=5))
        else:
            results.append(step(batch))  # its part of 7, which is 3
        return [int(result.consumed) for result in results]

    assert on_ranks(consumed, 2) == [[7, 14, 18, 26]] * 2
