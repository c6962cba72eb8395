"""An update over several ranks equals the update of one process over the rows of all ranks."""

import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import gathered
from support.distributed.models import wrapped
from support.distributed.processes import run
from support.training.by_hand import ByHand
from support.training.kind import Kind
from support.training.models import Net
from support.training.steps import make_step
from torch import distributed

pytestmark = pytest.mark.slow

NAN = float("nan")
INF = float("inf")  # rows times inf have a finite loss, but not a finite gradient


@dataclass(frozen=True)
class RankCase:
    """A training run over several ranks."""

    wrapper: str = "ddp"
    optimizer: str = "adamw"
    loss: str = "pair"
    accumulation: int = 1
    max_norm: float | None = None
    precision: Any = "fp32"
    synchronize: Any = "update"
    corrupted: tuple[tuple[int, int, float], ...] = ()
    """(update, rank, factor): the rank multiplies its rows by the factor."""
    empty: tuple[tuple[int, int], ...] = ()
    """(update, rank): the rank has no rows."""
    growth: float = 1.0
    """The ratio of a micro-batch's weights to those of the previous one."""
    updates: int = 6
    seed: int = 0
    processes: int = 2


class RankResults(NamedTuple):
    """The results of the updates, and the weights at the end."""

    losses: list[float]
    norms: list[float]
    lrs: list[float]
    counts: list[tuple[int, int]]
    """After each update, how many have been applied, and how many skipped."""
    weights: list[np.ndarray]


def batch_of(case, update, rank, micro_batch):
    """Return the rows of one rank for a micro-batch."""
    seed = ((case.seed * 50 + update) * 8 + rank) * 8 + micro_batch
    generator = torch.Generator().manual_seed(seed)
    # The mean of means is the mean of all rows only if all micro-batches have the same size.
    rows = 4
    if case.loss != "mean":
        rows = int(torch.randint(1, 6, (), generator=generator))
    inputs = torch.randn(rows, 3, generator=generator)
    targets = torch.randn(rows, 2, generator=generator)
    halves = torch.randint(0, 5, (rows,), generator=generator)
    weights = halves.double() / 2 * case.growth ** (micro_batch + 1)
    if micro_batch == case.accumulation - 1:
        for corrupted_update, corrupted_rank, factor in case.corrupted:
            if (corrupted_update, corrupted_rank) == (update, rank):
                inputs = inputs * factor
    if (update, rank) in case.empty:
        return inputs[:0], targets[:0], weights[:0]
    return inputs, targets, weights


def loss_fn_of(case):
    """Return a loss function of the mean, or of a sum and its weight as a number or a tensor."""

    def row_losses(model, batch):
        inputs, targets, _ = batch
        errors = model(inputs).float() - targets
        return errors.square().mean(1)

    def mean(model, batch):
        _, targets, _ = batch
        return row_losses(model, batch).sum() / torch.tensor(float(len(targets)))

    def device_pair(model, batch):
        _, _, weights = batch
        total = (row_losses(model, batch) * weights.float()).sum()
        return total, weights.sum().float()

    def pair(model, batch):
        total, weight = device_pair(model, batch)
        return total, weight.item()

    return {"mean": mean, "pair": pair, "device pair": device_pair}[case.loss]


def step_of(case):
    # Fractions of rows are drawn on purpose.
    warnings.filterwarnings("ignore", "loss_fn returned a weight that is not a whole number")
    return make_step(
        case.optimizer,
        wrapped(case.wrapper, Net()),
        loss_fn_of(case),
        precision=case.precision,
        max_norm=case.max_norm,
        synchronize=case.synchronize,
    )


def train(case):
    """Train over all ranks, and return the results on this rank."""
    step = step_of(case)
    rank = distributed.get_rank()
    results = []
    for update in range(case.updates):
        numbers = range(case.accumulation)
        micro_batches = [batch_of(case, update, rank, number) for number in numbers]
        results.append(step(*micro_batches))
    return results_of(results, gathered(list(step.model.parameters())))


def train_all(cases):
    return [train(case) for case in cases]


def train_in_one_process(case):
    """Make the same updates by hand: the micro-batches of all ranks."""
    model = Net()
    kind = Kind(case.optimizer, loss_fn_of(case), model=lambda: model, max_norm=case.max_norm)
    by_hand = ByHand(kind)
    results = []
    for update in range(case.updates):
        micro_batches = []
        for rank in range(case.processes):
            micro_batches.extend(
                batch_of(case, update, rank, number) for number in range(case.accumulation)
            )
        results.append(by_hand.update(micro_batches))
    return results_of(results, list(model.parameters()))


def results_of(results, parameters):
    run = RankResults([], [], [], [], [])
    for loss, norm, lrs, counters, *_ in results:
        applied, skipped, *_ = counters
        run.losses.append(loss.item())
        run.norms.append(norm.item())
        run.lrs.append(lrs[0].item())
        run.counts.append((int(applied), int(skipped)))
    for parameter in parameters:
        run.weights.append(parameter.detach().numpy())
    return run


def run_on_ranks(cases):
    """Return the run of each case, which must be the same on all ranks."""
    first_rank, *other_ranks = run(train_all, cases, processes=cases[0].processes)
    for runs in other_ranks:
        np.testing.assert_equal(runs, first_rank)
    return first_rank


def assert_close(values, expected, **tolerance):
    for value, expected_value in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, expected_value, **tolerance)


def combinations(**options):
    """Return a case for each combination of these options, each with a different seed."""
    cases = []
    for values in product(*options.values()):
        case = RankCase(**dict(zip(options, values, strict=True)), seed=len(cases))
        cases.append(case)
    return cases


EACH = {
    "wrapper": ["ddp", "fsdp"],
    "synchronize": ["update", "micro"],
    "optimizer": ["adamw", "rmsprop"],
}


# Losses and gradients do not depend on the optimizer.
ADAMW = EACH | {"optimizer": ["adamw"]}


def every_loss():
    losses = ["mean", "pair", "device pair"]
    return combinations(**ADAMW, loss=losses, accumulation=[1, 3], max_norm=[None, 0.05])


def unusual_wrappers():
    return [RankCase("static ddp", accumulation=3), RankCase("fsdp left off", accumulation=3)]


def not_finite_on_one_rank():
    return combinations(
        **EACH,
        accumulation=[1, 2],
        max_norm=[0.1],
        loss=["mean", "pair"],
        corrupted=[((0, 0, NAN), (3, 1, NAN)), ((1, 1, INF), (2, 0, INF))],
    )


def ranks_and_updates_without_rows():
    return combinations(
        **ADAMW,
        accumulation=[1, 2],
        max_norm=[0.1],
        loss=["pair", "device pair"],
        empty=[((0, 0), (2, 1)), ((1, 0), (1, 1), (3, 1))],
    )


def hybrid_sharding():
    return combinations(
        **EACH | {"wrapper": ["hybrid"]},
        accumulation=[2],
        max_norm=[0.05],
        corrupted=[((3, 2, NAN),)],
        processes=[4],
    )


@pytest.mark.parametrize(
    "cases_of",
    [
        every_loss,
        unusual_wrappers,
        not_finite_on_one_rank,
        ranks_and_updates_without_rows,
        hybrid_sharding,
    ],
)
def test_updates_match_one_process(cases_of):
    cases = cases_of()
    for case, actual in zip(cases, run_on_ranks(cases), strict=True):
        expected = train_in_one_process(case)
        assert actual.lrs == expected.lrs
        assert actual.counts == expected.counts
        _, skipped = expected.counts[-1]
        assert skipped >= len(case.corrupted)
        assert_close(actual.weights, expected.weights, atol=1e-5)
        # Without rows or with infinite ones, ranks and process may differ in what is not finite.
        finite = np.isfinite(expected.losses) & np.isfinite(expected.norms)
        losses = np.array(actual.losses)[finite]
        expected_losses = np.array(expected.losses)[finite]
        np.testing.assert_allclose(losses, expected_losses, atol=1e-6, rtol=1e-6)
        norms = np.array(actual.norms)[finite]
        expected_norms = np.array(expected.norms)[finite]
        np.testing.assert_allclose(norms, expected_norms, atol=1e-6, rtol=1e-5)


def test_fp16_collectives_match_one_process():
    """Sums too large for fp16 do not overflow: the collective gets values as small as means."""
    same_for_all = combinations(
        wrapper=["ddp by fp16", "fsdp by fp16"],
        synchronize=["update", "micro"],
        loss=["pair", "device pair"],
        max_norm=[0.1],
    )
    cases = [replace(case, accumulation=1, growth=1e6) for case in same_for_all]
    cases += [replace(case, accumulation=3, growth=1e2) for case in same_for_all]
    for case, actual in zip(cases, run_on_ranks(cases), strict=True):
        expected = train_in_one_process(case)
        assert actual.counts == expected.counts
        assert_close(actual.weights, expected.weights, atol=5e-3)


@pytest.mark.ranks(1)
def test_wrapping_changes_no_bits():
    cases = combinations(
        wrapper=["ddp", "fsdp"],
        loss=["mean", "pair", "device pair"],
        accumulation=[3],
        max_norm=[0.1],
        precision=["fp32", "bf16", "fp16"],
        synchronize=["update", "micro"],
        corrupted=[((2, 0, NAN),)],
        updates=[4],
    )
    for case in cases:
        np.testing.assert_equal(train(case), train(replace(case, wrapper="plain")))


def test_overflow_on_one_rank_is_skipped_on_all():
    overflows = combinations(
        wrapper=["ddp", "fsdp"],
        loss=["mean", "pair", "device pair"],
        accumulation=[1, 3],
        corrupted=[(), ((2, 1, 1e6), (3, 0, NAN))],
        max_norm=[0.1],
        precision=["fp16"],
        updates=[8],
    )
    overflows += [replace(case, optimizer="rmsprop") for case in overflows if case.loss == "mean"]
    cases = [replace(case, seed=0) for case in overflows]
    once = run_on_ranks([replace(case, synchronize="update") for case in cases])
    each_time = run_on_ranks([replace(case, synchronize="micro") for case in cases])
    for case, by_update, by_micro_batch in zip(cases, once, each_time, strict=True):
        expected = train_in_one_process(case)
        assert by_update.counts == by_micro_batch.counts
        assert_close(by_update.weights, by_micro_batch.weights, atol=2e-4)
        if by_update.counts == expected.counts:
            assert_close(by_update.weights, expected.weights, atol=5e-3)
        else:  # a scale that is still too large skips more
            _, skipped = by_update.counts[-1]
            _, expected_skipped = expected.counts[-1]
            assert skipped > expected_skipped
