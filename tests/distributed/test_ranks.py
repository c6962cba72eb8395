"""What ranks do together, on threads in place of processes. Programs for processes are slow."""

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.distributed.processes import error_of
from support.distributed.threads import Replica, on_ranks
from support.evaluated import SPLITS, Sized, batches_of, named_loss
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, counting_loss, device_pair_loss, mean_loss, nonfinite
from support.training.reads import Reads
from support.training.steps import CURVE, equal_trees, make_step
from torch import nn

from plateau_jax import DataClock
from torch_bridge import TrainStep, evaluate
from torch_bridge.checkpointing.file_format import name_of_rank
from torch_bridge.checkpointing.parts import check_same_order
from torch_bridge.checkpointing.saving import _digests, _with_names_of_rank
from torch_bridge.distributed import processes
from torch_bridge.distributed.processes import in_lockstep
from torch_bridge.training.loss_normalizer import LossNormalizer
from torch_bridge.training.optimizers import layers_of, lightning_counter

CPU, NET = torch.device("cpu"), Net()
FORMS: list[Callable[[list[Any]], Any]] = [list, iter, lambda batches: Sized(batches, min(len(batches), 1))]


def step_of(**options: Any) -> TrainStep:
    # A model that is built on a thread would draw from random numbers that all threads share.
    return make_step(model=copy.deepcopy(NET), **options)


@pytest.mark.parametrize("form", FORMS, ids=["list", "iterator", "wrong length"])
@pytest.mark.parametrize("counts", [[2, 3], [0, 2, 1], [3, 3], [0, 0]], ids=str)
def test_all_ranks_get_the_same_number_of_batches(form: Any, counts: list[int]) -> None:
    """The filler is the last batch, or the first one of another rank."""

    def received() -> list[Any]:
        rank = processes.rank()
        return list(in_lockstep(form([f"{rank}.{number}" for number in range(counts[rank])]), CPU))

    first = next((rank for rank, count in enumerate(counts) if count), 0)
    for rank, pairs in enumerate(on_ranks(received, len(counts))):
        batches = [f"{rank}.{number}" for number in range(counts[rank])]
        filler = batches[-1] if batches else f"{first}.0"
        fillers = [(filler, False)] * (max(counts) - len(batches))
        assert pairs == [*((batch, True) for batch in batches), *fillers]


@pytest.mark.parametrize("failing", [0, 2])
def test_error_on_one_rank_is_raised_on_all(failing: int) -> None:
    def work() -> int:
        if processes.rank() == failing:
            raise KeyError("none")
        return processes.rank()

    others = f"RuntimeError: rank {failing} failed: KeyError: 'none'"
    errors = on_ranks(lambda: error_of(processes.collective_call, work), 3)
    assert errors == ["KeyError: 'none'" if rank == failing else others for rank in range(3)]
    assert on_ranks(lambda: processes.collective_call(processes.rank), 3) == [[0, 1, 2]] * 3


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_evaluation_is_the_mean_over_all_ranks(split: list[list[int]]) -> None:
    by_rank = batches_of(split)
    expected = evaluate(NET, [batch for of_rank in by_rank for batch in of_rank], named_loss)

    def evaluate_rank() -> Any:
        rank = processes.rank()
        return evaluate(copy.deepcopy(NET), by_rank[rank], named_loss)

    for means in on_ranks(evaluate_rank, len(split)):
        assert means == pytest.approx(expected)


@pytest.mark.parametrize("weights", [[3.0, 5.0], [1.0, 0.0, 4.0]], ids=str)
def test_update_divides_by_the_weight_of_all_ranks(weights: list[float]) -> None:
    def update() -> tuple[Any, ...]:
        replica, parameter = Replica(nn.Identity()), nn.Parameter(torch.tensor([1.0, 2.0]))
        normalizer = LossNormalizer([parameter], None, replica)
        weight = torch.tensor(weights[replica.rank])
        consumed = torch.tensor(2**40 + replica.rank)
        total = normalizer.backward(((parameter * (replica.rank + 1)).sum(), weight), 1)
        gradient: Any = parameter.grad
        replica.all_reduce(gradient)
        gradient /= replica.size  # the average, as DDP takes it
        loss, norm = normalizer.normalize((total, weight), 1, [gradient], consumed)
        return loss.item(), norm.item(), gradient.tolist(), consumed.item()

    size = len(weights)
    slope = sum(range(1, size + 1)) / sum(weights)
    count = size * 2**40 + sum(range(size))
    for loss, norm, gradient, consumed in on_ranks(update, size):
        assert (loss, norm) == pytest.approx((3 * slope, 2**0.5 * slope))
        assert gradient == pytest.approx([slope, slope])
        assert consumed == count


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("loss_fn", [mean_loss, device_pair_loss])
def test_update_neither_reads_nor_multiplies_too_much(loss_fn: Any, precision: Any) -> None:
    """Once to clip, and for pairs and under fp16 once before; by factors of the gradients' dtype."""
    dtypes, multiply = list[torch.dtype](), torch._foreach_mul_

    def recorded(gradients: Any, factor: torch.Tensor) -> None:
        dtypes.append(factor.dtype)
        multiply(gradients, factor)

    def reads() -> list[str]:
        step = step_of(loss_fn=loss_fn, precision=precision, max_norm=0.1)
        first, second = batches(2)
        step(first, second)
        with Reads() as reads:
            step(first, second)
        return reads.names

    with patch.object(torch, "_foreach_mul_", recorded):
        assert on_ranks(reads, 2) == [[], []]
    times = 1 if (loss_fn, precision) == (mean_loss, "fp32") else 2
    assert dtypes == [torch.float32] * 2 * 2 * times


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("before", [None, mean_loss, device_pair_loss])
def test_mixed_means_and_pairs_are_skipped_on_all_ranks(before: Any, precision: Any) -> None:
    """Under fp16, ranks with pairs communicate once more."""

    def update() -> None:
        loss_fn = before

        def loss_of(model: nn.Module, batch: Any) -> Any:
            return loss_fn(model, batch)

        step = step_of(loss_fn=loss_of, precision=precision)
        first, second = batches(2)
        if before is not None:
            step(first)
        loss_fn = device_pair_loss if processes.rank() else mean_loss
        state = step.state_dict()
        for _ in range(2):
            result = step(first, second)
        assert result.loss.isnan()
        assert (result.applied, result.skipped) == (state["applied"], state["skipped"] + 2)
        assert equal_trees(step.state_dict()["model"], state["model"])

    on_ranks(update, 2)


@pytest.mark.parametrize("wrong", [None, -1, 2.5, torch.tensor(2.5), 2**62], ids=str)
def test_wrong_count_is_rejected_before_other_ranks_are_needed(wrong: Any) -> None:
    """The other rank waits in the update that this one has not begun; a right count begins it."""
    (batch,) = batches(1)

    def update() -> tuple[list[int], float]:
        step = step_of(loss_fn=counting_loss, carry=torch.zeros(2), clock=DataClock(5))
        rank = processes.rank()
        step(batch, count=3)
        if rank == 1:
            before = step.state_dict()
            with pytest.raises((TypeError, ValueError), match="count"):
                step(batch, count=wrong)
            assert equal_trees(step.state_dict(), before)
        result = step(batch, count=3 + rank)
        return result.counters.tolist(), result.loss.item()

    uninterrupted = step_of(loss_fn=counting_loss, carry=torch.zeros(2), clock=DataClock(5))
    uninterrupted(batch, count=6)
    loss = uninterrupted(batch, count=7).loss.item()
    assert on_ranks(update, 2) == [([2, 0, 1, 13], pytest.approx(loss))] * 2


LARGE = 2**53 + 2**29 + 1
"""Above the integers that float64 holds exactly; in float32 both of its words would be rounded."""


def count_of(rank: int, update: int) -> int:
    return LARGE + rank if update == 1 else 7 * rank + 3 * update


@pytest.mark.parametrize("loss_fn", [mean_loss, device_pair_loss])
def test_ranks_add_up_their_counts(loss_fn: Any) -> None:
    """The run resumes on fewer ranks: the learning rate is that of the samples so far."""

    def consume(first: int, last: int, state: Any = None) -> tuple[list[Any], Any]:
        step, rank, rows = step_of(loss_fn=loss_fn, clock=DataClock(5)), processes.rank(), list[Any]()
        if state is not None:
            step.load_state_dict(state)
        for update in range(first, last):
            micro, count = batches(2), count_of(rank, update)
            if (update, rank) == (3, 1):  # skipped on all ranks
                micro[-1] = nonfinite(micro[-1])
            result = step(*micro, count=torch.tensor(count) if rank else count)
            rows.append((int(result.consumed), int(result.curve_step), result.lr.item()))
        return rows, step.state_dict()

    (rows, state), (other, _) = on_ranks(lambda: consume(0, 6), 2)
    assert rows == other
    rows += consume(6, 9, state)[0]
    consumed, expected = 0, list[Any]()
    for update in range(9):
        step = consumed // 5
        if update != 3:
            consumed += sum(count_of(rank, update) for rank in range(2 if update < 6 else 1))
        expected.append((consumed, step, learning_rate(0.01, CURVE, step)))
    assert rows == expected


def test_count_of_the_clock_is_that_of_all_ranks() -> None:
    (batch,) = batches(1)

    def consumed() -> list[int]:
        step, given = step_of(clock=DataClock(5, count=7)), {}
        if processes.rank() == 0:
            given = {"count": 5}
        return [step(batch, **count).consumed.item() for count in ({}, {}, {"count": 2}, given)]

    # At last rank 0 passes a count, and rank 1 takes its part of 7, which is 3.
    assert on_ranks(consumed, 2) == [[7, 14, 18, 26]] * 2


def test_only_what_differs_is_saved_for_a_rank() -> None:
    main = {"same": torch.ones(3), "value": torch.ones(3), "dtype": torch.ones(3), "shape": torch.ones(3)}
    own = {
        **main,
        "value": torch.tensor([1.0, 1.0, 2.0]),
        "dtype": torch.ones(3).view(torch.int32),
        "shape": torch.ones(1, 3),
        "new": torch.ones(3),
    }
    names = list(_with_names_of_rank(own, _digests(main), 2))
    assert names == ["same", *(name_of_rank(name, 2) for name in ("value", "dtype", "shape", "new"))]


def test_different_orders_of_shards_are_rejected() -> None:
    check_same_order([{"step": "a", "rest": None}] * 3)
    with pytest.raises(
        ValueError, match=r"^step has its parameters in different orders on rank 0 and rank 2"
    ):
        check_same_order([{"step": "a"}, {"step": "a"}, {"step": "b"}])


class LightningOptimizer(torch.optim.Optimizer):
    """Like Lightning's own: it wraps an optimizer, and its Trainer counts what happens around a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.calls = optimizer, list[str]()

    def _on_before_step(self) -> None:
        self.calls.append("before")

    def _on_after_step(self) -> None:
        self.calls.append("after")


def test_trainers_wrappers_are_taken_off_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
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
