"""Write a checkpoint in the background: each rank writes one file, as DCP plans it.

Each rank writes its shards of DTensors. Rank 0 writes everything else, and the other ranks only
what differs from rank 0's. DCP assumes that tensors of equal names are equal, so a tensor that
differs is stored under a name with the number of its rank.
"""

import gc
import hashlib
import json
import os
import re
import shutil
import stat
import traceback
import warnings
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from torch import Tensor, distributed
from torch.distributed import checkpoint as dcp

from torch_bridge.checkpointing import checkpoint_dirs
from torch_bridge.checkpointing.states import SplitState
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of

# One worker, so the collectives of two saves never mix. Saves to different directories queue up,
# each with its copy of the state. A program that ends first completes the work of such an executor.
_executor = ThreadPoolExecutor(1, thread_name_prefix="torch_bridge.Checkpoints")
TENSORS = "tensors"  # the only key that DCP gets: it spends 0.1 ms on each
_SINGLE_PROCESS = re.compile("torch.distributed is disabled", re.IGNORECASE)
_groups: dict[Any, Any] = {}


@dataclass
class Save:
    """A copy of the parts, and where to write it."""

    step: int
    states: dict[str, SplitState]
    kinds: dict[str, str]
    """The kind of each part: see `CheckpointDir.parts`."""
    path: Path
    """The partial directory."""
    keep: int
    rank: int = field(default_factory=processes.rank)
    world_size: int = field(default_factory=processes.world_size)


def structure_name(part: str) -> str:
    """Return the name under which the structure of a part is stored."""
    return f"{part}/structure"


def name_of_rank(name: str, rank: int) -> str:
    """Return the name of a tensor that a rank stores because it differs from rank 0's."""
    return f"rank-{rank}/{name}"


def start_save(save: Save) -> "Future[None]":
    """Write the files in the background. A collective: every rank calls it."""
    group: Any = None
    if processes.world_size() > 1:
        group = _background_group()
    return _executor.submit(_run, save, group)


def ignore_single_process() -> None:
    """Ignore DCP's warning about a single process."""
    # Permanent: a temporary filter would also change the filters of other threads. If it is the
    # first one already, adding it would only make Python forget which warnings it has shown.
    if warnings.filters[:1] != [("ignore", _SINGLE_PROCESS, UserWarning, None, 0)]:
        warnings.filterwarnings("ignore", _SINGLE_PROCESS.pattern, UserWarning)


@contextmanager
def plain_errors(rank: int) -> Generator[None]:
    """Raise this rank's error of DCP as it was, or a RuntimeError for the error of another rank."""
    # DCP's CheckpointException is a BaseException, which would pass every `except Exception` of a
    # program.
    try:
        yield
    except dcp.CheckpointException as error:
        failures: Mapping[int, tuple[BaseException, Any]] = error.failures
    else:
        return
    if rank in failures:
        raise failures[rank][0]
    failed_rank, (cause, _) = min(failures.items())
    raise RuntimeError(f"rank {failed_rank} failed: {processes.describe_error(cause)}")


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
    gc.collect()  # DCP's error is in a cycle with such frames
    raise error from _BackgroundTraceback(text)


def _write(save: Save, group: Any) -> None:
    tensors: dict[str, Tensor] = {}
    digests = processes.collective_call(lambda: _collect_tensors(save, tensors, group), group)
    main_digests = digests[0]
    ignore_single_process()
    with plain_errors(save.rank):
        dcp.save(
            {TENSORS: tensors},
            storage_writer=_Writer(save),
            planner=_SavePlanner(main_digests, save.rank),
            process_group=group,
            no_dist=group is None,
        )


def _collect_tensors(save: Save, tensors: dict[str, Tensor], group: Any) -> dict[str, str] | None:
    """Collect the tensors of all parts; return rank 0's digests of those that are not sharded."""
    if save.rank == 0:
        checkpoint_dirs.create_partial(save.path)
    for part, state in save.states.items():
        tensors[structure_name(part)] = state.structure_bytes()
        tensors.update(state.tensors)
    if group is None or save.rank != 0:
        return None
    return _digests(tensors)


class _SavePlanner(dcp.DefaultSavePlanner):
    """Names the tensors that differ from rank 0's.

    Args:
        main_digests: Rank 0's digests of the tensors that are not sharded; None with a single
            process.
        rank: This rank.
    """

    def __init__(self, main_digests: Mapping[str, str] | None, rank: int) -> None:
        super().__init__(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
        self._main_digests = main_digests
        self._rank = rank

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        tensors: dict[str, Tensor] = state_dict[TENSORS]
        if self._main_digests is not None and not is_coordinator:
            tensors = _with_names_of_rank(tensors, self._main_digests, self._rank)
        super().set_up_planner(tensors, storage_meta, is_coordinator)


def _with_names_of_rank(
    tensors: Mapping[str, Tensor], main_digests: Mapping[str, str], rank: int
) -> dict[str, Tensor]:
    digests = _digests(tensors)
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name in digests and digests[name] != main_digests.get(name):
            name = name_of_rank(name, rank)
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


class _Writer(dcp.HuggingFaceStorageWriter):
    """Writes what DCP has planned for this rank; on rank 0, commits when all ranks have written."""

    def __init__(self, save: Save) -> None:
        super().__init__(str(save.path), save_distributed=True)
        self._save = save

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> "torch.futures.Future[Any]":
        # Torch's own method holds two more copies of the file, and calls fsync before it flushes.
        tensors: dict[str, Tensor] = {}
        places: dict[str, Any] = {}
        for item in plan.items:
            name = item.index.fqn
            data = item.tensor_data
            assert data is not None  # all items are tensors
            tensors[name] = cast("Tensor", planner.resolve_data(item)).contiguous()
            places[name] = {"saved_offsets": list(data.chunk.offsets)}
        path = self._save.path / checkpoint_dirs.rank_file(self._save.rank)
        metadata = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(places)}
        digest = _write_file(path, tensors, metadata)
        written: torch.futures.Future[Any] = torch.futures.Future()
        written.set_result([(path.name, digest)])
        return written

    def finish(self, metadata: Any, results: Sequence[Any]) -> None:
        # Once the process group is destroyed, DCP saves as a single process.
        if len(results) < self._save.world_size:
            raise RuntimeError("the process group was destroyed")
        digests_by_file: dict[str, str] = {}
        for written_by_rank in results:
            digests_by_file.update(written_by_rank)
        checkpoint_dirs.commit(
            self._save.path,
            step=self._save.step,
            parts=self._save.kinds,
            files=digests_by_file,
            world_size=self._save.world_size,
            keep=self._save.keep,
        )


def _write_file(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Write a safetensors file, flush it to disk, and return its SHA-256."""
    # safetensors creates files that no other user may read. Take the usual mode from a file that
    # Python creates.
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        # The cause, such as a full disk, is only in the text. Raise it as Python does.
        number = re.search(r"\(os error ([0-9]+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(mode)
    with checkpoint_dirs.naming_file(path), path.open("r+b") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
