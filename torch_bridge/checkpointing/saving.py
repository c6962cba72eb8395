"""Write a checkpoint in the background: each rank writes one file.

Each rank writes its shards of DTensors. Rank 0 writes everything else, and the other ranks only
what differs from rank 0's, under a name with the number of their rank.
"""

import gc
import hashlib
import shutil
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from torch_bridge.checkpointing import checkpoint_dirs, file_format
from torch_bridge.checkpointing.states import SplitState
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of


def _new_executor() -> ThreadPoolExecutor:
    # One worker, so the collectives of two saves never mix. Saves to different directories queue
    # up, each with its copy of the state. A program that ends first completes the work of such an
    # executor.
    return ThreadPoolExecutor(1, thread_name_prefix="torch_bridge.Checkpoints")


executor = _new_executor()
_groups: dict[Any, Any] = {}


@dataclass
class Save:
    """A copy of the parts, and where to write it."""

    step: int
    states: dict[str, SplitState]
    forms: dict[str, str]
    """The form of each part: see `Manifest`."""
    path: Path
    """The partial directory."""
    keep: int
    rank: int = field(default_factory=processes.rank)
    world_size: int = field(default_factory=processes.world_size)


def begin_save(save: Save) -> "Future[None]":
    """Write the files in the background. A collective: every rank calls it."""
    group: Any = None
    if processes.world_size() > 1:
        group = _background_group()
    return executor.submit(_run, save, group)


def replace_executor() -> None:
    """Use a new worker: a forked process has no thread of its parent's."""
    global executor
    executor = _new_executor()


def _background_group() -> Any:
    """Return a group for the collectives of background saves, separate from the training run's."""
    world = distributed.group.WORLD
    if world not in _groups:
        _groups.clear()  # of a process group that was destroyed
        _groups[world] = distributed.new_group(backend="gloo")
    return _groups[world]


def _has_background_group() -> bool:
    return distributed.is_initialized() and distributed.group.WORLD in _groups


class _BackgroundTraceback(Exception):
    """The traceback of an error in the background, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _run(save: Save, group: Any) -> None:
    try:
        _write(save, group)
    except Exception as caught:
        error: Exception = caught
        text = "".join(traceback.format_exception(caught))
    else:
        return
    if save.rank == 0:
        shutil.rmtree(save.path, ignore_errors=True)
    if group is not None and not _has_background_group():
        error = RuntimeError(
            f"checkpoint {save.step} is lost: the process group was destroyed before it was "
            "complete. Wait for the last save with save(..., wait=True) before "
            "destroy_process_group()"
        )
    del save
    # The frames of the error would keep the copied state alive, next to the copy of the next save.
    error.__context__ = None
    error.__cause__ = None
    error.__traceback__ = None
    gc.collect()  # the original error may be in a cycle with such frames
    raise error from _BackgroundTraceback(text)


def _write(save: Save, group: Any) -> None:
    tensors: dict[str, Tensor] = {}
    digests = processes.collective_call(lambda: _collect_tensors(save, tensors, group), group)
    main_digests = digests[0]

    def rename(copied: dict[str, Tensor]) -> dict[str, Tensor]:
        return _with_names_of_rank(copied, main_digests, save.rank)

    def commit(files: dict[str, str]) -> None:
        # Once the process group is destroyed, each rank writes as a single process.
        if len(files) < save.world_size:
            raise RuntimeError("the process group was destroyed")
        checkpoint_dirs.commit(
            save.path,
            step=save.step,
            parts=save.forms,
            files=files,
            world_size=save.world_size,
            keep=save.keep,
        )

    file_format.write_tensors(
        tensors, save.path, save.rank, rename=rename, commit=commit, group=group
    )


def _collect_tensors(save: Save, tensors: dict[str, Tensor], group: Any) -> dict[str, str]:
    """Collect the tensors of all parts; return rank 0's digests of those that are not sharded.

    Empty on other ranks, and without a process group.
    """
    if save.rank == 0:
        checkpoint_dirs.create_partial(save.path)
    for part, state in save.states.items():
        tensors[file_format.structure_name(part)] = state.structure_bytes()
        tensors.update(state.tensors)
    if group is None or save.rank != 0:
        return {}
    return _digests(tensors)


def _with_names_of_rank(
    tensors: Mapping[str, Tensor], main_digests: Mapping[str, str], rank: int
) -> dict[str, Tensor]:
    digests = _digests(tensors)
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name in digests and digests[name] != main_digests.get(name):
            name = file_format.name_of_rank(name, rank)
        named[name] = tensor
    return named


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a digest of the dtype, the shape and the bytes of each tensor that is not sharded."""
    digests: dict[str, str] = {}
    for name, tensor in tensors.items():
        if mesh_of(tensor) is None:
            digests[name] = _digest(tensor)
    return digests


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.numel():
        # For a single element, flatten() may keep a stride other than 1, which view(dtype) rejects.
        flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
