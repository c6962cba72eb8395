"""A rank's manifest: every file that the rank wrote into its folder, with its size and its SHA-256."""

import json
import re
import stat
from pathlib import Path
from typing import Any, TypedDict, cast

from torch_bridge.checkpointing import files

NAME = "manifest.json"
_KEYS = ("count", "processes", "parts", "own", "files")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Manifest(TypedDict):
    """What a manifest says; in the file, a digest of it comes first."""

    count: int
    processes: int
    parts: list[str]
    """The names of all parts."""
    own: list[str]
    """The keys of values that differ from those of rank 0."""
    files: dict[str, tuple[int, str]]
    save: str
    """Names the save: it is the same on all its ranks, and another one in every other save. Empty in those
    of earlier versions."""
    number: int
    """The number of this save, by which saves are ordered: one more than the highest in the directory before.
    0 in those of earlier versions."""


def write(
    folder: Path,
    count: int,
    processes: int,
    parts: list[str],
    own: list[str],
    save: str = "",
    number: int = 0,
) -> None:
    """Write the manifest of a folder. It comes last: with it the folder is complete."""
    listed = {path.name: (path.stat().st_size, files.sha256_of(path)) for path in sorted(folder.iterdir())}
    manifest: Manifest = {
        "count": count,
        "processes": processes,
        "parts": parts,
        "own": own,
        "files": listed,
        "save": save,
        "number": number,
    }
    files.sync_folder(folder)
    files.write_with_digest(folder / NAME, json.dumps(manifest, indent=1).encode())


def is_there(folder: Path) -> bool:
    """Whether a folder has a manifest that this project has written, be it damaged or not."""
    try:
        content = _content(folder / NAME)
    except OSError:
        return False
    has_digest = _DIGEST.fullmatch(content.partition(b"\n")[0].decode("latin-1")) is not None
    return has_digest or all(f'"{key}": '.encode() in content for key in _KEYS)


def read(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        DamagedError: It is not what was written, or names a file that is not in the folder itself.
        OSError: It can't be read.
    """
    path = folder / NAME
    try:
        found = json.loads(files.body_of(path, _content(path)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, files.DamagedError):
            raise
        raise files.DamagedError(f"{folder.name}/{NAME} can't be read: {error}") from error
    if wrong := _wrong_in(found):
        raise files.DamagedError(f"{folder.name}/{NAME} {wrong}")
    return cast("Manifest", {"save": "", "number": 0, **found})


def check(path: Path, size: int, digest: str) -> None:
    """Compare a file with its line in the manifest: the size first, before anything is read.

    Raises:
        DamagedError: The file is not what was written.
        OSError: It can't be read.
    """
    name = f"{path.parent.name}/{path.name}"
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise files.DamagedError(f"{name} is not a file")
    if found.st_size != size:
        raise files.DamagedError(f"{name} has {found.st_size} bytes in place of {size}")
    if files.sha256_of(path) != digest:
        raise files.DamagedError(f"{name} is damaged: its SHA-256 differs")


def _content(path: Path) -> bytes:
    """Raises OSError where it is not a file: a device could be read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path.parent.name}/{path.name} is not a file")
    return path.read_bytes()


def _wrong_in(found: Any) -> str:
    """What is wrong in a manifest whose digest is right; empty where nothing is."""
    if not isinstance(found, dict):
        return "is not a manifest"
    each = cast("dict[str, Any]", found)
    right = {
        "count": _is_count(each.get("count"), 0),
        "processes": _is_count(each.get("processes"), 1),
        "parts": _are_names(each.get("parts")),
        "own": _are_names(each.get("own")),
        "files": isinstance(each.get("files"), dict),
        "save": isinstance(each.get("save", ""), str),
        "number": _is_count(each.get("number", 0), 0),
    }
    if wrong := [key for key, is_right in right.items() if not is_right]:
        return f"has {wrong[0]} = {each.get(wrong[0])!r}"
    for name, line in each["files"].items():
        if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
            return f"names the file {name!r}, which is not in its folder"
        if not _is_line(line):
            return f"has {line!r} for the file {name!r}"
    return ""


def _is_line(line: Any) -> bool:
    """Whether it is a size and a digest."""
    if not isinstance(line, list) or len(cast("list[Any]", line)) != 2:
        return False
    size, digest = cast("list[Any]", line)
    return _is_count(size, 0) and isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
