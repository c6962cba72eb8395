"""Output files of the command line: files are replaced atomically, streams are written in place."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_for_writing(path: Path) -> Generator[Path]:
    """Yield a path to write to, then report that the file was written; name the file in errors."""
    try:
        with _replace_atomically(path) as temporary:
            yield temporary
    except (OSError, RuntimeError, ValueError) as error:
        # Matplotlib raises ValueError for an unknown format, and RuntimeError for one that needs TeX.
        raise OSError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if not is_stream(path):
        print(f"wrote {path}", file=sys.stderr)  # standard output may be data


@contextmanager
def _replace_atomically(path: Path) -> Generator[Path]:
    """Yield a temporary path, which replaces the file once everything is written."""
    if is_stream(path):
        yield path
        return
    target = path.resolve()  # replace what a link points to, not the link
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {target.parent}")
    # In the same folder, because a rename is atomic only within one file system. Without the file's own name,
    # which may already have the maximum length.
    temporary = target.with_name(f".plateau_jax.{os.getpid()}.part")
    try:
        if target.exists():
            # A rename needs no permission for the file itself: fail here if it is read-only.
            target.open("ab").close()
            temporary.touch()
            shutil.copymode(target, temporary)
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Return True if the path must be written in place: a pipe, a device, or the file behind /dev/stdout."""
    streams = "/dev", "/dev/fd", "/proc/self/fd"
    return (path.exists() and not path.is_file()) or str(path.absolute().parent) in streams
