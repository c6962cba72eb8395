"""Average a model over several checkpoints, tensor by tensor."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.loading_parts import LoadingModel
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.curve_api import checks
from torch_bridge.distributed.dtensors import local_region, local_shard, memory_key, mesh_of

_SUM_TOLERANCE = 1e-6  # float32 weights that should add up to 1 are off by less
_BLOCK_ELEMENTS = 2**20  # elements added at once


def check_arguments(counts: Any, weights: Any) -> tuple[list[int], list[float]]:
    """Check the arguments of `Checkpoints.merge`, and return them as plain numbers.

    Raises:
        TypeError, ValueError: See `Checkpoints.merge`.
    """
    for name, value, items in (("counts", counts, "integers"), ("weights", weights, "numbers")):
        if not checks.is_ordered(value):
            raise TypeError(f"{name} = {checks.short_repr(value)} must be a sequence of {items}")
    checked_counts = [checks.at_least(f"counts[{index}]", count, 0) for index, count in enumerate(counts)]
    checked_weights = [
        float(checks.float32(f"weights[{index}]", weight)) for index, weight in enumerate(weights)
    ]
    if not checked_counts:
        raise ValueError("counts is empty: it must name at least one checkpoint")
    if len(set(checked_counts)) < len(checked_counts):
        raise ValueError(f"counts = {checks.short_repr(checked_counts)} names a checkpoint more than once")
    if len(checked_weights) != len(checked_counts):
        raise ValueError(
            f"there are {len(checked_counts)} counts and {len(checked_weights)} weights: "
            "give each count a weight"
        )
    total = math.fsum(checked_weights)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ValueError(f"weights add up to {total!r}, and must add up to 1")
    return checked_counts, checked_weights


def merge_states(
    saved: Sequence[SavedCheckpoint], weights: Sequence[float], model: LoadingModel
) -> Mapping[str, Any]:
    """Return the model's state in the last checkpoint, with means in place of its floating-point tensors.

    Everything is checked before any tensor is read.
    """
    references = [_model_references(checkpoint, model) for checkpoint in saved]
    # The state starts as the last checkpoint's, and the others are added to it.
    current, (*others, last), (*weights_of_others, weight_of_last) = model.current_state(), saved, weights
    averaged = _names_to_average(saved, references, current)
    state = dict(model.decode_state(last, model.tensor_reader(last, 0)))
    # Of tied tensors only the last is summed: `load_state_dict` would load it over the others anyway.
    summed = {memory_key(current[name]): name for name in averaged}
    for name in averaged:
        total, state[name] = state[name], None  # drop the reference, so that memory is freed early
        if summed[memory_key(current[name])] != name:
            continue
        saved_as = [reference[name] for reference in references]
        total = total.to(_dtype_of_sum(saved_as))
        if weight_of_last:
            local_shard(total).mul_(weight_of_last)
        else:
            local_shard(total).zero_()  # not mul_(0): infinity · 0 is NaN
        for checkpoint, weight, reference in zip(others, weights_of_others, saved_as[:-1], strict=True):
            if weight:
                _add_weighted(total, checkpoint, reference, weight)
        state[name] = total.to(current[name].dtype)
    for name in averaged:
        state[name] = state[summed[memory_key(current[name])]]
    return state


def _add_weighted(total: Tensor, checkpoint: SavedCheckpoint, reference: Reference, weight: float) -> None:
    """Add weight · (the tensor in a checkpoint) to `total`, in blocks of rows, which take little memory."""
    # Round the product before adding. A fused operation such as add_(…, alpha=weight) rounds once for some
    # elements and twice for others: a sharded tensor would get other bits than a whole one.
    local = local_shard(total)
    offsets, shape = local_region(total) if mesh_of(total) else ([0] * total.ndim, list(total.shape))
    if not shape:
        local.add_(checkpoint.read_tensor(reference, 0).to(total.dtype) * weight)
        return
    rows = max(1, _BLOCK_ELEMENTS * shape[0] // max(1, local.numel()))
    for first in range(0, shape[0], rows):
        block = local[first : first + rows]
        place = [offsets[0] + first, *offsets[1:]]
        block.add_(checkpoint.read_tensor(reference, 0, place, list(block.shape)).to(total.dtype) * weight)


def _model_references(saved: SavedCheckpoint, model: LoadingModel) -> dict[str, Reference]:
    """Return the reference to each tensor of the model in a checkpoint.

    Raises:
        ValueError: The checkpoint is of a different model.
    """
    made: dict[int, Reference] = {}

    def make(_: str, reference: Reference) -> Tensor:
        saved.pieces_of(reference, 0)
        # An unfilled tensor takes next to no memory: the system provides pages when they are written.
        tensor = torch.empty(reference.shape, dtype=reference.dtype, device="cpu")
        made[id(tensor)] = reference
        return tensor

    try:
        state = model.decode_state(saved, make)
    except ValueError as error:
        raise ValueError(f"checkpoint {saved.count}: {error}") from None
    return {name: made[id(tensor)] for name, tensor in state.items() if isinstance(tensor, Tensor)}


def _names_to_average(
    saved: Sequence[SavedCheckpoint],
    references: Sequence[Mapping[str, Reference]],
    current: Mapping[str, Tensor],
) -> list[str]:
    """Return the names of the floating-point tensors, real or complex.

    Raises:
        ValueError: A tensor is of another kind in another checkpoint, or the module can't hold its mean.
    """
    names = [name for name, reference in references[-1].items() if _kind_of_mean(reference.dtype)]
    for name in names:
        of_last = references[-1][name].dtype
        for checkpoint, reference in zip(saved, references, strict=True):
            if _kind_of_mean(reference[name].dtype) != _kind_of_mean(of_last):
                raise ValueError(
                    f"{name} is {reference[name].dtype} in checkpoint {checkpoint.count}, and {of_last} in "
                    f"checkpoint {saved[-1].count}"
                )
        if not torch.can_cast(of_last, here := current[name].dtype):
            raise ValueError(
                f"{name} is {of_last} in checkpoint {saved[-1].count}, and {here} here: its mean does not fit"
            )
    return names


def _kind_of_mean(dtype: torch.dtype) -> str:
    """Return "complex" or "real", or "" for a dtype without a mean."""
    return "complex" if dtype.is_complex else "real" if dtype.is_floating_point else ""


def _dtype_of_sum(saved_as: Sequence[Reference]) -> torch.dtype:
    """Return the dtype to sum in: double precision if any checkpoint has it, else single precision."""
    dtypes = {reference.dtype for reference in saved_as}
    is_double = bool(dtypes & {torch.float64, torch.complex128})
    if any(dtype.is_complex for dtype in dtypes):
        return torch.complex128 if is_double else torch.complex64
    return torch.float64 if is_double else torch.float32
