"""A training state outside the device: what is in it, copies, random numbers."""

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import placed_as, placements_of
from torch_bridge.schedulers.hold_state import HoldState
from torch_bridge.training.clock import Clock

_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable")


class TrainStepState(TypedDict):
    """What `TrainStep.state_dict` returns: tensors in host memory and plain values.

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
    """The model's state, under the names of the model inside a wrapper."""
    optimizer: Any
    """The optimizer's state, or a list of one for each of several."""
    optimizer_type: str | list[str]
    """The name of its class, or a list of one for each of several."""
    precision: str
    """`"fp32"`, `"bf16"` or `"fp16"`."""
    curves: list[Mapping[str, Any]]
    """The arguments of each parameter group's curve."""
    applied: int
    """How many updates took place."""
    skipped: int
    """How many were skipped."""
    clock: int
    """The step of the curve that the next update's rates are of."""
    hold: list[HoldState] | None
    """The rules that hold the clock, and what they remember."""
    loss_scale: Sequence[Tensor] | None
    """Under fp16 the scale, a float32 scalar, and what it counts."""
    carry: list[Tensor] | None
    """The leaves of the recurrent state, where the step has one, of its shapes and dtypes."""
    random: dict[str, Tensor]
    """The states of torch's generators, uint8 of shape (bytes,): `"cpu"` and, on a GPU, `"cuda"`."""


def one_or_list(items: list[Any]) -> Any:
    """What a state has for the optimizers: the item of one alone, or a list of one for each of several."""
    return items[0] if len(items) == 1 else items


def as_list(saved: Any, optimizers: Sequence[Optimizer]) -> Any:
    """The list that `one_or_list` was given for these optimizers, where the state is whole."""
    return [saved] if len(optimizers) == 1 else saved


def states_of(optimizers: Sequence[Optimizer], clock: Clock, now: int) -> list[dict[str, Any]]:
    """The optimizers' states, with the clock's peaks and its rates at `now`, as beside a torch scheduler."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    groups = chain.from_iterable(state["param_groups"] for state in states)
    # A group that was added since has no rate: the next update refuses it.
    for group, peak, rate in zip(groups, clock.peaks, clock.rates_at(now), strict=False):
        is_tensor = isinstance(group["lr"], Tensor)
        group["lr"] = torch.tensor(rate, dtype=torch.float32, device="cpu") if is_tensor else rate
        group["initial_lr"] = peak
    return states


def on_host(state: TrainStepState) -> TrainStepState:
    """The state with a copy in host memory of each tensor."""
    copied = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
    # The versions of the model's modules, which torch keeps as an attribute.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = cast("Any", state["model"])._metadata
    return copied


def copied_for(optimizer: Optimizer, state: Any) -> Any:
    """A copy of an optimizer's state, its tensors placed, and laid out in memory, as their parameters are.

    Fused kernels on a CPU go through both in the order of memory, whatever the strides: with another layout,
    as of a model in channels_last, an element would get the moments of another one.
    """
    copied = pytree.tree_map(_copy, state)
    for group, saved in zip(optimizer.param_groups, copied["param_groups"], strict=True):
        saved.update(own_implementation(group))
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            of_parameter = copied["state"].get(number, {})
            for name, value in of_parameter.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value = of_parameter[name] = placed_as(parameter, value)
                    if placements_of(value) != placements_of(parameter):
                        continue
                    like = torch.empty_like(parameter.detach(), dtype=value.dtype, device=value.device)
                    if like.stride() != value.stride():
                        of_parameter[name] = like.copy_(value)
    return copied


def own_implementation(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group that choose how an optimizer computes, and change no number.

    They are never taken from a state: what it was saved with may not run here.
    """
    return {name: group[name] for name in _IMPLEMENTATION if name in group}


def placed(own: Mapping[str, Any], state: Any) -> Any:
    """A module's state, with the attributes that it has, each tensor placed as its own is."""
    result = copy.copy(state)
    result.update(
        (name, placed_as(own[name], value)) for name, value in state.items() if isinstance(value, Tensor)
    )
    return result


def restore_dtypes(optimizer: Optimizer, state: Any) -> None:
    """Put back what torch casts to a parameter's dtype as it loads a state: moments kept in another one."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            loaded = optimizer.state.get(parameter, {})
            for name, value in state["state"].get(number, {}).items():
                # Torch keeps the dtype of "step" by itself.
                if not isinstance(value, Tensor):
                    loaded[name] = _on(parameter.device, value)
                elif name != "step" and loaded[name].dtype != value.dtype:
                    loaded[name] = value.to(parameter.device)


def _on(device: torch.device, value: Any) -> Any:
    """A list or dictionary with its tensors on a device, in their own dtypes; any other value as it is."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators: the CPU's and, for a CUDA device, that device's."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
