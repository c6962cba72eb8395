"""The files of a checkpoint: their names, what they can hold, and how they are written and read.

Each rank writes one safetensors file, as `torch.distributed.checkpoint` (DCP) plans it: its shards
of DTensors, and, on rank 0, all other tensors. DCP also reads the files, each rank its shards. No
other file imports safetensors or DCP. What the manifest contains is in `checkpoint_dirs`.

DCP assumes that tensors with the same name are identical. So another rank stores a tensor that
differs from rank 0's under a name with its rank:

    step.model.weight, step.random, step/structure, rank-1/step.random
"""

import hashlib
import json
import os
import re
import stat
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from torch import Tensor
from torch.distributed import checkpoint as dcp

from torch_bridge.distributed import processes

Tensors = dict[str, Tensor]
"""Tensors by name."""
Digests = dict[str, str]
"""The SHA-256 of files, by name."""
Rename = Callable[[Tensors], Tensors]
Commit = Callable[[Digests], None]

FORMAT_NUMBER = 1
"""The number in each manifest, raised when the content of any file changes its form."""
MANIFEST = "checkpoint.json"
RESERVED_NAMES = ("__metadata__",)
"""Names that the first component of a tensor's name can't have."""
STORED_DTYPES = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
}
"""The dtypes that both safetensors and DCP's reader support."""
UNSTORED_DTYPES = {torch.float8_e8m0fnu, torch.complex32, torch.complex128}
"""The dtypes that only `torch.save` supports: such a tensor stays in its part's structure."""

_EXTENSION = ".safetensors"
_RANK_FILE = re.compile(rf"rank-[0-9]+{re.escape(_EXTENSION)}")
_TENSORS = "tensors"  # the only key that DCP gets: it spends 0.1 ms on each
_SINGLE_PROCESS = re.compile("torch.distributed is disabled", re.IGNORECASE)


# The names of files, and of tensors.


def rank_file(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank-{rank}{_EXTENSION}"


def is_file_of_checkpoint(name: str) -> bool:
    """Return True for a file name that only this library gives."""
    return name == MANIFEST or _RANK_FILE.fullmatch(name) is not None


def list_files(directory: Path) -> list[str]:
    """Return the names of the files that a `TensorReader` reads, whoever wrote them."""
    return [path.name for path in directory.glob(f"*{_EXTENSION}")]


def tensor_name(path: str) -> str:
    """Return the path of a tensor in a state as a name that a file can hold."""
    # Half of a surrogate pair is not UTF-8.
    return path.encode("utf-8", "backslashreplace").decode()


def structure_name(part: str) -> str:
    """Return the name under which the structure of a part is stored."""
    return f"{part}/structure"


def name_of_rank(name: str, rank: int) -> str:
    """Return the name of a tensor that a rank stores because it differs from rank 0's."""
    return f"rank-{rank}/{name}"


# Write.


def write_tensors(
    tensors: Tensors, directory: Path, rank: int, *, rename: Rename, commit: Commit, group: Any
) -> None:
    """Write this rank's file, flushed to disk. A collective.

    Args:
        tensors: The tensors.
        directory: Where to write.
        rank: This rank.
        rename: Called on the ranks other than 0. Returns the tensors under new names if they differ
            from rank 0's.
        commit: Called on rank 0 when all ranks have written their files, with the SHA-256 of each
            file by its name.
        group: The process group; None if a single process writes.

    Raises:
        Exception: This rank's error, also of `rename` and `commit`.
        RuntimeError: Another rank has failed.
    """
    writer = _Writer(directory, rank_file(rank), commit)
    planner = _SavePlanner(rename)
    _ignore_single_process()
    with _plain_errors(rank):
        dcp.save(
            {_TENSORS: tensors},
            storage_writer=writer,
            planner=planner,
            process_group=group,
            no_dist=group is None,
        )


class _SavePlanner(dcp.DefaultSavePlanner):
    def __init__(self, rename: Rename) -> None:
        super().__init__(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
        self._rename = rename

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        tensors: Tensors = state_dict[_TENSORS]
        if not is_coordinator:
            tensors = self._rename(tensors)
        super().set_up_planner(tensors, storage_meta, is_coordinator)


class _Writer(dcp.HuggingFaceStorageWriter):
    """Writes what DCP has planned for this rank; on rank 0, commits when all ranks have written."""

    def __init__(self, directory: Path, name: str, commit: Commit) -> None:
        super().__init__(str(directory), save_distributed=True)
        self._path = directory / name
        self._commit = commit

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> "torch.futures.Future[Any]":
        # Torch's own method makes two more copies of the file, and calls fsync before it flushes.
        tensors: Tensors = {}
        places: dict[str, Any] = {}
        for item in plan.items:
            name = item.index.fqn
            data = item.tensor_data
            assert data is not None  # all items are tensors
            tensor = cast("Tensor", planner.resolve_data(item))
            tensors[name] = tensor.contiguous()
            offsets = list(data.chunk.offsets)
            places[name] = {"saved_offsets": offsets}
        metadata = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(places)}
        digest = _write_file(self._path, tensors, metadata)
        written: torch.futures.Future[Any] = torch.futures.Future()
        written.set_result([(self._path.name, digest)])
        return written

    def finish(self, metadata: Any, results: Sequence[Any]) -> None:
        digests: Digests = {}
        for written_by_rank in results:
            digests.update(written_by_rank)
        self._commit(digests)


def _write_file(path: Path, tensors: Tensors, metadata: dict[str, str]) -> str:
    """Write a file, flush it to disk, and return its SHA-256."""
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
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(mode)
    with naming_file(path), path.open("r+b") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def naming_file(path: Path) -> Generator[None]:
    """Name the file in an OSError that names none, such as those of `write` and `fsync`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


# Read.


class TensorReader:
    """Reads the tensors of a checkpoint. Its files may be damaged: then any error may be raised."""

    def __init__(self, directory: Path) -> None:
        self._reader: Any = dcp.HuggingFaceStorageReader(str(directory))
        metadata = self._reader.read_metadata()
        self._reader.read_metadata = lambda: metadata  # of every file, so not again for each read
        self.shapes: dict[str, torch.Size] = {}
        """The shape of each whole tensor, by its name."""
        for name, of_tensor in metadata.state_dict_metadata.items():
            self.shapes[name] = of_tensor.size

    def fill_tensors(self, targets: Mapping[str, Tensor]) -> None:
        """Read the tensors of these names in place; of a DTensor, this rank's shard."""
        planner = _LoadPlanner(flatten_state_dict=False)
        _ignore_single_process()
        on_cpu: AbstractContextManager[Any] = nullcontext()
        if torch.get_default_device().type != "cpu":
            on_cpu = torch.device("cpu")  # only if it is needed, since it slows down every operator
        with on_cpu, _plain_errors(rank=0):  # without collectives, each rank is rank 0 to DCP
            dcp.load(
                {_TENSORS: targets}, storage_reader=self._reader, planner=planner, no_dist=True
            )


class _LoadPlanner(dcp.DefaultLoadPlanner):
    def set_up_planner(
        self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict[_TENSORS], metadata, is_coordinator)


# Warnings and errors of DCP.


def _ignore_single_process() -> None:
    """Ignore DCP's warning about a single process."""
    # Permanent: a temporary filter would also change the filters of other threads. If it is the
    # first one already, adding it would only make Python forget which warnings it has shown.
    if warnings.filters[:1] != [("ignore", _SINGLE_PROCESS, UserWarning, None, 0)]:
        warnings.filterwarnings("ignore", _SINGLE_PROCESS.pattern, UserWarning)


@contextmanager
def _plain_errors(rank: int) -> Generator[None]:
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
