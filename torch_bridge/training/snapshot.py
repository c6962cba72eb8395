"""A training state outside the device: copies, random-number states, and the check before loading."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def on_host(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a copy in host memory of each tensor."""
    copied = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
    # The versions of the model's modules, which torch keeps as an attribute.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = state["model"]._metadata
    return copied


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


def check(own: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse a state that does not fit.

    Raises:
        ValueError: It names what is different.
    """
    if not isinstance(other, Mapping) or own.keys() != other.keys():
        raise ValueError(f"state_dict is not a state of a TrainStep, which has the keys {list(own)}")
    for name in ("curves", "precision", "optimizer_type"):
        if own[name] != other[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {other[name]}, and this step has {own[name]}"
            )
    for name in ("model", "carry", "loss_scale"):
        _check_shapes(name, own[name], other[name])
    for name in ("applied", "skipped"):
        if type(other[name]) is not int or other[name] < 0:
            raise ValueError(f"state_dict has {name} = {other[name]!r}; it must be a count")
    try:
        torch.Generator().set_state(other["random"]["cpu"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"state_dict has no state of torch's random numbers: {error}") from None
    try:
        groups, other_groups = _groups(own["optimizer"]), _groups(other["optimizer"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"state_dict has no state of an optimizer: {error}") from None
    if groups != other_groups:
        raise ValueError("state_dict was saved with another optimizer, or with other parameter groups")


def _groups(optimizer: Mapping[str, Any]) -> list[Any]:
    """The settings' names and the parameters of each group in an optimizer's state."""
    optimizer["state"].keys()  # a mapping, whatever it holds
    return [(group.keys(), group["params"]) for group in optimizer["param_groups"]]


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
