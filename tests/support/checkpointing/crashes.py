"""Let something happen at the n-th operation on the disk: a kill, an error, an interrupt, another process."""

import io
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors
from safetensors import SafetensorError

from torch_bridge.checkpointing import saving
from torch_bridge.checkpointing.loading import SavedCheckpoint

_OPERATIONS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "listdir", "mkdir", "rename", "unlink", "rmdir", "chmod", "fsync")),
    *((io, "open"), (saving, "save_file"), (safetensors, "safe_open"), (SavedCheckpoint, "fill_tensors")),
]


class Killed(BaseException):
    """Stands in for SIGKILL: no operation after it reaches the disk."""


class AtOperation:
    """Call a function just before one of the operations on a directory's files.

    The exception that it returns is raised instead of the operation, after half of a write. A `Killed` is
    raised at every later operation too.

    Args:
        directory: The operations on anything inside it count, those of all threads.
        at: The index of the operation, from 0. By default all take place.
        event: The function.
    """

    def __init__(
        self, directory: Path, at: float = inf, event: Callable[[], BaseException | None] = Killed
    ) -> None:
        self.operations: list[tuple[str, str]] = []
        """The name of each operation, and that of its file."""
        self._directory, self._at, self._event = str(directory), at, event
        self._patches, self._paths, self._is_busy = ExitStack(), dict[int, str](), False
        self._killed: Killed | None = None

    @property
    def happened(self) -> bool:
        return self._at < len(self.operations)

    def __enter__(self) -> "AtOperation":
        for module, name in _OPERATIONS:
            self._patches.enter_context(
                patch.object(module, name, self._observed(name, getattr(module, name)))
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _observed(self, name: str, operation: Any) -> Any:
        def observed(*arguments: Any, **options: Any) -> Any:
            path = self._path_of(name, arguments, options)
            if path is None or self._is_busy:
                return operation(*arguments, **options)
            if (error := self._next(name, path)) is not None:
                raise self._half_of(name, operation, arguments, error)
            result = operation(*arguments, **options)
            if name == "open":
                self._paths[result if isinstance(result, int) else result.fileno()] = path
            return result

        return observed

    def _path_of(self, name: str, arguments: Any, options: Any) -> str | None:
        """Return the path that an operation is about; None if it is not in the directory."""
        path = arguments[1] if name == "save_file" else options.get("filename", next(iter(arguments), ""))
        if name == "fsync":
            path = self._paths.get(path, "")
        elif name == "fill_tensors":
            path = path.checkpoint.path
        elif options.get("dir_fd") is not None:
            return str(path)  # shutil.rmtree removes files by their names, relative to an open folder
        return str(path) if str(path).startswith(self._directory) else None

    def _next(self, name: str, path: str) -> BaseException | None:
        self.operations.append((name, Path(path).name))
        if self._killed is None and len(self.operations) - 1 == self._at:
            self._is_busy = True
            error = self._event()
            self._is_busy = False
            self._killed = error if isinstance(error, Killed) else None
            return error
        return self._killed

    def _half_of(self, name: str, operation: Any, arguments: Any, error: BaseException) -> BaseException:
        """Write half of a file if the operation writes one; return the error as the operation raises it."""
        if name == "save_file":
            operation(*arguments)
            os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
            if isinstance(error, OSError):
                return SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})")
        if name == "fsync" and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
            os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
        return error
