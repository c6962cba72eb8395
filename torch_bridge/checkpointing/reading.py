"""Reading a checkpoint: every tensor is checked first, then each rank reads what it needs."""

import math
import operator
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from safetensors import safe_open
from torch import Tensor

from torch_bridge.checkpointing import folders, rank_files
from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.folders import CheckpointFolder
from torch_bridge.checkpointing.rank_files import DamagedError
from torch_bridge.distributed import processes

Value = TypeVar("Value")

_BLOCK = 2**21  # elements that are read at once for a digest
_LISTINGS = 5  # a run that saves and prunes meanwhile may rename or remove a folder before it is opened


class RemovedError(Exception):
    """A folder was renamed or removed after it was listed."""


class _Piece(NamedTuple):
    """A part of a tensor, in the file of one rank."""

    rank: int
    offsets: list[int]
    shape: list[int]


class SavedCheckpoint:
    """A checkpoint whose files are open: they stay readable even if the folder is removed.

    Args:
        folder: The folder.
        opened: Closes the files.

    Raises:
        DamagedError: A file is not as it was written. The tensors are checked by `check_share`.
        OSError: A file can't be read.
    """

    def __init__(self, folder: CheckpointFolder, opened: ExitStack) -> None:
        self.path, self.count = folder.path, folder.count
        self._records: list[dict[str, Any]] = []
        self._files: list[Any] = []
        self._shards: dict[str, list[_Piece]] = {}
        first = rank_files.read(folder.path, 0)
        for rank in range(first["ranks"]):
            record = rank_files.read(folder.path, rank) if rank else first
            name = rank_files.json_path(folder.path, rank).name
            if (record["count"], record["ranks"], record["rank"]) != (folder.count, first["ranks"], rank):
                raise DamagedError(f"{name} is of another checkpoint")
            if record["save"] != first["save"]:
                raise DamagedError(f"{name} is of another save of {folder.count} than that of rank 0")
            path = rank_files.tensors_path(folder.path, rank)
            rank_files.check_regular(path)
            with path.open("rb"):
                pass  # safetensors says of a file that may not be read, too, that it is missing
            try:
                # With "pread" a slice is copied into memory, and nothing else of the file.
                file: Any = opened.enter_context(cast("Any", safe_open)(path, "pt", backend="pread"))
            except OSError:
                raise
            except Exception as error:
                raise DamagedError(f"{path.name} is damaged: {error}") from error
            if set(file.keys()) != record["tensors"].keys():
                raise DamagedError(f"{path.name} has other tensors than {name}")
            self._records.append(record)
            self._files.append(file)
            for key, entry in record["tensors"].items():
                if "offsets" in entry:
                    piece = _Piece(rank, entry["offsets"], entry["shape"])
                    self._shards.setdefault(key, []).append(piece)

    @property
    def ranks(self) -> int:
        """The number of ranks that saved it."""
        return len(self._records)

    def check_parts(self, names: Sequence[str]) -> None:
        """Raises ValueError if the checkpoint lacks a part."""
        there = list(self._records[0]["parts"])
        if unknown := sorted(set(names) - set(there)):
            raise ValueError(f"{self.path} has the parts {there}, and not {unknown}")

    def part(self, name: str, rank: int) -> dict[str, Any]:
        """Return the JSON of a part as this rank saved it; that of rank 0, if it did not save another one."""
        record = self._records[rank if rank < self.ranks else 0]
        return record["parts"].get(name) or self._records[0]["parts"][name]

    def values_of_rank(self, rank: int) -> list[str]:
        """Return the keys of the values that this rank has saved for itself."""
        record = self._records[rank]
        keys = [key for key, entry in record["tensors"].items() if "offsets" not in entry]
        return [*record["parts"], *keys] if rank else []

    def check_share(self) -> None:
        """Compare this rank's share of all tensors with their digests.

        Raises:
            DamagedError: One is not as it was written.
        """
        stored = [(rank, key) for rank, record in enumerate(self._records) for key in record["tensors"]]
        for rank, key in stored[processes.rank() :: processes.world_size()]:
            entry, saved = self._records[rank]["tensors"][key], self._files[rank].get_slice(key)
            shape = saved.get_shape()
            if shape[: len(entry["shape"])] != entry["shape"]:
                raise DamagedError(f"rank-{rank}.safetensors has another shape of {key}")
            if rank_files.digest_of(_blocks(saved, shape)) != entry["sha256"]:
                raise DamagedError(f"rank-{rank}.safetensors is damaged: the SHA-256 of {key} differs")

    def check(self, reference: Reference, rank: int) -> list[_Piece]:
        """Return the pieces of a tensor on this rank.

        Raises:
            ValueError: Together they are not the whole tensor.
        """
        key, shape = reference.key, reference.shape
        for owner in (rank, 0):
            entry = self._records[owner]["tensors"].get(key) if owner < self.ranks else None
            if entry is not None and "offsets" not in entry and entry["shape"] == shape:
                return [_Piece(owner, [0] * len(shape), shape)]
        pieces = self._shards.get(key, [])
        are_inside = all(
            len(piece.shape) == len(shape)
            and all(map(operator.le, map(operator.add, piece.offsets, piece.shape), shape))
            for piece in pieces
        )
        if not are_inside or sum(math.prod(piece.shape) for piece in pieces) != math.prod(shape):
            raise ValueError(f"{key} is not there whole")
        return pieces

    def read(
        self, reference: Reference, rank: int, offsets: Sequence[int] | None = None, shape: Sequence[int] = ()
    ) -> Tensor:
        """Read a tensor, or a region of it, into host memory.

        Args:
            reference: The tensor.
            rank: The rank whose value is read, if it has saved one for itself.
            offsets: The place of the region; None for the whole tensor.
            shape: The shape of the region.
        """
        pieces = self.check(reference, rank)
        if offsets is None:
            offsets, shape = [0] * len(reference.shape), reference.shape
        found: Tensor | None = None
        for piece in pieces:
            starts = list(map(max, piece.offsets, offsets))
            ends = list(
                map(min, map(operator.add, piece.offsets, piece.shape), map(operator.add, offsets, shape))
            )
            if any(map(operator.ge, starts, ends)):
                continue
            saved = self._files[piece.rank].get_slice(reference.key)
            part = rank_files.as_saved(saved[_slices(starts, ends, piece.offsets)], reference.dtype)
            if part.dtype != reference.dtype:
                raise ValueError(f"{reference.key} is {part.dtype} in its file, and not {reference.dtype}")
            if list(part.shape) == list(shape):
                return part
            if found is None:
                found = torch.empty(shape, dtype=reference.dtype, device="cpu")
            found[_slices(starts, ends, offsets)] = part
        return torch.empty(shape, dtype=reference.dtype, device="cpu") if found is None else found


def _slices(starts: Sequence[int], ends: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(map(slice, map(operator.sub, starts, origin), map(operator.sub, ends, origin)))


def _blocks(saved: Any, shape: list[int]) -> Generator[Tensor]:
    """Yield a stored tensor in blocks of rows, so that it is not in memory as a whole."""
    if not shape:
        yield saved[...]
    elif size := math.prod(shape):  # safetensors does not slice what is empty
        rows = max(1, _BLOCK * shape[0] // size)
        for first in range(0, shape[0], rows):
            yield saved[first : min(first + rows, shape[0])]


def newest_sound(
    directory: Path, count: int | None, opened: ExitStack
) -> tuple[SavedCheckpoint | None, list[str]]:
    """Open the checkpoint of this count, or the last one in which no rank finds damage.

    A collective: every rank calls it.

    Returns:
        The checkpoint, None if there are no checkpoints; and a description of the damage of later ones.

    Raises:
        ValueError: There is no checkpoint of this count.
        RuntimeError: All of them are damaged, or in the format of version 0.2.0; or another process removes
            them faster than they can be opened.
    """
    for _ in range(_LISTINGS):
        try:
            return _newest_sound(directory, count, opened)
        except RemovedError:
            continue
    raise RuntimeError(f"the checkpoints in {directory} are removed while they are opened")


def _newest_sound(
    directory: Path, count: int | None, opened: ExitStack
) -> tuple[SavedCheckpoint | None, list[str]]:
    there, old = processes.collective_call(
        lambda: (folders.with_damaged(directory), folders.of_version_0_2(directory))
    )[0]
    if count is not None:
        if not any(folder.count == count for folder in there):
            is_old = ", but one of version 0.2.0, whose format is not read any more" if count in old else ""
            counts = sorted({folder.count for folder in there})
            raise ValueError(f"{directory} has no checkpoint {count}{is_old}; it has {counts}")
        there = [folder for folder in there if folder.count == count]
    elif old and not there:
        raise RuntimeError(
            f"{directory} has only checkpoints in the format of version 0.2.0, which is not read any more: "
            f"{old}"
        )
    wrong: list[str] = []
    for folder in reversed(there):
        here = replace(folder, path=directory / folder.path.name)  # ranks may see it under other paths
        with ExitStack() as attempt:
            saved, problem = _attempt(here, lambda here=here, attempt=attempt: SavedCheckpoint(here, attempt))
            if saved is not None and problem is None:
                _, problem = _attempt(here, saved.check_share)
            if problem is None:
                opened.enter_context(attempt.pop_all())
                return saved, wrong
        wrong.append(f"{folder.count}: {problem}")
    if there:
        what = "only damaged checkpoints" if count is None else "a damaged checkpoint"
        raise RuntimeError(f"{directory} has {what}: {'; '.join(wrong)}")
    return None, []


def _attempt(folder: CheckpointFolder, work: Callable[[], Value]) -> tuple[Value | None, str | None]:
    """Return what the work returns on this rank, and what is wrong on the first rank on which it fails."""
    value, problem = None, None
    try:
        value = work()
    except FileNotFoundError as error:
        problem = f"{Path(str(error.filename)).name} is missing"
    except Exception as error:
        problem = str(error) or type(error).__name__
    # Removed, renamed, or replaced by a later save that got the same name.
    is_removed = problem is not None and folders.recognized(folder.path) != folder
    gathered = processes.gather((problem, is_removed))
    if any(removed for _, removed in gathered):
        raise RemovedError
    return value, next((other for other, _ in gathered if other is not None), None)
