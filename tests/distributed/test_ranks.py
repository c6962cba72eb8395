"""What ranks do together, on threads in place of processes. `test_processes` has more, and is slow."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.distributed.processes import error_of
from support.distributed.threads import Replica, on_ranks
from support.evaluated import SPLITS, Sized, batches_of, named_loss
from support.training.models import Net, batches, mean_loss
from support.training.steps import make_step
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import evaluate
from torch_bridge.checkpointing.parts import check_same_order
from torch_bridge.checkpointing.saving import _digests, _with_names_of_rank, name_of_rank
from torch_bridge.distributed import processes
from torch_bridge.distributed.processes import in_lockstep
from torch_bridge.training.loss_normalizer import LossNormalizer
from torch_bridge.training.optimizers import layers_of, lightning_counter

CPU = torch.device("cpu")
FORMS: list[Callable[[list[Any]], Any]] = [list, iter, lambda batches: Sized(batches, min(len(batches), 1))]


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
    expected = evaluate(Net(), [batch for of_rank in by_rank for batch in of_rank], named_loss)
    models = [Net() for _ in split]  # not built on the threads, which share torch's random numbers

    def evaluate_rank() -> Any:
        rank = processes.rank()
        return evaluate(models[rank], by_rank[rank], named_loss)

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


@pytest.fixture
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


LEFT_OUT = "does not average the gradients of some of the optimizer's parameters"


@pytest.mark.usefixtures("one_rank")
def test_update_that_ddp_does_not_average_is_rejected() -> None:
    """In a group of one rank as in any other."""
    (batch,) = batches(1)

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return mean_loss(model.module, batch)

    step = make_step(model=DistributedDataParallel(Net()), loss_fn=loss_fn)
    with pytest.raises(RuntimeError, match="loss_fn did not call it in the micro-batch"):
        step(batch)
    model = DistributedDataParallel(Net())
    step = make_step(model=model)
    with model.no_sync(), pytest.raises(RuntimeError, match=r"called under no_sync\(\)"):
        step(batch)
    frozen = Net()
    frozen.last.requires_grad_(False)
    step = make_step(model=DistributedDataParallel(frozen))
    frozen.last.requires_grad_(True)
    with pytest.raises(ValueError, match=LEFT_OUT):
        step(batch)
    with pytest.raises(ValueError, match=LEFT_OUT):
        make_step(model=step.model)
