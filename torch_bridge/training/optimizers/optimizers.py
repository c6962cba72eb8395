"""Checks of the models and optimizers that a training step can train with."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, checks
from torch_bridge.distributed.wrappers import check_module
from torch_bridge.schedulers.param_groups import all_parameters, curves_of, groups_of
from torch_bridge.training.optimizers.wrapped_optimizers import unwrap, with_wrappers


def check_model(model: nn.Module) -> None:
    """Reject a model whose backward pass is not torch's own.

    Raises:
        TypeError: It is not a module.
        ValueError: Lightning Fabric wrapped it for mixed precision.
    """
    check_module(model)
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        precision = cast("Any", module)._strategy.precision if "_FabricModule" in kinds else None
        if precision is not None and _overrides_backward(precision):
            raise ValueError(
                f"the model was set up by Fabric with {type(precision).__name__}, whose backward pass only "
                "Fabric can run. Give the training step model.module and its own precision=, and on several "
                "ranks distribute(model.module)"
            )


def _overrides_backward(precision: Any) -> bool:
    base = next(kind for kind in type(precision).__mro__ if kind.__name__ == "Precision")
    return type(precision).backward is not base.backward


def as_sequence(optimizer: Any) -> Sequence[Any]:
    """Return a sequence of optimizers as it is, and one optimizer as a sequence."""
    return cast("Sequence[Any]", optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def unwrap_optimizers(model: nn.Module, optimizer: Any) -> list[Optimizer]:
    """Unwrap one optimizer or a sequence of several, and check that a training step can use them.

    Raises:
        TypeError: An argument is not an optimizer, or its `step` needs a closure.
        ValueError: No optimizer; a parameter is not the model's, occurs twice, or belongs to several
            optimizers; a scheduler is attached; or an optimizer has a non-standard `state_dict`.
    """
    wrapped = as_sequence(optimizer)
    if not wrapped:
        raise ValueError("optimizer is empty; it must be a torch.optim.Optimizer or several")
    optimizers = [unwrap(item) for item in wrapped]
    model_parameters = set(map(id, model.parameters()))
    assigned: set[int] = set()
    for item in optimizers:
        groups_of(item)
        _refuse_closure(item)
        parameters = list(map(id, all_parameters([item])))
        if foreign := sum(parameter not in model_parameters for parameter in parameters):
            raise ValueError(
                f"{foreign} of the optimizer's {len(parameters)} parameters are not the model's; "
                "after fully_shard a model has different parameters from before"
            )
        if repeated := len(parameters) - len(set(parameters)):
            raise ValueError(
                f"{repeated} parameters are in the optimizer's groups more than once, and would be scaled, "
                "clipped and stepped as often: give each one once, as model.parameters() does"
            )
        if shared := len(assigned.intersection(parameters)):
            raise ValueError(f"{shared} parameters belong to several optimizers; each must belong to one")
        assigned.update(parameters)
        _check_state_dict(item)
    check_no_scheduler(with_wrappers(wrapped))
    return optimizers


def check_no_scheduler(optimizers: Iterable[Any]) -> None:
    """Reject optimizers, or wrappers of them, with a scheduler attached.

    Raises:
        ValueError: A scheduler is attached; the message says how to remove it.
    """
    # A torch scheduler replaces `step` in the attributes of its optimizer.
    attributes: list[dict[str, Any]] = list(map(vars, optimizers))
    if any(hasattr(names.get("step"), "_wrapped_by_lr_sched") for names in attributes):
        raise ValueError(
            "a scheduler is attached to the optimizer, but a TrainStep sets the learning rates itself, from "
            "its own curve. Leave the scheduler out; to keep this optimizer, write `del optimizer.step`, "
            "which removes the function that torch put there for the scheduler"
        )


def _refuse_closure(optimizer: Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} needs a closure, which a TrainStep cannot give; "
            "use a different optimizer"
        )


def check_fused_sgd(optimizer: Optimizer) -> None:
    """Refuse torch's fused SGD if it does not train parameters of their dtype on a CPU.

    Raises:
        ValueError: It does not; the message names the dtype.
    """
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []
    fused = {parameter for group in groups if group.get("fused") for parameter in group["params"]}
    dtypes = {parameter.dtype for parameter in fused if parameter.device.type == "cpu"}
    for dtype in sorted(dtypes & {torch.bfloat16, torch.float16}, key=str):
        if not _fused_sgd_updates(dtype):
            raise ValueError(
                f"on a CPU, fused SGD of torch {torch.__version__} leaves most {dtype} parameters unchanged "
                "(github.com/pytorch/pytorch/issues/191763): build it with fused=False"
            )


@cache
def _fused_sgd_updates(dtype: torch.dtype) -> bool:
    """Return False if torch has the bug that leaves blocks of 16 and more elements unchanged."""
    # An update of a block, because the version that mends it is unknown. Twice, for the momentum:
    # 4 − 1 − (1 + 1/2) = 3/2.
    parameter = torch.full((64,), 4.0, dtype=dtype, device="cpu", requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5, fused=True)
    optimizer.step()
    optimizer.step()
    return bool((parameter == 1.5).all())


def _check_state_dict(optimizer: Optimizer) -> None:
    try:
        state: Any = optimizer.state_dict()
        counts = [len(group["params"]) for group in state["param_groups"]]
        is_standard = isinstance(state["state"], Mapping)
    except Exception as error:  # an optimizer's code may raise anything
        counts, is_standard, reason = [], False, f" ({type(error).__name__}: {error})"
    else:
        reason = ""
    if not is_standard or counts != [len(group["params"]) for group in optimizer.param_groups]:
        raise ValueError(
            f"{type(optimizer).__name__}.state_dict() has a non-standard form{reason}, which a TrainStep "
            "could save but not load. Give it the torch optimizer inside"
        )


def device_of(optimizers: Sequence[Optimizer]) -> torch.device:
    """Return the device of the parameters.

    Raises:
        ValueError: They are on several devices, or were made under `torch.inference_mode`.
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
    """Return one curve for each parameter group of all optimizers.

    For a sequence of optimizers, `curve` is one curve for all, or a sequence with an entry per optimizer.
    Such an entry, like `curve` for a single optimizer, is a curve or a sequence of one curve per group.

    Raises:
        TypeError: An entry is not a `Curve`.
        ValueError: The number of curves differs from that of optimizers or of groups.
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
    return [group_curve for item, entry in pairs for group_curve in curves_of(item, entry)]
