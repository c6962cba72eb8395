"""The key of cached arrays: a digest of what they were made from."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch_bridge.checkpointing import files

_FORMAT = "1"  # of the files: other formats get other keys


def combine(source: str, settings: str, version: str, code: str) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, source, settings, version, code]).encode()).hexdigest()


def of_source(path: Path, inside: Mapping[tuple[int, int], Path] = MappingProxyType({})) -> str:
    """The digest of a file's bytes, or of what a folder holds, in the order of the names.

    The names themselves, dates and permissions don't count. Links are followed.

    Args:
        path: The file or folder.
        inside: The folders that it lies in, by device and inode: a link back to one of them has no end.
    """
    if path.is_file():
        return "file " + files.sha256_of(path)
    if path.is_dir():
        own = path.stat().st_dev, path.stat().st_ino
        if own in inside:
            raise ValueError(
                f"source: {path} is a link to {inside[own]}, a folder that it lies in: remove the link"
            )
        held = [
            of_source(each, {**inside, own: path})
            for each in sorted(path.iterdir(), key=lambda each: each.name)
        ]
        return "folder " + hashlib.sha256("\n".join(held).encode()).hexdigest()
    if not path.exists():
        raise FileNotFoundError(f"source: there is no {path}")
    raise ValueError(f"source: {path} is neither a file nor a folder")


def of_settings(settings: Mapping[str, Any]) -> str:
    """The settings as JSON, sorted by name: 1, 1.0 and True are three values."""
    for name, value in settings.items():
        try:
            # Compared as text: 1 == 1.0 == True, and JSON turns a tuple into a list.
            is_plain = repr(json.loads(json.dumps(value, allow_nan=False))) == repr(value)
        except (TypeError, ValueError, RecursionError):
            is_plain = False
        if not is_plain:
            raise TypeError(
                f"{name} = {value!r} must be a plain JSON value: None, a bool, an int, a finite float, "
                "a str, or a list or a dict (with str keys) of these"
            )
    return json.dumps(sorted(settings.items()))


def of_code(build: Callable[..., Any]) -> str:
    """The source text of `build`, as `inspect.getsource` gives it."""
    try:
        if isinstance(build, partial):  # with `__wrapped__` it would have the text of what it wraps
            raise TypeError
        return inspect.getsource(build)
    except (TypeError, OSError):  # a partial, a callable object; code from `exec` or a prompt
        raise TypeError(f"build = {build!r} has no source text: define it with def, in a file") from None
