"""The files of a checkpoint: their names, what they can hold, and how they are written and read.

Each rank writes one safetensors file, in the layout of `torch.distributed.checkpoint` (DCP): its
shards of DTensors, and, on rank 0, all other tensors. DCP reads the files, each rank its shards.
What the manifest contains is in `checkpoint_dirs`.

Another rank stores a tensor that differs from rank 0's under a name with its rank:

    step.model.weight, step.random, step/structure, rank-1/step.random
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from torch import Tensor
from torch.distributed import checkpoint as dcp

from torch_bridge.training.distributed.dtensors import is_first_copy, local_shard, mesh_of

FORMAT_NUMBER = 1
"""The number in each manifest, raised when the content of any file changes its form."""
MANIFEST = "checkpoint.json"
STORED_DTYPES = {
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
}
"""The dtypes that both safetensors and DCP's reader support."""

_EXTENSION = ".safetensors"


# The names of files, and of tensors.


def rank_file(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank-{rank}{_EXTENSION}"


def list_files(directory: Path) -> list[str]:
    """Return the names of the files that a `TensorReader` reads, whoever wrote them."""
    return [path.name for path in directory.glob(f"*{_EXTENSION}")]


def structure_name(part: str) -> str:
    """Return the name under which the structure of a part is stored."""
    return f"{part}/structure"


def name_of_rank(name: str, rank: int) -> str:
    """Return the name of a tensor that a rank stores because it differs from rank 0's."""
    return f"rank-{rank}/{name}"


# Write.


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Write this rank's file, flushed to disk, and return its SHA-256.

    Of a DTensor only this rank's shard is written, and its place, which DCP's reader expects in the
    file's header; a shard that several ranks have is written by the first of them.
    """
    shards: dict[str, Tensor] = {}
    places: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if mesh_of(tensor) is None:
            offsets = [0] * tensor.dim()
        elif is_first_copy(tensor):
            [chunk] = cast("Any", tensor).__create_chunk_list__()
            offsets = list(chunk.offsets)
        else:
            continue
        shards[name] = local_shard(tensor).contiguous()
        places[name] = {"saved_offsets": offsets}
    return _write_file(path, shards, {"format": "pt", "DCP_SHARDING_INFO": json.dumps(places)})


def _write_file(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Write a file, flush it to disk, and return its SHA-256."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    # safetensors creates files that no other user may read. Take the usual mode from the directory,
    # without the permission to enter it.
    path.chmod(path.parent.stat().st_mode & 0o666)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


# Read.


class TensorReader:
    """Reads the tensors of a checkpoint. Its files may be damaged: then any error may be raised."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._reader: Any = dcp.HuggingFaceStorageReader(str(directory))
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.shapes: dict[str, torch.Size] = {}
        """The shape of each whole tensor, by its name."""
        for name, of_tensor in self._metadata.state_dict_metadata.items():
            self.shapes[name] = of_tensor.size

    def empty_bytes(self, name: str) -> Tensor:
        """Return an uninitialized tensor for a value that is stored as bytes."""
        return torch.empty(self.shapes[name], dtype=torch.uint8, device="cpu")

    def fill_tensors(self, targets: Mapping[str, Tensor]) -> None:
        """Read the tensors of these names in place; of a DTensor, this rank's shard."""
        # As `dcp.load` reads them without collectives. But that also warns that there are none,
        # reads the metadata again, and spends 0.1 ms on each name.
        planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(dict(targets), self._metadata, is_coordinator=True)
        with torch.device("cpu"):  # the program may have set a different default device
            plan = self._reader.prepare_local_plan(planner.create_local_plan())
            [plan] = self._reader.prepare_global_plan(planner.create_global_plan([plan]))
            self._reader.read_data(planner.finish_plan(plan), planner).wait()
