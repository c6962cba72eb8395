"""A state compared with the training step that it is to be loaded into, before anything is changed."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam
from torch.utils import _pytree as pytree

from torch_bridge.core import checks
from torch_bridge.training.snapshot import TrainStepState

_MOST_UPDATES = 2**53  # a double holds every count up to here


def check(own: TrainStepState, other: Any, optimizers: Sequence[Optimizer], device: torch.device) -> None:
    """Refuse a state that does not fit.

    Raises:
        ValueError: It names what is different.
    """
    if not isinstance(other, Mapping) or own.keys() != other.keys():
        raise ValueError(f"state_dict is not a state of a TrainStep, which has the keys {list(own)}")
    other = cast("Mapping[str, Any]", other)
    for name in ("curves", "precision", "optimizer_type"):
        if own[name] != other[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {other[name]}, and this step has {own[name]}"
            )
    _check_shapes("model", own["model"], other["model"])
    _check_shapes("carry", own["carry"], other["carry"])
    _check_scale(own["loss_scale"], other["loss_scale"])
    for name in ("applied", "skipped"):
        if type(other[name]) is not int or not 0 <= other[name] < _MOST_UPDATES:
            raise ValueError(f"state_dict has {name} = {other[name]!r}; it must be a count")
    try:
        torch.Generator("cpu").set_state(other["random"]["cpu"])
        if device.type == "cuda" and "cuda" in other["random"]:
            torch.Generator(device).set_state(other["random"]["cuda"].cpu())
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"state_dict has no state of torch's random numbers: {error}") from None
    states = other["optimizer"] if len(optimizers) > 1 else [other["optimizer"]]
    if not isinstance(states, list | tuple) or len(cast("Any", states)) != len(optimizers):
        raise ValueError(f"state_dict has no list of {len(optimizers)} states in its optimizer")
    for optimizer, state in zip(optimizers, cast("Sequence[Any]", states), strict=True):
        try:
            _check_optimizer(optimizer, optimizer.state_dict(), state)
        except ValueError:
            raise
        except Exception as error:  # whatever a damaged one may lead to
            raise ValueError(
                f"state_dict has no state of an optimizer: {type(error).__name__}: {error}"
            ) from error


def _check_scale(own: Any, other: Any) -> None:
    # The third, the largest weight, is there where weights are on the device.
    if own is not None and isinstance(other, list | tuple) and len(cast("Any", other)) in (2, 3):
        own = [*own[:2], own[0]][: len(cast("Any", other))]
    _check_shapes("loss_scale", own, other)


def _check_shapes(name: str, own: Any, other: Any) -> None:
    shapes, other_shapes = (
        {
            key: _kind(leaf)
            for path, leaf in pytree.tree_leaves_with_path(tree)
            # What a module saves of its own accord may change in shape.
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
    return f"{leaf.dtype} of {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _check_optimizer(optimizer: Optimizer, own: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    groups, numbers = optimizer.param_groups, [group["params"] for group in own["param_groups"]]
    if [group["params"] for group in other["param_groups"]] != numbers or any(
        group.keys() != other_group.keys()
        for group, other_group in zip(own["param_groups"], other["param_groups"], strict=True)
    ):
        raise ValueError("state_dict was saved with another optimizer, or with other parameter groups")
    for group in other["param_groups"]:
        checks.peak("initial_lr", group["initial_lr"])
    states: Mapping[Any, Any] = other["state"]
    if unknown := states.keys() - {number for each in numbers for number in each}:
        raise ValueError(f"state_dict has an optimizer's state for unknown parameters: {unknown}")
    made: dict[Any, dict[str, str]] = {}
    for index, (group, saved_group) in enumerate(zip(groups, other["param_groups"], strict=True)):
        for number, parameter in zip(numbers[index], group["params"], strict=True):
            if type(optimizer).__module__.startswith("torch.optim"):
                key = index, parameter.shape, parameter.dtype
                if key not in made:
                    made[key] = _kinds(_state_of_first_update(optimizer, parameter, saved_group))
                expected = made[key]
            else:
                expected = _kinds(own["state"].get(number, {}))
            if number in states:
                _check_state(number, expected, _kinds(states[number]))


def _state_of_first_update(
    optimizer: Optimizer, parameter: nn.Parameter, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The state that such an optimizer of torch's, with these settings, makes for such a parameter."""
    like = nn.Parameter(torch.zeros_like(parameter))
    like.grad = torch.zeros_like(parameter)
    if isinstance(optimizer, SparseAdam):
        like.grad = like.grad.to_sparse()
    arguments = inspect.signature(type(optimizer).__init__).parameters
    chosen = {name: settings[name] for name in settings if name in arguments and name != "params"}
    with torch.enable_grad():
        other = cast("Any", type(optimizer))([like], **chosen | {"lr": 1e-3})
        other.step()
    return other.state[like]


def _kinds(state: Any) -> dict[str, str]:
    return {name: _kind(value) for name, value in state.items()}


def _check_state(number: int, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """What torch would miss or misread is refused; more than it asks for may come from earlier settings."""
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
