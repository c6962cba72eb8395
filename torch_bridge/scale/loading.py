"""A checkpoint as it is read: checked first, then what each process needs of it, in the place that it has."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import Metadata

from torch_bridge.scale import folders, manifest, processes, shards, structure
from torch_bridge.scale.manifest import Manifest
from torch_bridge.scale.saving import STATE, own_key
from torch_bridge.training.snapshot import mesh_of


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
        saved, problem = None, None
        try:
            saved = _open(found)
        except Exception as error:
            text = f"{error.filename} is missing" if isinstance(error, FileNotFoundError) else error
            problem = f"{found.path.name}: {text}"
        problems = [other for other in processes.gather(problem) if other is not None]
        if not problems:
            return saved, wrong
        wrong.append(problems[0])
    return None, wrong


def _open(found: folders.Complete) -> Saved:
    """Check this process's share of the files, and read what every process needs."""
    first = manifest.read(found.path / "0")
    names = [str(rank) for rank in range(first["processes"])]
    manifests = [manifest.read(found.path / name) for name in names]
    for name, each in zip(names, manifests, strict=True):
        if (each["count"], each["processes"]) != (found.count, len(names)):
            raise ValueError(f"{name}/{manifest.NAME} is of another checkpoint")
    files = [
        (found.path / name / file, *expected)
        for name, each in zip(names, manifests, strict=True)
        for file, expected in each["files"].items()
    ]
    for path, size, digest in files[processes.rank() :: processes.count()]:
        manifest.check(path, size, digest)
    rank = processes.rank()
    states = [
        json.loads((found.path / name / STATE).read_bytes())["parts"]
        for name in ("0", *names[max(rank, 1) : rank + 1])
    ]
    listed = [name for name, each in zip(names, manifests, strict=True) if shards.CONTENTS in each["files"]]
    return Saved(found, manifests, states, shards.contents(found.path, listed))


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


def other_processes(saved: Saved, alone: list[str]) -> list[str]:
    """A message where another number of processes saved this: what is dropped, and what was missing.

    Args:
        saved: The checkpoint.
        alone: What starts anew in a process that has none of its own.
    """
    before, now = len(saved.manifests), processes.count()
    if before == now:
        return []
    lost = {_short(key) for each in saved.manifests[now:] for key in each["own"]}
    taken = {_short(key) for each in saved.manifests for key in each["own"]} - set(alone)
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
