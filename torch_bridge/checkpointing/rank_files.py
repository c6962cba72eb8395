"""The content of the two files that each rank writes: `rank-R.safetensors` and `rank-R.json`.

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
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from torch import Tensor

from torch_bridge.checkpointing.checkpoint_dirs import FORMAT, json_path, tensors_path, unfinished_path
from torch_bridge.checkpointing.encoding import to_json

_DIGEST = ',"sha256":"{}"}}'
_DIGEST_BYTES = len(_DIGEST.format("0" * 64))
_STORED_AS_REAL = (torch.complex32, torch.complex128)  # safetensors has only complex64


class DamagedError(ValueError):
    """Raised if a file is not as it was written."""


class SavedTensor(NamedTuple):
    """A tensor to be saved, or this rank's shard of it: contiguous, in host memory."""

    tensor: Tensor
    offsets: list[int] | None
    """The position of the shard in the whole tensor; None if this is the whole tensor."""


def write_files(
    checkpoint: Path,
    rank: int,
    record: Mapping[str, Any],
    tensors: Mapping[str, SavedTensor],
    digests: Mapping[str, str],
) -> None:
    """Write both files of a rank, and flush them to disk.

    Args:
        checkpoint: Its directory.
        rank: The rank.
        record: The entries of the JSON file from `save` to `parts`.
        tensors: The tensors by key.
        digests: The SHA-256 of those tensors for which it is already known.
    """
    path = tensors_path(checkpoint, rank)
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
    text = to_json({"format": FORMAT, **record, "tensors": entries})[:-1]  # the digest closes the brace
    _write_json(json_path(checkpoint, rank), text.encode())


def _write_json(path: Path, text: bytes) -> None:
    """Write a JSON file with its digest, or no file if the process is killed."""
    unfinished = unfinished_path(path)
    try:
        with unfinished.open("wb") as file:
            file.write(text + _DIGEST.format(hashlib.sha256(text).hexdigest()).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk's error names no file
    unfinished.rename(path)  # atomic: the file exists as a whole or not at all


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


def read_json(checkpoint: Path, rank: int) -> dict[str, Any]:
    """Return the content of a rank's JSON file.

    Raises:
        DamagedError: The file was changed after it was written.
        OSError: It can't be read.
    """
    path = json_path(checkpoint, rank)
    content = path.read_bytes()
    text, end = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if end != _DIGEST.format(hashlib.sha256(text).hexdigest()).encode():
        raise DamagedError(f"{path.name} is damaged: its SHA-256 differs")
    record = json.loads(content)
    if record["format"] != FORMAT:
        raise DamagedError(f"{path.name} has the format {record['format']!r}, and not {FORMAT!r}")
    return record
