"""Write a checkpoint in the background: each rank writes one file.

Each rank writes its shards of DTensors. Rank 0 writes everything else, and the other ranks only
what differs from rank 0's, under a name with the number of their rank.
"""

import hashlib
import shutil
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from torch_bridge.training.checkpointing import checkpoint_dirs, file_format
from torch_bridge.training.checkpointing.states import SplitState
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.dtensors import mesh_of
from torch_bridge.training.distributed.processes import collective_call

_groups: dict[Any, Any] = {}
"""The group for background saves, by torch's default group."""


@dataclass
class Save:
    """A copy of the parts, and where to write it."""

    step: int
    states: dict[str, SplitState]
    parts: list[str]
    """The names of the parts; `states` also has the random states."""
    path: Path
    """The partial directory."""
    keep: int
    rank: int = field(default_factory=processes.rank)
    world_size: int = field(default_factory=processes.world_size)


class BackgroundSave(threading.Thread):
    """Writes a checkpoint. A collective: every rank begins its saves in the same order.

    It waits for all saves that began before it, so that their collectives never mix. A program that
    ends waits for it. A forked process has no such thread.
    """

    def __init__(self, save: Save) -> None:
        group: Any = None
        if save.world_size > 1:
            group = _background_group()
        earlier = [thread for thread in threading.enumerate() if isinstance(thread, BackgroundSave)]
        # The arguments, and with them the copy of the parts, are freed when the thread ends.
        arguments = (save, group, earlier)
        super().__init__(
            name="torch_bridge.Checkpoints", target=self._run, args=arguments, daemon=False
        )
        self.error: Exception | None = None
        self.start()

    def _run(self, save: Save, group: Any, earlier: Sequence["BackgroundSave"]) -> None:
        """Write a checkpoint. If this fails, print the error, and remove what was written."""
        for thread in earlier:
            thread.join()
        try:
            _write(save, group)
        except Exception as error:
            if save.rank == 0:
                shutil.rmtree(save.path, ignore_errors=True)
            error.add_note(f"The save of checkpoint {save.step} in {save.path.parent} failed.")
            if group is not None and distributed.group.WORLD not in _groups:
                error.add_note(
                    "The process group was destroyed before the save was complete. Wait for the "
                    "last save with save(..., wait=True) before destroy_process_group()."
                )
            traceback.print_exception(error)  # at once, since perhaps no later call raises it
            # Its frames would keep the copied state alive, next to the copy of the next save.
            error.__cause__ = None
            error.__context__ = None
            self.error = error.with_traceback(None)


def _background_group() -> Any:
    """Return a group for the collectives of background saves, separate from the training run's."""
    world = distributed.group.WORLD
    if world not in _groups:
        _groups.clear()  # of a process group that was destroyed
        _groups[world] = distributed.new_group(backend="gloo")
    return _groups[world]


def _write(save: Save, group: Any) -> None:
    tensors: dict[str, Tensor] = {}

    def prepare() -> dict[str, str]:
        """Collect the tensors; return rank 0's digests of those that are not sharded."""
        if save.rank == 0:
            checkpoint_dirs.create_partial(save.path)
        for part, state in save.states.items():
            tensors.update(state.encode_tensors(part))
        if group is None or save.rank != 0:
            return {}
        return _digests(tensors)

    main_digests, *_ = collective_call(prepare, group)

    def write() -> tuple[str, str]:
        """Write this rank's file; return its name and its SHA-256."""
        if not save.path.exists():
            raise RuntimeError(
                f"{save.path} is missing: the ranks do not share {save.path.parent}, or another "
                "training run saves to it"
            )
        name = file_format.rank_file(save.rank)
        written = tensors
        if save.rank != 0:
            written = _with_names_of_rank(tensors, main_digests, save.rank)
        return name, file_format.write_tensors(written, save.path / name)

    files = dict(collective_call(write, group))

    def commit() -> None:
        if save.rank == 0:
            checkpoint_dirs.commit(
                save.path,
                step=save.step,
                parts=save.parts,
                files=files,
                world_size=save.world_size,
            )
            checkpoint_dirs.prune(save.path.parent, save.keep)

    collective_call(commit, group)


def _with_names_of_rank(
    tensors: Mapping[str, Tensor], main_digests: Mapping[str, str], rank: int
) -> dict[str, Tensor]:
    """Return the shards, and what differs from rank 0's, under names with the rank."""
    digests = _digests(tensors)
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in digests:
            named[name] = tensor
        elif digests[name] != main_digests.get(name):
            named[file_format.name_of_rank(name, rank)] = tensor
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
