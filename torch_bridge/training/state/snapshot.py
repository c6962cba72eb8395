"""The state of a training step: its entries, copies in host memory, random-number states."""

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

_IMPLEMENTATION_OPTIONS = ("fused", "foreach", "capturable", "differentiable")


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
    """The state of the model, under the names of the unwrapped model."""
    optimizer: Any
    """The state of the optimizer, or a list of the states of several."""
    optimizer_type: str | list[str]
    """The name of the optimizer's class, or a list of names."""
    precision: str
    """`"fp32"`, `"bf16"` or `"fp16"`."""
    curves: list[Mapping[str, Any]]
    """The arguments of each parameter group's curve."""
    applied: int
    """Number of updates applied."""
    skipped: int
    """Number of updates skipped."""
    clock: int
    """The step of the curve that gives the next update its learning rates."""
    consumed: int
    """Number of samples or tokens consumed; equal to `applied` if `unit` is None."""
    unit: int | None
    """Number of samples or tokens per step of the curve; None if each update is one step."""
    hold: list[HoldState] | None
    """The rules that hold the clock, with their states."""
    loss_scale: Sequence[Tensor] | None
    """With `precision="fp16"` the loss scale, a float32 scalar, and its growth counter; then the divisor of
    sums, if the ranks have agreed on one. None if there is neither."""
    carry: list[Tensor] | None
    """The leaves of the recurrent state, with its shapes and dtypes; None if the step has none."""
    random: dict[str, Tensor]
    """The states of torch's generators, uint8 of shape (bytes,): `"cpu"` and, on a GPU, `"cuda"`."""


def one_or_list(items: list[Any]) -> Any:
    """Return a single item itself, and several as a list: the form in which a state holds optimizers."""
    return items[0] if len(items) == 1 else items


def as_list(saved: Any, optimizers: Sequence[Optimizer]) -> Any:
    """Undo `one_or_list` for the states of these optimizers."""
    return [saved] if len(optimizers) == 1 else saved


def optimizer_states(optimizers: Sequence[Optimizer], clock: Clock, step: int) -> list[dict[str, Any]]:
    """Return the optimizers' states, with the clock's peaks and its learning rates at `step`."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    groups = chain.from_iterable(state["param_groups"] for state in states)
    # Not strict: a group added after the step was built has no learning rate; the next update refuses it.
    for group, peak, lr in zip(groups, clock.peaks, clock.lrs_at(step), strict=False):
        is_tensor = isinstance(group["lr"], Tensor)
        group["lr"] = torch.tensor(lr, dtype=torch.float32, device="cpu") if is_tensor else lr
        group["initial_lr"] = peak
    return states


def copy_to_host(state: TrainStepState) -> TrainStepState:
    """Return the state with each tensor copied to host memory; tied tensors stay tied."""
    copied = pytree.tree_map_only(Tensor, host_copier(), state)
    # tree_map drops this attribute, in which torch keeps the versions of the modules.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = cast("Any", state["model"])._metadata
    return copied


def copy_optimizer_state(optimizer: Optimizer, state: Any) -> Any:
    """Copy a saved state, with its tensors sharded and laid out like the optimizer's parameters."""
    # Fused CPU kernels read a parameter and its moments in memory order, and ignore their strides. If the
    # layouts differed, such as channels_last and contiguous, an element would get another one's moments: a
    # 2 × 2 matrix is stored by rows as 00, 01, 10, 11, but by columns as 00, 10, 01, 11.
    copied = pytree.tree_map(_copy_leaf, state)
    for group, saved in zip(optimizer.param_groups, copied["param_groups"], strict=True):
        # Keep this optimizer's choice of implementation: the saved one may not run on this machine.
        saved.update((name, group[name]) for name in _IMPLEMENTATION_OPTIONS if name in group)
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            values = copied["state"].get(number, {})
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[name] = _like_parameter(parameter, value)
    return copied


def _like_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    value = shard_like(parameter, value)
    if placements_of(value) != placements_of(parameter):
        return value  # some optimizers shard their state differently
    like = torch.empty_like(parameter.detach(), dtype=value.dtype, device=value.device)
    return value if like.stride() == value.stride() else like.copy_(value)


def restore_dtypes(optimizer: Optimizer, state: Any) -> None:
    """Restore the saved dtypes: torch casts a loaded state to the dtypes of its parameters."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            loaded = optimizer.state.get(parameter, {})
            for name, value in state["state"].get(number, {}).items():
                if not isinstance(value, Tensor):  # a list or dict, with tensors at any depth
                    loaded[name] = pytree.tree_map_only(Tensor, methodcaller("to", parameter.device), value)
                elif name != "step" and loaded[name].dtype != value.dtype:  # torch does not cast "step"
                    loaded[name] = value.to(parameter.device)


def _copy_leaf(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf)


def get_random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators: the CPU's and, for a CUDA device, that device's."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
