"""Reading a checkpoint: its files are checked first, then each rank reads the state that it needs."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint import Metadata

from torch_bridge.checkpointing import contents, encoding, folders, manifest, tensor_files
from torch_bridge.checkpointing.folders import STATE
from torch_bridge.checkpointing.manifest import Manifest
from torch_bridge.checkpointing.writing import key_of_rank
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import empty_beside, mesh_of

Value = TypeVar("Value")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint whose files are all as they were written."""

    found: folders.Complete
    manifests: list[Manifest]
    """One of each rank that saved."""
    states: list[dict[str, Any]]
    """The parts as JSON: those of rank 0, then those that this rank wrote, if it did."""
    contents: Metadata
    """Where each tensor lies."""

    @property
    def parts(self) -> list[str]:
        return self.manifests[0]["parts"]


class RemovedError(Exception):
    """A checkpoint was removed while it was read, as a run does that keeps its newest ones."""


def newest_sound(
    candidates: list[folders.Complete], held: ExitStack
) -> tuple[SavedCheckpoint | None, list[str]]:
    """The first candidate in which no rank finds damage, and what is wrong with those before it.

    A collective: every rank calls it.

    Args:
        candidates: The newest first.
        held: Until it is closed, the checkpoint is not removed.

    Raises:
        RemovedError: One of them is gone.
    """
    wrong: list[str] = []
    for found in candidates:
        with ExitStack() as mark:
            if processes.is_main():
                mark.enter_context(folders.reading(found.path))
            # No rank opens a checkpoint before all its files are checked, a share of them by each rank.
            _, problem = _attempt(_check_share, found)
            saved, problem = _attempt(_open, found) if problem is None else (None, problem)
            if problem is None:
                held.enter_context(mark.pop_all())
                return saved, wrong
        wrong.append(f"{found.path.name}: {problem}")
    return None, wrong


def _attempt(
    work: Callable[[folders.Complete], Value], found: folders.Complete
) -> tuple[Value | None, str | None]:
    """What the work returns on this rank, and what is wrong on the first rank where it fails."""
    value, problem = None, None
    try:
        value = work(found)
    except FileNotFoundError as error:
        problem = f"{os.path.relpath(str(error.filename), found.path)} is missing"
    except Exception as error:
        problem = str(error) or type(error).__name__
    is_removed = problem is not None and not found.path.is_dir()
    gathered = processes.gather((problem, is_removed))
    if any(removed for _, removed in gathered):
        raise RemovedError
    return value, next((other for other, _ in gathered if other is not None), None)


def _manifests(found: folders.Complete) -> dict[str, Manifest]:
    """The manifests of all ranks, by the names of their folders."""
    first = manifest.read(found.path / "0")
    manifests = {str(rank): manifest.read(found.path / str(rank)) for rank in range(first["processes"])}
    for name, each in manifests.items():
        if (each["count"], each["processes"]) != (found.count, len(manifests)):
            raise ValueError(f"{name}/{manifest.NAME} is of another checkpoint")
        if each["save"] != first["save"]:
            raise ValueError(
                f"{name}/{manifest.NAME} is of another save of {found.count} than that of rank 0"
            )
        if STATE not in each["files"]:
            raise ValueError(f"{name}/{manifest.NAME} names no {STATE}")
    return manifests


def _check_share(found: folders.Complete) -> None:
    """Compare this rank's share of the files with their digests."""
    files = [
        (found.path / name / file, *expected)
        for name, each in _manifests(found).items()
        for file, expected in each["files"].items()
    ]
    for path, size, digest in files[processes.rank() :: processes.count()]:
        manifest.check(path, size, digest)


def _open(found: folders.Complete) -> SavedCheckpoint:
    """Read everything but the tensors."""
    manifests = _manifests(found)
    rank = str(processes.rank())
    states = [
        json.loads((found.path / name / STATE).read_bytes())["parts"]
        for name in ("0", rank)
        if name in manifests
    ]
    listed = {name: each["files"] for name, each in manifests.items() if contents.CONTENTS in each["files"]}
    return SavedCheckpoint(found, list(manifests.values()), states, contents.joined(found.path, listed))


def read(
    saved: SavedCheckpoint,
    structures: Mapping[str, Any],
    template: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    rank: int,
) -> dict[str, Any]:
    """The encoded parts with a rank's tensors.

    Args:
        saved: The checkpoint.
        structures: The parts as JSON, by name.
        template: Tensors by key. Where one is a DTensor of the saved shape, the state gets a DTensor that is
            sharded like it, and this rank reads its shard.
        parameters: Sharded parameters, by the keys that the keys of their states begin with. A tensor of such
            a state that was a DTensor, and is none in the template, becomes one over the parameter's mesh.
            Every other tensor is read whole, into host memory.
        rank: The rank.
    """
    wanted, stored = dict[str, Tensor](), saved.contents.state_dict_metadata

    def make(key: str, dtype: torch.dtype, shape: Any, stride: Any, placements: Any) -> Tensor:
        like, own = template.get(key), key_of_rank(key, rank)
        if like is not None and mesh_of(like) and list(like.shape) == shape:
            tensor = torch.empty_like(like, dtype=dtype, requires_grad=False)
        elif placements is not None and (parameter := _parameter_of(key, parameters)) is not None:
            _check_memory(key, stored.get(key), shape, None)
            tensor = empty_beside(parameter, shape, dtype, placements)
        else:
            key = own if own in stored else key
            _check_memory(key, stored.get(key), shape, stride)
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
            if stride is not None:
                tensor = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        wanted[key] = tensor
        return tensor

    states = {name: encoding.decode(structure, make) for name, structure in structures.items()}
    tensor_files.fill(saved.found.path, saved.contents, wanted)
    return states


def outline(saved: SavedCheckpoint, structure: Any) -> tuple[Any, dict[int, str]]:
    """A part as it was saved, with tensors whose values are not read, and the keys of these by their ids."""
    made: dict[int, str] = {}

    def make(key: str, dtype: torch.dtype, shape: Any, stride: Any, _: Any) -> Tensor:
        _check_memory(key, saved.contents.state_dict_metadata.get(key), shape, stride)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")  # no memory until something is written to it
        made[id(tensor)] = key
        return tensor

    return encoding.decode(structure, make), made


def _parameter_of(key: str, parameters: Mapping[str, Tensor]) -> Tensor | None:
    """The sharded parameter that a key of an optimizer's state belongs to."""
    while key:
        key = key.rpartition("[")[0]
        if key in parameters:
            return parameters[key]
    return None


def _check_memory(key: str, known: Any, shape: list[int], stride: list[int] | None) -> None:
    """Raises ValueError where a tensor is not stored in this shape, or would take more memory than it has."""
    size = None if known is None else list(known.size)
    # What has no elements is not stored.
    if size != shape and (size is not None or math.prod(shape) != 0):
        raise ValueError(f"{key} is not there whole")
    steps = zip(shape, stride or [0] * len(shape), strict=True)
    if 1 + sum((length - 1) * step for length, step in steps if length) > max(1, math.prod(shape)):
        raise ValueError(f"{key} has the strides {stride}, of more memory than its shape {shape} takes")


def other_count_of_processes(saved: SavedCheckpoint, names: Sequence[str], kept: Sequence[str]) -> list[str]:
    """What to warn of where another number of processes saved this; empty where nothing is lost or copied.

    Args:
        saved: The checkpoint.
        names: The parts that are loaded.
        kept: The values that a rank which did not save keeps as they are.
    """
    before, now = len(saved.manifests), processes.count()
    if before == now:
        return []
    own = [{_short(key) for key in each["own"] if key.partition("[")[0] in names} for each in saved.manifests]
    lost, copied = set[str]().union(*own[now:]), set[str]().union(*own) - set(kept)
    warnings: list[str] = []
    if lost:
        warnings.append(f"the values of the missing processes in {', '.join(sorted(lost))} are dropped")
    if now > before and kept:
        warnings.append(f"the new processes keep their own {', '.join(kept)}")
    if now > before and copied:
        warnings.append(f"the new processes get process 0's {', '.join(sorted(copied))}")
    where = f"{saved.found.path} was saved by {before} processes, and now there are {now}: "
    return [where + "; ".join(warnings)] if warnings else []


def _short(key: str) -> str:
    """The name of the part and the first key within it."""
    head, bracket, _ = key.partition("]")
    return head + bracket
