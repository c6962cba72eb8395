"""A checkpoint as it is read: checked first, then what each process needs of it, in the place that it has."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint import Metadata

from torch_bridge.checkpointing import folders, manifest, shards, structure
from torch_bridge.checkpointing.manifest import Manifest
from torch_bridge.checkpointing.saving import STATE, own_key
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of

Value = TypeVar("Value")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is sound."""

    found: folders.Complete
    manifests: list[Manifest]
    """Of each process that saved it."""
    states: list[dict[str, Any]]
    """The parts of the first of them as JSON, and those of this process's own."""
    contents: Metadata

    @property
    def parts(self) -> list[str]:
        return self.manifests[0]["parts"]


def newest_sound(candidates: list[folders.Complete]) -> tuple[Saved | None, list[str]]:
    """The first that is sound in the eyes of all processes, and what is wrong with those before."""
    wrong: list[str] = []
    for found in candidates:
        # Nothing is read before all of it was checked, by whichever process.
        _, problem = _attempt(_check, found)
        saved, problem = _attempt(_open, found) if problem is None else (None, problem)
        if problem is None:
            return saved, wrong
        wrong.append(f"{found.path.name}: {problem}")
    return None, wrong


def _attempt(
    work: Callable[[folders.Complete], Value], found: folders.Complete
) -> tuple[Value | None, str | None]:
    """What it returns in this process, and what is wrong in the first process where it fails."""
    value, problem = None, None
    try:
        value = work(found)
    except FileNotFoundError as error:
        problem = f"{os.path.relpath(str(error.filename), found.path)} is missing"
    except Exception as error:
        problem = str(error) or type(error).__name__
    return value, next((other for other in processes.gather(problem) if other is not None), None)


def _manifests(found: folders.Complete) -> dict[str, Manifest]:
    """By the names of the processes' folders."""
    first = manifest.read(found.path / "0")
    manifests = {str(rank): manifest.read(found.path / str(rank)) for rank in range(first["processes"])}
    for name, each in manifests.items():
        if (each["count"], each["processes"]) != (found.count, len(manifests)):
            raise ValueError(f"{name}/{manifest.NAME} is of another checkpoint")
    return manifests


def _check(found: folders.Complete) -> None:
    """Look at this process's share of the files."""
    files = [
        (found.path / name / file, *expected)
        for name, each in _manifests(found).items()
        for file, expected in each["files"].items()
    ]
    for path, size, digest in files[processes.rank() :: processes.count()]:
        manifest.check(path, size, digest)


def _open(found: folders.Complete) -> Saved:
    """Read what every process needs."""
    manifests = _manifests(found)
    rank = str(processes.rank())
    states = [
        json.loads((found.path / name / STATE).read_bytes())["parts"]
        for name in ("0", rank)
        if name in manifests
    ]
    listed = {name: each["files"] for name, each in manifests.items() if shards.CONTENTS in each["files"]}
    return Saved(found, list(manifests.values()), states, shards.contents(found.path, listed))


def read(saved: Saved, names: Sequence[str], template: Mapping[str, Tensor]) -> dict[str, Any]:
    """The state of each of these parts for this process.

    Tensors come whole, in host memory; where the template, tensors by key, has a DTensor of that shape,
    they come as it is, read by each process for its own part.
    """
    rank, wanted = processes.rank(), dict[str, Tensor]()
    stored = saved.contents.state_dict_metadata
    parts = saved.states[0] | saved.states[-1]

    def make(key: str, dtype: torch.dtype, shape: Any, stride: Any) -> Tensor:
        like, own = template.get(key), own_key(key, rank)
        if like is not None and mesh_of(like) and list(like.shape) == shape:
            tensor = torch.empty_like(like, dtype=dtype, requires_grad=False)
        else:
            key = own if own in stored else key
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
            if stride is not None:
                tensor = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        wanted[key] = tensor
        return tensor

    states = {name: structure.decode(parts[name], make) for name in names}
    shards.fill(saved.found.path, saved.contents, wanted)
    return states


def other_processes(saved: Saved, names: Sequence[str], alone: list[str]) -> list[str]:
    """A message where another number of processes saved this: what is dropped, and what was missing.

    Args:
        saved: The checkpoint.
        names: The parts that are loaded.
        alone: What starts anew in a process that has none of its own.
    """
    before, now = len(saved.manifests), processes.count()
    if before == now:
        return []
    own = [{_short(key) for key in each["own"] if key.partition("[")[0] in names} for each in saved.manifests]
    lost, taken = set[str]().union(*own[now:]), set[str]().union(*own) - set(alone)
    said: list[str] = []
    if lost:
        said.append(f"what the others had of their own in {', '.join(sorted(lost))} is dropped")
    if now > before and alone:
        said.append(f"in the others {', '.join(alone)} start anew")
    if now > before and taken:
        said.append(f"in the others {', '.join(sorted(taken))} is the first one's")
    where = f"{saved.found.path} was saved by {before} processes, and now there are {now}: "
    return [where + "; ".join(said)] if said else []


def _short(key: str) -> str:
    """The part, and the first key within it."""
    head, bracket, _ = key.partition("]")
    return head + bracket
