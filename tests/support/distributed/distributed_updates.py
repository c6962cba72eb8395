"""Training over several ranks, and the same updates by a loop in one process."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from support.checkpointing.checkpoints import gathered
from support.training.by_hand import ByHand
from support.training.kind import Kind
from support.training.models import Net
from support.training.optimizers import make_optimizer
from support.training.reads import Reads
from support.training.steps import CURVE
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torch_bridge import TrainStep

# Rows of one rank: inputs, targets, and a weight for each row.
Batch = tuple[Tensor, Tensor, Tensor]


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


def assert_same_run(run: RankResults, expected: RankResults) -> None:
    """Check that two runs are equal to the bit."""
    np.testing.assert_array_equal(run.losses, expected.losses)
    np.testing.assert_array_equal(run.norms, expected.norms)
    assert run.lrs == expected.lrs
    assert run.counts == expected.counts
    for weight, expected_weight in zip(run.weights, expected.weights, strict=True):
        assert np.array_equal(weight, expected_weight)


def batch_of(case: RankCase, update: int, rank: int, micro_batch: int) -> Batch:
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


def loss_fn_of(case: RankCase) -> Callable[[nn.Module, Batch], Any]:
    """Return a loss function of the mean, or of a sum and its weight as a number or a tensor."""

    def row_losses(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets, _ = batch
        errors = model(inputs).float() - targets
        return errors.square().mean(1)

    def mean(model: nn.Module, batch: Batch) -> Tensor:
        _, targets, _ = batch
        return row_losses(model, batch).sum() / torch.tensor(float(len(targets)))

    def pair(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        _, _, weights = batch
        total = (row_losses(model, batch) * weights.float()).sum()
        return total, weights.sum().item()

    def device_pair(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        _, _, weights = batch
        total = (row_losses(model, batch) * weights.float()).sum()
        return total, weights.sum().float()

    return {"mean": mean, "pair": pair, "device pair": device_pair}[case.loss]


def wrapped(wrapper: str, model: nn.Module) -> nn.Module:
    """Return the model under a wrapper of torch for all ranks."""
    if wrapper == "plain":
        return model
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "static ddp":
        return DistributedDataParallel(model, static_graph=True)
    if wrapper == "ddp by fp16":
        replicated = DistributedDataParallel(model)
        replicated.register_comm_hook(None, fp16_compress_hook)
        return replicated
    if wrapper == "fsdp by fp16":
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
        return cast("Any", fully_shard)(model, mp_policy=policy)
    size = distributed.get_world_size()
    if wrapper == "hybrid":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copy", "shard"))
    else:
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
    first_layer = next(iter(model.children()))
    fully_shard(first_layer, mesh=mesh)
    sharded: Any = fully_shard(model, mesh=mesh)
    if wrapper == "fsdp left off":  # by an earlier training loop
        sharded.set_requires_gradient_sync(False)
    return sharded


def step_of(case: RankCase, optimizer_class: Callable[[Any], Optimizer] | None = None) -> TrainStep:
    """Return the step of a case, with this optimizer instead of that of the case."""
    # Fractions of rows are drawn on purpose.
    warnings.filterwarnings("ignore", "loss_fn returned a weight that is not a whole number")
    model = wrapped(case.wrapper, Net())
    if optimizer_class is None:
        optimizer = make_optimizer(case.optimizer, model)
    else:
        optimizer = optimizer_class(model.parameters())
    return TrainStep(
        model,
        optimizer,
        loss_fn_of(case),
        CURVE,
        precision=case.precision,
        max_norm=case.max_norm,
        synchronize=case.synchronize,
    )


def train(case: RankCase) -> RankResults:
    """Train over all ranks, and return the results on this rank."""
    step = step_of(case)
    rank = distributed.get_rank()
    results: list[Any] = []
    for update in range(case.updates):
        numbers = range(case.accumulation)
        micro_batches = [batch_of(case, update, rank, number) for number in numbers]
        results.append(step(*micro_batches))
    return _run_of(results, gathered(list(step.model.parameters())))


def train_all(cases: Sequence[RankCase]) -> list[RankResults]:
    return [train(case) for case in cases]


def record_reads(case: RankCase) -> set[str]:
    """Return the names of the device reads of an update over all ranks that is not the first."""
    step = step_of(case)
    rank = distributed.get_rank()
    step(batch_of(case, 0, rank, 0))
    batch = batch_of(case, 1, rank, 0)
    with Reads() as reads:
        step(batch)
    return set(reads.names) - {"untyped_storage"}  # by which FSDP2 frees and allocates memory


def train_in_one_process(case: RankCase) -> RankResults:
    """Make the same updates by hand: the micro-batches of all ranks."""
    model = Net()
    kind = Kind(case.optimizer, loss_fn_of(case), model=lambda: model, max_norm=case.max_norm)
    by_hand = ByHand(kind)
    results: list[Any] = []
    for update in range(case.updates):
        micro_batches: list[Batch] = []
        for rank in range(case.processes):
            for number in range(case.accumulation):
                micro_batches.append(batch_of(case, update, rank, number))
        results.append(by_hand.update(micro_batches))
    return _run_of(results, list(model.parameters()))


def _run_of(results: Sequence[Any], parameters: Sequence[Tensor]) -> RankResults:
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
