"""Files of tensors, in the format of `torch.distributed.checkpoint`: each rank writes its own shards.

Its collectives are not used, so that a save can go on in the background when the process group is gone.
Instead each rank writes a checkpoint by itself, and the reader joins the lists of contents of all ranks.
Its pickles are not used either, except for the lists of contents, which `contents.py` reads.
"""

import io
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

import torch
from torch import Tensor
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    LoadPlan,
    LoadPlanner,
    Metadata,
)
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.tensor import DTensor
from torch.futures import Future

from torch_bridge.checkpointing import files
from torch_bridge.distributed.dtensors import local_part

_BLOCK = 2**20  # elements that are added at once


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors; of a DTensor this rank's shard. No file is made where there is nothing to write.

    Of several ranks that hold the same shard, the first in each mesh dimension writes it.
    """
    own = {key: tensor for key, tensor in tensors.items() if _is_written_here(tensor)}
    if not own:
        return
    planner, writer = DefaultSavePlanner(flatten_state_dict=False), _Writer(folder, per_thread_copy_ahead=0)
    planner.set_up_planner(own, is_coordinator=True)
    writer.fs = _Files()
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def fill(folder: Path, metadata: Metadata, tensors: Mapping[str, Tensor]) -> None:
    """Read what was saved under these keys into the tensors; into a DTensor, this rank's shard."""
    _read(FileSystemReader(folder), metadata, tensors)


def add(folder: Path, metadata: Metadata, tensors: Mapping[str, Tensor], weight: float) -> None:
    """Add `weight` times what was saved under these keys to the tensors; to a DTensor, this rank's shard.

    Only one saved piece is in memory at a time: what one rank has written of one tensor.
    """
    _read(_AddingReader(folder, weight), metadata, tensors)


def _read(reader: FileSystemReader, metadata: Metadata, tensors: Mapping[str, Tensor]) -> None:
    wanted = {key: tensor for key, tensor in tensors.items() if tensor.numel()}
    planner = _Planner(flatten_state_dict=False)
    planner.set_up_planner(wanted, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _is_written_here(tensor: Tensor) -> bool:
    if not isinstance(tensor, DTensor):
        return tensor.numel() > 0
    coordinates = tensor.device_mesh.get_coordinate()
    return (
        coordinates is not None
        and local_part(tensor).numel() > 0
        and not any(
            coordinate > 0 and placement.is_replicate()
            for coordinate, placement in zip(coordinates, tensor.placements, strict=True)
        )
    )


class _Files(FileSystem):
    """Names the file in an error of the system."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        with files.naming(Path(path)), super().create_stream(path, mode) as stream:
            yield stream


class _Writer(FileSystemWriter):
    def storage_meta(self) -> None:
        """Leave out the paths of this machine."""


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: Any) -> Never:
        """Refuse: torch would unpickle anything that is not a tensor."""
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor")


class _AddingReader(FileSystemReader):
    """Adds what it reads, times a weight, where torch's own reader copies it."""

    def __init__(self, folder: Path, weight: float) -> None:
        super().__init__(folder)
        self._weight = weight

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            with self.fs.create_stream(self.fs.concat_path(self.path, place.relative_path), "rb") as file:
                saved = torch.load(self._slice_file(file, place), map_location="cpu", weights_only=True)
            wanted = zip(item.storage_offsets, item.lengths, strict=True)
            piece = saved[tuple(slice(offset, offset + length) for offset, length in wanted)]
            total = planner.resolve_tensor(item).detach()
            if total.shape != piece.shape:
                raise ValueError(f"{item.dest_index.fqn} is not there whole")
            _add(total, piece, self._weight)
        done = Future[None]()
        done.set_result(None)
        return done


def _add(total: Tensor, piece: Tensor, weight: float) -> None:
    """total += weight · piece, in parts, so that little memory is taken beside the two.

    A product and a sum, each rounded by itself: a fused operation, which torch uses for some elements and
    not for others, would give a sharded tensor other bits than a whole one.
    """
    if not total.ndim:
        total, piece = total.reshape(1), piece.reshape(1)
    rows = max(1, _BLOCK * len(total) // max(1, total.numel()))
    for first in range(0, len(total), rows):
        part, added = total[first : first + rows], piece[first : first + rows]
        part.add_(added.to(part.device, part.dtype) * weight)
