"""What ranks do together, on threads in place of processes. Programs for processes are slow."""

import copy
import math
from unittest.mock import patch

import pytest
import torch
from support.distributed.threads import Replica, on_ranks
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, device_pair_loss, mean_loss
from support.training.reads import Reads
from support.training.steps import make_step
from support.trees import equal_trees
from torch import nn

from plateau_jax import DataClock, PlateauCurve
from torch_bridge.training.distributed import processes
from torch_bridge.training.train_step.loss_normalizer import LossNormalizer
from torch_bridge.training.train_step.optimizers import lightning_counter, nested_optimizers

CURVE = PlateauCurve(40, warmup_steps=4, min_lr_ratio=0.1)
# A model that is built on a thread would draw from random numbers that all threads share.
NET = Net()


def step_of(**options):
    return make_step(model=copy.deepcopy(NET), curve=CURVE, **options)


@pytest.mark.parametrize("weights", [[3.0, 5.0], [1.0, 0.0, 4.0]], ids=str)
def test_update_divides_by_the_weight_of_all_ranks(weights):
    """Rank r has the sum (r + 1) · Σ parameter, whose gradient is r + 1."""

    def update():
        replica = Replica(nn.Identity())
        parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
        normalizer = LossNormalizer([parameter], None, replica)
        total = parameter.sum() * (replica.rank + 1)
        weight = torch.tensor(weights[replica.rank])
        consumed = torch.tensor(2**40 + replica.rank)
        divisor = normalizer.choose_divisor(weight, 1)
        pair = normalizer.backward((total, weight), 1, divisor), weight
        gradient = parameter.grad
        replica.all_reduce(gradient)
        gradient /= replica.size  # the average, as DDP takes it
        loss, norm = normalizer.normalize(pair, 1, divisor, [gradient], consumed)
        return loss.item(), norm.item(), gradient.tolist(), int(consumed)

    ranks = range(len(weights))
    slope = sum(rank + 1 for rank in ranks) / sum(weights)
    for loss, norm, gradient, consumed in on_ranks(update, len(weights)):
        assert loss == pytest.approx(3 * slope)
        assert norm == pytest.approx(2**0.5 * slope)
        assert gradient == pytest.approx([slope, slope])
        assert consumed == sum(2**40 + rank for rank in ranks)


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
        assert equal_trees(step.state_dict()["model"], state["model"])

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


# float64 does not hold all integers of this size; in float32 both of its words would be rounded.
LARGE = 2**53 + 2**29 + 1


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


# Lightning.


class LightningOptimizer(torch.optim.Optimizer):
    """Like Lightning's own: it wraps an optimizer, and its Trainer counts the steps."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.calls = []

    def _on_before_step(self):
        self.calls.append("before")

    def _on_after_step(self):
        self.calls.append("after")


def test_trainers_wrappers_are_unwrapped_and_counted(monkeypatch):
    plain = torch.optim.SGD(Net().parameters())
    wrapper = LightningOptimizer(plain)
    assert nested_optimizers(wrapper) == [wrapper]  # not of a trainer: it may add to its step
    monkeypatch.setattr(LightningOptimizer, "__module__", "lightning.pytorch.core.optimizer")
    assert nested_optimizers(wrapper) == [wrapper, plain]
    count = lightning_counter([plain, wrapper])
    assert count is not None
    count()
    assert wrapper.calls == ["before", "after"]
    assert lightning_counter([plain]) is None
