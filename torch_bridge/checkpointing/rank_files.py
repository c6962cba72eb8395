"""The two files that each rank writes into a checkpoint: `rank-R.safetensors` and `rank-R.json`.

The JSON file comes last, so a rank has written everything if its JSON file exists. It ends with the SHA-256
of all that stands before; the line breaks are only here:

    {"format":"torch_bridge 1","save":"5e0c…","number":7,"count":30,"ranks":2,"rank":0,
     "parts":{"step":{"of":"state","state":{"model":{"0.weight":
                 {"$":"tensor","key":"step.model.0.weight","dtype":"float32","shape":[4,3]}, …}, …}}},
     "tensors":{"step.model.0.weight":{"shape":[2,3],"offsets":[0,0],"sha256":"91ab…"}, …},
     "sha256":"c0de…"}

A tensor with offsets is a shard of the whole tensor.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from torch import Tensor

from torch_bridge.checkpointing.encoding import dumps

_FORMAT = "torch_bridge 1"
_HEAD = re.compile(
    rb'\{"format":"torch_bridge 1","save":"[0-9a-f]{32}","number":([0-9]{1,18}),"count":[0-9]+,'
    rb'"ranks":([0-9]{1,18}),"rank":0,'
)
_HEAD_BYTES = 512
_DIGEST = ',"sha256":"{}"}}'
_DIGEST_BYTES = len(_DIGEST.format("0" * 64))
_AS_REAL = (torch.complex32, torch.complex128)  # safetensors has neither


class DamagedError(ValueError):
    """A file is not as it was written."""


class Head(NamedTuple):
    """The beginning of rank 0's JSON file."""

    number: int
    """The number of the save in this directory: the last one has the highest."""
    ranks: int


class Saved(NamedTuple):
    """A tensor, or this rank's shard of one, that is dense and in host memory."""

    tensor: Tensor
    offsets: list[int] | None


def json_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def tensors_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.safetensors"


def is_rank_file(path: Path) -> bool:
    return re.fullmatch(r"rank-[0-9]+\.(json|safetensors)", path.name) is not None


def write(
    folder: Path,
    rank: int,
    record: Mapping[str, Any],
    tensors: Mapping[str, Saved],
    digests: Mapping[str, str],
) -> None:
    """Write both files of a rank. On return they are on the disk.

    Args:
        folder: The folder of the checkpoint.
        rank: The rank.
        record: The entries of the JSON file from `save` to `parts`.
        tensors: The tensors by key.
        digests: The SHA-256 of tensors for which it is known already.
    """
    path = tensors_path(folder, rank)
    stored = {key: as_stored(saved.tensor) for key, saved in tensors.items()}
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(stored, path)
    except SafetensorError as error:
        # The error of the system, of a full disk for instance, stands only in the text.
        if (number := re.search(r"\(os error ([0-9]+)\)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(mode)  # safetensors makes files that nobody else may read
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    entries: dict[str, dict[str, Any]] = {}
    for key, saved in tensors.items():
        entries[key] = {"shape": list(saved.tensor.shape)}
        if saved.offsets is not None:
            entries[key]["offsets"] = saved.offsets
        entries[key]["sha256"] = digests.get(key) or digest_of([stored[key]])
    text = dumps({"format": _FORMAT, **record, "tensors": entries})[:-1]
    _write_whole(json_path(folder, rank), text.encode())


def _write_whole(path: Path, text: bytes) -> None:
    """Write a JSON file with its digest, or none if the process ends before."""
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(text + _DIGEST.format(hashlib.sha256(text).hexdigest()).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # that of a full disk names no file
    unfinished.rename(path)


def remove(folder: Path, rank: int) -> None:
    """Remove what a rank has written, and the folder if it is empty then."""
    with suppress(OSError):
        for path in (tensors_path(folder, rank), json_path(folder, rank).with_suffix(".tmp")):
            path.unlink(missing_ok=True)
        folder.rmdir()


def as_stored(tensor: Tensor) -> Tensor:
    """Return a view of a tensor in a dtype that safetensors has."""
    return torch.view_as_real(tensor) if tensor.dtype in _AS_REAL else tensor


def as_saved(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `as_stored` for a tensor of this dtype."""
    return torch.view_as_complex(stored) if dtype in _AS_REAL else stored


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of dense tensors, one after the other."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.numel():
            # Not reshape(-1), which leaves the stride of a single element as it is.
            flat = tensor.as_strided((tensor.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_head(folder: Path) -> Head | None:
    """Return what rank 0's JSON file begins with; None if this library has not written it."""
    try:
        path = json_path(folder, 0)
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            found = _HEAD.match(file.read(_HEAD_BYTES))
    except OSError:
        return None
    return None if found is None else Head(int(found[1]), int(found[2]))


def read(folder: Path, rank: int) -> dict[str, Any]:
    """Return the content of a rank's JSON file.

    Raises:
        DamagedError: It is not as it was written.
        OSError: The system can't read it.
    """
    path = json_path(folder, rank)
    check_regular(path)
    content = path.read_bytes()
    text, end = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if end != _DIGEST.format(hashlib.sha256(text).hexdigest()).encode():
        raise DamagedError(f"{path.name} is damaged: its SHA-256 differs")
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path.name} can't be read: {error}") from error
    if wrong := _wrong_entry(record):
        raise DamagedError(f"{path.name} has no valid {wrong}")
    return record


def check_regular(path: Path) -> None:
    """Raises DamagedError if the path is not of a regular file: a device could be read forever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise DamagedError(f"{path.name} is not a file")


def _wrong_entry(record: Any) -> str:
    """Return the name of an entry that is not valid; the digest does not say who has written it."""
    if record.get("format") != _FORMAT:
        return "format"
    for name, least in (("count", 0), ("ranks", 1), ("rank", 0)):
        if type(record.get(name)) is not int or record[name] < least:
            return name
    parts, tensors = record.get("parts"), record.get("tensors")
    if not isinstance(parts, dict) or not all(
        isinstance(part, dict) and part.keys() == {"of", "state"}
        for part in cast("dict[str, Any]", parts).values()
    ):
        return "parts"
    if not isinstance(tensors, dict):
        return "tensors"
    for key, entry in cast("dict[str, Any]", tensors).items():
        shape, offsets = entry["shape"], entry.get("offsets", entry["shape"])
        if not (_are_counts(shape) and _are_counts(offsets) and len(shape) == len(offsets)):
            return f"shape of {key}"
    return ""


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and value >= 0 for value in cast("list[Any]", values)
    )
