"""Choose and write each rank's share of a checkpoint.

Each rank writes its shards of DTensors. Everything else is written by rank 0, and by another rank only if it
differs there. The ranks compare digests in the gather at the start of `save`; from then on none waits for
another, so a save in the background survives the process group.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from torch_bridge.checkpointing import folders, rank_files
from torch_bridge.checkpointing.encoding import dumps
from torch_bridge.checkpointing.parts import Snapshot
from torch_bridge.checkpointing.rank_files import Saved
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_region, local_shard, mesh_of


class Summary(NamedTuple):
    """Digests from rank 0, by which the other ranks leave out what is the same there."""

    parts: dict[str, str]
    """The SHA-256 of each part's JSON."""
    tensors: dict[str, tuple[str, str, tuple[int, ...]]]
    """The SHA-256, dtype and shape of each tensor that is not sharded."""


class RankContent:
    """The parts and tensors that one rank saves."""

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._parts = {name: snapshot.encoded for name, snapshot in snapshots.items()}
        self._tensors: dict[str, Saved] = {}
        for snapshot in snapshots.values():
            for key, tensor in snapshot.tensors.items():
                if (saved := _saved(key, tensor)) is not None:
                    self._tensors[key] = saved
        # On one rank they are computed in the background.
        self._digests = _digests(self._tensors) if processes.world_size() > 1 else {}

    def summary(self) -> Summary | None:
        """Return what other ranks compare with their content; None if there are none."""
        if processes.world_size() == 1:
            return None
        parts = {name: hashlib.sha256(dumps(part).encode()).hexdigest() for name, part in self._parts.items()}
        tensors = {
            key: (digest, str(tensor.dtype), tuple(tensor.shape))
            for key, digest in self._digests.items()
            for tensor in [self._tensors[key].tensor]
        }
        return Summary(parts, tensors)

    def drop_equal(self, main: Summary | None) -> None:
        """Leave to rank 0 what is the same there."""
        here = None if processes.is_main() else self.summary()
        if here is None or main is None:
            return
        self._parts = {
            name: part for name, part in self._parts.items() if here.parts[name] != main.parts[name]
        }
        self._tensors = {
            key: saved
            for key, saved in self._tensors.items()
            if saved.offsets is not None or here.tensors[key] != main.tensors.get(key)
        }

    def write(self, directory: Path, save: str, count: int, rank: int, ranks: int, keep: int) -> None:
        """Write this rank's files. The last rank makes the checkpoint complete."""
        number = 0
        if rank == 0:
            folders.clear(directory, save)
            number = 1 + max((int(folder.number) for folder in folders.complete(directory)), default=0)
        path = folders.partial(directory, count, save)
        if rank > 0:
            folders.check_shared(path)
        path.mkdir(parents=True, exist_ok=True)
        record = {
            "save": save,
            "number": number,
            "count": count,
            "ranks": ranks,
            "rank": rank,
            "parts": self._parts,
        }
        try:
            rank_files.write(path, rank, record, self._tensors, self._digests)
        except BaseException:
            rank_files.remove(path, rank)
            raise
        if folders.is_complete(path):
            folders.commit(path, keep)


def _saved(key: str, tensor: Tensor) -> Saved | None:
    """Return what this rank saves of a tensor; None if other ranks save all of a DTensor."""
    local = local_shard(tensor).contiguous()
    if not (mesh := mesh_of(tensor)):
        return Saved(local, None)
    place = mesh.get_coordinate()
    placements = cast("Any", tensor).placements
    is_copy = any(
        coordinate > 0 and placement.is_replicate()
        for coordinate, placement in zip(place, placements, strict=True)
    )
    if is_copy or not local.numel():
        return None
    offsets, shape = local_region(tensor)
    if list(local.shape) != shape:
        raise TypeError(f"{key} is a DTensor with an unknown placement, {placements}")
    return Saved(local, offsets)


def _digests(tensors: Mapping[str, Saved]) -> dict[str, str]:
    """Return the SHA-256 of each tensor that is not sharded."""
    whole = [(key, saved.tensor) for key, saved in tensors.items() if saved.offsets is None]
    # hashlib releases the GIL. One task for each of many small tensors would take longer than their digests.
    workers = min(8, os.cpu_count() or 1)

    def digest_share(first: int) -> dict[str, str]:
        share = whole[first::workers]
        return {key: rank_files.digest_of([rank_files.as_stored(tensor)]) for key, tensor in share}

    found: dict[str, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for share in pool.map(digest_share, range(workers)):
            found |= share
    return found
