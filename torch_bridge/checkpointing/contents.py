"""The lists of contents of a checkpoint, `.metadata` of each rank: read without trusting them.

Each is a pickle that `torch.distributed.checkpoint` writes. It is read into plain records, of classes that
exist for this one reading: whatever the pickle sets, on an object or on a class, reaches nothing else.
torch's own objects are then made of the records, each field checked.
"""

import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties

CONTENTS = ".metadata"  # FileSystemWriter's name for the list of contents
_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "Metadata", "MetadataIndex")),
    *((_METADATA, name) for name in ("TensorProperties", "TensorStorageMetadata")),
}
_VALUES = {("torch", "Size"), ("torch.serialization", "_get_layout"), (_METADATA, "_MEM_FORMAT_ENCODING")}


def joined(folder: Path, files: Mapping[str, Mapping[str, tuple[int, str]]]) -> Metadata:
    """The lists of contents of all ranks, joined to one.

    Args:
        folder: The folder of the checkpoint, with a folder for each rank.
        files: The files that were checked, with their sizes, by the name of the rank's folder.

    Raises:
        ValueError: A list of contents can't be read, names something else than tensors or another file, or
            all lists together leave a part of a tensor out.
    """
    metadata = Metadata({}, storage_data={})
    tensors = cast("dict[str, TensorStorageMetadata]", metadata.state_dict_metadata)
    for name in files:
        found, places = _read(folder / name / CONTENTS)
        for key, tensor in found.items():
            known = tensors.setdefault(key, TensorStorageMetadata(tensor.properties, tensor.size, []))
            if known.size != tensor.size or known.properties.dtype != tensor.properties.dtype:
                raise ValueError(f"{key} is of several shapes or dtypes")
            known.chunks.extend(tensor.chunks)
        for index, place in places.items():
            if place.relative_path not in files[name]:
                raise ValueError(f"{CONTENTS} names {place.relative_path}, which is none of its files")
            if place.offset + place.length > files[name][place.relative_path][0]:
                raise ValueError(f"{CONTENTS} names a place behind the end of {place.relative_path}")
            path = f"{name}/{place.relative_path}"
            metadata.storage_data[index] = _StorageInfo(path, place.offset, place.length)
    for key, tensor in tensors.items():
        if sum(math.prod(chunk.sizes) for chunk in tensor.chunks) != tensor.size.numel():
            raise ValueError(f"{key} is not there whole")
        for chunk in tensor.chunks:
            place = metadata.storage_data.get(MetadataIndex(key, chunk.offsets))
            size = math.prod(chunk.sizes) * tensor.properties.dtype.itemsize
            if place is None or place.length < size:
                raise ValueError(f"{key} is not there whole")
    return metadata


class _Record:
    """An object of the pickle: the name of its class there, and what the pickle says of it."""

    kind = ""
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Knows the names that a list of contents is made of, and gives a new class or function for each."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._made: dict[tuple[str, str], Any] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == "torch" and isinstance(dtype := getattr(torch, global_name, None), torch.dtype):
            return dtype
        name = module_name, global_name
        if name in _RECORDS:
            return self._made.setdefault(name, type("Record", (_Record,), {"kind": global_name}))
        if name in _VALUES:

            def named(value: Any) -> tuple[str, Any]:
                return global_name, value

            return self._made.setdefault(name, named)
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")


def _read(path: Path) -> tuple[dict[str, TensorStorageMetadata], dict[MetadataIndex, _StorageInfo]]:
    """The tensors of one list, and where each of their parts lies."""
    with path.open("rb") as file:
        try:
            found = _Reader(file).load()
            if not isinstance(found, _Record) or type(found).kind != "Metadata":
                raise _NotAListError
            fields = _fields(found, "Metadata")
            tensors = {
                _typed(key, str): _tensor(value)
                for key, value in _typed(fields["state_dict_metadata"], dict).items()
            }
            places = {
                _index(index): _place(place) for index, place in _typed(fields["storage_data"], dict).items()
            }
        except _NotAListError:
            raise ValueError(f"{path.name} is not a list of contents") from None
        except Exception as error:
            raise ValueError(f"{path.name} can't be read: {error}") from error
    return tensors, places


class _NotAListError(Exception):
    """The pickle is of something else."""


def _fields(record: Any, kind: str) -> dict[str, Any]:
    """The fields of a record of this class."""
    if not isinstance(record, _Record) or vars(record).keys() != {"state"} or type(record).kind != kind:
        raise ValueError(f"{type(record).__name__} in place of {kind}")
    return _typed(record.state, dict)


def _typed(value: Any, kind: Callable[..., Any]) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value).__name__} in place of {getattr(kind, '__name__', kind)}")
    return value


def _count(value: Any) -> int:
    if _typed(value, int) < 0:
        raise ValueError(f"{value} in place of a count")
    return value


def _size(value: Any) -> torch.Size:
    name, numbers = _typed(value, tuple)
    if name != "Size":
        raise ValueError(f"{name} in place of Size")
    return torch.Size(map(_count, numbers))


def _tensor(record: Any) -> TensorStorageMetadata:
    fields = _fields(record, "TensorStorageMetadata")
    properties = fields["properties"]
    if not isinstance(properties, _Record) or type(properties).kind != "TensorProperties":
        raise ValueError("something in place of TensorProperties")
    dtype, *_ = _typed(properties.state, tuple)  # the other fields are not used any more
    chunks = [_fields(chunk, "ChunkStorageMetadata") for chunk in _typed(fields["chunks"], list)]
    return TensorStorageMetadata(
        TensorProperties(_typed(dtype, torch.dtype)),
        _size(fields["size"]),
        [ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _index(record: Any) -> MetadataIndex:
    fields = _fields(record, "MetadataIndex")
    offset, index = fields.get("offset"), fields.get("index")
    return MetadataIndex(
        _typed(fields["fqn"], str),
        None if offset is None else _size(offset),
        None if index is None else _count(index),
    )


def _place(record: Any) -> _StorageInfo:
    fields = _fields(record, "_StorageInfo")
    if fields.get("transform_descriptors") is not None:
        raise ValueError("its files are transformed")
    return _StorageInfo(
        _typed(fields["relative_path"], str), _count(fields["offset"]), _count(fields["length"])
    )
