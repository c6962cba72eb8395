"""The weighted mean of the models in several checkpoints, read tensor by tensor."""

import math
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.loading_parts import LoadingModel
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.curve_api import checks
from torch_bridge.distributed.dtensors import local_region, local_shard, memory_key, mesh_of

_TOLERANCE = 1e-6  # of the sum of the weights: float32 weights are off by less
_BLOCK = 2**20  # elements that are added at once


def check(counts: Any, weights: Any) -> tuple[list[int], list[float]]:
    """The arguments of `Checkpoints.merge`.

    Raises:
        TypeError, ValueError: As it says.
    """
    for name, value, items in (("counts", counts, "integers"), ("weights", weights, "numbers")):
        if not checks.is_ordered(value):
            raise TypeError(f"{name} = {reprlib.repr(value)} must be a sequence of {items}")
    called = [checks.at_least(f"counts[{index}]", count, 0) for index, count in enumerate(counts)]
    shares = [float(checks.float32(f"weights[{index}]", weight)) for index, weight in enumerate(weights)]
    if not called:
        raise ValueError("counts is empty: it must name at least one checkpoint")
    if twice := [count for count, times in Counter(called).items() if times > 1]:
        raise ValueError(f"counts = {reprlib.repr(called)} names checkpoint {twice[0]} more than once")
    if len(shares) != len(called):
        raise ValueError(
            f"there are {len(called)} counts and {len(shares)} weights: give each count a weight"
        )
    total = math.fsum(shares)
    if abs(total - 1) > _TOLERANCE:
        raise ValueError(f"weights add up to {total!r}, and must add up to 1")
    return called, shares


def merge(
    saved: Sequence[SavedCheckpoint], weights: Sequence[float], model: LoadingModel
) -> Mapping[str, Any]:
    """Return the state of the model in the last checkpoint, with means in place of its floating tensors.

    All is checked before any tensor is read.
    """
    references = [_references(checkpoint, model) for checkpoint in saved]
    own, (*others, last), (*weights_of_others, weight_of_last) = model.own(), saved, weights
    averaged = _averaged(saved, references, own)
    state = dict(model.state_in(last, model.reader(last, 0)))
    # Of tied tensors one is summed: the last, since `load_state_dict` would load it over the others.
    summed = {memory_key(own[name]): name for name in averaged}
    for name in averaged:
        total, state[name] = state[name], None  # so that what is not needed any more is freed
        if summed[memory_key(own[name])] != name:
            continue
        saved_as = [reference[name] for reference in references]
        total = total.to(_dtype_of_sum(saved_as))
        if weight_of_last:
            local_shard(total).mul_(weight_of_last)
        else:
            local_shard(total).zero_()
        for checkpoint, weight, reference in zip(others, weights_of_others, saved_as[:-1], strict=True):
            if weight:
                _add(total, checkpoint, reference, weight)
        state[name] = total.to(own[name].dtype)
    for name in averaged:
        state[name] = state[summed[memory_key(own[name])]]
    return state


def _add(total: Tensor, checkpoint: SavedCheckpoint, reference: Reference, weight: float) -> None:
    """total += weight · (the tensor in a checkpoint), in blocks of rows, which take little memory.

    The product is rounded before the sum: torch uses a fused operation for some elements and not for others,
    so a sharded tensor would get other bits than a whole one.
    """
    local = local_shard(total)
    offsets, shape = local_region(total) if mesh_of(total) else ([0] * total.ndim, list(total.shape))
    if not shape:
        local.add_(checkpoint.read(reference, 0).to(total.dtype) * weight)
        return
    rows = max(1, _BLOCK * shape[0] // max(1, local.numel()))
    for first in range(0, shape[0], rows):
        block = local[first : first + rows]
        place = [offsets[0] + first, *offsets[1:]]
        block.add_(checkpoint.read(reference, 0, place, list(block.shape)).to(total.dtype) * weight)


def _references(saved: SavedCheckpoint, model: LoadingModel) -> dict[str, Reference]:
    """Return where each tensor of the model stands in a checkpoint.

    Raises:
        ValueError: The checkpoint is of another model.
    """
    made: dict[int, Reference] = {}

    def make(_: str, reference: Reference) -> Tensor:
        saved.check(reference, 0)
        # Takes no memory, since the system gives it only when it is filled.
        tensor = torch.empty(reference.shape, dtype=reference.dtype, device="cpu")
        made[id(tensor)] = reference
        return tensor

    try:
        state = model.state_in(saved, make)
    except ValueError as error:
        raise ValueError(f"checkpoint {saved.count}: {error}") from None
    return {name: made[id(tensor)] for name, tensor in state.items() if isinstance(tensor, Tensor)}


def _averaged(
    saved: Sequence[SavedCheckpoint], references: Sequence[Mapping[str, Reference]], own: Mapping[str, Tensor]
) -> list[str]:
    """Return the names of the floating tensors, real or complex.

    Raises:
        ValueError: One is of another kind in a checkpoint, or the module can't hold its mean.
    """
    names = [name for name, reference in references[-1].items() if _kind(reference.dtype)]
    for name in names:
        of_last = references[-1][name].dtype
        for checkpoint, reference in zip(saved, references, strict=True):
            if _kind(reference[name].dtype) != _kind(of_last):
                raise ValueError(
                    f"{name} is {reference[name].dtype} in checkpoint {checkpoint.count}, and {of_last} in "
                    f"checkpoint {saved[-1].count}"
                )
        if not torch.can_cast(of_last, here := own[name].dtype):
            raise ValueError(
                f"{name} is {of_last} in checkpoint {saved[-1].count}, and {here} here: its mean does not fit"
            )
    return names


def _kind(dtype: torch.dtype) -> str:
    """Return complex, real, or an empty string for a dtype without a mean."""
    return "complex" if dtype.is_complex else "real" if dtype.is_floating_point else ""


def _dtype_of_sum(saved_as: Sequence[Reference]) -> torch.dtype:
    """Return a dtype of double precision if one checkpoint has it, else of single precision."""
    dtypes = {reference.dtype for reference in saved_as}
    is_double = bool(dtypes & {torch.float64, torch.complex128})
    if any(dtype.is_complex for dtype in dtypes):
        return torch.complex128 if is_double else torch.complex64
    return torch.float64 if is_double else torch.float32
