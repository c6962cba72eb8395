"""What a process wrote into its folder: every file, with its size and its SHA-256."""

import hashlib
import json
from pathlib import Path
from typing import TypedDict

from torch_bridge.checkpointing import folders

NAME = "manifest.json"


class Manifest(TypedDict):
    """A digest of the rest is the first line of the file."""

    count: int
    processes: int
    parts: list[str]
    """The names of all parts."""
    own: list[str]
    """What the first process has too, but not of this value."""
    files: dict[str, tuple[int, str]]


def write(folder: Path, count: int, processes: int, parts: list[str], own: list[str]) -> None:
    """The last file of the folder: with it the folder is complete."""
    files = {path.name: (path.stat().st_size, _digest(path)) for path in sorted(folder.iterdir())}
    manifest: Manifest = {"count": count, "processes": processes, "parts": parts, "own": own, "files": files}
    body = json.dumps(manifest, indent=1).encode()
    folders.sync(folder)
    folders.write(folder / NAME, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read(folder: Path) -> Manifest:
    """Raises ValueError where it is not what was written, OSError where it is missing."""
    digest, _, body = (folder / NAME).read_bytes().partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError(f"{folder.name}/{NAME} is damaged")
    return json.loads(body)


def check(path: Path, size: int, digest: str) -> None:
    """Raises ValueError where the file is not what was written, OSError where it is missing."""
    name = f"{path.parent.name}/{path.name}"
    if (found := path.stat().st_size) != size:
        raise ValueError(f"{name} has {found} bytes in place of {size}")
    if _digest(path) != digest:
        raise ValueError(f"{name} is damaged: its SHA-256 is another one")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
