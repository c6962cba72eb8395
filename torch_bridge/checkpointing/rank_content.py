"""Choose and write each rank's share of a checkpoint.

Each rank writes its shards of DTensors. Rank 0 writes everything else, and another rank only what differs
from rank 0's. The ranks compare digests in the gather at the start of `save`. After that no rank waits for
another, so a background save survives the process group.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from torch_bridge.checkpointing import checkpoint_dirs, rank_files
from torch_bridge.checkpointing.encoding import to_json
from torch_bridge.checkpointing.parts import Snapshot, parameter_names
from torch_bridge.checkpointing.rank_files import SavedTensor
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_region, local_shard, mesh_of


class DigestSummary(NamedTuple):
    """Digests of what rank 0 writes, so that other ranks need not write it again."""

    parts: dict[str, str]
    """The SHA-256 of each part's JSON."""
    tensors: dict[str, tuple[str, str, tuple[int, ...]]]
    """The SHA-256, dtype and shape of each unsharded tensor."""


class RankContent:
    """The parts and tensors that one rank saves."""

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._parts = {name: snapshot.encoded for name, snapshot in snapshots.items()}
        self._tensors: dict[str, SavedTensor] = {}
        for snapshot in snapshots.values():
            for key, tensor in snapshot.tensors.items():
                if (saved := _share_of_this_rank(key, tensor)) is not None:
                    self._tensors[key] = saved
        self.name_digests = {
            name: _sha256_of_json(parameter_names(snapshot.encoded))
            for name, snapshot in snapshots.items()
            if any(map(mesh_of, snapshot.tensors.values()))
        }
        """For each part with shards, a digest of its `parameter_names`, which must be equal on all ranks."""
        # A single rank has nothing to compare before it returns to training: it hashes in the background.
        self._digests = _digest_unsharded(self._tensors) if processes.world_size() > 1 else {}

    def summarize(self) -> DigestSummary | None:
        """Return the digests to compare between ranks; None on a single rank."""
        if processes.world_size() == 1:
            return None
        parts = {name: _sha256_of_json(part) for name, part in self._parts.items()}
        tensors = {
            key: (digest, str(tensor.dtype), tuple(tensor.shape))
            for key, digest in self._digests.items()
            for tensor in [self._tensors[key].tensor]
        }
        return DigestSummary(parts, tensors)

    def drop_equal(self, main_summary: DigestSummary | None) -> None:
        """Drop the parts and tensors that rank 0 writes anyway, because they are equal on both ranks."""
        here = None if processes.is_main() else self.summarize()
        if here is None or main_summary is None:
            return
        self._parts = {
            name: part for name, part in self._parts.items() if here.parts[name] != main_summary.parts[name]
        }
        self._tensors = {
            key: saved
            for key, saved in self._tensors.items()
            if saved.offsets is not None or here.tensors[key] != main_summary.tensors.get(key)
        }

    def write_files(
        self, directory: Path, save_id: str, count: int, rank: int, ranks: int, keep: int
    ) -> None:
        """Write this rank's files. The rank that completes the checkpoint commits it."""
        path, save_index = checkpoint_dirs.begin_save(directory, count, save_id, rank)
        record = {
            "save": save_id,
            "number": save_index,
            "count": count,
            "ranks": ranks,
            "rank": rank,
            "parts": self._parts,
        }
        try:
            rank_files.write_files(path, rank, record, self._tensors, self._digests)
        except BaseException:
            checkpoint_dirs.discard(path, rank, ranks)
            raise
        # Each rank writes its JSON file and then checks whether all are there. At least the rank that writes
        # the last one sees all, so no rank waits for another; if two see all, one rename succeeds.
        if checkpoint_dirs.is_complete(path):
            checkpoint_dirs.commit(path, keep)


def _sha256_of_json(structure: Any) -> str:
    return hashlib.sha256(to_json(structure).encode()).hexdigest()


def _share_of_this_rank(key: str, tensor: Tensor) -> SavedTensor | None:
    """Return the part of a tensor that this rank saves, or None if other ranks save all of it."""
    local = local_shard(tensor).contiguous()
    if not (mesh := mesh_of(tensor)):
        return SavedTensor(local, None)
    place = mesh.get_coordinate()
    placements = cast("Any", tensor).placements
    # Of the ranks that hold the same replica, only the first along that mesh dimension saves it.
    is_copy = any(
        coordinate > 0 and placement.is_replicate()
        for coordinate, placement in zip(place, placements, strict=True)
    )
    if is_copy or not local.numel():
        return None
    offsets, shape = local_region(tensor)
    if list(local.shape) != shape:
        raise TypeError(f"{key} is a DTensor with an unknown placement, {placements}")
    return SavedTensor(local, offsets)


def _digest_unsharded(tensors: Mapping[str, SavedTensor]) -> dict[str, str]:
    """Return the SHA-256 of each unsharded tensor."""
    whole = [(key, saved.tensor) for key, saved in tensors.items() if saved.offsets is None]
    # hashlib releases the GIL, so threads help. One task per tensor would cost more than hashing small ones:
    # thread i takes every tensor i, i + workers, i + 2·workers, …
    workers = min(8, os.cpu_count() or 1)

    def digest_share(first: int) -> dict[str, str]:
        share = whole[first::workers]
        return {key: rank_files.sha256_of([rank_files.to_storable(tensor)]) for key, tensor in share}

    digests: dict[str, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for share in pool.map(digest_share, range(workers)):
            digests |= share
    return digests
