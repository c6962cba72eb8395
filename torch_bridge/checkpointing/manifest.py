"""A rank's manifest: every file that the rank wrote into its folder, with its size and its SHA-256."""

import json
from pathlib import Path
from typing import TypedDict

from torch_bridge.checkpointing import files

NAME = "manifest.json"


class Manifest(TypedDict):
    """What a manifest says; in the file, a digest of it comes first."""

    count: int
    processes: int
    parts: list[str]
    """The names of all parts."""
    own: list[str]
    """The keys of values that differ from those of rank 0."""
    files: dict[str, tuple[int, str]]


def write(folder: Path, count: int, processes: int, parts: list[str], own: list[str]) -> None:
    """Write the manifest of a folder. It comes last: with it the folder is complete."""
    listed = {path.name: (path.stat().st_size, files.sha256_of(path)) for path in sorted(folder.iterdir())}
    manifest: Manifest = {"count": count, "processes": processes, "parts": parts, "own": own, "files": listed}
    files.sync_folder(folder)
    files.write_with_digest(folder / NAME, json.dumps(manifest, indent=1).encode())


def read(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        DamagedError: It is not what was written.
        OSError: It can't be read.
    """
    return json.loads(files.read_with_digest(folder / NAME))


def check(path: Path, size: int, digest: str) -> None:
    """Compare a file with its line in the manifest.

    Raises:
        DamagedError: The file is not what was written.
        OSError: It can't be read.
    """
    name = f"{path.parent.name}/{path.name}"
    if (found := path.stat().st_size) != size:
        raise files.DamagedError(f"{name} has {found} bytes in place of {size}")
    if files.sha256_of(path) != digest:
        raise files.DamagedError(f"{name} is damaged: its SHA-256 is another one")
