"""Training over several ranks, and the same updates by a loop in one process."""

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from support.checkpointing.checkpoints import gather_tensors
from support.training.by_hand import ByHand
from support.training.kinds_of_run import Kind
from support.training.models import Net, Recurrent
from support.training.optimizers import make_optimizer
from support.training.reads import Reads
from support.training.steps import CURVE
from support.training.trees import equal_trees
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from torch_bridge import TrainStep


class Case(NamedTuple):
    wrapper: str = "ddp"
    optimizer: str = "adamw"
    loss: str = "pair"
    accumulation: int = 1
    max_norm: float | None = None
    precision: Any = "fp32"
    synchronize: Any = "update"
    recurrent: bool = False
    corrupted: tuple[tuple[int, int, float], ...] = ()
    """(update, rank, factor): the rank multiplies its rows by the factor."""
    empty: tuple[tuple[int, int], ...] = ()
    """(update, rank): the rank has no rows."""
    growth: float = 1.0
    """The ratio of a micro-batch's weights to those of the previous one."""
    updates: int = 6
    seed: int = 0
    processes: int = 2
    has_aux: bool = False


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
    rows = 4 if case.loss == "mean" or case.recurrent else int(torch.randint(1, 6, (), generator=generator))
    shape = (rows, 3) if case.recurrent else (rows,)
    inputs, targets = (torch.randn(*shape, width, generator=generator) for width in (3, 2))
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
    errors = (outputs.float() - targets).square().flatten(1).mean(1)
    if case.loss == "mean":
        return errors.sum(), torch.tensor(float(len(targets)))
    return (errors * weights.float()).sum(), weights.sum()


def loss_fn_of(case: Case) -> Any:
    def loss_from(outputs: Tensor, batch: Batch) -> Any:
        total, weight = sums(case, outputs, batch)
        if case.loss == "mean":
            return total / weight
        return total, weight.float() if case.loss == "device pair" else weight.item()

    def loss_fn(model: nn.Module, batch: Batch) -> Any:
        outputs = model(batch[0])
        loss = loss_from(outputs, batch)
        return (loss, {"outputs": outputs, "inputs": [batch[0]]}) if case.has_aux else loss

    def carried(model: nn.Module, batch: Batch, carry: Any) -> Any:
        outputs, carry = model(batch[0], carry)
        return loss_from(outputs, batch), carry

    return carried if case.recurrent else loss_fn


def model_of(case: Case) -> nn.Module:
    return Recurrent("GRU") if case.recurrent else Net()


def wrapped(case: Case, model: nn.Module) -> nn.Module:
    if case.wrapper == "plain":
        return model
    if case.wrapper in ("ddp", "static ddp", "ddp by fp16"):
        replicated = DistributedDataParallel(model, static_graph=case.wrapper == "static ddp")
        if case.wrapper == "ddp by fp16":
            replicated.register_comm_hook(None, fp16_compress_hook)
        return replicated
    if case.wrapper == "fsdp by fp16":
        return cast("Any", fully_shard)(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    size = distributed.get_world_size()
    shape, names = ((2, size // 2), ("copy", "shard")) if case.wrapper == "hybrid" else ((size,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    fully_shard(next(iter(model.children())), mesh=mesh)
    sharded: Any = fully_shard(model, mesh=mesh)
    if case.wrapper == "fsdp left off":  # by an earlier training loop
        sharded.set_requires_gradient_sync(False)
    return sharded


def step_of(case: Case, kind: Callable[[Any], Optimizer] | None = None) -> TrainStep:
    # Fractions of rows are drawn on purpose.
    warnings.filterwarnings("ignore", "loss_fn returned a weight that is not a whole number")
    plain = model_of(case)
    carry = plain.initial() if isinstance(plain, Recurrent) else None
    model = wrapped(case, plain)
    return TrainStep(
        model,
        kind(model.parameters()) if kind else make_optimizer(case.optimizer, model),
        loss_fn_of(case),
        CURVE,
        precision=case.precision,
        max_norm=case.max_norm,
        synchronize=case.synchronize,
        carry=carry,
        has_aux=case.has_aux,
    )


def _batches_of(case: Case, update: int) -> list[Batch]:
    return [batch_of(case, update, distributed.get_rank(), number) for number in range(case.accumulation)]


def train(case: Case) -> Run:
    """Train over all ranks, and return the results on this rank; its aux must be that of its own rows."""
    step = step_of(case)
    results: list[Any] = []
    for update in range(case.updates):
        micro_batches, aux = _batches_of(case, update), list[Any]()
        if case.has_aux:
            with torch.no_grad():
                aux = [{"outputs": step.model(batch[0]), "inputs": [batch[0]]} for batch in micro_batches]
        results.append(step(*micro_batches))
        assert equal_trees(list(results[-1].aux), aux), f"aux of update {update}"
        assert not any(each["outputs"].requires_grad for each in results[-1].aux)
    return _run_of(results, list(gather_tensors(list(step.model.parameters())).values()))


def train_all(cases: Sequence[Case]) -> list[Run]:
    return [train(case) for case in cases]


class _Multiplications(TorchDispatchMode):
    """Record the dtypes of the factors by which lists of gradients are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten._foreach_mul_:
            self.dtypes.append(args[1].dtype)
        return func(*args, **(kwargs or {}))


def observe_all(cases: Sequence[Case]) -> list[tuple[list[str], list[torch.dtype]]]:
    """Observe the updates of each case from the third one on.

    Returns:
        For each case, the operators that synchronize with the device, and the dtypes of the factors by which
        the last update multiplies the gradients.
    """
    return [_observe(case) for case in cases]


def _observe(case: Case) -> tuple[list[str], list[torch.dtype]]:
    step, names, mode = step_of(case), list[str](), _Multiplications()
    for update in range(case.updates):
        batches, mode = _batches_of(case, update), _Multiplications()
        with Reads() as reads, mode:
            step(*batches)
        names += reads.names if update > 1 else []
    # FSDP2 frees memory, and allocates it again, through storages.
    return [name for name in names if name != "untyped_storage"], mode.dtypes


def train_in_one_process(case: Case) -> Run:
    """Make the same updates by hand: the micro-batches of all ranks, with a carry for each rank."""
    loss_fn, model = loss_fn_of(case._replace(has_aux=False)), model_of(case)
    carries = (model.initial(),) * case.processes if isinstance(model, Recurrent) else None

    def loss_fn_by_rank(model: nn.Module, batch: tuple[int, Batch], *carries: Any) -> Any:
        rank, rows = batch
        if not carries:
            return loss_fn(model, rows)
        loss, carry = loss_fn(model, rows, carries[0][rank])
        return loss, (*carries[0][:rank], carry, *carries[0][rank + 1 :])

    kind = Kind(case.optimizer, loss_fn_by_rank, model=lambda: model, max_norm=case.max_norm, carry=carries)
    by_hand, results = ByHand(kind), list[Any]()
    for update in range(case.updates):
        places = product(range(case.processes), range(case.accumulation))
        results.append(
            by_hand.update([(rank, batch_of(case, update, rank, number)) for rank, number in places])
        )
    return _run_of(results, [parameter.detach().numpy() for parameter in model.parameters()])


def _run_of(results: Sequence[Any], weights: list[np.ndarray]) -> Run:
    losses, norms, lrs, counters = zip(*(result[:4] for result in results), strict=True)
    counts = [(int(applied), int(skipped)) for applied, skipped, *_ in counters]
    return Run(
        [x.item() for x in losses], [x.item() for x in norms], [lr[0].item() for lr in lrs], counts, weights
    )
