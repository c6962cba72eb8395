"""Mistakes in a group of ranks: layers without gradients, averaging switched off, losses of two kinds."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from support.distributed_models import whole
from support.training import seeded
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep

CURVE = PlateauCurve(20)  # the first update moves something


class Net(nn.Module):
    """Has a layer that a batch may skip."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(3):
            self.first, self.around, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, inputs: Tensor, uses_all: bool) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(self.around(hidden) if uses_all else hidden)


def _loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch).square().mean()


def _rows(update: int, number: int, rank: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * update + 10 * number + rank))


def _batch(update: int, number: int, uses_all: bool) -> tuple[Tensor, bool]:
    return _rows(update, number, distributed.get_rank()), uses_all


def _step_of(model: nn.Module, loss_fn: Callable[..., Any] = _loss_fn) -> TrainStep:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5), loss_fn, CURVE)


def _weights(model: nn.Module) -> list[Any]:
    return [array.tolist() for array in whole(list(model.parameters()))]


def refused_under_ddp(case: str) -> tuple[str, bool, list[Any], int]:
    """The error of an update that leaves a layer without gradients, and whether it changed nothing.

    Then weights and `applied`, after an update in which all layers get gradients.
    """
    plain = Net()
    model = DistributedDataParallel(plain)
    if case == "frozen after wrapping":
        plain.around.requires_grad_(False)
    step = _step_of(model)
    if case == "frozen while training":
        step(_batch(0, 0, True))
        plain.around.requires_grad_(False)
    before, applied = _weights(plain), int(step.state_dict()["applied"])
    uses_all = case.startswith("frozen")
    said = ""
    try:
        step(_batch(1, 0, True), _batch(1, 1, uses_all))
    except RuntimeError as error:
        said = str(error)
    unchanged = _weights(plain) == before and step.state_dict()["applied"] == applied
    if case != "frozen after wrapping":  # then the optimizer does not have it
        plain.around.requires_grad_(True)
        applied = int(step(_batch(2, 0, True), _batch(2, 1, True)).applied)
    return said, unchanged, _weights(plain), applied


def two_kinds_of_losses(wrapper: str) -> tuple[float, int, int, bool]:
    """Loss, counts, and whether no weight changed, where rank 0 returns a mean and the others pairs."""
    model: Any = Net()

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        squares = model(*batch).square()
        return squares.mean() if distributed.get_rank() == 0 else (squares.sum(), len(squares))

    if wrapper == "fsdp":
        fully_shard(model)
    step = _step_of(model if wrapper == "fsdp" else DistributedDataParallel(model), loss_fn)
    before = _weights(model)
    result = step(_batch(0, 0, True))
    return float(result.loss), int(result.applied), int(result.skipped), _weights(model) == before


def divided_by(ways: Sequence[tuple[float | None, bool]], part: bool, shape: tuple[int, ...]) -> list[Any]:
    """The error of a step over a sharded model, or the weights after an update, for each way to divide.

    A way is a factor, and whether sums are forced in the collectives. With `part` the factor is that of one
    layer alone.
    """
    return [_divided_by(*way, part, shape) for way in ways]


def _divided_by(factor: float | None, sums: bool, part: bool, shape: tuple[int, ...]) -> str | list[Any]:
    model: Any = Net()
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts")[-len(shape) :])
    for module in (model.around, model):
        fully_shard(module, mesh=mesh)
        module.set_force_sum_reduction_for_comms(sums)
    (model.around if part else model).set_gradient_divide_factor(factor)
    try:
        step = _step_of(model)
    except ValueError as error:
        return str(error)
    step(_batch(0, 0, True))
    return _weights(model)


_USES = ((True,), (True, False), (True, False))


def weights_after(wrapper: str, left_off: str = "") -> list[Any]:
    """The weights after three updates; the last micro-batch of two of them skips a layer."""
    model: Any = Net()
    if wrapper == "ddp":
        step = _step_of(DistributedDataParallel(model, find_unused_parameters=True))
    else:
        for part in (model.first, model.around, model):
            fully_shard(part)
        if left_off:
            (model if left_off == "all" else model.around).set_requires_gradient_sync(False)
        step = _step_of(model)
    for update, uses in enumerate(_USES):
        step(*(_batch(update, number, uses_all) for number, uses_all in enumerate(uses)))
    return _weights(model)


def expected_after() -> list[Any]:
    """The same by a loop in one process, over the batches of all ranks."""
    model = Net()
    for update, uses in enumerate(_USES):
        losses = [
            _loss_fn(model, (_rows(update, number, rank), uses_all))
            for number, uses_all in enumerate(uses)
            for rank in range(distributed.get_world_size())
        ]
        gradients = torch.autograd.grad(torch.stack(losses).mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.5 * CURVE(update) * gradient
    return _weights(model)
