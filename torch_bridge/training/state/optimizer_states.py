"""Load the states of optimizers: the right parameters get them, in the saved dtypes."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from operator import methodcaller
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import placements_of, shard_like
from torch_bridge.distributed.plain_names import without_wrappers
from torch_bridge.training.optimizers.optimizers import layers_of

_IMPLEMENTATION_OPTIONS = ("fused", "foreach", "capturable", "differentiable")


def load_optimizer(optimizer: Optimizer, state: Any) -> None:
    """Load a state and keep its saved dtypes. The optimizer may keep the state's tensors without a copy.

    Raises:
        ValueError: The groups on both sides name their parameters, and the names differ; or a fused
            torch optimizer's moment does not have its parameter's shape.
        Exception: Any error of the optimizer's `load_state_dict`.
    """
    inner: Optimizer = layers_of(optimizer)[-1]
    is_standard = _is_standard(inner, state)
    if is_standard:
        check_param_names(inner.param_groups, state["param_groups"])
        _check_moments(inner, state)
    optimizer.load_state_dict(state)
    if is_standard:
        _restore_dtypes(inner, state)
        _lay_out_moments(inner)


def is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def _is_derived_from_torchs(optimizer: Optimizer) -> bool:
    """Return True for torch's optimizers and their subclasses, which may run torch's fused kernels."""
    kinds = type(optimizer).__mro__
    return any(
        kind.__module__.startswith("torch.optim") and kind is not Optimizer for kind in kinds
    )


def _is_standard(optimizer: Optimizer, state: Any) -> bool:
    """Return False if an optimizer saves a different form than torch's, or has groups of different sizes."""
    try:
        sizes = [len(group["params"]) for group in state["param_groups"]]
        return isinstance(state["state"], dict) and sizes == [
            len(group["params"]) for group in optimizer.param_groups
        ]
    except (LookupError, TypeError):
        return False


def check_param_names(groups: Iterable[Any], saved_groups: Iterable[Any]) -> None:
    """Compare the names that torch keeps for `named_parameters()`, if both sides have them."""
    sides = [[group.get("param_names") for group in side] for side in (groups, saved_groups)]
    if not any(None in side for side in sides):
        exact, saved_exact = (sorted(chain.from_iterable(side)) for side in sides)
        if exact != saved_exact:  # either side may have named the parameters of a wrapped model
            sides = [[list(map(without_wrappers, group)) for group in side] for side in sides]
        names, saved_names = sides
        check_same_parameters(names, saved_names, "param_names")


def check_same_parameters(names: Sequence[list[str]], saved: Sequence[list[str]], key: str) -> None:
    """Reject a state whose groups list different parameters, or in a different order.

    An optimizer's state is saved by position.

    Args:
        names: The names of each group's parameters. An empty name is unknown, and fits every other
            one.
        saved: The same in the state.
        key: The key of the names in the state.
    """
    for index, groups in enumerate(zip_longest(names, saved, fillvalue=())):
        for number, (name, saved_name) in enumerate(zip_longest(*groups, fillvalue="missing")):
            if name != saved_name and name and saved_name:
                advice = ""
                if sorted(chain.from_iterable(names)) == sorted(chain.from_iterable(saved)):
                    advice = (
                        ". Build the same groups in the same order as in the state, under "
                        f"{key!r}. If they are built from a set, sort it: its order changes with "
                        "every start of Python"
                    )
                raise ValueError(
                    f"state_dict was saved with different parameter groups: in group {index}, "
                    f"parameter {number} is {saved_name} in the state and {name} here{advice}"
                )


def _check_moments(optimizer: Optimizer, state: Any) -> None:
    """Reject moments of a different shape than their parameter for torch's fused optimizers."""
    if not _is_derived_from_torchs(optimizer):
        return
    # The fused CPU kernels compare no shapes: they would read and write beyond the end of a smaller
    # tensor.
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        if not (group.get("fused") or saved.get("fused")):
            continue
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            for name, value in state["state"].get(number, {}).items():
                if name != "step" and isinstance(value, Tensor) and value.shape != parameter.shape:
                    shapes = f"has the shape {tuple(value.shape)}, and the parameter {tuple(parameter.shape)}"
                    raise ValueError(
                        "state_dict was saved with a different optimizer or model: "
                        f"{name} of parameter {number} {shapes}"
                    )


def _lay_out_moments(optimizer: Optimizer) -> None:
    """Lay the moments of torch's optimizers out like their parameters."""
    # Fused CPU kernels read a parameter and its moments in memory order, and ignore their strides.
    # If the layouts differed, such as channels_last and contiguous, an element would get another
    # one's moments: a 2 × 2 matrix is stored by rows as 00, 01, 10, 11, but by columns as 00, 10,
    # 01, 11. Other optimizers may keep a tensor that merely has the parameter's shape, and whose
    # layout changes the bits of its products.
    for group in optimizer.param_groups:
        if not (
            is_of_torch(optimizer) or (group.get("fused") and _is_derived_from_torchs(optimizer))
        ):
            continue
        for parameter in group["params"]:
            values = optimizer.state.get(parameter, {})
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[name] = _like_parameter(parameter, value)


def copy_optimizer_state(optimizer: Optimizer, state: Any) -> Any:
    """Copy a saved state, with its tensors sharded like the parameters."""
    copied = pytree.tree_map(_copy_leaf, state)
    for group, saved in zip(optimizer.param_groups, copied["param_groups"], strict=True):
        # Keep this optimizer's choice of implementation: the saved one may not run on this machine.
        saved.update((name, group[name]) for name in _IMPLEMENTATION_OPTIONS if name in group)
        saved.pop("param_names", None)  # torch then keeps this optimizer's
        # Options missing from the saved state. Others than torch's optimizers add some in their
        # first step.
        options = (
            group.keys() if is_of_torch(optimizer) else group.keys() & optimizer.defaults.keys()
        )
        for name in options - {"params", "param_names"}:
            saved.setdefault(name, group[name])
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            values = copied["state"].get(number, {})
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[name] = shard_like(parameter, value)
    return copied


def _copy_leaf(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf)


def _like_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    value = shard_like(parameter, value)
    if placements_of(value) != placements_of(parameter):
        return value  # some optimizers shard their state differently
    like = torch.empty_like(parameter.detach(), dtype=value.dtype, device=value.device)
    return value if like.stride() == value.stride() else like.copy_(value)


def _restore_dtypes(optimizer: Optimizer, state: Any) -> None:
    """Restore the saved dtypes: torch casts a loaded state to the dtypes of its parameters."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            loaded = optimizer.state.get(parameter, {})
            saved_values = state["state"].get(number)
            if not isinstance(saved_values, Mapping):
                continue
            for name, value in cast("Mapping[Any, Any]", saved_values).items():
                current = loaded.get(name)
                if not isinstance(value, Tensor):  # a list or dict, with tensors at any depth
                    if type(current) is type(value):  # unless the optimizer has converted it
                        loaded[name] = pytree.tree_map_only(
                            Tensor, methodcaller("to", parameter.device), value
                        )
                # torch does not cast "step"
                elif (
                    name != "step" and isinstance(current, Tensor) and current.dtype != value.dtype
                ):
                    loaded[name] = value.to(parameter.device)
