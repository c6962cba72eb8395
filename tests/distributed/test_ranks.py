"""What ranks do together, on threads in place of processes. Programs for processes are slow."""

import copy
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.distributed.processes import error_of
from support.distributed.threads import Replica, on_ranks
from support.schedulers.runs import learning_rate
from support.training.models import (
    Net,
    batches,
    counting_loss,
    device_pair_loss,
    mean_loss,
    nonfinite,
)
from support.training.reads import Reads
from support.training.steps import CURVE, make_step
from support.trees import equal_trees
from torch import nn

from plateau_jax import Curve, DataClock, HoldUntilFlat, StagedCurve
from torch_bridge import Checkpoints, TrainStep, follow, lambda_lr
from torch_bridge.checkpointing import checkpoints, saving
from torch_bridge.checkpointing.file_format import name_of_rank
from torch_bridge.checkpointing.parts import check_same_order
from torch_bridge.checkpointing.saving import _digests, _with_names_of_rank
from torch_bridge.distributed import processes
from torch_bridge.distributed.processes import in_lockstep
from torch_bridge.training.loss_normalizer import LossNormalizer
from torch_bridge.training.optimizers import layers_of, lightning_counter

CPU = torch.device("cpu")
# A model that is built on a thread would draw from random numbers that all threads share.
NET = Net()


def step_of(**options: Any) -> TrainStep:
    return make_step(model=copy.deepcopy(NET), **options)


# Collectives.


def as_list(batches: list[str]) -> list[str]:
    return batches


def as_iterator(batches: list[str]) -> Iterator[str]:
    return iter(batches)


class OfLengthOne(list[Any]):
    """Items whose length is wrong if there are several."""

    def __len__(self) -> int:
        return min(super().__len__(), 1)


@pytest.mark.parametrize("form", [as_list, as_iterator, OfLengthOne])
@pytest.mark.parametrize(
    ("batches_by_rank", "passes_by_rank"),
    [
        (
            [["a", "b"], ["c", "d", "e"]],
            [
                [("a", True), ("b", True), ("b", False)],
                [("c", True), ("d", True), ("e", True)],
            ],
        ),
        (
            [[], ["a", "b"], ["c"]],
            [
                [("a", False), ("a", False)],
                [("a", True), ("b", True)],
                [("c", True), ("c", False)],
            ],
        ),
        (
            [["a", "b", "c"], ["d", "e", "f"]],
            [
                [("a", True), ("b", True), ("c", True)],
                [("d", True), ("e", True), ("f", True)],
            ],
        ),
        ([[], []], [[], []]),
    ],
)
def test_all_ranks_get_the_same_number_of_batches(
    form: Any, batches_by_rank: list[list[str]], passes_by_rank: list[list[tuple[str, bool]]]
) -> None:
    """The filler is the last batch, or the first one of another rank."""

    def passes() -> list[Any]:
        local = form(batches_by_rank[processes.rank()])
        return list(in_lockstep(local, CPU))

    assert on_ranks(passes, len(batches_by_rank)) == passes_by_rank


@pytest.mark.parametrize("failing", [0, 2])
def test_error_on_one_rank_is_raised_on_all(failing: int) -> None:
    def work() -> None:
        if processes.rank() == failing:
            raise KeyError("none")

    errors = on_ranks(lambda: error_of(processes.collective_call, work), 3)
    expected = [f"RuntimeError: rank {failing} failed: KeyError: 'none'"] * 3
    expected[failing] = "KeyError: 'none'"
    assert errors == expected


def test_all_ranks_get_the_results_of_all() -> None:
    results = on_ranks(lambda: processes.collective_call(processes.rank), 3)
    assert results == [[0, 1, 2], [0, 1, 2], [0, 1, 2]]


# Losses and updates.


@pytest.mark.parametrize("weights", [[3.0, 5.0], [1.0, 0.0, 4.0]], ids=str)
def test_update_divides_by_the_weight_of_all_ranks(weights: list[float]) -> None:
    """Rank r has the sum (r + 1) · Σ parameter, whose gradient is r + 1."""

    def update() -> tuple[float, float, list[float], int]:
        replica = Replica(nn.Identity())
        parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
        normalizer = LossNormalizer([parameter], None, replica)
        total = parameter.sum() * (replica.rank + 1)
        weight = torch.tensor(weights[replica.rank])
        consumed = torch.tensor(2**40 + replica.rank)
        pair = normalizer.backward((total, weight), 1), weight
        gradient: Any = parameter.grad
        replica.all_reduce(gradient)
        gradient /= replica.size  # the average, as DDP takes it
        loss, norm = normalizer.normalize(pair, 1, [gradient], consumed)
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
def test_update_neither_reads_nor_multiplies_too_much(
    loss_fn: Any, precision: Any, multiplications: int
) -> None:
    """Factors have the dtype of the gradients."""
    dtypes: list[torch.dtype] = []
    multiply = torch._foreach_mul_

    def recorded(gradients: Any, factor: torch.Tensor) -> None:
        dtypes.append(factor.dtype)
        multiply(gradients, factor)

    def reads() -> list[str]:
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
def test_mixed_means_and_pairs_are_skipped_on_all_ranks(first_loss: Any, precision: Any) -> None:
    """Under fp16, ranks with pairs communicate once more."""

    def update() -> None:
        loss_of_now = first_loss

        def loss_fn(model: nn.Module, batch: Any) -> Any:
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


def test_rank_with_a_wrong_count_ends() -> None:
    """The other rank has begun its update: with its next batch, this one would be behind."""
    (batch,) = batches(1)

    def update() -> None:
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


def count_of(rank: int, update: int) -> int:
    if update == 1:
        return LARGE + rank
    return 7 * rank + 3 * update


def expected_clock() -> list[tuple[int, int, float]]:
    """Return the samples, the curve's step and the learning rate of nine updates.

    Two ranks make the first six, and one rank makes the others.
    """
    clock: list[tuple[int, int, float]] = []
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
def test_ranks_add_up_their_counts(loss_fn: Any) -> None:
    """The run resumes on fewer ranks: the learning rate is that of the samples so far."""

    def update(step: TrainStep, number: int) -> tuple[int, int, float]:
        rank = processes.rank()
        micro_batches = batches(2)
        if number == 3 and rank == 1:  # skipped on all ranks
            micro_batches[-1] = nonfinite(micro_batches[-1])
        count: Any = count_of(rank, number)
        if rank == 1:
            count = torch.tensor(count)
        result = step(*micro_batches, count=count)
        return int(result.consumed), int(result.curve_step), result.lr.item()

    def begin() -> tuple[list[tuple[int, int, float]], Any]:
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


def test_count_of_the_clock_is_that_of_all_ranks() -> None:
    (batch,) = batches(1)

    def consumed() -> list[int]:
        step = step_of(clock=DataClock(5, count=7))
        results = [step(batch), step(batch), step(batch, count=2)]
        if processes.rank() == 0:
            results.append(step(batch, count=5))
        else:
            results.append(step(batch))  # its part of 7, which is 3
        return [int(result.consumed) for result in results]

    assert on_ranks(consumed, 2) == [[7, 14, 18, 26]] * 2


# Checkpoints.


def test_only_what_differs_is_saved_for_a_rank() -> None:
    main = {
        "same": torch.ones(3),
        "value": torch.ones(3),
        "dtype": torch.ones(3),
        "shape": torch.ones(3),
    }
    of_rank_2 = {
        "same": torch.ones(3),
        "value": torch.tensor([1.0, 1.0, 2.0]),
        "dtype": torch.ones(3).view(torch.int32),
        "shape": torch.ones(1, 3),
        "new": torch.ones(3),
    }
    names = list(_with_names_of_rank(of_rank_2, _digests(main), 2))
    differing = ["value", "dtype", "shape", "new"]
    assert names == ["same", *(name_of_rank(name, 2) for name in differing)]


def test_different_orders_of_shards_are_rejected() -> None:
    check_same_order([{"step": "a", "rest": None}] * 3)
    message = r"^step has its parameters in different orders on rank 0 and rank 2"
    with pytest.raises(ValueError, match=message):
        check_same_order([{"step": "a"}, {"step": "a"}, {"step": "b"}])


SGD = torch.optim.SGD
RULE = HoldUntilFlat(patience=2, every=2, limit=60)
FLAT = StagedCurve([(1, 1.0), (20,), (20, 0.0, "linear")])


def scheduler_of(curve: Curve = FLAT, clock: Any = RULE) -> Any:
    return lambda_lr(SGD([nn.Parameter(torch.ones(2))], lr=0.5), curve, clock=clock)


def step_scheduler(scheduler: Any, metrics: list[float]) -> None:
    for metric in metrics:
        scheduler.optimizer.step()
        scheduler.step(metric)


def saved_on_ranks(
    make_part: Callable[[], Any], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[Any]]:
    """Return the error of each rank that saves such a part, and the saves that were started."""
    started: list[Any] = []
    done: Future[None] = Future()
    done.set_result(None)

    def start_save(save: Any) -> Future[None]:
        started.append(save)
        return done

    monkeypatch.setattr(saving, "start_save", start_save)
    # Threads of one process wait for each other's saves, but ranks must not.
    monkeypatch.setattr(checkpoints, "_lock", nullcontext())

    def save() -> str:
        return error_of(lambda: Checkpoints(directory).save(1, part=make_part()))

    return on_ranks(save, 3), started


def on_last_rank() -> int:
    """Return 1 on the last rank, and 0 on the others."""
    return processes.rank() // 2


def by_own_losses() -> Any:
    """The losses of the last rank fall, so that it still holds the curve."""
    scheduler = scheduler_of()
    losses = [1.0] * 8
    if on_last_rank():
        losses = [1 / (1 + update) for update in range(8)]
    step_scheduler(scheduler, losses)
    return scheduler


def by_own_losses_so_far() -> Any:
    """No rank has made a decision yet."""
    scheduler = scheduler_of()
    step_scheduler(scheduler, [1.0, 1.0 + on_last_rank()])
    return scheduler


def with_length_of_its_loader() -> Any:
    return scheduler_of(StagedCurve([(100 + on_last_rank(), 1.0)]), None)


def with_a_peak_of_its_rank() -> Any:
    scheduler = scheduler_of()
    scheduler.set_peak(0.5 + 0.25 * (on_last_rank()))
    return scheduler


def with_more_steps() -> Any:
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.5, weight_decay=0.1)
    decay = follow(optimizer, "weight_decay", FLAT)
    for _ in range(3 + on_last_rank()):
        decay.step()
    return decay


def with_skipped_updates() -> Any:
    step = step_of(clock=RULE)
    state = step.state_dict()
    state["skipped"] = 4 + on_last_rank()
    step.load_state_dict(state)
    return {"state": step.state_dict()}


@pytest.mark.parametrize(
    ("make_part", "difference"),
    [
        (by_own_losses, "part.curve_step = 3 on rank 0, and 1 on rank 2"),
        (by_own_losses_so_far, "part.hold.0.total = 1.0 on rank 0, and 2.0 on rank 2"),
        (
            with_length_of_its_loader,
            "part.records.0.curve.stages.0.0 = 100 on rank 0, and 101 on rank 2",
        ),
        (with_a_peak_of_its_rank, "part.records.0.peak_value = 0.5 on rank 0, and 0.75 on rank 2"),
        (with_more_steps, "part.curve_step = 3 on rank 0, and 4 on rank 2"),
        (with_skipped_updates, "part.state.skipped = 4 on rank 0, and 5 on rank 2"),
    ],
)
def test_schedules_that_differ_between_ranks_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_part: Any, difference: str
) -> None:
    errors, started = saved_on_ranks(make_part, tmp_path, monkeypatch)
    assert errors[0].startswith(f"ValueError: {difference}: the learning rates")
    assert errors == errors[:1] * 3
    assert not started


def scheduler_with_nan() -> Any:
    scheduler = scheduler_of()
    step_scheduler(scheduler, [1.0, 0.5, math.nan])
    return scheduler


def step_with_a_carry_of_its_rank() -> Any:
    carry = torch.full((2,), float(processes.rank()))
    step = step_of(loss_fn=counting_loss, carry=carry, clock=RULE)
    for batch in batches(3, seed=processes.rank()):
        step(batch)
    return step


@pytest.mark.parametrize("make_part", [scheduler_with_nan, step_with_a_carry_of_its_rank])
def test_equal_schedules_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_part: Any
) -> None:
    errors, started = saved_on_ranks(make_part, tmp_path, monkeypatch)
    assert errors == [""] * 3
    assert len(started) == 3


# Lightning.


class LightningOptimizer(torch.optim.Optimizer):
    """Like Lightning's own: it wraps an optimizer, and its Trainer counts the steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.calls: list[str] = []

    def _on_before_step(self) -> None:
        self.calls.append("before")

    def _on_after_step(self) -> None:
        self.calls.append("after")


def test_trainers_wrappers_are_unwrapped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.optim.SGD(Net().parameters())
    wrapper = LightningOptimizer(plain)
    assert layers_of(wrapper) == [wrapper]  # not of a trainer: it may add to its step
    monkeypatch.setattr(LightningOptimizer, "__module__", "lightning.pytorch.core.optimizer")
    assert layers_of(wrapper) == [wrapper, plain]
    count = lightning_counter([plain, wrapper])
    assert count is not None
    count()
    assert wrapper.calls == ["before", "after"]
    assert lightning_counter([plain]) is None
