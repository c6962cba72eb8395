"""The two files that each rank writes into a checkpoint: `rank-R.safetensors` and `rank-R.json`.

The JSON file comes last, so a rank has written everything if its JSON file exists. The file ends with the
SHA-256 of all bytes before that entry. It has no line breaks; they are added here for reading:

    {"format":"torch_bridge 1","save":"5e0c…","number":7,"count":30,"ranks":2,"rank":0,
     "parts":{"step":{"of":"state","state":{"model":{"0.weight":
                 {"$":"tensor","key":"step.model.0.weight","dtype":"float32","shape":[4,3]}, …}, …}}},
     "tensors":{"step.model.0.weight":{"shape":[2,3],"offsets":[0,0],"sha256":"91ab…"}, …},
     "sha256":"c0de…"}

A tensor with offsets is a shard: here rows 0 and 1 of the four.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from torch import Tensor

from torch_bridge.checkpointing.encoding import to_json

_FORMAT = "torch_bridge 1"
_HEAD = re.compile(
    rb'\{"format":"torch_bridge 1","save":"[0-9a-f]{32}","number":([0-9]{1,18}),"count":[0-9]+,'
    rb'"ranks":([0-9]{1,18}),"rank":0,'
)
_HEAD_BYTES = 512  # enough for the longest match
_DIGEST = ',"sha256":"{}"}}'
_DIGEST_BYTES = len(_DIGEST.format("0" * 64))
_STORED_AS_REAL = (torch.complex32, torch.complex128)  # safetensors has only complex64


class DamagedError(ValueError):
    """Raised if a file is not as it was written."""


class Head(NamedTuple):
    """The first entries of rank 0's JSON file."""

    save_index: int
    """The index of the save in this directory; the last save has the highest."""
    world_size: int


class SavedTensor(NamedTuple):
    """A tensor to be saved, or this rank's shard of it: contiguous, in host memory."""

    tensor: Tensor
    offsets: list[int] | None
    """The position of the shard in the whole tensor; None if this is the whole tensor."""


def json_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def tensors_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.safetensors"


def is_rank_file(path: Path) -> bool:
    return re.fullmatch(r"rank-[0-9]+\.(json|safetensors)", path.name) is not None


def write_files(
    folder: Path,
    rank: int,
    record: Mapping[str, Any],
    tensors: Mapping[str, SavedTensor],
    digests: Mapping[str, str],
) -> None:
    """Write both files of a rank, and flush them to disk.

    Args:
        folder: The folder of the checkpoint.
        rank: The rank.
        record: The entries of the JSON file from `save` to `parts`.
        tensors: The tensors by key.
        digests: The SHA-256 of those tensors for which it is already known.
    """
    path = tensors_path(folder, rank)
    stored = {key: to_storable(saved.tensor) for key, saved in tensors.items()}
    # safetensors creates files that nobody else may read. Take the usual mode from a file made by Python.
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(stored, path)
    except SafetensorError as error:
        # The cause, such as a full disk, is only in the text. Raise it as Python does.
        if (number := re.search(r"\(os error ([0-9]+)\)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(mode)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    entries: dict[str, dict[str, Any]] = {}
    for key, saved in tensors.items():
        entries[key] = {"shape": list(saved.tensor.shape)}
        if saved.offsets is not None:
            entries[key]["offsets"] = saved.offsets
        entries[key]["sha256"] = digests.get(key) or sha256_of([stored[key]])
    text = to_json({"format": _FORMAT, **record, "tensors": entries})[:-1]  # the digest closes the brace
    _write_json(json_path(folder, rank), text.encode())


def _write_json(path: Path, text: bytes) -> None:
    """Write a JSON file with its digest, or no file if the process is killed."""
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(text + _DIGEST.format(hashlib.sha256(text).hexdigest()).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk's error names no file
    unfinished.rename(path)  # atomic: the file exists as a whole or not at all


def remove_files(folder: Path, rank: int) -> None:
    """Remove the unfinished files of a rank."""
    with suppress(OSError):
        for path in (tensors_path(folder, rank), json_path(folder, rank).with_suffix(".tmp")):
            path.unlink(missing_ok=True)


def to_storable(tensor: Tensor) -> Tensor:
    """Return a view of a tensor in a dtype that safetensors supports."""
    return torch.view_as_real(tensor) if tensor.dtype in _STORED_AS_REAL else tensor


def from_storable(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `to_storable` for a tensor of this dtype."""
    return torch.view_as_complex(stored) if dtype in _STORED_AS_REAL else stored


def sha256_of(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of contiguous tensors, one after the other."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.numel():
            # Not reshape(-1): it keeps the stride of a single element, and view(uint8) needs stride 1.
            flat = tensor.as_strided((tensor.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_head(folder: Path) -> Head | None:
    """Return the head of rank 0's JSON file; None if this library has not written it."""
    try:
        path = json_path(folder, 0)
        with path.open("rb") as file:
            match = _HEAD.match(file.read(_HEAD_BYTES))
    except OSError:
        return None
    return None if match is None else Head(save_index=int(match[1]), world_size=int(match[2]))


def read_json(folder: Path, rank: int) -> dict[str, Any]:
    """Return the content of a rank's JSON file.

    Raises:
        DamagedError: The file was changed after it was written.
        OSError: It can't be read.
    """
    path = json_path(folder, rank)
    content = path.read_bytes()
    text, end = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if end != _DIGEST.format(hashlib.sha256(text).hexdigest()).encode():
        raise DamagedError(f"{path.name} is damaged: its SHA-256 differs")
    record = json.loads(content)
    if record["format"] != _FORMAT:
        raise DamagedError(f"{path.name} has the format {record['format']!r}, and not {_FORMAT!r}")
    return record
