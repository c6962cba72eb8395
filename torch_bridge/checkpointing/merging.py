"""Average a model over several checkpoints, some tensors at a time."""

import copy
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_bridge.checkpointing.loading import (
    SavedCheckpoint,
    Targets,
    model_structure,
    read_tensors,
)
from torch_bridge.checkpointing.states import meta_of
from torch_bridge.curve_api import checks
from torch_bridge.distributed.dtensors import local_shard, memory_key
from torch_bridge.distributed.plain_names import plain_state

_SUM_TOLERANCE = 1e-6  # float32 weights that should add up to 1 are off by less
_GROUP_BYTES = 2**22  # tensors of this size are read together from each checkpoint


def check_arguments(steps: Any, weights: Any) -> tuple[list[int], list[float]]:
    """Check the arguments of `Checkpoints.merge`, and return them as plain numbers.

    Raises:
        TypeError, ValueError: See `Checkpoints.merge`.
    """
    for name, value, items in (("steps", steps, "integers"), ("weights", weights, "numbers")):
        if not checks.is_ordered(value):
            raise TypeError(f"{name} = {checks.short_repr(value)} must be a sequence of {items}")
    checked_steps = [
        checks.at_least(f"steps[{index}]", step, 0) for index, step in enumerate(steps)
    ]
    checked_weights = [
        float(checks.float32(f"weights[{index}]", weight)) for index, weight in enumerate(weights)
    ]
    if not checked_steps:
        raise ValueError("steps is empty: it must name at least one checkpoint")
    if len(set(checked_steps)) < len(checked_steps):
        raise ValueError(
            f"steps = {checks.short_repr(checked_steps)} names a checkpoint more than once"
        )
    if len(checked_weights) != len(checked_steps):
        raise ValueError(
            f"there are {len(checked_steps)} steps and {len(checked_weights)} weights: "
            "give each step a weight"
        )
    total = math.fsum(checked_weights)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ValueError(f"weights add up to {total!r}, and must add up to 1")
    return checked_steps, checked_weights


def merge_states(
    saved: Sequence[SavedCheckpoint], weights: Sequence[float], part: str, model: nn.Module
) -> Mapping[str, Any]:
    """Return the model's state in the last checkpoint, with means in place of its floating-point tensors.

    Everything is checked before any tensor is read.
    """
    current = plain_state(model)
    structures = [_structure_of(checkpoint, part, model) for checkpoint in saved]
    averaged = _names_to_average(saved, structures, current)
    targets = Targets(part, model)
    state: Any = copy.copy(structures[-1])  # keeps torch's `_metadata`
    # Of tied tensors only the last is averaged: `load_state_dict` loads it over the others anyway.
    last_of_memory = {memory_key(current[name]): name for name in averaged}
    for names in _groups([*last_of_memory.values()], current):
        for name, mean in _means(saved, structures, weights, names, targets).items():
            state[name] = mean.to(current[name].dtype)
    for name in averaged:
        state[name] = state[last_of_memory[memory_key(current[name])]]
    rest = {name: leaf for name, leaf in structures[-1].items() if name not in averaged}
    state.update(read_tensors(saved[-1], rest, targets))
    return state


def _structure_of(saved: SavedCheckpoint, part: str, model: nn.Module) -> Mapping[str, Any]:
    try:
        return model_structure(saved, part, model)
    except ValueError as error:
        raise ValueError(f"checkpoint {saved.checkpoint.step}: {error}") from None


def _groups(names: Sequence[str], current: Mapping[str, Tensor]) -> Generator[list[str]]:
    """Yield the names in groups of tensors that together have some megabytes."""
    group: list[str] = []
    size = 0
    for name in names:
        group.append(name)
        size += local_shard(current[name]).nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _means(
    saved: Sequence[SavedCheckpoint],
    structures: Sequence[Mapping[str, Any]],
    weights: Sequence[float],
    names: Sequence[str],
    targets: Targets,
) -> dict[str, Tensor]:
    """Return the mean of some tensors, in the dtype of the sum."""
    sums: dict[str, Tensor] = {}
    last = len(saved) - 1
    for index in (last, *range(last)):
        if weights[index] == 0:
            continue  # 0 · infinity is NaN
        tensors: dict[str, Any] = read_tensors(
            saved[index], {name: structures[index][name] for name in names}, targets
        )
        for name in names:
            dtype = _dtype_of_sum([structure[name] for structure in structures])
            # Round the product before adding. A fused operation such as add_(…, alpha=weight)
            # rounds once for some elements and twice for others: a sharded tensor would get other
            # bits than a whole one.
            tensor = tensors.pop(name).detach()
            is_shared = memory_key(tensor) in map(
                memory_key, tensors.values()
            )  # tied where it was saved
            product = tensor.to(dtype, copy=is_shared)
            local_shard(product).mul_(weights[index])
            if name in sums:
                local_shard(sums[name]).add_(local_shard(product))
            else:
                sums[name] = product
            del tensor, product  # before the next one is read
    return sums


def _names_to_average(
    saved: Sequence[SavedCheckpoint],
    structures: Sequence[Mapping[str, Any]],
    current: Mapping[str, Tensor],
) -> list[str]:
    """Return the names of the floating-point tensors, real or complex.

    Raises:
        ValueError: A tensor is of another kind in another checkpoint, or the module can't hold its
            mean.
    """
    names: list[str] = []
    last_step = saved[-1].checkpoint.step
    for name, leaf in structures[-1].items():
        kind, dtype = _kind_of_mean(leaf), _dtype(leaf)
        if dtype is None or not kind:
            continue
        for checkpoint, structure in zip(saved, structures, strict=True):
            if _kind_of_mean(structure[name]) != kind:
                raise ValueError(
                    f"{name} is {_dtype(structure[name])} in checkpoint "
                    f"{checkpoint.checkpoint.step}, and {dtype} in checkpoint {last_step}"
                )
        if not torch.can_cast(dtype, current[name].dtype):
            raise ValueError(
                f"{name} is {dtype} in checkpoint {last_step}, and {current[name].dtype} here: its "
                "mean does not fit"
            )
        names.append(name)
    return names


def _dtype(leaf: Any) -> torch.dtype | None:
    tensor = meta_of(leaf)
    if tensor is None:
        return None
    return tensor.dtype


def _kind_of_mean(leaf: Any) -> str:
    """Return "complex" or "real", or "" for a value without a mean."""
    dtype = _dtype(leaf)
    if dtype is None:
        return ""
    if dtype.is_complex:
        return "complex"
    if dtype.is_floating_point:
        return "real"
    return ""


def _dtype_of_sum(leaves: Sequence[Any]) -> torch.dtype:
    """Return the dtype to sum in: double precision if any checkpoint has it, else single precision."""
    dtypes = [_dtype(leaf) for leaf in leaves]
    is_double = torch.float64 in dtypes or torch.complex128 in dtypes
    if _kind_of_mean(leaves[0]) == "complex":
        return torch.complex128 if is_double else torch.complex64
    return torch.float64 if is_double else torch.float32
