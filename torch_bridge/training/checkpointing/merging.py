"""Average a model over several checkpoints, some tensors at a time."""

import copy
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plateau_jax.arguments import checks
from torch_bridge.training.checkpointing.loading import (
    CheckpointReader,
    TensorAllocator,
    model_structure,
    read_tensors,
)
from torch_bridge.training.checkpointing.stored_values import TENSOR, StoredValue
from torch_bridge.training.distributed.dtensors import local_shard
from torch_bridge.training.distributed.plain_names import plain_state

_SUM_TOLERANCE = 1e-6  # float32 weights that should add up to 1 are off by less
_GROUP_BYTES = 2**22  # tensors of this size are read together from each checkpoint


def check_arguments(steps: Any, weights: Any) -> tuple[list[int], list[float]]:
    """Check the arguments of `Checkpoints.merge`, and return them as plain numbers."""
    for name, value, items in (("steps", steps, "integers"), ("weights", weights, "numbers")):
        if not checks.is_ordered(value):
            raise TypeError(checks.must(name, value, f"be a sequence of {items}"))
    checked_steps: list[int] = []
    for index, step in enumerate(steps):
        checked_steps.append(checks.at_least(f"steps[{index}]", step, 0))
    checked_weights: list[float] = []
    for index, weight in enumerate(weights):
        checked_weights.append(float(checks.float32(f"weights[{index}]", weight)))

    if len(checked_weights) != len(checked_steps):
        raise ValueError(
            f"steps has length {len(checked_steps)}, and weights {len(checked_weights)}: "
            "give each step a weight"
        )
    total = math.fsum(checked_weights)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ValueError(f"weights add up to {total!r}, and must add up to 1")
    return checked_steps, checked_weights


@dataclass(frozen=True)
class _Source:
    """A checkpoint to average: how to read it, the structure of its model, and its weight."""

    saved: CheckpointReader
    structure: Mapping[str, Any]
    weight: float


def merge_states(
    checkpoints: Sequence[CheckpointReader], weights: Sequence[float], part: str, model: nn.Module
) -> Mapping[str, Any]:
    """Return the model's state in the last checkpoint, with means of its floating-point tensors.

    Everything is checked before any tensor is read.
    """
    sources: list[_Source] = []
    for saved, weight in zip(checkpoints, weights, strict=True):
        sources.append(_Source(saved, model_structure(saved, part, model), weight))
    last = sources[-1]
    current = plain_state(model)
    averaged = _names_to_average(sources, current)
    allocator = TensorAllocator(part, model)

    state: Any = copy.copy(last.structure)  # keeps torch's `_metadata`
    for names in _groups(averaged, current):
        for name, mean in _means(sources, names, allocator).items():
            state[name] = mean.to(current[name].dtype)

    rest = {name: leaf for name, leaf in last.structure.items() if name not in averaged}
    state.update(read_tensors(last.saved, rest, allocator))
    return state


def _groups(names: Sequence[str], current: Mapping[str, Tensor]) -> Generator[list[str]]:
    """Yield the names in groups of tensors that together have some megabytes."""
    group: list[str] = []
    size = 0
    for name in names:
        group.append(name)
        size += local_shard(current[name]).nbytes
        if size >= _GROUP_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


def _means(
    sources: Sequence[_Source], names: Sequence[str], allocator: TensorAllocator
) -> dict[str, Tensor]:
    """Return the mean of some tensors, in the dtype of the sum."""
    sums: dict[str, Tensor] = {}
    # Always in this order, because a different one would change the bits.
    for source in (sources[-1], *sources[:-1]):
        if source.weight == 0:
            continue  # 0 · infinity is NaN
        structure = {name: source.structure[name] for name in names}
        tensors: dict[str, Any] = read_tensors(source.saved, structure, allocator)
        for name in names:
            tensor = tensors.pop(name).detach()
            product = tensor.to(_dtype_of_sum(sources, name), copy=True)  # tied ones share memory
            # Round the product before adding. A fused operation such as add_(…, alpha=weight)
            # rounds once for some elements and twice for others, so that a sharded tensor and a
            # whole one would get different bits.
            local_shard(product).mul_(source.weight)
            if name in sums:
                local_shard(sums[name]).add_(local_shard(product))
            else:
                sums[name] = product
            del tensor, product  # before the next one is read
    return sums


def _names_to_average(sources: Sequence[_Source], current: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the floating-point tensors, real or complex; check their dtypes."""
    names: list[str] = []
    for name, last in sources[-1].structure.items():
        for source in sources:
            stored = source.structure[name]
            if isinstance(stored, StoredValue) and stored.is_bytes:
                raise ValueError(
                    f"{name} has a class or a dtype in checkpoint {source.saved.step} that can't "
                    "be averaged: merge checkpoints of the model before it was converted"
                )
        if not isinstance(last, StoredValue) or last.kind != TENSOR:
            continue
        if not (last.meta.is_floating_point() or last.meta.is_complex()):
            continue
        for source in sources:
            dtype = source.structure[name].meta.dtype
            if not torch.can_cast(dtype, current[name].dtype):
                raise ValueError(
                    f"{name} is {dtype} in checkpoint {source.saved.step}, and "
                    f"{current[name].dtype} here: its mean does not fit"
                )
        names.append(name)
    return names


def _dtype_of_sum(sources: Sequence[_Source], name: str) -> torch.dtype:
    """Return the dtype to sum in: float64 if any checkpoint has it, else single precision."""
    dtype = torch.float32
    for source in sources:
        dtype = torch.promote_types(dtype, source.structure[name].meta.dtype)
    return dtype
