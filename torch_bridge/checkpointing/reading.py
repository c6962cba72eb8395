"""Open a checkpoint, verify all its tensors, and read from it what each rank needs."""

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

from torch_bridge.checkpointing import checkpoint_dirs, rank_files
from torch_bridge.checkpointing.checkpoint_dirs import CheckpointDir
from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.rank_files import DamagedError
from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes

Value = TypeVar("Value")

_BLOCK_ELEMENTS = 2**21  # elements read at once for a digest
_LISTING_ATTEMPTS = 5  # a running save may rename or remove a listed checkpoint before it is opened


class RemovedError(Exception):
    """Raised if a checkpoint was renamed or removed after it was listed."""


class _Piece(NamedTuple):
    """A tensor, or a shard of one, in the file of one rank."""

    rank: int
    offsets: list[int]
    shape: list[int]


class SavedCheckpoint:
    """A checkpoint with open files, which stay readable even if it is removed.

    Args:
        checkpoint: Its directory.
        opened: The exit stack that closes the files.

    Raises:
        DamagedError: A file is not as it was written. `verify_digests` checks the tensors themselves.
        OSError: A file can't be read.
    """

    def __init__(self, checkpoint: CheckpointDir, opened: ExitStack) -> None:
        self.path, self.count = checkpoint.path, checkpoint.count
        self._records: list[dict[str, Any]] = []
        self._files: list[Any] = []
        self._shards: dict[str, list[_Piece]] = {}
        first = rank_files.read_json(checkpoint.path, 0)
        for rank in range(first["ranks"]):
            record = rank_files.read_json(checkpoint.path, rank) if rank else first
            name = checkpoint_dirs.json_path(checkpoint.path, rank).name
            if (record["count"], record["ranks"], record["rank"]) != (checkpoint.count, first["ranks"], rank):
                raise DamagedError(f"{name} belongs to a different checkpoint")
            if record["save"] != first["save"]:
                raise DamagedError(f"{name} and rank 0's file are of different saves of {checkpoint.count}")
            path = checkpoint_dirs.tensors_path(checkpoint.path, rank)
            with path.open("rb"):
                pass  # a missing permission raises here; safetensors would call the file missing
            try:
                # With "pread" a slice is copied into memory, and nothing else of the file is.
                file: Any = opened.enter_context(cast("Any", safe_open)(path, "pt", backend="pread"))
            except OSError:
                raise
            except Exception as error:
                raise DamagedError(f"{path.name} is damaged: {error}") from error
            if set(file.keys()) != record["tensors"].keys():
                raise DamagedError(f"{path.name} and {name} list different tensors")
            self._records.append(record)
            self._files.append(file)
            for key, entry in record["tensors"].items():
                if "offsets" in entry:
                    piece = _Piece(rank, entry["offsets"], entry["shape"])
                    self._shards.setdefault(key, []).append(piece)

    @property
    def world_size(self) -> int:
        """The number of ranks that saved the checkpoint."""
        return len(self._records)

    def check_parts(self, names: Sequence[str]) -> None:
        """Raise ValueError if the checkpoint lacks a part."""
        saved_names = list(self._records[0]["parts"])
        if unknown := sorted(set(names) - set(saved_names)):
            raise ValueError(f"{self.path} has the parts {saved_names}, and not {unknown}")

    def part_record(self, name: str, rank: int) -> dict[str, Any]:
        """Return the JSON of a part as this rank saved it, or rank 0's if the rank saved none."""
        record = self._records[rank if rank < self.world_size else 0]
        return record["parts"].get(name) or self._records[0]["parts"][name]

    def keys_saved_by(self, rank: int) -> list[str]:
        """Return the parts and unsharded tensors that a rank saved because they differ from rank 0's."""
        record = self._records[rank]
        keys = [key for key, entry in record["tensors"].items() if "offsets" not in entry]
        return [*record["parts"], *keys] if rank else []

    def verify_digests(self) -> None:
        """Verify the digests of this rank's share of all stored tensors, whichever ranks will read them.

        Raises:
            DamagedError: A tensor is not as it was written.
        """
        stored = [(rank, key) for rank, record in enumerate(self._records) for key in record["tensors"]]
        for rank, key in stored[processes.rank() :: processes.world_size()]:
            entry, saved = self._records[rank]["tensors"][key], self._files[rank].get_slice(key)
            shape = saved.get_shape()
            if shape[: len(entry["shape"])] != entry["shape"]:
                raise DamagedError(f"rank-{rank}.safetensors has a different shape for {key}")
            if rank_files.sha256_of(_row_blocks(saved, shape)) != entry["sha256"]:
                raise DamagedError(f"rank-{rank}.safetensors is damaged: the SHA-256 of {key} differs")

    def pieces_of(self, reference: Reference, rank: int) -> list[_Piece]:
        """Return the pieces that make up a tensor, as seen by `rank`.

        Raises:
            ValueError: They don't make up the whole tensor.
        """
        key, shape = reference.key, reference.shape
        # A whole tensor: this rank's own if it saved one, else rank 0's.
        for owner in (rank, 0):
            entry = self._records[owner]["tensors"].get(key) if owner < self.world_size else None
            if entry is not None and "offsets" not in entry and entry["shape"] == shape:
                return [_Piece(owner, [0] * len(shape), shape)]
        pieces = self._shards.get(key, [])
        # The shards of a DTensor don't overlap, so their sizes tell whether any is missing.
        if sum(math.prod(piece.shape) for piece in pieces) != math.prod(shape):
            raise ValueError(f"the shards of {key} don't make up the whole tensor")
        return pieces

    def read_tensor(
        self, reference: Reference, rank: int, offsets: Sequence[int] | None = None, shape: Sequence[int] = ()
    ) -> Tensor:
        """Read a tensor, or a region of it, into host memory.

        Args:
            reference: The tensor.
            rank: The rank whose value is read, if it saved one itself.
            offsets: The position of the region; None for the whole tensor.
            shape: The shape of the region.
        """
        # The ranks that load may hold different regions from the ranks that saved. So read only the
        # intersection of each stored piece with the region. Two ranks saved 3 rows each, and this rank of
        # three needs rows [2, 4):
        #     piece [0, 3) of rank 0: intersection [2, 3), its rows [2, 3), our rows [0, 1)
        #     piece [3, 6) of rank 1: intersection [3, 4), its rows [0, 1), our rows [1, 2)
        pieces = self.pieces_of(reference, rank)
        if offsets is None:
            offsets, shape = [0] * len(reference.shape), reference.shape
        region: Tensor | None = None
        for piece in pieces:
            starts = list(map(max, piece.offsets, offsets))
            ends = list(
                map(min, map(operator.add, piece.offsets, piece.shape), map(operator.add, offsets, shape))
            )
            if any(map(operator.ge, starts, ends)):
                continue
            saved = self._files[piece.rank].get_slice(reference.key)
            part = rank_files.from_storable(saved[_slices_from(starts, ends, piece.offsets)], reference.dtype)
            if part.dtype != reference.dtype:
                raise ValueError(f"{reference.key} is {part.dtype} in its file, and not {reference.dtype}")
            if list(part.shape) == list(shape):  # a single piece covers the region
                return part
            if region is None:
                region = torch.empty(shape, dtype=reference.dtype, device="cpu")
            region[_slices_from(starts, ends, offsets)] = part
        return torch.empty(shape, dtype=reference.dtype, device="cpu") if region is None else region


def _slices_from(starts: Sequence[int], ends: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """Return the region [starts, ends) of the whole tensor as slices of a piece that begins at `origin`."""
    return tuple(map(slice, map(operator.sub, starts, origin), map(operator.sub, ends, origin)))


def _row_blocks(saved: Any, shape: list[int]) -> Generator[Tensor]:
    """Yield a stored tensor in blocks of rows, so that it is never in memory as a whole."""
    # With blocks of 6 elements, a tensor of shape [5, 3] comes as rows [0, 2), [2, 4), [4, 5).
    if not shape:
        yield saved[...]
    elif size := math.prod(shape):  # safetensors can't slice an empty tensor
        rows = max(1, _BLOCK_ELEMENTS * shape[0] // size)
        for first in range(0, shape[0], rows):
            yield saved[first : min(first + rows, shape[0])]


def open_newest_intact(
    directory: Path, count: int | None, opened: ExitStack
) -> tuple[SavedCheckpoint | None, list[str]]:
    """Open the checkpoint of this count, or the last saved one in which no rank finds damage.

    A collective: every rank calls it.

    Returns:
        The checkpoint, or None if there are none; and descriptions of the damage to later ones.

    Raises:
        ValueError: No checkpoint has this count.
        RuntimeError: All are damaged, or another process removes them faster than they can be opened.
    """
    for _ in range(_LISTING_ATTEMPTS):
        try:
            return _open_listed(directory, count, opened)
        except RemovedError:
            continue
    raise RuntimeError(f"the checkpoints in {directory} are removed while they are opened")


def _open_listed(
    directory: Path, count: int | None, opened: ExitStack
) -> tuple[SavedCheckpoint | None, list[str]]:
    # All ranks use rank 0's listing: theirs may already differ.
    listed = processes.collective_call(lambda: checkpoint_dirs.list_with_damaged(directory))[0]
    if count is not None:
        if not any(checkpoint.count == count for checkpoint in listed):
            counts = sorted({checkpoint.count for checkpoint in listed})
            raise ValueError(f"{directory} has no checkpoint {count}; it has {checks.short_repr(counts)}")
        listed = [checkpoint for checkpoint in listed if checkpoint.count == count]
    damage: list[str] = []
    for checkpoint in reversed(listed):
        # The path of the checkpoints directory may differ by rank.
        here = replace(checkpoint, path=directory / checkpoint.path.name)
        with ExitStack() as attempt:
            saved, problem = _run_on_all_ranks(
                here, lambda here=here, attempt=attempt: SavedCheckpoint(here, attempt)
            )
            if saved is not None and problem is None:
                _, problem = _run_on_all_ranks(here, saved.verify_digests)
            if problem is None:
                opened.enter_context(attempt.pop_all())
                return saved, damage
        damage.append(f"{checkpoint.count}: {problem}")
    if listed:
        what = "only damaged checkpoints" if count is None else "a damaged checkpoint"
        raise RuntimeError(f"{directory} has {what}: {'; '.join(damage)}")
    return None, []


def _run_on_all_ranks(
    checkpoint: CheckpointDir, work: Callable[[], Value]
) -> tuple[Value | None, str | None]:
    """Return this rank's result, and the error of the first rank that has one.

    Raises:
        RemovedError: The checkpoint has changed since it was listed, which explains an error.
    """
    value, problem = None, None
    try:
        value = work()
    except FileNotFoundError as error:
        problem = f"{Path(str(error.filename)).name} is missing"
    except Exception as error:
        problem = str(error) or type(error).__name__
    # It may have been removed, renamed, or replaced by a later save that got the same name.
    is_removed = problem is not None and checkpoint_dirs.identify_checkpoint(checkpoint.path) != checkpoint
    gathered = processes.gather((problem, is_removed))
    if any(removed for _, removed in gathered):
        raise RemovedError
    return value, next((message for message, _ in gathered if message is not None), None)
