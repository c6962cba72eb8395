"""Mistakes in a group of ranks: errors, layers without gradients, missing averages, losses of two kinds."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.distributed import distributed_updates
from support.distributed.distributed_models import Skipping, error_of, gather_weights
from support.distributed.distributed_updates import Case
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, distribute

CURVE = PlateauCurve(20)  # the first update moves something


def _loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch).square().mean()


def _rows(update: int, number: int, rank: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * update + 10 * number + rank))


def _batch(update: int, number: int, uses_all: bool) -> tuple[Tensor, bool]:
    return _rows(update, number, distributed.get_rank()), uses_all


def _step_of(model: nn.Module, loss_fn: Callable[..., Any] = _loss_fn) -> TrainStep:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5), loss_fn, CURVE)


def _weights(model: nn.Module) -> list[Any]:
    return [array.tolist() for array in gather_weights(list(model.parameters()))]


def errors_after_an_error(cases: Sequence[tuple[str, str]]) -> list[set[str]]:
    """Return for each case the messages of a step's calls after an error in one update of all ranks.

    A case is a wrapper, and the place of the error: "forward", "backward" or "optimizer".
    """
    return [_errors_after_an_error(*case) for case in cases]


def _errors_after_an_error(wrapper: str, place: str) -> set[str]:
    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    def fail_backward(_: Any, __: Any, output: Tensor) -> None:
        output.register_hook(fail)

    model: Any = distributed_updates.wrapped(Case(wrapper), Skipping())
    step = _step_of(model)
    step(_batch(0, 0, True))
    state = step.state_dict()
    part = next(module for module in model.modules() if isinstance(module, nn.Linear))
    hook = {
        "forward": lambda: part.register_forward_hook(fail),
        "backward": lambda: part.register_forward_hook(fail_backward),
        "optimizer": lambda: step.optimizer.register_step_pre_hook(fail),
    }[place]()
    with pytest.raises(KeyboardInterrupt):
        step(_batch(1, 0, True))
    hook.remove()
    calls = (lambda: step(_batch(1, 0, True)), step.state_dict, lambda: step.load_state_dict(state))
    return set(map(error_of, calls))


def rejected_under_ddp(case: str) -> tuple[str, bool]:
    """Return the error of an update that leaves a layer without gradients, and True if no weight changed."""
    plain = Skipping()
    model = DistributedDataParallel(plain)
    if case == "frozen after wrapping":
        plain.around.requires_grad_(False)
    step = _step_of(model)
    if case == "frozen while training":
        step(_batch(0, 0, True))
        plain.around.requires_grad_(False)
    before = _weights(plain)
    message = error_of(lambda: step(_batch(1, 0, True), _batch(1, 1, case.startswith("frozen"))))
    return message, _weights(plain) == before


def all_kinds_of_losses(cases: Sequence[tuple[str, str, str]]) -> list[tuple[float, int, int, bool]]:
    return [two_kinds_of_losses(*case) for case in cases]


def two_kinds_of_losses(wrapper: str, precision: Any, first: str) -> tuple[float, int, int, bool]:
    """Two updates in which rank 0 returns means, and the others pairs.

    The loss, how many took place and were skipped, and whether no weight changed. With `first` all ranks
    return that in one update before.
    """
    model: Any = Skipping()
    turn = 0

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        squares = model(*batch).square()
        is_mean = distributed.get_rank() == 0 if turn or not first else first == "mean"
        return squares.mean() if is_mean else (squares.sum(), len(squares))

    wrapped = distributed_updates.wrapped(Case(wrapper), model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
    step = TrainStep(wrapped, optimizer, loss_fn, CURVE, precision=precision)
    if first:
        step(_batch(9, 0, True))
    turn, before, counts = 1, _weights(model), step.state_dict()
    step(_batch(0, 0, True), _batch(0, 1, True))
    result = step(_batch(1, 0, True), _batch(1, 1, True))
    applied, skipped = result.applied - counts["applied"], result.skipped - counts["skipped"]
    return float(result.loss), int(applied), int(skipped), _weights(model) == before


def updates_without_an_average(wrong: str, is_compiled: bool) -> tuple[str, bool]:
    """Return the error of an update whose loss bypasses the wrapper, and True if no weight changed."""
    plain = Skipping()
    model: Any = DistributedDataParallel(plain)
    is_right = True

    def loss_fn(model: Any, batch: Any) -> Tensor:
        called = model.forward if is_right else plain if wrong == "closed over" else model.module
        if wrong == "no_grad":
            with torch.no_grad():
                model(*batch)
        loss = called(*batch).square().mean()
        if is_right:
            with torch.no_grad():
                model(*batch)  # an additional pass without gradients is allowed
        return loss

    # Warnings of torch.compile when it meets DistributedDataParallel.
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    step = _step_of(model, torch.compile(loss_fn, backend="eager") if is_compiled else loss_fn)
    step(_batch(0, 0, True))
    before, is_right = _weights(plain), False
    message = error_of(lambda: step(_batch(1, 0, True), _batch(1, 1, True)))
    return message, _weights(plain) == before


def _mean_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()


def unwrapped(how: str) -> list[str]:
    """Return the warnings of a step over a model that is not wrapped, and of its update."""
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 1)))
    if how == "meant":
        assert distribute(model, None, device="cpu") is model
    if how == "inner":
        assert distribute(model, device="cpu") is not model
    trained: Any = model[0] if how == "meant" else model
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = _step_of(trained, _mean_of)
        if how != "inner":
            step(torch.ones(2, 3))
    return [f"{warning.category.__name__}: {warning.filename}: {warning.message}" for warning in caught]


def divided_by(factors: Sequence[float | None], part: bool) -> list[Any]:
    """Return for each factor the error of a step over a sharded model, or the weights after an update.

    Each factor is tried with averages and with sums forced in the collectives. With `part`, only one layer
    has it.
    """
    return [_divided_by(factor, sums, part) for factor in factors for sums in (False, True)]


def _divided_by(factor: float | None, sums: bool, part: bool) -> str | list[Any]:
    model: Any = Skipping()
    for module in (model.around, model):
        fully_shard(module)
        module.set_force_sum_reduction_for_comms(sums)
    if factor is not None:
        (model.around if part else model).set_gradient_divide_factor(factor)
    try:
        step = _step_of(model)
    except ValueError as error:
        return str(error)
    step(_batch(0, 0, True))
    return _weights(model)


_USES = ((True,), (True, False), (True, False))


def weights_after(wrapper: str, left_off: str = "") -> list[Any]:
    """Return the weights after three updates; the last micro-batch of two of them skips a layer."""
    model: Any = Skipping()
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
    """Compute the same weights by a loop in one process, over the batches of all ranks."""
    model = Skipping()
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
