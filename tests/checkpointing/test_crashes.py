"""Whatever happens at an operation on the disk, a checkpoint is complete or absent.

A save that is interrupted is a `Save`; a new way to read a checkpoint is a function in
`every_read`.
"""

import errno
import io
import itertools
import math
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import safetensors
from safetensors import SafetensorError
from support.checkpointing.checkpoints import (
    Part,
    assert_same_bits,
    check_no_leftovers,
    constant_model,
    save_steps,
    state_of,
)
from support.lines import InterruptAtLine, Stop

from torch_bridge import Checkpoints
from torch_bridge.training.checkpointing import checkpoints as checkpoints_module, file_format
from torch_bridge.training.checkpointing.file_format import TensorReader

# Something happens at the n-th operation on the disk.

OPERATIONS: list[tuple[Any, str]] = [
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
    (TensorReader, "fill_tensors"),
]

# Is called with the directory, and returns the exception to raise.
Event = Callable[[Path], BaseException | None]


class Killed(BaseException):
    """Stands in for SIGKILL: no operation after it reaches the disk."""


def kill(_):
    return Killed()


def full_disk(_):
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def input_output_error(_):
    return OSError(errno.EIO, os.strerror(errno.EIO))


def interrupt(_):
    return KeyboardInterrupt()


class AtOperation:
    """Call a function just before one of the operations on a directory's files.

    The exception that it returns is raised instead of the operation, after half of a write. A
    `Killed` is raised at every later operation too.

    Args:
        directory: The operations on anything inside it count, those of all threads.
        at: The index of the operation, from 0. By default all take place.
        event: The function.
    """

    def __init__(self, directory, at=math.inf, event=kill):
        self.operations = []
        """The name of each operation, and that of its file."""
        self.directory = directory
        self.at = at
        self.event = event
        self.patches = ExitStack()
        self.paths = {}
        """The path of each open file."""
        self.is_in_event = False
        self.killed = None

    @property
    def happened(self):
        return self.at < len(self.operations)

    def __enter__(self):
        for module, name in OPERATIONS:
            observed = self.observed_form_of(name, getattr(module, name))
            self.patches.enter_context(patch.object(module, name, observed))
        return self

    def __exit__(self, *_):
        self.patches.close()

    def observed_form_of(self, name, operation):
        def observed(*arguments, **options):
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
            raise error

        return observed

    def path_of(self, name, arguments, options):
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

    def opened(self, file, path):
        """Remember the path of an open file, and observe what is written to it."""
        if isinstance(file, int):
            self.paths[file] = path
            return file
        if isinstance(file, io.BufferedWriter):
            file = ObservedFile(file, path, self)
        self.paths[file.fileno()] = path
        return file

    def observe(self, name, path):
        """Count an operation, and raise its error instead of it."""
        error = self.next_error(name, path)
        if error is not None:
            raise error

    def next_error(self, name, path):
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

    def half_of_save(self, save_file, arguments, error):
        """Write half of a file of tensors; return the error as safetensors raises it."""
        save_file(*arguments)
        os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
        if isinstance(error, OSError):
            return SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})")
        return error

    def halve_file(self, descriptor):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(descriptor, status.st_size // 2)


class ObservedFile(io.BufferedWriter):
    """A file whose writes are operations on the disk too."""

    def __init__(self, file, path, observer):
        file.close()
        super().__init__(io.FileIO(path, "ab"))
        self.path = path
        self.observer = observer

    def write(self, content):
        self.observer.observe("write", self.path)
        return super().write(content)

    def flush(self):
        self.observer.observe("flush", self.path)
        super().flush()


@pytest.fixture(autouse=True)
def no_flush(monkeypatch):
    """Without a power failure a flush only takes time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


# Saves that fail.


@dataclass(frozen=True)
class Save:
    """A save that something happens to: the number of its state is 7, of others it is the step."""

    before: tuple[int, ...]
    """The steps that are saved before."""
    step: int
    keep: int
    has_remains: bool = False
    """Earlier saves of the process were killed."""

    def prepare(self, directory):
        save_steps(directory, self.before, keep=9)
        directory.mkdir(exist_ok=True)
        if self.has_remains:
            last = directory / str(self.before[-1])
            without_rename = directory / f".9.{'a' * 32}.partial"
            shutil.copytree(last, without_rename)
            partly_removed = directory / f".8.{'b' * 32}.removed"
            shutil.copytree(last, partly_removed)
            (partly_removed / "rank-0.safetensors").unlink()
            without_files = directory / f".8.{'c' * 32}.partial"
            without_files.mkdir()

    def run(self, directory):
        checkpoints = Checkpoints(directory, keep=self.keep)
        checkpoints.save(self.step, part=Part(state_of(7)), wait=True)

    @property
    def numbers_before(self):
        """The numbers of the states before the save, by step."""
        return {step: step for step in self.before}

    @property
    def numbers_after(self):
        """The numbers of the states after the save, the new one last, before any is pruned."""
        numbers = self.numbers_before
        numbers.pop(self.step, None)
        numbers[self.step] = 7
        return numbers

    def is_done(self, left):
        """Return True if the new checkpoint is there, and at least as many as are kept."""
        after = self.numbers_after
        has_enough = len(left) >= min(self.keep, len(after))
        return left.get(self.step) == 7 and left.items() <= after.items() and has_enough


FIRST = Save(before=(), step=1, keep=2)
NEXT = Save(before=(1,), step=2, keep=2)
SAME_STEP = Save(before=(1,), step=1, keep=1)
PRUNING = Save(before=(1, 2), step=3, keep=1)
AFTER_KILLS = Save(before=(1, 2), step=3, keep=3, has_remains=True)


def load_steps(directory):
    """Load every listed checkpoint; return the number of the complete state of each step."""
    numbers = {}
    for step in Checkpoints(directory).steps():
        part = Part()
        assert Checkpoints(directory).load(step, part=part) == step
        number = part.state["number"]
        assert_same_bits(part.state, state_of(number))
        numbers[step] = number
    return numbers


def run_and_catch(save, directory):
    try:
        save.run(directory)
    except BaseException as error:
        return error
    return None


# Each of the tests below takes every third, sixth or second operation or line: together they take
# all.
# A kill ends the thread that writes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize(
    ("save", "event"),
    [
        pytest.param(FIRST, kill, id="first save killed"),
        pytest.param(NEXT, kill, id="next save killed"),
        pytest.param(SAME_STEP, kill, id="save of the same step killed"),
        pytest.param(PRUNING, kill, id="pruning save killed"),
        pytest.param(AFTER_KILLS, kill, id="save after kills killed"),
        pytest.param(NEXT, full_disk, id="disk full in the next save"),
        # Not after kills: an error while their remains are read may cost a checkpoint.
        pytest.param(SAME_STEP, input_output_error, marks=pytest.mark.slow),
        pytest.param(PRUNING, input_output_error, marks=pytest.mark.slow),
    ],
)
def test_failed_save_leaves_complete_checkpoints(tmp_path, save, event, first):
    prepared = tmp_path / "prepared"
    save.prepare(prepared)
    for at in itertools.count(first, 3):
        directory = shutil.copytree(prepared, tmp_path / str(at))
        with AtOperation(directory, at, event) as operation:
            error = run_and_catch(save, directory)
        left = load_steps(directory)
        if not save.is_done(left):
            assert operation.happened
            assert error is not None or event is kill
            assert left == save.numbers_before
        if error is not None:
            check_error(error, event(directory), directory)
        check_later_use(save, directory)
        if not operation.happened:
            break
    assert error is None
    kept = list(save.numbers_after.items())[-save.keep :]
    assert left == dict(kept)
    assert at > 1


def check_error(error, expected, directory):
    """Check the type of an error; that of the system has a note about the checkpoint."""
    assert type(error) is type(expected)
    if not isinstance(error, Killed):
        assert f" in {directory} failed." in " ".join(error.__notes__)


def check_later_use(save, directory):
    """Check that a load gets the newest state, and that a save removes what was left over."""
    left = Checkpoints(directory).steps()
    newest = Part({"number": 0})
    Checkpoints(directory).load(part=newest)
    number_before = [0, *save.before][-1]
    assert newest.state["number"] in (7, number_before)
    save_steps(directory, [9], keep=9)
    assert Checkpoints(directory).steps() == [*left, 9]
    check_no_leftovers(directory, [*left, 9])


def test_files_reach_disk_before_their_names_count(tmp_path):
    """A power failure loses what was not flushed: never both checkpoints, nor only the content."""
    save_steps(tmp_path, [1], keep=1)
    with AtOperation(tmp_path) as recorded:
        save_steps(tmp_path, [2], keep=1)
    partial = next(file for name, file in recorded.operations if name == "mkdir")
    order = []
    for operation in recorded.operations:
        name, _ = operation
        if name in ("save_file", "write", "flush", "fsync", "rename"):
            order.append(operation)
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


def save_until_line(checkpoints, stop_at):
    """Save checkpoint 1; return True if this line has interrupted it."""
    try:
        with InterruptAtLine(stop_at):
            checkpoints.save(1, part=Part(state_of(1)), wait=True)
    except Stop:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 7))
def test_save_interrupted_at_any_line(tmp_path, monkeypatch, first):
    """The checkpoint is complete or absent, and the next save is neither blocked nor disturbed."""
    # Unlike a signal, `InterruptAtLine` can interrupt after a with block and before its lock is
    # released, which would block other threads of later tests.
    monkeypatch.setattr(checkpoints_module, "_lock", RLock())
    for stop_at in itertools.count(first, 6):
        directory = tmp_path / str(stop_at)
        checkpoints = Checkpoints(directory, keep=9)
        is_interrupted = save_until_line(checkpoints, stop_at)
        checkpoints.save(2, part=Part(state_of(2)))
        left = load_steps(directory)
        assert left == {1: 1, 2: 2} or (is_interrupted and left == {2: 2})
        check_no_leftovers(directory, list(left))
        if not is_interrupted:
            break
    assert stop_at > 1


# Reads that fail, or that meet another process.


class Result(NamedTuple):
    number: float
    """The weight of the model, which is the number of its checkpoint."""
    step: int | None


def load_newest(checkpoints, model, part):
    return checkpoints.load(model=model, part=part)


def load_step_2(checkpoints, model, part):
    return checkpoints.load(2, model=model, part=part)


def load_model(checkpoints, model, part):
    return checkpoints.load_model(model, part="model")


every_read = pytest.mark.parametrize("read", [load_newest, load_step_2, load_model])


def result_of(read, directory):
    """Return what a read has loaded, or raise its error; then it has changed nothing."""
    model = constant_model(0)
    part = Part({"number": 0})
    number = 0.0
    try:
        step = read(Checkpoints(directory), model, part)
        number = model.weight.max().item()
    finally:
        assert (model.weight == number).all()
        if read in (load_newest, load_step_2):
            assert part.state["number"] == number
        else:
            assert part.state["number"] == 0
    return Result(number, step)


@pytest.mark.filterwarnings("ignore:.*newer ones are damaged")
@pytest.mark.parametrize("event", [input_output_error, interrupt])
@every_read
def test_failed_read_loads_all_or_nothing(saved, read, event):
    """An unreadable checkpoint is skipped, as a damaged one is."""
    results = []
    for at in itertools.count():
        with (
            AtOperation(saved, at, event) as operation,
            # A RuntimeError, if all are damaged.
            suppress(OSError, RuntimeError, KeyboardInterrupt),
        ):
            results.append(result_of(read, saved))
        if not operation.happened:
            break
    expected = {Result(2.0, 2)}
    if event is input_output_error and read is not load_step_2:
        expected.add(Result(1.0, 1))
    assert set(results) == expected
    if event is interrupt:
        assert len(results) == 1  # after all others were interrupted
    assert at > 5


def save_and_prune(directory):
    save_steps(directory, [3], keep=1, model=constant_model(3))


def replace_step_2(directory):
    for _ in range(2):  # the second one has the name of the first again
        checkpoints = Checkpoints(directory, keep=2)
        checkpoints.save(2, part=Part(state_of(3)), model=constant_model(3), wait=True)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("save", [save_and_prune, replace_step_2])
@every_read
def test_read_while_another_process_saves(saved, tmp_path, read, save, first):
    """A reader sees the newest checkpoint of that moment, and never parts of two."""
    errors = ()
    if read is load_step_2 and save is save_and_prune:
        errors = (ValueError,)  # no checkpoint 2
    results = []
    for at in itertools.count(first, 2):
        directory = shutil.copytree(saved, tmp_path / str(at))
        with (
            AtOperation(directory, at, save) as operation,
            patch.object(checkpoints_module, "_lock", RLock()),  # that of another process
            suppress(*errors),
        ):
            results.append(result_of(read, directory))
        if not operation.happened:
            break
        assert Checkpoints(directory).steps() in ([3], [1, 2])
    if save is replace_step_2:
        possible = {Result(2.0, 2), Result(3.0, 2)}
    else:
        possible = {Result(2.0, 2), Result(3.0, 3)}
    assert set(results) <= possible
    if not errors:
        assert len(results) == at // 2 + 1
    assert at > 5
