"""The files that the command line writes: complete or absent, and never in place of others."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_SOURCE = rb'"""A learning-rate schedule, written by plateau-jax '
_VECTORS = rb'\{"format": \d+, "version": "[^"]*", "peak": '
_VALUES = rb"step,learning_rate\r?\n0,"

_METADATA_KEYS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}
_WRITER = "plateau-jax"
_PICTURE_HAS = (
    b"Software\0plateau-jax",
    b"<dc:title>plateau-jax</dc:title>",
    b"/Creator (plateau-jax)",
)
_LARGEST_HEAD = 1 << 20  # bytes


def check_replaceable(path: Path) -> None:
    """Raise a ValueError if there is a file that the command line has not written."""
    if _is_device(path) or not path.exists():
        return
    with path.open("rb") as file:
        head = file.read(_LARGEST_HEAD)
    is_text = any(re.match(pattern, head) for pattern in (_SOURCE, _VECTORS, _VALUES))
    is_picture = any(mark in head for mark in _PICTURE_HAS)
    if head and not is_text and not is_picture:
        raise ValueError(f"{path} exists, and this command has not written it: --force replaces it")


def picture_metadata(path: Path) -> dict[str, str] | None:
    """Return metadata by which `check_replaceable` recognizes a picture, if its format has any."""
    key = _METADATA_KEYS.get(path.suffix.lower())
    return {key: _WRITER} if key else None


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield the path of a temporary file next to a file; rename it at the end.

    An error, an interrupt or a full disk leaves the file as it was.
    """
    if _is_device(path):
        yield path
        return
    target = path.resolve()  # of a link
    # With the same suffix, by which matplotlib chooses the format.
    temporary = target.with_name(f".{target.stem}-{os.getpid()}{target.suffix}")
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    # /dev/stdout may be a link to a file, to which the shell also writes what is printed.
    return path.parent == Path("/dev") or (path.exists() and not path.is_file())


def explain_content(text: bytes) -> str:
    """Return why a file that the command line has written describes no curve; "" for others."""
    if re.match(_SOURCE, text):
        return "this is a Python file from --export: the curve is the JSON in its docstring"
    if re.match(_VECTORS, text):
        return "these are test vectors from --export: each curve is the JSON under its key curve"
    return ""
