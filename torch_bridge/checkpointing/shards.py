"""Tensors in a folder by `torch.distributed.checkpoint`: each process writes what it holds of them.

Without its collectives, so that writing goes on in the background whatever becomes of the process group:
a process writes a checkpoint of its own, and a reader joins those of all. And without its pickles, but for
the list of contents, which a restricted unpickler reads.
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

CONTENTS = ".metadata"  # the name that FileSystemWriter gives to the list of contents
_NAMES = {
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
    """Write the tensors, and of DTensors what this process is the first to hold; nothing if that is none."""
    held = {key: tensor for key, tensor in tensors.items() if _is_held(tensor)}
    if not held:
        return
    planner, writer = DefaultSavePlanner(flatten_state_dict=False), _Writer(folder, per_thread_copy_ahead=0)
    planner.set_up_planner(held, is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def contents(folder: Path, files: Mapping[str, Collection[str]]) -> Metadata:
    """What the processes wrote into their folders, as one list.

    Args:
        folder: What these folders are in.
        files: Those that were checked, by the name of the folder.

    Raises:
        ValueError: A list of contents that says more than where in these files tensors are.
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
    """Read what was saved under these keys into the tensors; of a DTensor, what this process holds."""
    wanted = {key: tensor for key, tensor in tensors.items() if tensor.numel()}
    planner, reader = _Planner(flatten_state_dict=False), FileSystemReader(folder)
    planner.set_up_planner(wanted, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _is_held(tensor: Tensor) -> bool:
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
        """Nothing of this machine's paths."""


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: Any) -> Never:
        """What is no tensor would be unpickled."""
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor")


class _Unpickler(pickle.Unpickler):
    """Knows what lists of contents are made of, and nothing that could be run."""

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
        if is_dtype or global_name in _NAMES.get(module_name, ()):
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
