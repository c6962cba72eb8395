"""Checkpoints in a directory: their names, their manifests, and how they become complete.

The ranks write checkpoint 30 into `.30.<save id>.partial`. When the files of all ranks are on disk,
rank 0 adds the manifest and renames the directory to `30`, or to `30.1` if `30` exists; the older
checkpoint of the same step is removed afterwards. So a directory under its final name is complete.

The manifest ends with the SHA-256 of all bytes before that entry. It is a single line; the line
breaks are added here for reading:

    {"kind": "checkpoint", "format": 1, "step": 30, "save_index": 7, "world_size": 2,
     "parts": ["step", "progress"],
     "files": {"rank-0.safetensors": "91ab…", "rank-1.safetensors": "c0de…"},
     "sha256": "5e0c…"}
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypedDict, cast

from plateau_jax.saved_states.formats import Format
from torch_bridge.training.checkpointing.file_format import (
    FORMAT_NUMBER,
    MANIFEST,
    rank_file,
)

_COMPLETE_NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.[1-9][0-9]*)?")
_TEMPORARY_NAME = re.compile(r"\.[0-9]+\.[0-9a-f]{32}\.(partial|removed)")


class Manifest(TypedDict):
    kind: str
    format: int
    step: int
    save_index: float
    """The index of the save in the directory of the run; the newest has the highest."""
    world_size: int
    """The number of ranks that saved it."""
    parts: list[str]
    """The names of the parts."""
    files: dict[str, str]
    """The SHA-256 of each file, by the file's name."""
    sha256: str


_FORMAT = Format("checkpoint", Manifest, number=FORMAT_NUMBER)


@dataclass(frozen=True)
class CheckpointDir:
    """The directory of one checkpoint."""

    step: int
    path: Path
    manifest: Manifest
    """Empty if it is damaged, with an infinite `save_index`: the checkpoint could be the newest."""
    damage: str = ""
    """The fault of a damaged manifest, or an empty string."""
    is_of_different_version: bool = False
    """True if the damage is that a different version saved it."""


def partial_path(directory: Path, step: int, save_id: str) -> Path:
    """Return the directory that the ranks of one save write into."""
    return directory / f".{step}.{save_id}.partial"


def list_complete(directory: Path) -> list[CheckpointDir]:
    """Return the undamaged checkpoints of this library, in the order of their saves."""
    return [checkpoint for checkpoint in list_with_damaged(directory) if not checkpoint.damage]


def list_with_damaged(directory: Path) -> list[CheckpointDir]:
    """Return the checkpoints, and last those whose manifest is damaged or missing."""
    while True:
        paths = _entries(directory)
        checkpoints: list[CheckpointDir] = []
        for path in paths:
            name = _COMPLETE_NAME.fullmatch(path.name)
            files = path / MANIFEST, path / rank_file(0)
            if name is not None and any(file.exists() for file in files):
                checkpoints.append(read_checkpoint(path, int(name[1])))
        # A save in another process renames the new directory, then removes the old one. A listing
        # in between could miss both: the new one before its rename, and the old one once it is
        # gone.
        if _entries(directory) == paths:
            return sorted(checkpoints, key=_save_order)


def _save_order(checkpoint: CheckpointDir) -> tuple[float, int]:
    return checkpoint.manifest["save_index"], checkpoint.step


def read_checkpoint(path: Path, step: int) -> CheckpointDir:
    """Return the checkpoint of this step, from its manifest."""

    def damaged(damage: str, *, is_of_different_version: bool = False) -> CheckpointDir:
        entries = _FORMAT.build(step=step, save_index=inf, world_size=0, parts=[], files={})
        manifest = cast("Manifest", entries)
        return CheckpointDir(step, path, manifest, f"{MANIFEST} {damage}", is_of_different_version)

    try:
        content = (path / MANIFEST).read_bytes()
    except OSError as error:
        return damaged(f"can't be read: {error}")
    before_digest = content.rpartition(b', "sha256"')[0]
    if content != _with_digest(before_digest):
        return damaged("is damaged: its SHA-256 differs")
    entries: Any = json.loads(content)
    try:
        manifest = _FORMAT.read("it", entries)
    except ValueError as error:
        return damaged(f"can't be read: {error}", is_of_different_version=True)
    except (KeyError, TypeError) as error:
        return damaged(f"is malformed: {error!r}")
    if manifest["step"] != step:
        return damaged(f"is that of checkpoint {manifest['step']}")
    return CheckpointDir(step, path, manifest)


def check_run_directory(directory: Path) -> None:
    """Raise a ValueError for a checkpoint's own directory."""
    if (directory / MANIFEST).exists():
        raise ValueError(
            f"{directory} is itself a checkpoint: pass the directory of the run, {directory.parent}"
        )


def create_partial(path: Path) -> None:
    """Create the directory of a save on rank 0; remove those that killed saves have left."""
    for entry in _entries(path.parent):
        if _TEMPORARY_NAME.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)
    path.mkdir(parents=True)


def commit(
    path: Path,
    *,
    step: int,
    parts: list[str],
    files: dict[str, str],
    world_size: int,
) -> None:
    """Complete a checkpoint whose files are all on disk.

    Only rank 0 calls it. The arguments are the `partial_path` and entries of the `Manifest`.
    """
    directory = path.parent
    save_indices = [checkpoint.manifest["save_index"] for checkpoint in list_complete(directory)]
    manifest = _FORMAT.build(
        step=step,
        save_index=max(save_indices, default=0) + 1,
        world_size=world_size,
        parts=parts,
        files=files,
    )
    _write_manifest(path / MANIFEST, manifest)
    _fsync_directory(path)
    path.rename(_free_path(directory, step))
    # The rename reaches the disk before the older checkpoint of this step is removed.
    _fsync_directory(directory)


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest).removesuffix("}")  # the digest closes the brace
    with path.open("wb") as file:
        file.write(_with_digest(text.encode()))
        file.flush()
        os.fsync(file.fileno())


def _free_path(directory: Path, step: int) -> Path:
    """Return the first of the paths `30`, `30.1`, `30.2` that does not exist."""
    path = directory / str(step)
    for number in itertools.count(1):
        if not os.path.lexists(path):  # a rename would replace an empty directory
            break
        path = directory / f"{step}.{number}"
    return path


def prune(directory: Path, keep: int) -> None:
    """Remove all but the last saved checkpoints of `keep` different steps. Only rank 0 calls it."""
    checkpoints = list_complete(directory)
    latest = {checkpoint.step: checkpoint for checkpoint in checkpoints}  # the last save wins
    kept = sorted(latest.values(), key=_save_order)[-keep:]
    for checkpoint in checkpoints:
        if checkpoint not in kept and not checkpoint.path.is_symlink():
            # Rename first: a checkpoint must never be seen with only some of its files.
            removed = directory / f".{checkpoint.step}.{uuid.uuid4().hex}.removed"
            with suppress(OSError):  # such as those of another user
                checkpoint.path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)


def _with_digest(text: bytes) -> bytes:
    digest = hashlib.sha256(text).hexdigest()
    return text + f', "sha256": "{digest}"}}\n'.encode()


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _fsync_directory(directory: Path) -> None:
    """Flush the names in a directory to disk, on systems that can open directories."""
    with suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
