"""Files of tensors, in the format of `torch.distributed.checkpoint`: each rank writes its own shards.

Its collectives are not used, so that a save can go on in the background when the process group is gone.
Instead each rank writes a checkpoint by itself, and the reader joins the lists of contents of all ranks.
Its pickles are not used either, except for the lists of contents, which a restricted unpickler reads.
"""

import dataclasses
import math
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Never, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from torch_bridge.distributed.dtensors import local_part

CONTENTS = ".metadata"  # FileSystemWriter's name for the list of contents
_ALLOWED = {  # by module
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors; of a DTensor this rank's shard. No file is made where there is nothing to write.

    Of several ranks that hold the same shard, the first in each mesh dimension writes it.
    """
    own = {key: tensor for key, tensor in tensors.items() if _is_written_here(tensor)}
    if not own:
        return
    planner, writer = DefaultSavePlanner(flatten_state_dict=False), _Writer(folder, per_thread_copy_ahead=0)
    planner.set_up_planner(own, is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def contents(folder: Path, files: Mapping[str, Collection[str]]) -> Metadata:
    """The lists of contents of all ranks, joined to one.

    Args:
        folder: The folder of the checkpoint, with a folder for each rank.
        files: The names of the files that were checked, by the name of the rank's folder.

    Raises:
        ValueError: A list of contents can't be read, names something else than tensors or another file, or
            all lists together leave a part of a tensor out.
    """
    joined = Metadata({}, storage_data={})
    for name in files:
        metadata = _Unpickler.read(folder / name / CONTENTS)
        for key, tensor in metadata.state_dict_metadata.items():
            tensor = cast("TensorStorageMetadata", tensor)
            known = joined.state_dict_metadata.setdefault(key, dataclasses.replace(tensor, chunks=[]))
            cast("TensorStorageMetadata", known).chunks.extend(tensor.chunks)
        for index, place in metadata.storage_data.items():
            if place.relative_path not in files[name]:
                raise ValueError(f"{CONTENTS} names {place.relative_path}, which is none of its files")
            path = f"{name}/{place.relative_path}"
            joined.storage_data[index] = dataclasses.replace(place, relative_path=path)
    for key, tensor in joined.state_dict_metadata.items():
        tensor = cast("TensorStorageMetadata", tensor)
        if sum(math.prod(chunk.sizes) for chunk in tensor.chunks) != tensor.size.numel():
            raise ValueError(f"{key} is not there whole")
    return joined


def fill(folder: Path, metadata: Metadata, tensors: Mapping[str, Tensor]) -> None:
    """Read what was saved under these keys into the tensors; into a DTensor, this rank's shard."""
    wanted = {key: tensor for key, tensor in tensors.items() if tensor.numel()}
    planner, reader = _Planner(flatten_state_dict=False), FileSystemReader(folder)
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


class _Writer(FileSystemWriter):
    def storage_meta(self) -> None:
        """Leave out the paths of this machine."""


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: Any) -> Never:
        """Refuse: torch would unpickle anything that is not a tensor."""
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor")


class _Unpickler(pickle.Unpickler):
    """Knows the classes that a list of contents is made of, and none that could run code."""

    @classmethod
    def read(cls, path: Path) -> Metadata:
        with path.open("rb") as file:
            try:
                found = cls(file).load()
            except Exception as error:
                raise ValueError(f"{path.name} can't be read: {error}") from error
        if not isinstance(found, Metadata):
            raise ValueError(f"{path.name} is not a list of contents")
        return found

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        is_dtype = module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype)
        if is_dtype or global_name in _ALLOWED.get(module_name, ()):
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
