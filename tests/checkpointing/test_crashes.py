"""Whatever happens at any operation on the disk, a checkpoint is complete or absent, and nothing is left."""

import copy
import errno
import itertools
import os
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from support.checkpointing.checkpoints import Part, constant_model, leftovers, load_each, save_each, state_of
from support.checkpointing.crashes import AtOperation, Killed
from support.lines import Lines, Stop
from support.training.models import Net, batches
from support.training.optimizers import make_optimizer
from support.training.steps import make_step, train
from support.training.trees import equal_trees

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import checkpoint_dirs, checkpoints as checkpoints_module
from torch_bridge.checkpointing.parts import Snapshot
from torch_bridge.checkpointing.rank_content import RankContent


def _full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _input_output_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture(autouse=True)
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a power failure a flush only takes time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Save(NamedTuple):
    """A save that something happens to. The states' numbers are the counts, and 7 for the saved one."""

    before: Sequence[int]
    count: int
    keep: int

    def run(self, directory: Path) -> None:
        checkpoints = Checkpoints(directory, keep=self.keep)
        checkpoints.save(self.count, part=Part(state_of(7)), wait=True)

    @property
    def new(self) -> dict[int, int]:
        """The numbers of all states by count, without any pruning."""
        return {count: count for count in self.before if count != self.count} | {self.count: 7}

    def is_done(self, left: dict[int, int]) -> bool:
        """Return True if the new checkpoint is there, and as many older ones as are kept, or more."""
        enough = min(self.keep, len(self.new))
        return left.get(self.count) == 7 and left.items() <= self.new.items() and len(left) >= enough


SAVES = {
    "first": Save([], 1, keep=2),
    "next": Save([1], 2, keep=2),
    "same count": Save([1], 1, keep=1),
    "pruning": Save([1, 2], 3, keep=1),
    "pruning after roll back": Save([5, 6], 2, keep=2),
    "after kills": Save([1, 2], 3, keep=3),
}


def _prepared(directory: Path, name: str) -> Path:
    save_each(directory, SAVES[name].before, keep=9)
    directory.mkdir(exist_ok=True)
    if name == "after kills":  # one without its rename, one without its files, and one partly removed
        last = directory / str(SAVES[name].before[-1])
        shutil.copytree(last, directory / f".8.{'b' * 32}.removed")
        last.rename(directory / f".{last.name}.{'a' * 32}.partial")
        (directory / f".8.{'c' * 32}.partial").mkdir()
        (directory / f".8.{'b' * 32}.removed" / "rank-0.safetensors").unlink()
    return directory


@pytest.mark.parametrize(
    ("name", "event"),
    [
        *((name, Killed) for name in SAVES),
        ("next", _full_disk),
        ("pruning", _input_output_error),
        # But an error while the remains of a killed save are read may cost them.
        *(pytest.param(name, _input_output_error, marks=pytest.mark.slow) for name in list(SAVES)[:-1]),
    ],
)
def test_failed_save_leaves_complete_checkpoints(tmp_path: Path, name: str, event: Any) -> None:
    save, prepared = SAVES[name], _prepared(tmp_path / "prepared", name)
    for at in itertools.count():
        directory, error = shutil.copytree(prepared, tmp_path / str(at)), None
        with AtOperation(directory, at, event) as operation:
            try:
                save.run(directory)
            except BaseException as caught:
                error = caught
        left = load_each(directory)
        assert save.is_done(left) or (error and left == {count: count for count in save.before})
        assert error is None or (type(error), str(error)[:9]) == (type(event()), str(event())[:9])
        newest = Part({"number": 0})
        Checkpoints(directory).load(part=newest)
        assert newest.state["number"] in (7, [0, *save.before][-1])
        save_each(directory, [9], keep=9)
        assert Checkpoints(directory).counts() == sorted([*left, 9])
        assert leftovers(directory, [*left, 9]) == []
        if not operation.happened:
            break
    assert error is None
    assert left == dict(list(save.new.items())[-save.keep :])
    assert at > 1


def test_files_reach_disk_before_their_names_count(tmp_path: Path) -> None:
    """A power failure loses what was not flushed: neither names without content, nor both checkpoints."""
    save_each(tmp_path, [1], keep=1)
    with AtOperation(tmp_path) as recorded:
        save_each(tmp_path, [2], keep=1)
    order = [(name, file) for name, file in recorded.operations if name in ("save_file", "fsync", "rename")]
    (_, partial), *_ = [operation for operation in recorded.operations if operation[0] == "mkdir"]
    assert order == [
        ("save_file", "rank-0.safetensors"),
        ("fsync", "rank-0.safetensors"),
        ("fsync", "rank-0.tmp"),
        ("rename", "rank-0.tmp"),
        ("fsync", partial),
        ("rename", partial),
        ("fsync", tmp_path.name),
        ("rename", "1"),
    ]


@pytest.mark.parametrize("event", [Killed, _input_output_error])
@pytest.mark.parametrize("other", ["before", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_failed_rank_leaves_complete_checkpoints(tmp_path: Path, rank: int, other: str, event: Any) -> None:
    """The other rank has written its files before, or does so afterwards."""
    save_each(tmp_path / "prepared", [1], keep=1)
    contents = [RankContent({"part": Snapshot.take("part", Part(state_of(2)))}), RankContent({})]
    for at in itertools.count():
        directory, save_id, error = shutil.copytree(tmp_path / "prepared", tmp_path / str(at)), "a" * 32, None
        checkpoint_dirs.partial_path(directory, 2, save_id).mkdir()

        def write(rank: int, directory: Path = directory, save_id: str = save_id) -> None:
            contents[rank].write_files(directory, save_id, count=2, rank=rank, ranks=2, keep=1)

        if other == "before":
            write(1 - rank)
        with AtOperation(directory, at, event) as operation:
            try:
                write(rank)
            except BaseException as caught:
                error = caught
        if other == "after":
            write(1 - rank)
        left = load_each(directory)
        assert left in ({1: 1}, {1: 1, 2: 2}, {2: 2})
        assert error or 2 in left
        save_each(directory, [9], keep=9)
        assert leftovers(directory, [*left, 9]) == []
        if not operation.happened:
            break
    assert left == {2: 2}
    assert at > 1


def test_two_ranks_commit_at_once(tmp_path: Path) -> None:
    """Both see all files, and one of them renames the folder."""
    with patch.object(checkpoint_dirs, "commit"):
        save_each(tmp_path, [1], keep=1)
    (partial,) = tmp_path.iterdir()
    for _ in range(2):
        checkpoint_dirs.commit(partial, 1)
    assert leftovers(tmp_path, [1]) == []
    assert load_each(tmp_path) == {1: 1}


@pytest.mark.parametrize("first", [1, 2, 3])
def test_save_interrupted_at_any_line(tmp_path: Path, first: int) -> None:
    """The checkpoint is complete or absent, and the next save is neither blocked nor disturbed."""
    for stop_at in itertools.count(first, 3):
        directory, is_interrupted = tmp_path / str(stop_at), False
        checkpoints = Checkpoints(directory, keep=9)
        try:
            with Lines(stop_at):
                checkpoints.save(1, part=Part(state_of(1)), wait=True)
        except Stop:
            is_interrupted = True
        checkpoints.save(2, part=Part(state_of(2)))
        left = load_each(directory)
        assert left in ([{2: 2}, {1: 1, 2: 2}] if is_interrupted else [{1: 1, 2: 2}])
        assert leftovers(directory, list(left)) == []
        if not is_interrupted:
            break
    assert stop_at > 1


READS: dict[str, Callable[..., Any]] = {
    "load": lambda checkpoints, **parts: checkpoints.load(**parts),
    "load_model": lambda checkpoints, model, **_: checkpoints.load_model(model, part="model"),
    "merge": lambda checkpoints, model, **_: checkpoints.merge(
        [1, 2], [0.75, 0.25], into=model, part="model"
    ),
}


def _read(name: str, directory: Path) -> tuple[float, int | None]:
    """Return the number of the loaded model and the count, or raise an error without a change."""
    model, part, number = constant_model(0), Part({"number": 0}), 0.0
    try:
        count = READS[name](Checkpoints(directory), model=model, part=part)
        number = model.weight.max().item()
    finally:
        assert (model.weight == number).all()
        assert part.state["number"] == (number if name == "load" else 0)
    return number, count


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
    skipped = {(1.0, 1)} if event is _input_output_error else set[Any]()
    assert set(results) == ({(1.25, None)} if name == "merge" else {(2.0, 2)} | skipped)
    assert len(results) == 1 or event is not KeyboardInterrupt
    assert at > 5


def _replace(directory: Path) -> None:
    for _ in range(2):  # the second one has the name of the first again
        Checkpoints(directory, keep=2).save(2, part=Part(state_of(3)), model=constant_model(3), wait=True)


MEANWHILE: dict[str, Callable[[Path], None]] = {
    "pruning": lambda directory: save_each(directory, [3], keep=1, model=constant_model(3)),
    "replacement": _replace,
    "commit": lambda directory: checkpoint_dirs.commit(next(directory.glob(".*.partial")), keep=1),
}


@pytest.mark.parametrize("event", MEANWHILE)
@pytest.mark.parametrize("name", READS)
def test_read_while_another_process_saves(saved: Path, tmp_path: Path, name: str, event: str) -> None:
    """A reader sees the older or the newer checkpoint, never parts of both, and no damage."""
    results = list[Any]()
    for at in itertools.count():
        directory = shutil.copytree(saved, tmp_path / str(at))
        if event == "commit":
            with patch.object(checkpoint_dirs, "commit"):
                save_each(directory, [3], keep=1, model=constant_model(3))
        with (
            AtOperation(directory, at, lambda directory=directory: MEANWHILE[event](directory)) as operation,
            suppress(ValueError) if name == "merge" else nullcontext(),  # of a checkpoint that is gone
        ):
            results.append(_read(name, directory))
        if not operation.happened:
            assert len(results) > 1
            break
        assert Checkpoints(directory).counts() in ([3], [1, 2])
    # The numbers of the older and of the newer models; a merge may be of the replaced one.
    expected = {"merge": {(1.25, None), (1.5, None)}}.get(
        name, {(2.0, 2), (3.0, 2 if event == "replacement" else 3)}
    )
    assert set(results) <= expected
    assert at > 5


@pytest.mark.parametrize(
    ("size", "state", "name"),
    [(3000, torch.ones(100_000), "rank-0.safetensors"), (900, list(range(10_000)), "rank-0.json")],
)
def test_systems_error_names_file(tmp_path: Path, size: int, state: Any, name: str) -> None:
    """The system refuses to write beyond `size` bytes of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError, match=rf"File too large: .*/{name}'"):
            Checkpoints(tmp_path).save(2, part=Part(state), wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert leftovers(tmp_path, []) == []


def _parts(updates: int, with_step: bool) -> dict[str, Any]:
    parts = {"model": Net(updates), "part": Part(updates), "values": {"a": updates}, "items": [updates]}
    if not with_step:
        return parts
    step = make_step("momentum", Net(updates))
    train(step, batches(updates))
    optimizer = make_optimizer("momentum", parts["model"])
    optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
    return {"step": step, "optimizer": optimizer, **parts}


@pytest.mark.parametrize(
    ("name", "with_step"),
    [*((name, False) for name in READS), pytest.param("load", True, marks=pytest.mark.slow)],
)
def test_load_interrupted_at_any_line(tmp_path: Path, name: str, with_step: bool) -> None:
    """No part is loaded. Of the many lines, every seventh."""
    checkpoints, parts = Checkpoints(tmp_path), _parts(2, with_step)
    for count in (1, 2):
        checkpoints.save(count, **_parts(1, with_step), wait=True)

    def states() -> list[Any]:
        states = [part.state_dict() if hasattr(part, "state_dict") else part for part in parts.values()]
        return copy.deepcopy(states)

    before, load_all_or_none = states(), checkpoints_module.load_all_or_none
    for stop_at in itertools.count(1, 7):

        def load_until(loading: Any, stop_at: int = stop_at) -> None:
            with Lines(stop_at):
                load_all_or_none(loading)

        try:
            with patch.object(checkpoints_module, "load_all_or_none", load_until):
                READS[name](checkpoints, **parts)
        except Stop:
            assert equal_trees(states(), before), f"at line {stop_at}"
        else:
            break
    assert not equal_trees(states(), before)
    assert stop_at > 1
