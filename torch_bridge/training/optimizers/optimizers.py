"""The models and optimizers that a training step can train with; the optimizers inside trainers' wrappers."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, checks
from torch_bridge.distributed.distribution import check_module
from torch_bridge.param_groups import all_parameters, curves_of, groups_of

_TRAINERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")


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
                f"the model was set up by Fabric with {type(precision).__name__}, whose backward "
                "pass only Fabric can run. Give the training step model.module and its own "
                "precision=, and on several ranks distribute(model.module)"
            )


def _overrides_backward(precision: Any) -> bool:
    base = next(kind for kind in type(precision).__mro__ if kind.__name__ == "Precision")
    return type(precision).backward is not base.backward


def as_sequence(optimizer: Any) -> Sequence[Any]:
    """Return a sequence of optimizers as it is, and one optimizer as a sequence."""
    return cast("Sequence[Any]", optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def layers_of(optimizer: Any) -> list[Any]:
    """Return an optimizer, then the one inside, and so on through the wrappers of trainers.

    The last one is torch's. Other wrappers stay: an optimizer with an attribute `optimizer` may add
    to its step, as Lookahead does.
    """
    layers = [optimizer]
    while any(kind.__module__.partition(".")[0] in _TRAINERS for kind in type(layers[-1]).__mro__):
        inner = getattr(layers[-1], "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        layers.append(inner)
    return layers


def lightning_counter(layers: Iterable[Any]) -> Callable[[], None] | None:
    """Return a function that counts an update in Lightning's Trainer; None without a Lightning optimizer.

    Under manual optimization `trainer.global_step` counts the calls of the wrapper's `step`,
    skipped updates included. An update of several optimizers counts once.
    """
    for layer in layers:
        if any(kind.__name__ == "LightningOptimizer" for kind in type(layer).__mro__):
            return partial(_count_in_lightning, layer)
    return None


def _count_in_lightning(wrapper: Any) -> None:
    # Both run after the update. The first one starts a measurement in Lightning's profiler, too,
    # which an update that fails would never end. Looked up at each call: the Trainer sets both for
    # every batch.
    wrapper._on_before_step()
    wrapper._on_after_step()


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Check that a training step can use these unwrapped optimizers.

    Raises:
        TypeError: An argument is not an optimizer, or its `step` needs a closure.
        ValueError: No optimizer; a parameter is not the model's, or occurs twice; or an optimizer
            has a non-standard `state_dict`.
    """
    if not optimizers:
        raise ValueError("optimizer is empty; it must be a torch.optim.Optimizer or several")
    model_parameters = set(map(id, model.parameters()))
    for optimizer in optimizers:
        groups_of(optimizer)
        _refuse_closure(optimizer)
        _check_state_dict(optimizer)
    parameters = list(map(id, all_parameters(optimizers)))
    if foreign := sum(parameter not in model_parameters for parameter in parameters):
        raise ValueError(
            f"{foreign} of the optimizer's {len(parameters)} parameters are not the model's; "
            "after fully_shard a model has different parameters from before"
        )
    if repeated := len(parameters) - len(set(parameters)):
        raise ValueError(
            f"{repeated} parameters are in the optimizer's groups more than once, or belong to "
            "several optimizers, and would be scaled, clipped and stepped as often: give each one "
            "once"
        )


def check_no_scheduler(optimizers: Iterable[Any]) -> None:
    """Reject optimizers, or wrappers of them, with a scheduler attached.

    Raises:
        ValueError: A scheduler is attached; the message says how to remove it.
    """
    # A torch scheduler replaces `step` in the attributes of its optimizer.
    attributes: list[dict[str, Any]] = list(map(vars, optimizers))
    if any(hasattr(names.get("step"), "_wrapped_by_lr_sched") for names in attributes):
        raise ValueError(
            "a scheduler is attached to the optimizer, but a TrainStep sets the learning rates "
            "itself, from its own curve. Leave the scheduler out; to keep this optimizer, write "
            "`del optimizer.step`, which removes the function that torch put there for the "
            "scheduler"
        )


def _refuse_closure(optimizer: Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} needs a closure, which a TrainStep cannot give; "
            "use a different optimizer"
        )


def check_fused_sgd(optimizer: Optimizer) -> None:
    """Reject torch's fused SGD on a CPU for 16-bit parameters: torch 2.13 leaves most of them unchanged."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        for parameter in group["params"] if group.get("fused") else ():
            if parameter.device.type == "cpu" and parameter.dtype in (
                torch.bfloat16,
                torch.float16,
            ):
                raise ValueError(
                    f"on a CPU, the fused SGD of torch 2.13 leaves most {parameter.dtype} "
                    "parameters unchanged (github.com/pytorch/pytorch/issues/191763): build it "
                    "with fused=False"
                )


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
            f"{type(optimizer).__name__}.state_dict() has a non-standard form{reason}, which a "
            "TrainStep could save but not load. Give it the torch optimizer inside"
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
            f"the optimizer's parameters are on {sorted(map(str, devices))}; they must be on one "
            "device"
        )
    return devices.pop()


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
    if isinstance(optimizer, list | tuple) and not isinstance(curve, Curve):
        if not isinstance(curve, Sequence) or isinstance(curve, str):
            raise TypeError(
                f"curve = {checks.short_repr(curve)} must be a Curve, or an entry for each "
                "optimizer"
            )
        entries = cast("Sequence[Any]", curve)
        if len(entries) != len(optimizers):
            raise ValueError(f"curve has {len(entries)} entries for {len(optimizers)} optimizers")
    pairs = zip(optimizers, entries, strict=True)
    return [group_curve for item, entry in pairs for group_curve in curves_of(item, entry)]
