"""Files on the disk: written whole or not at all, and known by their SHA-256."""

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class DamagedError(ValueError):
    """A file is not what was written."""


def write_whole(path: Path, content: bytes) -> None:
    """Write the whole file or, where the program ends in between, none. On return it is on the disk."""
    unfinished = path.with_name(f"{path.name}.tmp")
    with naming(path), unfinished.open("wb") as file:
        file.write(content)
        sync_file(file)
    unfinished.rename(path)


def write_with_digest(path: Path, body: bytes) -> None:
    """Write a file whose first line is the SHA-256 of the rest, the body."""
    write_whole(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read_with_digest(path: Path) -> bytes:
    """The body of a file that `write_with_digest` wrote.

    Raises:
        DamagedError: The first line is not the digest of the rest.
        OSError: The file can't be read.
    """
    return body_of(path, path.read_bytes())


def body_of(path: Path, content: bytes) -> bytes:
    """The same, of a content that was read already.

    Raises:
        DamagedError: The first line is not the digest of the rest.
    """
    digest, _, body = content.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise DamagedError(f"{path.parent.name}/{path.name} is damaged")
    return body


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Name the file in an error of the system that names none, as that of a full disk.

    torch, which writes through a stream, raises an error of its own after the system's.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or cause.errno is None or cause.filename is not None:
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(file: BinaryIO) -> None:
    """Put what was written to an open file on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can open folders."""
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
