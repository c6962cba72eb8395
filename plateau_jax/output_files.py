"""Output files of the command line."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Name the file in errors, then report that it was written."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        # Matplotlib raises ValueError for an unknown format, and RuntimeError for one that needs TeX.
        raise OSError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if not is_stream(path):
        print(f"wrote {path}", file=sys.stderr)  # standard output may be data


def is_stream(path: Path) -> bool:
    """Return True for a pipe, a device, or the file behind /dev/stdout."""
    streams = "/dev", "/dev/fd", "/proc/self/fd"
    return (path.exists() and not path.is_file()) or str(path.absolute().parent) in streams
