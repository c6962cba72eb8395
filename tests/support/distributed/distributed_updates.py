"""Training over several ranks, and the same updates by a loop in one process."""

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from support.checkpointing.checkpoints import whole
from support.training.by_hand import ByHand
from support.training.kinds_of_run import Kind
from support.training.models import Net, seeded
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
from torch_bridge.distributed.dtensors import local_shard


class Case(NamedTuple):
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


class Run(NamedTuple):
    losses: list[float]
    norms: list[float]
    lrs: list[float]
    counts: list[tuple[int, int]]
    weights: list[np.ndarray]


Batch = tuple[Tensor, Tensor, Tensor]


def batch_of(case: Case, update: int, rank: int, number: int) -> Batch:
    """Return a micro-batch of one rank: inputs, targets, and a weight for each row."""
    generator = torch.Generator().manual_seed(((case.seed * 50 + update) * 8 + rank) * 8 + number)
    # The mean of means is the mean of all rows only if all micro-batches have the same size.
    rows = 4 if case.loss == "mean" else int(torch.randint(1, 6, (), generator=generator))
    inputs, targets = (torch.randn(rows, width, generator=generator) for width in (3, 2))
    weights = torch.randint(0, 5, (rows,), generator=generator).double() / 2 * case.growth ** (number + 1)
    for corrupted_update, corrupted_rank, factor in case.corrupted:
        if (corrupted_update, corrupted_rank) == (update, rank) and number == case.accumulation - 1:
            inputs = inputs * factor
    if (update, rank) in case.empty:
        inputs, targets, weights = inputs[:0], targets[:0], weights[:0]
    return inputs, targets, weights


def sums(case: Case, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return Σ weight · error², and Σ weight."""
    _, targets, weights = batch
    errors = (outputs.float() - targets).square().mean(1)
    if case.loss == "mean":
        return errors.sum(), torch.tensor(float(len(targets)))
    return (errors * weights.float()).sum(), weights.sum()


def loss_fn_of(case: Case) -> Any:
    def loss_fn(model: nn.Module, batch: Batch) -> Any:
        total, weight = sums(case, model(batch[0]), batch)
        if case.loss == "mean":
            return total / weight
        return total, weight.float() if case.loss == "device pair" else weight.item()

    return loss_fn


def wrapped(wrapper: str, model: nn.Module) -> nn.Module:
    if wrapper == "plain":
        return model
    if wrapper in ("ddp", "static ddp", "ddp by fp16"):
        replicated = DistributedDataParallel(model, static_graph=wrapper == "static ddp")
        if wrapper == "ddp by fp16":
            replicated.register_comm_hook(None, fp16_compress_hook)
        return replicated
    if wrapper == "fsdp by fp16":
        return cast("Any", fully_shard)(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    size = distributed.get_world_size()
    shape, names = ((2, size // 2), ("copy", "shard")) if wrapper == "hybrid" else ((size,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    fully_shard(next(iter(model.children())), mesh=mesh)
    sharded: Any = fully_shard(model, mesh=mesh)
    if wrapper == "fsdp left off":  # by an earlier training loop
        sharded.set_requires_gradient_sync(False)
    return sharded


def step_of(case: Case, kind: Callable[[Any], Optimizer] | None = None) -> TrainStep:
    # Fractions of rows are drawn on purpose.
    warnings.filterwarnings("ignore", "loss_fn returned a weight that is not a whole number")
    model = wrapped(case.wrapper, Net())
    return TrainStep(
        model,
        kind(model.parameters()) if kind else make_optimizer(case.optimizer, model),
        loss_fn_of(case),
        CURVE,
        precision=case.precision,
        max_norm=case.max_norm,
        synchronize=case.synchronize,
    )


def train(case: Case) -> Run:
    """Train over all ranks, and return the results on this rank."""
    step, rank = step_of(case), distributed.get_rank()
    results: list[Any] = []
    for update in range(case.updates):
        results.append(step(*(batch_of(case, update, rank, number) for number in range(case.accumulation))))
    return _run_of(results, [parameter.numpy() for parameter in whole(list(step.model.parameters()))])


def train_all(cases: Sequence[Case]) -> list[Run]:
    return [train(case) for case in cases]


def record_reads(case: Case) -> set[str]:
    """Return the names of the device reads of an update over all ranks that is not the first."""
    step, rank = step_of(case), distributed.get_rank()
    step(batch_of(case, 0, rank, 0))
    batch = batch_of(case, 1, rank, 0)
    with Reads() as reads:
        step(batch)
    return set(reads.names) - {"untyped_storage"}  # by which FSDP2 frees and allocates memory


def train_in_one_process(case: Case) -> Run:
    """Make the same updates by hand: the micro-batches of all ranks."""
    model = Net()
    by_hand = ByHand(Kind(case.optimizer, loss_fn_of(case), model=lambda: model, max_norm=case.max_norm))
    results: list[Any] = []
    for update in range(case.updates):
        places = product(range(case.processes), range(case.accumulation))
        results.append(by_hand.update([batch_of(case, update, rank, number) for rank, number in places]))
    return _run_of(results, [parameter.detach().numpy() for parameter in model.parameters()])


def _run_of(results: Sequence[Any], weights: list[np.ndarray]) -> Run:
    losses, norms, lrs, counters = zip(*(result[:4] for result in results), strict=True)
    counts = [(int(applied), int(skipped)) for applied, skipped, *_ in counters]
    return Run(
        [x.item() for x in losses], [x.item() for x in norms], [lr[0].item() for lr in lrs], counts, weights
    )


# A model of nested blocks with dropout and a recurrent state, and its gradients.

State = tuple[Tensor, Tensor]


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, inputs: Tensor, *, debug: float = 1.0) -> Tensor:
        return self.narrow(self.dropout(torch.nn.functional.gelu(self.wide(inputs)))) * debug


class Block(nn.Module):
    """Torch's checkpoint has a keyword `debug` too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mixer, self.cells = nn.LayerNorm(width), Mixer(width), nn.LSTMCell(width, width)

    def forward(self, inputs: Tensor, state: State, *, debug: Tensor | None = None) -> tuple[Tensor, State]:
        hidden, cell = self.cells(self.norm(inputs), state)
        mixed = self.mixer(hidden, debug=0.5)
        return inputs + (mixed if debug is None else mixed * debug), (hidden, cell)


class Stack(nn.Module):
    """Two blocks, used in an order; by default the first is used twice."""

    def __init__(self, width: int = 4, seed: int = 0, order: tuple[int, ...] = (0, 1, 0)) -> None:
        super().__init__()
        self.order = order
        with seeded(seed):
            self.first = nn.Linear(3, width)
            self.blocks = nn.ModuleList([Block(width), Block(width)])
            self.last = nn.Linear(width, 2)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        values, scale = self.first(inputs), torch.tensor(2.0)
        for index in self.order:
            values, state = self.blocks[index](values, state, debug=scale)
        return self.last(values), state


def gradients_of(
    model: nn.Module, precision: str = "fp32", updates: int = 2
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Make `updates` steps of gradient descent, which pass on the recurrent state.

    Returns:
        The losses, the gradients, and the random state afterwards.
    """
    state, losses, gradients = (torch.zeros(5, 4), torch.zeros(5, 4)), list[Tensor](), list[Tensor]()
    with seeded(1):
        for _ in range(updates):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                outputs, state = model(torch.randn(5, 3), state)
            loss = outputs.float().square().mean()
            loss.backward()
            state = state[0].detach().float(), state[1].detach().float()
            losses.append(loss.detach())
            with torch.no_grad():
                for parameter in model.parameters():
                    if (gradient := parameter.grad) is not None:
                        gradient = local_shard(gradient)
                        gradients.append(gradient.clone())
                        local_shard(parameter).sub_(gradient, alpha=0.1)
                    parameter.grad = None
        return losses, gradients, torch.get_rng_state()
