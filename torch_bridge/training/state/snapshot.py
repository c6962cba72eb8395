"""The state of a training step on the host: its entries, copies of it, random numbers."""

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import host_copier, placements_of, shard_like
from torch_bridge.schedulers.hold_state import HoldState
from torch_bridge.training.clock.clock import Clock

_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable")


class TrainStepState(TypedDict):
    """The state that `TrainStep.state_dict` returns: tensors in host memory and plain values.

    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import TrainStep
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> step = TrainStep(model, optimizer, lambda model, batch: model(batch).mean(), PlateauCurve(100))
    >>> state: TrainStepState = step.state_dict()
    >>> state["applied"], state["precision"], list(state["model"])
    (0, 'fp32', ['weight', 'bias'])
    """

    model: dict[str, Any]
    """The state of the model, under the names that it has without its wrappers."""
    optimizer: Any
    """The state of the optimizer, or a list of the states of several."""
    optimizer_type: str | list[str]
    """The name of its class, or a list of names."""
    precision: str
    """`"fp32"`, `"bf16"` or `"fp16"`."""
    curves: list[Mapping[str, Any]]
    """The arguments of each parameter group's curve."""
    applied: int
    """The number of updates applied."""
    skipped: int
    """The number of updates skipped."""
    clock: int
    """The step of the curve whose learning rates the next update uses."""
    consumed: int
    """With `unit` the number of samples or tokens consumed; else `applied`."""
    unit: int | None
    """The number of samples or tokens that make one step of the curve; None if an update does."""
    hold: list[HoldState] | None
    """The rules that hold the clock, and their states."""
    loss_scale: Sequence[Tensor] | None
    """Under fp16 the loss scale, a float32 scalar, and the counter that it depends on; then, once it was
    agreed on, the divisor of sums."""
    carry: list[Tensor] | None
    """The leaves of the recurrent state, if the step has one, with its shapes and dtypes."""
    random: dict[str, Tensor]
    """The states of torch's generators, uint8 of shape (bytes,): `"cpu"` and, on a GPU, `"cuda"`."""


def one_or_list(items: list[Any]) -> Any:
    """The only item, or a list of several: how a state holds its optimizers."""
    return items[0] if len(items) == 1 else items


def as_list(saved: Any, optimizers: Sequence[Optimizer]) -> Any:
    """The inverse of `one_or_list` for these optimizers."""
    return [saved] if len(optimizers) == 1 else saved


def optimizer_states(optimizers: Sequence[Optimizer], clock: Clock, now: int) -> list[dict[str, Any]]:
    """The optimizers' states, with the clock's peaks and its learning rates at `now`."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    groups = chain.from_iterable(state["param_groups"] for state in states)
    # A group that was added since has no learning rate: the next update refuses it.
    for group, peak, lr in zip(groups, clock.peaks, clock.lrs_at(now), strict=False):
        is_tensor = isinstance(group["lr"], Tensor)
        group["lr"] = torch.tensor(lr, dtype=torch.float32, device="cpu") if is_tensor else lr
        group["initial_lr"] = peak
    return states


def copy_to_host(state: TrainStepState) -> TrainStepState:
    """Return the state with a copy in host memory of each tensor; tied ones stay tied."""
    copied = pytree.tree_map_only(Tensor, host_copier(), state)
    # The versions of the model's modules, which torch keeps as an attribute.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = cast("Any", state["model"])._metadata
    return copied


def copy_optimizer_state(optimizer: Optimizer, state: Any) -> Any:
    """Copy an optimizer's state; shard its tensors and lay them out in memory as their parameters are.

    Fused kernels on a CPU go through both in the order of memory, whatever the strides: with another layout,
    as of a model in channels_last, an element would get the moments of another one.

    The settings that only choose an implementation stay this optimizer's: the saved ones may not run here.
    """
    copied = pytree.tree_map(_copy, state)
    for group, saved in zip(optimizer.param_groups, copied["param_groups"], strict=True):
        saved.update((name, group[name]) for name in _IMPLEMENTATION if name in group)
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            values = copied["state"].get(number, {})
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[name] = _like_parameter(parameter, value)
    return copied


def _like_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    value = shard_like(parameter, value)
    if placements_of(value) != placements_of(parameter):
        return value  # an optimizer may shard it in another way
    like = torch.empty_like(parameter.detach(), dtype=value.dtype, device=value.device)
    return value if like.stride() == value.stride() else like.copy_(value)


def restore_dtypes(optimizer: Optimizer, state: Any) -> None:
    """Restore the dtypes of a loaded state: torch casts values to the dtype of their parameter."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            loaded = optimizer.state.get(parameter, {})
            for name, value in state["state"].get(number, {}).items():
                if not isinstance(value, Tensor):  # a list or dictionary may hold tensors
                    loaded[name] = pytree.tree_map_only(Tensor, methodcaller("to", parameter.device), value)
                elif name != "step" and loaded[name].dtype != value.dtype:  # torch keeps that of "step"
                    loaded[name] = value.to(parameter.device)


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf)


def get_random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators: the CPU's and, for a CUDA device, that device's."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
