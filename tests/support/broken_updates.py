"""Updates in which all ranks get an error at the same place, and the updates after them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from support.distributed_updates import Case, batch_of, step_of, train, whole
from support.reads import Reads
from torch import Tensor, distributed, nn

from torch_bridge import TrainStep


class Broken(NamedTuple):
    """The place in the second update where the error comes."""

    case: Case
    place: str
    micro_batch: int


class Break(BaseException):
    """The error. Like KeyboardInterrupt it is no Exception."""


def _raise(*_: Any) -> Any:
    raise Break


def _breaking(loss_fn: Callable[..., Any], broken: Broken) -> Callable[..., Any]:
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
        context: AbstractContextManager[Any] = nullcontext() if hook is None else _Removed(hook)
        with context:
            total, weight = loss_fn(model, batch)
        if place == "after":
            raise Break
        if place == "backward":
            total.register_hook(_raise)
        return ("no loss" if place == "refused" else total), weight

    return called


class _Removed:
    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


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
    own = step._loss_fn
    hook = step.optimizer.register_step_pre_hook(_raise) if broken.place == "optimizer" else None
    step._loss_fn = _breaking(own, broken)
    try:
        step(*batches)
        raise AssertionError("there was no error")
    except (Break, TypeError):
        pass
    finally:
        step._loss_fn = own
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
