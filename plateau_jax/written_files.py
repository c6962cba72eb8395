"""The files that the command line writes: complete or absent, and never in place of others."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

SOURCE_BEGINS = b'"""A learning-rate schedule, written by plateau-jax'
VECTORS_BEGIN = b'{"format": '
VALUES_BEGIN = b"step,learning_rate"
_PICTURE_HAS = "plateau-jax"
_METADATA_KEYS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}

_LARGEST_HEAD = 1 << 20  # bytes


def check_replaceable(path: Path) -> None:
    """Raise a ValueError if there is a file that the command line has not written."""
    if _is_device(path) or not path.exists():
        return
    with path.open("rb") as file:
        head = file.read(_LARGEST_HEAD)
    known = SOURCE_BEGINS, VECTORS_BEGIN, VALUES_BEGIN
    if head and not head.startswith(known) and _PICTURE_HAS.encode() not in head:
        raise ValueError(f"{path} exists, and this command has not written it: --force replaces it")


def picture_metadata(path: Path) -> dict[str, str] | None:
    """Return metadata by which `check_replaceable` recognizes a picture, if its format has any."""
    key = _METADATA_KEYS.get(path.suffix.lower())
    return {key: _PICTURE_HAS} if key else None


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
    if text.startswith(SOURCE_BEGINS):
        return "this is a Python file from --export: the curve is the JSON in its docstring"
    if text.startswith(VECTORS_BEGIN):
        return "these are test vectors from --export: each curve is the JSON under its key curve"
    return ""
