"""Whatever happens at any operation on the disk, a checkpoint is complete or absent, and nothing is left."""

import errno
import gc
import io
import itertools
import os
import resource
import shutil
import signal
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import safetensors
import torch
from safetensors import SafetensorError
from support.checkpointing.checkpoints import Part, constant_model, leftovers, load_steps, save_steps, state_of
from support.lines import Lines, Stop

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import checkpoints as checkpoints_module, file_format
from torch_bridge.checkpointing.loading import SavedCheckpoint

# Let something happen at the n-th operation on the disk: a kill, an error, an interrupt, another process.

_OPERATIONS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "listdir", "mkdir", "rename", "unlink", "rmdir", "chmod", "fsync")),
    (io, "open"),
    *((file_format, "save_file"), (safetensors, "safe_open"), (SavedCheckpoint, "fill_tensors")),
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
            error = self.next_error(name, path)
            if error is not None:
                if isinstance(error, OSError) and name != "fsync":
                    error.filename = path  # the system names it unless it gets the number of an open file
                raise self._half_of(name, operation, arguments, error)
            result = operation(*arguments, **options)
            if isinstance(result, io.BufferedWriter):
                result = _ObservedFile(result, path, self)
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

    def observe(self, name: str, path: str) -> None:
        """Count an operation, and raise its error instead of it."""
        error = self.next_error(name, path)
        if error is not None:
            raise error

    def next_error(self, name: str, path: str) -> BaseException | None:
        """Count an operation, and return the error that it must raise."""
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


class _ObservedFile(io.BufferedWriter):
    """A file whose writes are operations on the disk too."""

    def __init__(self, file: io.BufferedWriter, path: str, observer: AtOperation) -> None:
        file.close()
        super().__init__(io.FileIO(path, "ab"))
        self._path, self._observer = path, observer

    def write(self, content: Any) -> int:
        self._observer.observe("write", self._path)
        return super().write(content)

    def flush(self) -> None:
        self._observer.observe("flush", self._path)
        super().flush()


def _full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _input_output_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture(autouse=True)
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a power failure a flush only takes time, and so does the search for garbage."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(gc, "collect", lambda: 0)


class Save(NamedTuple):
    """A save that something happens to. The states' numbers are the steps, and 7 for the saved one."""

    before: Sequence[int]
    step: int
    keep: int

    def run(self, directory: Path) -> None:
        checkpoints = Checkpoints(directory, keep=self.keep)
        checkpoints.save(self.step, part=Part(state_of(7)), wait=True)

    @property
    def new(self) -> dict[int, int]:
        """The numbers of all states by step, without any pruning."""
        return {step: step for step in self.before if step != self.step} | {self.step: 7}

    def is_done(self, left: dict[int, int]) -> bool:
        """Return True if the new checkpoint is there, and as many older ones as are kept, or more."""
        enough = min(self.keep, len(self.new))
        return left.get(self.step) == 7 and left.items() <= self.new.items() and len(left) >= enough


SAVES = {
    "first": Save([], 1, keep=2),
    "next": Save([1], 2, keep=2),
    "same step": Save([1], 1, keep=1),
    "pruning": Save([1, 2], 3, keep=1),
    "pruning after roll back": Save([5, 6], 2, keep=2),
    "after kills": Save([1, 2], 3, keep=3),
}


def _prepared(directory: Path, name: str) -> Path:
    save_steps(directory, SAVES[name].before, keep=9)
    directory.mkdir(exist_ok=True)
    if name == "after kills":  # one without its rename, one without its files, and one partly removed
        last = directory / str(SAVES[name].before[-1])
        shutil.copytree(last, directory / f".9.{'a' * 32}.partial")
        shutil.copytree(last, directory / f".8.{'b' * 32}.removed")
        (directory / f".8.{'c' * 32}.partial").mkdir()
        (directory / f".8.{'b' * 32}.removed" / "rank-0.safetensors").unlink()
    return directory


# Each of the tests below takes every third, sixth or second operation or line: together they take all.
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "event"),
    [
        *((name, Killed) for name in SAVES),
        ("next", _full_disk),
        # But an error while the remains of a killed save are read may cost them.
        *(pytest.param(name, _input_output_error, marks=pytest.mark.slow) for name in list(SAVES)[:-1]),
    ],
)
def test_failed_save_leaves_complete_checkpoints(tmp_path: Path, name: str, event: Any, first: int) -> None:
    save, prepared = SAVES[name], _prepared(tmp_path / "prepared", name)
    for at in itertools.count(first, 3):
        directory, error = shutil.copytree(prepared, tmp_path / str(at)), None
        with AtOperation(directory, at, event) as operation:
            try:
                save.run(directory)
            except BaseException as caught:
                error = caught
        left = load_steps(directory)
        assert save.is_done(left) or (error and left == {step: step for step in save.before})
        assert error is None or (type(error), str(error)[:9]) == (type(event()), str(event())[:9])
        if isinstance(error, OSError):
            file = Path(error.filename)
            assert file.is_relative_to(directory)
            assert file.name == operation.operations[at][1]
        newest = Part({"number": 0})
        Checkpoints(directory).load(part=newest)
        assert newest.state["number"] in (7, [0, *save.before][-1])
        save_steps(directory, [9], keep=9)
        assert Checkpoints(directory).steps() == sorted([*left, 9])
        assert leftovers(directory, [*left, 9]) == []
        if not operation.happened:
            break
    assert error is None
    assert left == dict(list(save.new.items())[-save.keep :])
    assert at > 1


def test_files_reach_disk_before_their_names_count(tmp_path: Path) -> None:
    """A power failure loses what was not flushed: neither names without content, nor both checkpoints."""
    save_steps(tmp_path, [1], keep=1)
    with AtOperation(tmp_path) as recorded:
        save_steps(tmp_path, [2], keep=1)
    names = ("save_file", "write", "flush", "fsync", "rename")
    order = [(name, file) for name, file in recorded.operations if name in names]
    (_, partial), *_ = [operation for operation in recorded.operations if operation[0] == "mkdir"]
    assert order == [
        ("save_file", "rank-0.safetensors"),
        ("fsync", "rank-0.safetensors"),
        ("write", "checkpoint.json"),
        ("flush", "checkpoint.json"),
        ("fsync", "checkpoint.json"),
        ("flush", "checkpoint.json"),  # by its close
        ("fsync", partial),
        ("rename", partial),
        ("fsync", tmp_path.name),
        ("rename", "1"),
    ]


@pytest.mark.parametrize("first", range(1, 7))
def test_save_interrupted_at_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """The checkpoint is complete or absent, and the next save is neither blocked nor disturbed."""
    # Unlike a signal, `Lines` can interrupt after a with block and before its lock is released, which would
    # block other threads of later tests.
    monkeypatch.setattr(checkpoints_module, "_lock", RLock())
    for stop_at in itertools.count(first, 6):
        directory, is_interrupted = tmp_path / str(stop_at), False
        checkpoints = Checkpoints(directory, keep=9)
        try:
            with Lines(stop_at):
                checkpoints.save(1, part=Part(state_of(1)), wait=True)
        except Stop:
            is_interrupted = True
        checkpoints.save(2, part=Part(state_of(2)))
        left = load_steps(directory)
        assert left in ([{2: 2}, {1: 1, 2: 2}] if is_interrupted else [{1: 1, 2: 2}])
        assert leftovers(directory, list(left)) == []
        if not is_interrupted:
            break
    assert stop_at > 1


READS: dict[str, Callable[..., Any]] = {
    "load": lambda checkpoints, **parts: checkpoints.load(**parts),
    "load 2": lambda checkpoints, **parts: checkpoints.load(2, **parts),
    "load_model": lambda checkpoints, model, **_: checkpoints.load_model(model, part="model"),
    "merge": lambda checkpoints, model, **_: checkpoints.merge(
        [1, 2], [0.75, 0.25], into=model, part="model"
    ),
}


def _read(name: str, directory: Path) -> tuple[float, int | None]:
    """Return the number of the loaded model and the step, or raise an error without a change."""
    model, part, number = constant_model(0), Part({"number": 0}), 0.0
    try:
        step = READS[name](Checkpoints(directory), model=model, part=part)
        number = model.weight.max().item()
    finally:
        assert (model.weight == number).all()
        assert part.state["number"] == (number if name in ("load", "load 2") else 0)
    return number, step


@pytest.mark.filterwarnings("ignore:.*newer ones are damaged")
@pytest.mark.parametrize("event", [_input_output_error, KeyboardInterrupt])
@pytest.mark.parametrize("name", READS)
def test_failed_read_loads_all_or_nothing(saved: Path, name: str, event: Any) -> None:
    """An unreadable checkpoint is skipped, as a damaged one is."""
    results = list[Any]()
    for at in itertools.count():
        # A RuntimeError, if all are damaged.
        with AtOperation(saved, at, event) as operation, suppress(OSError, RuntimeError, KeyboardInterrupt):
            results.append(_read(name, saved))
        if not operation.happened:
            break
    may_skip = event is _input_output_error and name != "load 2"
    skipped = {(1.0, 1)} if may_skip else set[Any]()
    assert set(results) == ({(1.25, None)} if name == "merge" else {(2.0, 2)} | skipped)
    assert len(results) == 1 or event is not KeyboardInterrupt
    assert at > 5


def _replace(directory: Path) -> None:
    for _ in range(2):  # the second one has the name of the first again
        Checkpoints(directory, keep=2).save(2, part=Part(state_of(3)), model=constant_model(3), wait=True)


MEANWHILE: dict[str, Callable[[Path], None]] = {
    "pruning": lambda directory: save_steps(directory, [3], keep=1, model=constant_model(3)),
    "replacement": _replace,
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("event", MEANWHILE)
@pytest.mark.parametrize("name", READS)
def test_read_while_another_process_saves(
    saved: Path, tmp_path: Path, name: str, event: str, first: int
) -> None:
    """A reader sees the newest checkpoint of that moment, and never parts of two."""
    results = list[Any]()
    may_fail = name == "merge" or (name, event) == ("load 2", "pruning")
    for at in itertools.count(first, 2):
        directory = shutil.copytree(saved, tmp_path / str(at))
        with (
            AtOperation(directory, at, lambda directory=directory: MEANWHILE[event](directory)) as operation,
            patch.object(checkpoints_module, "_lock", RLock()),  # that of another process
            suppress(*([ValueError, RuntimeError] if may_fail else [])),  # of one that is gone
        ):
            results.append(_read(name, directory))
        if not operation.happened:
            break
        assert Checkpoints(directory).steps() in ([3], [1, 2])
    # The numbers of the older and of the newer models; a merge may be of the replaced one.
    newest = (3.0, 2 if event == "replacement" else 3)
    expected = {(1.25, None), (1.5, None)} if name == "merge" else {(2.0, 2), newest}
    assert set(results) <= expected
    assert len(results) == at // 2 + 1 or may_fail
    assert at > 5


def test_systems_error_names_file(tmp_path: Path) -> None:
    """The system refuses to write beyond 3,000 bytes of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: .*/rank-0\.safetensors'"):
            Checkpoints(tmp_path).save(2, part=Part(torch.ones(100_000)), wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert leftovers(tmp_path, []) == []
