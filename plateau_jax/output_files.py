"""Files that the command line writes: whole or not at all, streams in place."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written(path: Path) -> Generator[Path]:
    """A path to write to, as `_whole` gives it; what was written, or could not be, is said."""
    try:
        with _whole(path) as beside:
            yield beside
    except (OSError, ValueError) as error:  # matplotlib raises ValueError for a format that it does not know
        raise OSError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if not is_stream(path):
        print(f"wrote {path}", file=sys.stderr)  # standard output may be data


@contextmanager
def _whole(path: Path) -> Generator[Path]:
    """A path to write to. It replaces the file in one go, once all is written."""
    if is_stream(path):
        yield path
        return
    target = path.resolve()  # a link stays a link
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}")
    beside = target.with_name(f".plateau_jax.{os.getpid()}.part")  # the file's own name may be of full length
    try:
        if target.exists():
            target.open("ab").close()  # refused, where the file may not be written
            beside.touch()
            shutil.copymode(target, beside)
        yield beside
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether the path must be written in place: a pipe, a device, or the file behind /dev/stdout."""
    streams = "/dev", "/dev/fd", "/proc/self/fd"
    return (path.exists() and not path.is_file()) or str(path.absolute().parent) in streams
