"""Which models and optimizers a training step takes, and in which form."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, checks
from torch_bridge.schedulers.param_groups import all_parameters, curves_of, groups_of
from torch_bridge.training.optimizers.wrapped_optimizers import unwrap, with_wrappers


def check_model(model: nn.Module) -> None:
    """Refuse what is not a module whose backward pass is torch's own.

    Raises:
        TypeError: Not a module.
        ValueError: Wrapped by Lightning Fabric for mixed precision.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r} must be a torch.nn.Module")
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        precision = cast("Any", module)._strategy.precision if "_FabricModule" in kinds else None
        if precision is not None and _has_own_backward(precision):
            raise ValueError(
                f"the model was set up by Fabric with {type(precision).__name__}, whose backward pass only "
                "Fabric can run. Give model.module to the training step, with precision= of its own, and "
                "on several ranks distribute(model.module)"
            )


def _has_own_backward(precision: Any) -> bool:
    base = next(kind for kind in type(precision).__mro__ if kind.__name__ == "Precision")
    return type(precision).backward is not base.backward


def as_sequence(optimizer: Any) -> Sequence[Any]:
    """One optimizer, or a sequence of several, as a sequence."""
    return cast("Sequence[Any]", optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def unwrap_optimizers(model: nn.Module, optimizer: Any) -> list[Optimizer]:
    """The torch optimizers in one optimizer, or in a sequence of several, out of their trainers' wrappers.

    Raises:
        TypeError: Not an optimizer, or one whose `step` needs a closure.
        ValueError: No optimizer; parameters that are not the model's, that are there twice, or of several
            optimizers; a scheduler that is attached; a `state_dict` of a form of its own.
    """
    given = as_sequence(optimizer)
    if not given:
        raise ValueError("optimizer is empty; it must be a torch.optim.Optimizer or several")
    found = [unwrap(item) for item in given]
    own = set(map(id, model.parameters()))
    taken: set[int] = set()
    for item in found:
        groups_of(item)
        _check_step(item)
        parameters = list(map(id, all_parameters([item])))
        if foreign := sum(parameter not in own for parameter in parameters):
            raise ValueError(
                f"{foreign} of the optimizer's {len(parameters)} parameters are not the model's; "
                "after fully_shard a model has other parameters than before"
            )
        if repeated := len(parameters) - len(set(parameters)):
            raise ValueError(
                f"{repeated} parameters are in the optimizer's groups more than once, and would be scaled, "
                "clipped and stepped as often: give each one once, as model.parameters() does"
            )
        if shared := len(taken.intersection(parameters)):
            raise ValueError(f"{shared} parameters belong to several optimizers; each needs one of its own")
        taken.update(parameters)
        _check_state(item)
    check_no_scheduler(with_wrappers(given))
    return found


def check_no_scheduler(optimizers: Iterable[Any]) -> None:
    """Refuse optimizers, or wrappers of them, with a scheduler attached.

    Raises:
        ValueError: One has; the message says what to write.
    """
    # Torch replaces `step` in the attributes of an optimizer that a scheduler is built over.
    attributes: list[dict[str, Any]] = list(map(vars, optimizers))
    if any(hasattr(each.get("step"), "_wrapped_by_lr_sched") for each in attributes):
        raise ValueError(
            "a scheduler is attached to the optimizer, but a TrainStep sets the rates itself, from its own "
            "curve. Leave the scheduler out; to keep this optimizer, write `del optimizer.step`, which "
            "removes what torch has put there for the scheduler"
        )


def _check_step(optimizer: Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} needs a closure, which a TrainStep cannot give; "
            "use another optimizer"
        )


def _check_state(optimizer: Optimizer) -> None:
    try:
        state: Any = optimizer.state_dict()
        counts = [len(group["params"]) for group in state["param_groups"]]
        usual = isinstance(state["state"], Mapping)
    except Exception as error:  # whatever its own code raises
        counts, usual, reason = [], False, f" ({type(error).__name__}: {error})"
    else:
        reason = ""
    if not usual or counts != [len(group["params"]) for group in optimizer.param_groups]:
        raise ValueError(
            f"{type(optimizer).__name__}.state_dict() has a form of its own{reason}, which a TrainStep "
            "could save but not load. Give it the torch optimizer that is inside"
        )


def device_of(optimizers: Sequence[Optimizer]) -> torch.device:
    """The device that the parameters are on.

    Raises:
        ValueError: Parameters on several devices, or made under `torch.inference_mode`.
    """
    parameters = all_parameters(optimizers)
    if any(parameter.is_inference() for parameter in parameters):
        raise ValueError("the model was made under torch.inference_mode(), and can't be trained")
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1:
        raise ValueError(
            f"the optimizer's parameters are on {sorted(map(str, devices))}; they must be on one device"
        )
    return devices.pop()


def curves_by_group(optimizer: Any, optimizers: Sequence[Optimizer], curve: Any) -> list[Curve]:
    """One curve for each parameter group of all optimizers.

    For a sequence of optimizers `curve` is one for all, or a sequence with an entry per optimizer; such an
    entry, like `curve` for one optimizer alone, is a curve or a sequence of one per group.

    Raises:
        TypeError: Something that is not a `Curve`.
        ValueError: Another number of curves than of optimizers, or of groups.
    """
    entries: Sequence[Any] = [curve] * len(optimizers)
    if isinstance(optimizer, list | tuple) and not isinstance(curve, Curve):
        if not isinstance(curve, Sequence) or isinstance(curve, str):
            raise TypeError(
                f"curve = {checks.short_repr(curve)} must be a Curve, or an entry for each optimizer"
            )
        entries = cast("Sequence[Any]", curve)
        if len(entries) != len(optimizers):
            raise ValueError(f"curve has {len(entries)} entries for {len(optimizers)} optimizers")
    pairs = zip(optimizers, entries, strict=True)
    return [found for each, entry in pairs for found in curves_of(each, entry)]
