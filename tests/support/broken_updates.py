"""Updates in which ranks get an error, at the same place or not, and the updates after them."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from support.distributed_models import Skipping
from support.distributed_updates import Case, batch_of, step_of, train, whole
from support.reads import Reads
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep
from torch_bridge.distributed import recovery


class Broken(NamedTuple):
    """Where in the second update the error comes."""

    case: Case
    place: str
    """ "before", "forward", "within", "after", "backward", "refused": see `_breaking`; or "optimizer"."""
    micro_batch: int


class Break(BaseException):
    """The error. Like KeyboardInterrupt it is no Exception."""


def _raise(*_: Any) -> Any:
    raise Break


def _breaking(loss_fn: Callable[..., Any], broken: Broken) -> Callable[..., Any]:
    """The `loss_fn`, which fails in one micro-batch: at a place in its passes, or by no loss ("refused")."""
    number = -1

    def called(model: nn.Module, batch: Any) -> Any:
        nonlocal number
        number += 1
        place = broken.place if number == broken.micro_batch else ""
        if place == "before":
            raise Break
        modules = list(model.modules())
        hook: Any = modules[-2].register_forward_pre_hook(_raise) if place == "forward" else None
        if place == "within":  # after the last layer's gradients, whose collective may have begun
            hook = modules[-3].register_forward_hook(
                lambda _, __, output: output.register_hook(_raise) and None
            )
        with hook or nullcontext():  # which removes the hook at its end
            total, weight = loss_fn(model, batch)
        if place == "after":
            raise Break
        if place == "backward":
            total.register_hook(_raise)
        return ("no loss" if place == "refused" else total), weight

    return called


def go_on_after(broken: Broken) -> float:
    """The greatest difference in losses and weights to the same training without the error."""
    case, rank = broken.case, distributed.get_rank()
    expected = train(case)
    step: Any = step_of(case)
    losses: list[Tensor] = []
    for update in range(case.updates):
        batches = [batch_of(case, update, rank, number) for number in range(case.accumulation)]
        if update == 1:
            _break_off(step, broken, batches)
            assert all(parameter.grad is None for parameter in step.model.parameters())
        losses.append(step(*batches).loss)
    pairs = [(torch.stack(losses).numpy(), np.array(expected.losses))]
    pairs += zip(whole(step), expected.weights, strict=True)
    return float(max(np.abs(one - other).max() for one, other in pairs))


def _break_off(step: Any, broken: Broken, batches: Any) -> None:
    own = step._update._loss_fn
    hook = step.optimizer.register_step_pre_hook(_raise) if broken.place == "optimizer" else None
    step._update._loss_fn = _breaking(own, broken)
    try:
        step(*batches)
        raise AssertionError("there was no error")
    except (Break, TypeError):
        pass
    finally:
        step._update._loss_fn = own
        if hook is not None:
            hook.remove()


def all_go_on(cases: list[Broken]) -> list[float]:
    return [go_on_after(case) for case in cases]


def reads(case: Case) -> list[str]:
    """What synchronizes with the device from the third update to the last."""
    step: TrainStep = step_of(case)
    names: list[str] = []
    for update in range(case.updates):
        batches = [batch_of(case, update, distributed.get_rank(), n) for n in range(case.accumulation)]
        with Reads() as found:
            step(*batches)
        names += found.names if update > 1 else []
    # FSDP2 frees memory, and allocates it again, through storages.
    return [name for name in names if name != "untyped_storage"]


def all_reads(cases: list[Case]) -> list[list[str]]:
    return [reads(case) for case in cases]


class Unused(NamedTuple):
    """An error of every rank in its own place, and the layers that micro-batches use."""

    places: tuple[tuple[int, str], ...]
    """For each rank the micro-batch, and the place in it: "before", "after" or "backward" its passes."""
    in_broken: tuple[bool, bool] = (True, True)
    """Whether the micro-batches of the broken update use all layers."""
    in_next: tuple[bool, bool] = (True, True)
    """The same of the next update."""
    finds_unused: bool = True


def all_go_on_apart(cases: list[Unused]) -> list[float]:
    return [go_on_apart(case) for case in cases]


def go_on_apart(case: Unused) -> float:
    """The greatest difference in losses and weights to the same training without the errors."""
    return float((_skipping(case, True) - _skipping(case, False)).abs().max())


def _skipping(case: Unused, is_broken: bool) -> Tensor:
    model = DistributedDataParallel(Skipping(), find_unused_parameters=case.finds_unused)
    turn, fails = 0, False

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        nonlocal turn
        number, place = case.places[distributed.get_rank()]
        at = place if fails and turn == number else ""
        turn += 1
        if at == "before":
            raise Break
        loss = model(*batch).square().mean()
        if at == "after":
            raise Break
        if at == "backward":
            loss.register_hook(_raise)
        return loss

    # Where a gradient is zero in place of none, it decays the weights.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    step = TrainStep(model, optimizer, loss_fn, PlateauCurve(20))
    losses: list[Tensor] = []
    for update in range(4):
        uses = case.in_next if update == 1 else (True, True)
        generator = torch.Generator().manual_seed(10 * update + distributed.get_rank())
        rows = torch.randn(2, 4, 3, generator=generator)
        if is_broken and update == 1:
            turn, fails = 0, True
            try:
                step(*zip(rows, case.in_broken, strict=True))
                raise AssertionError("there was no error")
            except Break:
                fails = False
        losses.append(step(*zip(rows, uses, strict=True)).loss)
    return torch.cat(
        [torch.stack(losses), *(parameter.detach().flatten() for parameter in model.parameters())]
    )


def error_on_rank_1() -> list[str]:
    """What rank 1 says in the next two calls, after an error that it alone got."""
    recovery._PATIENCE = timedelta(seconds=1)
    rank = distributed.get_rank()
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = TrainStep(model, optimizer, _mean_of, PlateauCurve(20))
    step(torch.ones(1, 2))
    if rank == 0:
        step(torch.ones(1, 2))
        return []
    said: list[str] = []
    hook = optimizer.register_step_pre_hook(_raise)
    try:
        step(torch.ones(1, 2))
    except Break:
        hook.remove()
    for _ in range(2):
        try:
            step(torch.ones(1, 2))
        except RuntimeError as error:
            said.append(str(error))
    return said


def _mean_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()
