"""The weighted mean of the models in several checkpoints, read tensor by tensor."""

import math
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torch_bridge.checkpointing import loading, reading, tensor_files
from torch_bridge.checkpointing.loading_parts import LoadingModel
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.core import checks
from torch_bridge.distributed.dtensors import local_part, memory_of

_TOLERANCE = 1e-6  # of the sum of the weights: float32 weights are off by less


class _Saved(NamedTuple):
    """Where a tensor of the model lies in a checkpoint."""

    key: str
    dtype: torch.dtype


def check(counts: Any, weights: Any) -> tuple[list[int], list[float]]:
    """The arguments of `Checkpoints.merge`.

    Raises:
        TypeError, ValueError: As it says.
    """
    for name, value, items in (("counts", counts, "integers"), ("weights", weights, "numbers")):
        if not checks.ordered(value):
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


def read(
    directory: Path, counts: Sequence[int], weights: Sequence[float], model: LoadingModel, held: ExitStack
) -> None:
    """Read the mean for the model.

    A collective: every rank calls it. Until `held` is closed, the checkpoints are not removed.

    Raises:
        RemovedError: One of them was removed meanwhile.
    """
    found = loading.opened(directory, counts, held)
    for saved in found:
        loading.check_parts(saved, [model.name])
    loading.unless_removed(found, lambda: model.take(_mean(found, weights, model)))


def _mean(
    found: Sequence[SavedCheckpoint], weights: Sequence[float], model: LoadingModel
) -> Mapping[str, Any]:
    """What the model gets: the last checkpoint's state, with means in place of its floating tensors.

    All is checked before any tensor is read.
    """
    places = [_places(saved, model) for saved in found]
    own, (*others, last), (*weights_of_others, weight_of_last) = model.own(), found, weights
    averaged = _averaged(found, places, own)
    structure = {model.name: model.structure(last.states)}
    part = reading.read(last, structure, model.template(), {}, 0)[model.name]
    state = cast("dict[str, Any]", model.matched(part))
    # Of tied tensors one is summed: the last, since `load_state_dict` would load it over the others.
    summed = {memory_of(own[name]): name for name in averaged}
    for name in averaged:
        total, state[name] = state[name], None  # so that what is not needed any more is freed
        if summed[memory_of(own[name])] != name:
            continue
        saved_in = [place[name] for place in places]
        total = total.to(_dtype_of_sum(saved_in))
        if weight_of_last:
            local_part(total).mul_(weight_of_last)
        else:
            local_part(total).zero_()
        for saved, weight, (key, _) in zip(others, weights_of_others, saved_in[:-1], strict=True):
            if weight:
                tensor_files.add(saved.found.path, saved.contents, {key: total}, weight)
        state[name] = total.to(own[name].dtype)
    for name in averaged:
        state[name] = state[summed[memory_of(own[name])]]
    return state


def _places(saved: SavedCheckpoint, model: LoadingModel) -> dict[str, _Saved]:
    """Where each tensor of the model lies.

    Raises:
        ValueError: The checkpoint is of another model.
    """
    outline, keys = reading.outline(saved, model.structure(saved.states))
    try:
        state = model.matched(outline)
    except ValueError as error:
        raise ValueError(f"checkpoint {saved.found.count}: {error}") from None
    return {
        name: _Saved(keys[id(tensor)], tensor.dtype)
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }


def _averaged(
    found: Sequence[SavedCheckpoint], places: Sequence[Mapping[str, _Saved]], own: Mapping[str, Tensor]
) -> list[str]:
    """The names of the floating tensors, real or complex.

    Raises:
        ValueError: One is of another kind in some checkpoint, or its mean does not fit into the module.
    """
    names = [name for name, place in places[-1].items() if _kind(place.dtype)]
    for name in names:
        of_last = places[-1][name].dtype
        for saved, place in zip(found, places, strict=True):
            if _kind(place[name].dtype) != _kind(of_last):
                raise ValueError(
                    f"{name} is {place[name].dtype} in checkpoint {saved.found.count}, and {of_last} in "
                    f"checkpoint {found[-1].found.count}"
                )
        if not torch.can_cast(of_last, here := own[name].dtype):
            raise ValueError(
                f"{name} is {of_last} in checkpoint {found[-1].found.count}, and {here} here: its mean does "
                "not fit"
            )
    return names


def _kind(dtype: torch.dtype) -> str:
    """Empty where there is no mean."""
    return "complex" if dtype.is_complex else "real" if dtype.is_floating_point else ""


def _dtype_of_sum(saved_in: Sequence[_Saved]) -> torch.dtype:
    """Of twice the precision where one checkpoint has it, else of float32's."""
    dtypes = {place.dtype for place in saved_in}
    is_double = bool(dtypes & {torch.float64, torch.complex128})
    if any(dtype.is_complex for dtype in dtypes):
        return torch.complex128 if is_double else torch.complex64
    return torch.float64 if is_double else torch.float32
