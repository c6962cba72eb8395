"""Let something happen at the n-th operation on the disk: a kill, an error, another process."""

import io
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import safetensors
from safetensors import SafetensorError

from torch_bridge.checkpointing import file_format
from torch_bridge.checkpointing.loading import SavedCheckpoint

_OPERATIONS: list[tuple[Any, str]] = [
    (os, "open"),
    (os, "listdir"),
    (os, "mkdir"),
    (os, "rename"),
    (os, "unlink"),
    (os, "rmdir"),
    (os, "chmod"),
    (os, "fsync"),
    (io, "open"),
    (file_format, "save_file"),
    (safetensors, "safe_open"),
    (SavedCheckpoint, "fill_tensors"),
]

# Is called with the directory, and returns the exception to raise.
Event = Callable[[Path], BaseException | None]


class Killed(BaseException):
    """Stands in for SIGKILL: no operation after it reaches the disk."""


def kill(_: Path) -> Killed:
    return Killed()


class AtOperation:
    """Call a function just before one of the operations on a directory's files.

    The exception that it returns is raised instead of the operation, after half of a write. A
    `Killed` is raised at every later operation too.

    Args:
        directory: The operations on anything inside it count, those of all threads.
        at: The index of the operation, from 0. By default all take place.
        event: The function.
    """

    def __init__(self, directory: Path, at: float = inf, event: Event = kill) -> None:
        self.operations: list[tuple[str, str]] = []
        """The name of each operation, and that of its file."""
        self.directory = directory
        self.at = at
        self.event = event
        self.patches = ExitStack()
        self.paths: dict[int, str] = {}
        """The path of each open file."""
        self.is_in_event = False
        self.killed: Killed | None = None

    @property
    def happened(self) -> bool:
        return self.at < len(self.operations)

    def __enter__(self) -> "AtOperation":
        for module, name in _OPERATIONS:
            observed = self._observed(name, getattr(module, name))
            self.patches.enter_context(patch.object(module, name, observed))
        return self

    def __exit__(self, *_: object) -> None:
        self.patches.close()

    def _observed(self, name: str, operation: Any) -> Any:
        def observed(*arguments: Any, **options: Any) -> Any:
            path = self.path_of(name, arguments, options)
            if path is None or self.is_in_event:
                return operation(*arguments, **options)
            error = self.next_error(name, path)
            if error is None:
                result = operation(*arguments, **options)
                if name == "open":
                    return self.opened(result, path)
                return result
            if name == "save_file":
                raise self.half_of_save(operation, arguments, error)
            if name == "fsync":
                self.halve_file(arguments[0])
            elif isinstance(error, OSError):
                error.filename = path  # as the system does if it gets a path
            raise error

        return observed

    def path_of(self, name: str, arguments: Any, options: Any) -> str | None:
        """Return the path that an operation is about; None if it is not in the directory."""
        if options.get("dir_fd") is not None:
            # shutil.rmtree removes files by their names, relative to an open folder.
            return str(arguments[0])
        if name == "fsync":
            path = self.paths.get(arguments[0], "")
        elif name == "save_file":
            path = arguments[1]
        elif name == "fill_tensors":
            path = arguments[0].path
        elif "filename" in options:
            path = options["filename"]
        else:
            path = next(iter(arguments), "")
        if Path(str(path)).is_relative_to(self.directory):
            return str(path)
        return None

    def opened(self, file: Any, path: str) -> Any:
        """Remember the path of an open file, and observe what is written to it."""
        if isinstance(file, int):
            self.paths[file] = path
            return file
        if isinstance(file, io.BufferedWriter):
            file = _ObservedFile(cast("Any", file), path, self)
        self.paths[file.fileno()] = path
        return file

    def observe(self, name: str, path: str) -> None:
        """Count an operation, and raise its error instead of it."""
        error = self.next_error(name, path)
        if error is not None:
            raise error

    def next_error(self, name: str, path: str) -> BaseException | None:
        """Count an operation, and return the error that it must raise."""
        index = len(self.operations)
        self.operations.append((name, Path(path).name))
        if self.killed is not None:
            return self.killed
        if index != self.at:
            return None
        self.is_in_event = True
        error = self.event(self.directory)
        self.is_in_event = False
        if isinstance(error, Killed):
            self.killed = error
        return error

    def half_of_save(self, save_file: Any, arguments: Any, error: BaseException) -> BaseException:
        """Write half of a file of tensors; return the error as safetensors raises it."""
        save_file(*arguments)
        os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
        if isinstance(error, OSError):
            return SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})")
        return error

    def halve_file(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(descriptor, status.st_size // 2)


class _ObservedFile(io.BufferedWriter):
    """A file whose writes are operations on the disk too."""

    def __init__(self, file: io.BufferedWriter, path: str, observer: AtOperation) -> None:
        file.close()
        super().__init__(io.FileIO(path, "ab"))
        self.path = path
        self.observer = observer

    def write(self, content: Any) -> int:
        self.observer.observe("write", self.path)
        return super().write(content)

    def flush(self) -> None:
        self.observer.observe("flush", self.path)
        super().flush()
