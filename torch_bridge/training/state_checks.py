"""A state compared with the training step that it is to be loaded into, before anything is changed."""

import inspect
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam
from torch.utils import _pytree as pytree

from torch_bridge.core import Curve, checks
from torch_bridge.distributed.dtensors import is_of_this_rank, mesh_of
from torch_bridge.schedulers.resume import check_no_path, check_past, curves_in
from torch_bridge.schedulers.unit_clocks import MOST_CONSUMED
from torch_bridge.training.saved_counts import counts_in
from torch_bridge.training.snapshot import TrainStepState, as_list, own_implementation

_MOST_STEPS = 2**53  # a double holds every count up to here
_LATER_KEYS = {"clock", "hold", "consumed", "unit"}  # which older states lack


def check(
    own: TrainStepState,
    other: Any,
    optimizers: Sequence[Optimizer],
    device: torch.device,
    curves: Sequence[Curve] | None,
) -> None:
    """Refuse a state that does not fit, or whose curves have another past than these.

    Raises:
        ValueError: It names what is different.
    """
    with _refused("state of this step"):
        _check(own, other, optimizers, device, strict=curves is not None)
        if curves is not None:
            with _refused("list of curves"):
                saved = curves_in(other["curves"], curves)
            check_past(saved, curves, counts_in(other, own["unit"]).clock, "TrainStep")


def _check(
    own: TrainStepState, other: Any, optimizers: Sequence[Optimizer], device: torch.device, strict: bool
) -> None:
    check_no_path(other)
    if not isinstance(other, Mapping) or own.keys() - _LATER_KEYS != other.keys() - _LATER_KEYS:
        raise ValueError(f"state_dict is not a state of a TrainStep, which has the keys {list(own)}")
    other = cast("Mapping[str, Any]", other)
    for name in ("precision", "optimizer_type"):
        if own[name] != other[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {other[name]}, and this step has {own[name]}"
            )
    _check_shapes("model", own["model"], other["model"])
    if other["model"].keys() != own["model"].keys():  # among them those of extra states
        raise ValueError("state_dict was saved with another model: its names differ")
    _check_shapes("carry", _listed(own["carry"]), _listed(other["carry"]))
    _check_scale(own["loss_scale"], other["loss_scale"])
    for name in ("applied", "skipped", "clock"):
        count = other.get(name, 0)
        if type(count) is not int or not 0 <= count <= MOST_CONSUMED:
            raise ValueError(f"state_dict has {name} = {count!r}; it must be a count")
    counts_in(other, own["unit"], strict)
    _check_placement(own["model"], other, optimizers)
    with _refused("state of torch's random numbers"):
        torch.Generator("cpu").set_state(other["random"]["cpu"].cpu())
        if device.type == "cuda" and "cuda" in other["random"]:
            torch.Generator(device).set_state(other["random"]["cuda"].cpu())
    states = as_list(other["optimizer"], optimizers)
    if not isinstance(states, list | tuple) or len(cast("Any", states)) != len(optimizers):
        raise ValueError(f"state_dict has no list of {len(optimizers)} states in its optimizer")
    for optimizer, state in zip(optimizers, cast("Sequence[Any]", states), strict=True):
        with _refused("state of an optimizer"):
            _check_optimizer(optimizer, optimizer.state_dict(), state)


def _check_placement(own_model: Any, other: Any, optimizers: Sequence[Optimizer]) -> None:
    """Refuse shards of another rank, or of another number of ranks. Whole tensors fit everywhere.

    An optimizer of another library may keep DTensors that are placed otherwise than the parameters.
    """
    own = {_placement(leaf) for leaf in pytree.tree_leaves(own_model)} | {None}
    states = pytree.tree_leaves(other["optimizer"])
    if not all(map(is_of_torch, optimizers)):
        states = [leaf for leaf in states if not is_of_this_rank(leaf)]
    if foreign := {_placement(leaf) for leaf in [*pytree.tree_leaves(other["model"]), *states]} - own:
        raise ValueError(
            f"state_dict has shards of tensors, placed as {foreign.pop()}, but the model's are placed "
            "differently: each rank must load its own state; save and load through Checkpoints to resume "
            "with another number of ranks"
        )


def _placement(leaf: Any) -> str | None:
    mesh = mesh_of(leaf)
    return None if mesh is None else f"{leaf.placements} over {tuple(mesh.shape)} at {mesh.get_coordinate()}"


@contextmanager
def _refused(what: str) -> Generator[None]:
    """Turn whatever error a damaged state leads to into one that names what is missing."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"state_dict has no {what}: {type(error).__name__}: {error}") from error


def _check_scale(own: Any, other: Any) -> None:
    other = _listed(other)
    # The third, the largest weight, is there where weights are on the device.
    if own is not None and isinstance(other, list) and len(cast("Any", other)) in (2, 3):
        own = [*own[:2], own[0]][: len(cast("Any", other))]
    _check_shapes("loss_scale", own, other)
    values = cast("Sequence[Tensor]", other or [])
    if not all(0 <= value < float("inf") for value in values) or not all(values[:1]):
        raise ValueError(f"state_dict has loss_scale = {other}; it must be finite and positive")


def _listed(value: Any) -> Any:
    """A tuple as a list. A dictionary is not taken for one, though keys 0, 1, ... give the same paths."""
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    return {"not a list": cast("Any", value)} if isinstance(value, Mapping) else value


def _check_shapes(name: str, own: Any, other: Any) -> None:
    shapes, other_shapes = (
        {
            key: _kind(leaf)
            for path, leaf in pytree.tree_leaves_with_path(tree)
            # What a module saves by get_extra_state may change its shape.
            if "_extra_state" not in (key := pytree.keystr(path))
        }
        for tree in (own, other)
    )
    different = [
        f"{key}: {other_shapes.get(key, 'missing')} in the state, {shapes.get(key, 'missing')} here"
        for key in shapes | other_shapes
        if shapes.get(key) != other_shapes.get(key)
    ]
    if different:
        raise ValueError(f"state_dict was saved with another {name}: " + "; ".join(different[:5]))


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    kind = f"{leaf.dtype} of {tuple(leaf.shape)}"
    if leaf.layout != torch.strided:
        kind = f"{leaf.layout} {kind}"
    return f"{kind} without memory" if leaf.is_meta else kind


def _check_optimizer(optimizer: Optimizer, own: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    groups, numbers = optimizer.param_groups, [group["params"] for group in own["param_groups"]]
    if [group["params"] for group in other["param_groups"]] != numbers or any(
        group.keys() != other_group.keys()
        for group, other_group in zip(own["param_groups"], other["param_groups"], strict=True)
    ):
        raise ValueError("state_dict was saved with another optimizer, or with other parameter groups")
    for group in other["param_groups"]:
        checks.peak("initial_lr", group["initial_lr"])
        if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in pytree.tree_leaves(group)):
            raise ValueError("state_dict has a setting of an optimizer that is a tensor without memory")
    states: Mapping[Any, Any] = other["state"]
    # An optimizer of another library may keep something under a name, which is no parameter's.
    known: set[Any] = {number for each in numbers for number in each}
    if not is_of_torch(optimizer):
        known.update(key for key in states if isinstance(key, str))
    if unknown := states.keys() - known:
        raise ValueError(f"state_dict has an optimizer's state for unknown parameters: {unknown}")
    made: dict[Any, tuple[dict[str, str], bool]] = {}
    for index, (group, saved_group) in enumerate(zip(groups, other["param_groups"], strict=True)):
        for number, parameter in zip(numbers[index], group["params"], strict=True):
            of_torch = is_of_torch(optimizer)
            if of_torch:
                key = index, parameter.shape, parameter.dtype
                if key not in made:
                    settings = saved_group | own_implementation(group)
                    state, from_the_start = new_state(optimizer, parameter, settings)
                    made[key] = _kinds(state), from_the_start
                expected, is_needed = made[key]
            else:
                expected, is_needed = _kinds(own["state"].get(number, {})), False
            # Torch makes a state that is empty anew, like one that is missing.
            if (found := _kinds(states.get(number, {}))) or is_needed:
                _check_state(number, expected, found)
                if of_torch:
                    _check_values(number, states[number])


def add_new_states(optimizer: Optimizer, state: Any) -> None:
    """Add to an optimizer's state what its first update will make, if it is one of torch's own."""
    if not is_of_torch(optimizer):
        return
    for group, settings in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], settings["params"], strict=True):
            if not state["state"].get(number):
                state["state"][number], _ = new_state(optimizer, parameter, settings)


def is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def new_state(
    optimizer: Optimizer, parameter: nn.Parameter, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """What one of torch's own optimizers, with these settings, keeps for such a parameter.

    And whether it has that from the start, so that it must be in every state.
    """
    like = nn.Parameter(torch.zeros_like(parameter))
    like.grad = torch.zeros_like(parameter)
    if isinstance(optimizer, SparseAdam):
        like.grad = like.grad.to_sparse()
    kind = cast("Any", type(optimizer))
    arguments = inspect.signature(kind.__init__).parameters
    chosen = {name: settings[name] for name in settings if name in arguments and name != "params"}
    # Its counts belong on the host, whatever the default device is now.
    with torch.enable_grad(), torch.device("cpu"):
        other = kind([like], **chosen | {"lr": 1e-3})
        from_the_start = bool(other.state)
        for _ in range(2):  # the first update leaves some settings unread
            kind.step.__wrapped__(other)  # without the hooks that a user has set for all optimizers
    return other.state[like], from_the_start


def _kinds(state: Any) -> dict[str, str]:
    return {name: _kind(value) for name, value in state.items()}


def _check_state(number: int, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse what torch would miss or misread. A state may have more, which earlier settings have left."""
    different = [
        f"{name}: {found.get(name, 'missing')} in the state, {kind} here"
        for name, kind in expected.items()
        if found.get(name) != kind
    ]
    if different:
        raise ValueError(
            f"state_dict has an optimizer's state that does not fit parameter {number}: "
            + "; ".join(different)
        )


def _check_values(number: int, state: Mapping[str, Any]) -> None:
    """Refuse values that torch's own optimizers could not copy, or could not count on from."""
    for name, value in state.items():
        if not isinstance(value, Tensor | int | float | None):
            raise ValueError(
                f"state_dict has {name} = {value!r} in an optimizer's state for parameter {number}; "
                "it must be a tensor or a number"
            )
    if not 0 <= (step := state.get("step", 0)) < _MOST_STEPS:
        raise ValueError(f"state_dict has step = {step} for parameter {number}; it must be a count")
