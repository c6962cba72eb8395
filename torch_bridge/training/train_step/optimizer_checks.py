"""Checks of the optimizers of a training step, and what is read from them when it is built."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from plateau_jax.curves.curve import Curve
from torch_bridge.advice.value_advice import warn_of_factors
from torch_bridge.groups.curves_and_peaks import curves_of
from torch_bridge.groups.optimizers import (
    check_optimizer,
    groups_of,
    needs_two_backward_passes,
    parameters_of,
    unwrap,
)
from torch_bridge.groups.options import LEARNING_RATE

# With a trailing dot: a user's own wrapper may be in `lightning_utils`, and is not unwrapped.
_LIGHTNING_TRAINER = ("lightning.pytorch.", "pytorch_lightning.")
_TRAINERS = ("accelerate.", "lightning.", "lightning_fabric.")


def unwrap_trainers(optimizer: Any) -> Any:
    """Return the optimizer inside the wrapper of Fabric or accelerate; any other as it is.

    Other wrappers are not unwrapped: they may add to the step, as Lookahead does.

    Raises:
        TypeError: Lightning's Trainer wrapped it.
    """
    for inner in unwrap(optimizer):
        modules = [base.__module__ for base in type(inner).__mro__]
        if any(module.startswith(_LIGHTNING_TRAINER) for module in modules):
            raise TypeError(
                "Lightning's Trainer would not count the updates of a TrainStep: use Fabric, whose "
                "loop you write, or lambda_lr in the LightningModule"
            )
        if not any(module.startswith(_TRAINERS) for module in modules):
            return inner
    return optimizer


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Check that a training step can use these optimizers.

    Raises:
        TypeError: An argument is not an optimizer, or it needs a closure or a second backward pass,
            as LBFGS and SAM do.
        ValueError: A parameter is not the model's, or occurs twice; or an optimizer
            has a non-standard `state_dict`.
    """
    for optimizer in optimizers:
        check_optimizer(optimizer)
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        needs_closure = closure is not None and closure.default is inspect.Parameter.empty
        if needs_closure or needs_two_backward_passes(optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} needs a closure or a second backward pass, which a "
                "TrainStep cannot give: use a different optimizer, or lambda_lr in a loop"
            )
        if not is_standard_state(optimizer, optimizer.state_dict()):
            raise ValueError(
                f"{type(optimizer).__name__}.state_dict() has a non-standard form, which a "
                "TrainStep could save but not load. Give it the torch optimizer inside"
            )
    model_parameters = set(map(id, model.parameters()))
    parameters = list(map(id, parameters_of(optimizers)))
    foreign = [parameter for parameter in parameters if parameter not in model_parameters]
    if foreign:
        raise ValueError(
            f"{len(foreign)} of the optimizer's {len(parameters)} parameters are not the model's; "
            "after fully_shard a model has different parameters from before"
        )
    repeated = len(parameters) - len(set(parameters))
    if repeated:
        raise ValueError(
            f"{repeated} parameters are in the optimizer's groups more than once, or belong to "
            "several optimizers, and would be scaled, clipped and stepped as often: give each one "
            "once"
        )


def check_no_scheduler(optimizers: Iterable[Any]) -> None:
    """Reject optimizers, or wrappers of them, that have a scheduler.

    Raises:
        ValueError: A scheduler is attached; the message says how to remove it.
    """
    # A torch scheduler replaces `step` in the attributes of its optimizer.
    for optimizer in optimizers:
        if hasattr(optimizer.__dict__.get("step"), "_wrapped_by_lr_sched"):
            raise ValueError(
                "a scheduler is attached to the optimizer, but a TrainStep sets the learning rates "
                "itself, from its own curve. Leave the scheduler out; to keep this optimizer, "
                "write `del optimizer.step`, which removes the function that torch put there for "
                "the scheduler"
            )


def group_sizes(groups: Iterable[Any]) -> list[int]:
    """Return the number of parameters of each group."""
    return [len(group["params"]) for group in groups]


def is_standard_state(optimizer: Optimizer, state: Any) -> bool:
    """Return True if a state has torch's form, and groups of the same sizes as the optimizer."""
    sizes = group_sizes(groups_of(optimizer))
    try:
        saved_sizes = group_sizes(state["param_groups"])
        return isinstance(state["state"], dict) and saved_sizes == sizes
    except (LookupError, TypeError):
        return False


def device_of(optimizers: Sequence[Optimizer]) -> torch.device:
    """Return the device of the parameters.

    Raises:
        ValueError: They are on several devices, or there are none.
    """
    parameters = parameters_of(optimizers)
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1:
        raise ValueError(
            "the optimizer needs parameters, all on one device; their devices are "
            f"{sorted(map(str, devices))}"
        )
    (device,) = devices
    return device


def curves_by_group(optimizer: Any, optimizers: Sequence[Optimizer], curve: Any) -> list[Curve]:
    """Return one curve for each parameter group of all optimizers.

    For a sequence of optimizers, `curve` is one curve for all, or a sequence with an entry per
    optimizer. Such an entry, like `curve` for a single optimizer, is a curve or a sequence of one
    curve per group.

    Raises:
        TypeError: An entry is not a `Curve`.
        ValueError: The number of curves differs from that of optimizers or of groups.
    """
    entries: Sequence[Any] = [curve] * len(optimizers)
    if isinstance(optimizer, list | tuple) and isinstance(curve, Sequence):
        entries = cast("Sequence[Any]", curve)
        if len(entries) != len(optimizers):
            raise ValueError(f"curve has length {len(entries)}, and optimizers {len(optimizers)}")
    curves: list[Curve] = []
    for item, entry in zip(optimizers, entries, strict=True):
        curves += curves_of(groups_of(item), entry)
    return curves


def peaks_of(optimizer: Optimizer) -> list[float]:
    """Return each group's peak in float32; warn of factors that only other schedulers read."""
    groups = groups_of(optimizer)
    peaks = [LEARNING_RATE.base_of(index, group) for index, group in enumerate(groups)]
    warn_of_factors(LEARNING_RATE, groups)
    return peaks
