"""Load the states of optimizers: the right parameters get them, in the saved dtypes."""

import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain, zip_longest
from operator import methodcaller
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.groups.optimizers import STEP_COUNT, groups_of, parameters_of, unwrap
from torch_bridge.training.distributed.dtensors import clone, placements_of, shard_like
from torch_bridge.training.distributed.plain_names import without_wrappers
from torch_bridge.training.train_step.optimizer_checks import group_sizes, is_standard_state

_IMPLEMENTATION_OPTIONS = ("fused", "foreach", "capturable", "differentiable")
"""Options of a group that choose torch's implementation, which may differ between machines."""


def load_optimizer(optimizer: Optimizer, state: Any) -> None:
    """Load a state in its saved dtypes. The optimizer may keep tensors of it without a copy.

    Raises:
        ValueError: The groups on both sides name their parameters, and the names differ; or a
            moment of a fused optimizer does not have its parameter's shape.
        Exception: Any error of the optimizer's `load_state_dict`.
    """
    *_, inner = unwrap(optimizer)
    has_torchs_form = is_standard_state(inner, state)
    if has_torchs_form:
        _check_param_names(groups_of(inner), state["param_groups"])
        _check_shapes_for_fused(inner, state)
    optimizer.load_state_dict(state)
    if has_torchs_form:
        _restore_dtypes(inner, state)
        _lay_out_moments(inner)


def check_optimizer_state(optimizer: Optimizer, state: Any) -> None:
    """Reject, before anything is loaded, a state that torch would load wrongly.

    Raises:
        ValueError: It does not have torch's form, or its groups have different sizes; or a moment
            of a fused optimizer does not have its parameter's shape.
    """
    if not is_standard_state(optimizer, state):
        class_name = type(optimizer).__name__
        raise ValueError(
            f"state_dict['optimizer'] is not the state of {class_name} with groups of "
            f"{group_sizes(groups_of(optimizer))} parameters"
        )
    if any(isinstance(key, str) and key.isdecimal() for key in state["state"]):  # torch ignores it
        raise ValueError("state_dict['optimizer']['state'] must have integers as keys, not text")
    _check_shapes_for_fused(optimizer, state)


# The names of the parameters.


def _check_param_names(groups: Iterable[Any], saved_groups: Iterable[Any]) -> None:
    """Compare the names that torch keeps for `named_parameters()`, if both sides have them."""
    names = [group.get("param_names") for group in groups]
    saved_names = [group.get("param_names") for group in saved_groups]
    if None in names or None in saved_names:
        return
    if not _have_equal_names(names, saved_names):
        # Either side may have named the parameters of a wrapped model.
        names = _without_wrappers(names)
        saved_names = _without_wrappers(saved_names)
    check_same_parameters(names, saved_names, "param_names")


def _without_wrappers(names: Sequence[list[str]]) -> list[list[str]]:
    return [list(map(without_wrappers, group)) for group in names]


def _have_equal_names(names: Sequence[list[str]], saved: Sequence[list[str]]) -> bool:
    """Return True if all groups together have the same names, in any order."""
    return sorted(chain.from_iterable(names)) == sorted(chain.from_iterable(saved))


def check_same_parameters(names: Sequence[list[str]], saved: Sequence[list[str]], key: str) -> None:
    """Reject a state whose groups list different parameters, or in a different order.

    An optimizer's state is saved by position.

    Args:
        names: The names of each group's parameters. An empty name is unknown, and fits every name.
        saved: The same in the state.
        key: The key of the names in the state.
    """
    for index, (group, saved_group) in enumerate(zip_longest(names, saved, fillvalue=())):
        pairs = zip_longest(group, saved_group, fillvalue="missing")
        for number, (name, saved_name) in enumerate(pairs):
            if name == saved_name or not name or not saved_name:
                continue
            advice = ""
            if _have_equal_names(names, saved):
                advice = (
                    f". Build the same groups in the same order as in the state, under {key!r}. If "
                    "they are built from a set, sort it: its order changes with every start of "
                    "Python"
                )
            raise ValueError(
                f"state_dict was saved with different parameter groups: in group {index}, "
                f"parameter {number} is {saved_name} in the state and {name} here{advice}"
            )


# The values of each parameter.


def copy_optimizer_state(optimizer: Optimizer, state: Any) -> Any:
    """Copy a saved state, with this optimizer's implementation and its missing options."""
    copied = pytree.tree_map(_copy_leaf, state)
    for group, saved in zip(groups_of(optimizer), copied["param_groups"], strict=True):
        # The saved implementation may not run on this machine.
        for name in _IMPLEMENTATION_OPTIONS:
            if name in group:
                saved[name] = group[name]
        saved.pop("param_names", None)  # torch then keeps this optimizer's
        for name in group.keys() & optimizer.defaults.keys():  # that the saved state may lack
            saved.setdefault(name, group[name])
    # Before the load, in which torch moves every value to its parameter's device: whole moments
    # take many times the memory of a shard.
    for parameter, number in zip(parameters_of(optimizer), _numbers_in(copied), strict=True):
        values = copied["state"].get(number, {})
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = shard_like(parameter, value)
    return copied


def _derives_from_torch(optimizer: Optimizer) -> bool:
    """Return True for torch's optimizers and their subclasses, which may run its fused kernels."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torch.optim") and base is not Optimizer:
            return True
    return False


def _copy_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return clone(leaf)
    return copy.deepcopy(leaf)


def _numbers_in(state: Any) -> Iterator[Any]:
    """Return the keys under which a saved state has the values of each parameter."""
    return chain.from_iterable(group["params"] for group in state["param_groups"])


def _check_shapes_for_fused(optimizer: Optimizer, state: Any) -> None:
    # The fused CPU kernels compare no shapes: they would read and write beyond the end of a smaller
    # tensor.
    groups = [*groups_of(optimizer), *state["param_groups"]]
    if not _derives_from_torch(optimizer) or not any(group.get("fused") for group in groups):
        return
    for parameter, number in zip(parameters_of(optimizer), _numbers_in(state), strict=True):
        for name, value in state["state"].get(number, {}).items():
            if name == STEP_COUNT or not isinstance(value, Tensor):
                continue
            if value.shape != parameter.shape:
                raise ValueError(
                    "state_dict was saved with a different optimizer or model: "
                    f"{name} of parameter {number} has the shape {tuple(value.shape)}, and the "
                    f"parameter {tuple(parameter.shape)}"
                )


def _restore_dtypes(optimizer: Optimizer, state: Any) -> None:
    """Restore the saved dtypes: torch casts a loaded state to the dtypes of its parameters."""
    for parameter, number in zip(parameters_of(optimizer), _numbers_in(state), strict=True):
        loaded = optimizer.state.get(parameter, {})
        saved = state["state"].get(number)
        if isinstance(saved, Mapping):
            _restore_dtypes_of(loaded, cast("Mapping[Any, Any]", saved), parameter.device)


def _restore_dtypes_of(
    loaded: MutableMapping[Any, Any], saved: Mapping[Any, Any], device: torch.device
) -> None:
    """Restore the dtypes of one parameter's values."""
    for name, value in saved.items():
        current = loaded.get(name)
        if not isinstance(value, Tensor):  # a list or dict, with tensors at any depth
            if type(current) is type(value):  # unless the optimizer has converted it
                loaded[name] = pytree.tree_map_only(Tensor, methodcaller("to", device), value)
            continue
        is_cast = isinstance(current, Tensor) and current.dtype != value.dtype
        if is_cast and name != STEP_COUNT:  # cast by torch on purpose
            loaded[name] = value.to(device)


def _lay_out_moments(optimizer: Optimizer) -> None:
    """Give the moments of torch's optimizers the sharding and the layout of their parameters."""
    # Fused CPU kernels read a parameter and its moments in memory order, and ignore their strides.
    # If the layouts differed, such as channels_last and contiguous, an element would get the
    # moments of a different one: a 2 × 2 matrix is stored by rows as 00, 01, 10, 11, but by columns
    # as 00, 10, 01, 11. Other optimizers may keep a tensor that merely has the parameter's shape;
    # a new layout could change the bits of their products.
    if not _derives_from_torch(optimizer):
        return
    for parameter in parameters_of(optimizer):
        values = optimizer.state.get(parameter, {})
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = _like_parameter(parameter, value)


def _like_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    value = shard_like(parameter, value)
    if placements_of(value) != placements_of(parameter):
        return value  # some optimizers shard their state differently
    like = torch.empty_like(parameter.detach(), dtype=value.dtype, device=value.device)
    if like.stride() == value.stride():
        return value
    return like.copy_(value)
