"""Checkpoints of one process: runs resume, saves run in the background, and foreign folders stay."""

import copy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors import SafetensorError
from support.checkpointing.checkpoints import Part, Rejecting, constant_model, leftovers, same_bits
from support.data.loaders import WORKERS
from support.examples import examples
from support.training.models import Net
from support.training.steps import make_step
from torch import nn

from torch_bridge import Checkpoints, MetricLog, make_loader
from torch_bridge.checkpointing import file_format, saving

pytestmark = WORKERS

_SAMPLES = [(row, torch.ones(2)) for row in torch.arange(54.0).view(18, 3) / 54]


class Run:
    """A training run with all the parts that a resume needs."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.parts: dict[str, Any] = {
            "step": make_step(model=Net(seed, dropout=0.5)),
            "loader": make_loader(_SAMPLES, 4, num_workers=0),
            "log": MetricLog(every=3),
            "progress": {"epoch": 0, "best": [0.5]},
            "seen": [],
        }

    def train(self, updates: int) -> list[Any]:
        step, loader, log, progress, seen = self.parts.values()
        while updates:
            for batch in loader:
                log(step(batch))
                seen.append(batch[0].sum().item())
                updates -= 1
                if not updates:
                    break
            else:
                progress["epoch"] += 1
        log.flush()
        return [log.rows, progress, seen, step.state_dict()]


def test_resume_matches_uninterrupted_run(tmp_path: Path) -> None:
    expected = Run(0).train(9)
    run, checkpoints = Run(0), Checkpoints(tmp_path)
    run.train(5)
    checkpoints.save(5, **run.parts)
    run.train(1)
    again = Run(1)
    progress = again.parts["progress"]
    assert Checkpoints(tmp_path).load(5, **again.parts) == 5
    assert again.parts["progress"] is progress
    assert same_bits(again.train(4), expected)
    assert checkpoints.load(**run.parts) == 5
    assert same_bits(run.train(4), expected)


def test_model_loads_in_another_dtype(tmp_path: Path) -> None:
    """From a step, whose random numbers are not restored."""
    model, half, checkpoints = Net(1), Net(2).bfloat16(), Checkpoints(tmp_path)
    checkpoints.save(7, step=make_step(model=model))
    torch.rand(1)
    random = torch.get_rng_state()
    assert checkpoints.load_model(half) == 7
    assert same_bits(half.state_dict(), model.bfloat16().state_dict())
    assert torch.equal(torch.get_rng_state(), random)


def test_save_keeps_state_at_call(tmp_path: Path) -> None:
    model, values, part = nn.Linear(3, 2), {"a": [1]}, Part({"t": torch.zeros(4)})
    go, save_file = Event(), file_format.save_file
    before = copy.deepcopy(model.state_dict())
    checkpoints = Checkpoints(tmp_path)
    with patch.object(file_format, "save_file", lambda *arguments: go.wait() and save_file(*arguments)):
        checkpoints.save(1, self=model, directory=values, Self=part)  # any names
        nn.init.zeros_(model.weight)
        values["a"].append(2)
        part.state["t"].fill_(1)
        go.set()
        assert checkpoints.steps() == [1]
    assert checkpoints.load(self=model, directory=values, Self=part) == 1
    assert same_bits(model.state_dict(), before)
    assert values == {"a": [1]}
    assert part.state["t"].tolist() == [0, 0, 0, 0]


def test_files_have_usual_permissions(tmp_path: Path) -> None:
    """Whoever may read other files of the program may read these: another user may evaluate."""
    (tmp_path / "other").touch()
    Checkpoints(tmp_path).save(1, part=Part(torch.ones(2)), wait=True)
    modes = {path.stat().st_mode for path in [tmp_path / "other", *(tmp_path / "1").iterdir()]}
    assert len(modes) == 1


def test_two_objects_share_one_folder(tmp_path: Path) -> None:
    """They wait for each other's saves, even under different paths."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder", target_is_directory=True)
    one, two = Checkpoints(tmp_path / "folder"), Checkpoints(tmp_path / "link")
    part = Part(1)
    one.save(1, part=part)
    assert two.steps() == [1]
    two.save(1, part=Part(0))
    assert one.load(part=part) == 1
    assert part.state == 0
    one.save(2, part=part)
    assert two.load(part=part) == 2
    assert leftovers(tmp_path / "folder", [1, 2]) == []


def test_empty_folder_has_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none" / "yet")
    assert checkpoints.steps() == []
    assert checkpoints.load(values=[1]) is None
    assert not (tmp_path / "none").exists()
    checkpoints.save(0, values=[1])
    assert checkpoints.load(values=(values := list[int]())) == 0
    assert values == [1]


def test_loaded_state_can_be_trained_in_inference_mode(tmp_path: Path) -> None:
    model, checkpoints = nn.Linear(2, 1), Checkpoints(tmp_path)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with torch.inference_mode():
            checkpoints.save(1, model=model, optimizer=optimizer)
            checkpoints.load(model=model, optimizer=optimizer)


@pytest.mark.parametrize("call", ["save", "save and wait", "load", "counts"])
def test_next_call_raises_background_error(tmp_path: Path, call: str) -> None:
    """A save starts before it raises the error of an earlier one: a failure costs only one checkpoint."""
    checkpoints, part = Checkpoints(tmp_path), Part(torch.ones(2))
    checkpoints.save(1, part=part)
    checkpoints.steps()
    with patch.object(file_format, "save_file", side_effect=OSError("the disk is full")):
        checkpoints.save(2, part=part)
        checkpoints._wait()
    calls: dict[str, Callable[[], Any]] = {
        "save": lambda: checkpoints.save(3, part=part),
        "save and wait": lambda: checkpoints.save(3, wait=True, part=part),
        "load": lambda: checkpoints.load(part=part),
        "counts": checkpoints.steps,
    }
    with pytest.raises(OSError, match="the disk is full") as caught:
        calls[call]()
    saved = [1, 3] if "save" in call else [1]
    note = "An earlier save failed. The save of checkpoint 3 has started."
    assert getattr(caught.value, "__notes__", []) == [note] * (3 in saved)
    assert checkpoints.steps() == saved
    checkpoints.save(2, part=part)
    assert checkpoints.steps() == sorted([*saved, 2])
    assert leftovers(tmp_path, [*saved, 2]) == []


def test_each_failed_save_is_reported(tmp_path: Path) -> None:
    """Also if the next one is rejected, or fails as well."""
    checkpoints, part = Checkpoints(tmp_path), Part(torch.ones(2))
    errors = [OSError("one"), OSError("two"), OSError("three")]
    with patch.object(file_format, "save_file", side_effect=errors):
        checkpoints.save(1, part=part)
        with pytest.raises(TypeError, match="part is of"):
            checkpoints.save(2, part=Part(object()))
        with pytest.raises(OSError, match="one"):
            checkpoints.save(2, part=part)
        with pytest.raises(OSError, match="three") as caught:
            checkpoints.save(3, part=part, wait=True)
    assert str(caught.value.__context__) == "two"
    assert checkpoints.steps() == []
    assert leftovers(tmp_path, []) == []


def test_error_of_a_save_does_not_keep_its_copy(tmp_path: Path) -> None:
    """The next save makes another copy before it raises the error."""

    def fail(tensors: dict[str, torch.Tensor], *_: Any) -> None:
        copies.extend(map(ref, tensors.values()))
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    checkpoints, copies = Checkpoints(tmp_path), list[Any]()
    with patch.object(file_format, "save_file", fail):
        checkpoints.save(1, part=Part(torch.ones(2)))
        assert isinstance(checkpoints._wait(), OSError)
    saving._executor.submit(bool).result()  # the worker has let go of the work before
    assert len(copies) == 2
    assert [reference() for reference in copies] == [None, None]
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.steps()


def test_threads_that_save_lose_no_checkpoint(tmp_path: Path) -> None:
    checkpoints, threads, total = Checkpoints(tmp_path, keep=16), 4, 16
    begin = Barrier(threads)

    def save_some(first: int) -> list[int | None]:
        begin.wait()
        loaded: list[int | None] = []
        for count in range(first, total, threads):
            checkpoints.save(count, part=Part(count))
            assert count in checkpoints.steps()
            loaded.append(checkpoints.load(count, part=Part()))
        return loaded

    with ThreadPoolExecutor(threads) as pool:
        for first, loaded in enumerate(pool.map(save_some, range(threads))):
            assert loaded == list(range(first, total, threads))
    assert checkpoints.steps() == list(range(total))
    assert leftovers(tmp_path, range(total)) == []


@pytest.mark.parametrize("place", [(Part, "state_dict"), (Future, "exception")], ids=["copying", "waiting"])
def test_signal_handler_may_save_during_a_save(tmp_path: Path, place: tuple[Any, str]) -> None:
    checkpoints, part, interrupted = Checkpoints(tmp_path), Part(1), getattr(*place)
    interrupts = iter([2])

    def interrupt(instance: Any) -> Any:
        for count in interrupts:
            checkpoints.save(count, part=part)
        return interrupted(instance)

    checkpoints.save(0, part=part)
    with patch.object(*place, interrupt):
        checkpoints.save(1, part=part)
    assert checkpoints.steps() == [0, 1, 2]
    assert leftovers(tmp_path, [0, 1, 2]) == []


_PROGRAM = """
import sys, torch
from torch_bridge import Checkpoints
from torch_bridge.checkpointing import file_format
class Part:
    def state_dict(self): return torch.ones(2)
    def load_state_dict(self, state_dict): pass
Checkpoints(sys.argv[1] + "/one").save(1, part=Part())
def fails(*_): raise OSError("the disk is full")
two = Checkpoints(sys.argv[1] + "/two")
two.save(1, part=Part(), wait=True)
file_format.save_file = fails
two.save(2, part=Part())
"""


@pytest.mark.slow
def test_program_end_completes_save_and_prints_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stderr.endswith("OSError: the disk is full\n")
    assert Checkpoints(tmp_path / "one").steps() == [1]
    assert Checkpoints(tmp_path / "two").steps() == [1]


def _parts(number: int) -> dict[str, Any]:
    model = constant_model(number)
    return {"object": Part(number), "model": model, "dictionary": {f"{number}": number}, "list": [number]}


def _numbers_in(parts: dict[str, Any]) -> list[float]:
    weight = parts["model"].weight.max().item()
    return [parts["object"].state, weight, *parts["dictionary"].values(), *parts["list"]]


@pytest.mark.parametrize("before", range(5))
def test_parts_before_a_rejecting_one_are_loaded(tmp_path: Path, before: int) -> None:
    """Those after it keep their state; without the rejecting one all are loaded."""
    checkpoints, parts = Checkpoints(tmp_path), _parts(0)
    checkpoints.save(1, **_parts(1), rejecting=Part(1))
    items = list(parts.items())
    items.insert(before, ("rejecting", Rejecting(0)))
    with pytest.raises(KeyError, match="another one"):
        checkpoints.load(**dict(items))
    assert _numbers_in(parts) == [1] * before + [0] * (4 - before)
    assert checkpoints.load(**parts, rejecting=Part()) == 1
    assert _numbers_in(parts) == [1] * 4


def test_interrupted_step_is_not_saved(tmp_path: Path) -> None:
    step = make_step()
    step._status.begin_writing()
    with pytest.raises(RuntimeError, match="an update was interrupted"):
        Checkpoints(tmp_path).save(2, step=step)


def test_warnings_are_repeated_neither_by_saves_nor_by_loads(tmp_path: Path) -> None:
    """Python forgets what it has shown when a filter is added, and DCP's warning needs one."""
    checkpoints, part = Checkpoints(tmp_path), Part()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for step in range(3):
            checkpoints.save(step, part=part, wait=True)
            checkpoints.load(part=part)
            warnings.warn("of the program", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["of the program"]


@pytest.mark.filterwarnings("error")
def test_pending_save_needs_no_filter_of_the_caller(tmp_path: Path) -> None:
    checkpoints, may_start = Checkpoints(tmp_path), Event()
    saving._executor.submit(may_start.wait)
    with warnings.catch_warnings():
        checkpoints.save(1, part=Part())
    may_start.set()
    assert checkpoints.steps() == [1]


# Foreign folders, whatever their names, are never listed, loaded, replaced or removed.


def _create_foreign(path: Path, is_empty: bool) -> None:
    path.mkdir()
    if not is_empty:
        (path / "state.json").write_text('{"step": 3}')
        (path / "0").mkdir()
        (path / "0" / ".metadata").write_bytes(b"\x80\x04N.")
        (path / "model.safetensors").touch()


_NAMES = ["notes", "01", "1.0", "-3", "٣", "best.1"]  # a copy of a checkpoint has one of these


def _content(path: Path) -> dict[str, bytes | None]:
    return {
        str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None
        for entry in path.rglob("*")
    }


@examples(30)
@given(
    st.dictionaries(st.integers(0, 9), st.booleans(), max_size=5),
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_saves_prune_only_their_own_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, foreign: dict[int, bool], saved: list[int], keep: int
) -> None:
    """The last saved ones, whatever their counts: a run may have rolled back."""
    directory = tmp_path_factory.mktemp("folder")
    Checkpoints(directory / "notes").save(1, part=Part(), wait=True)
    for name in _NAMES:
        shutil.copytree(directory / "notes" / "1", directory / name, dirs_exist_ok=True)
    for number, is_empty in foreign.items():
        _create_foreign(directory / str(number), is_empty)
    (directory / "15").touch()
    before = _content(directory)
    checkpoints, part = Checkpoints(directory, keep=keep), Part()
    assert checkpoints.steps() == []
    assert checkpoints.load(part=part) is None
    for number in foreign:
        with pytest.raises(ValueError, match=rf"no checkpoint {number}; it has \[\]"):
            checkpoints.load(number, part=part)
    expected: dict[int, int] = {}
    for index, count in enumerate(saved):
        checkpoints.save(count, part=Part(index))
        expected.pop(count, None)
        expected = dict([*expected.items(), (count, index)][-keep:])
        assert checkpoints.steps() == sorted(expected)
    for count, index in expected.items():
        assert checkpoints.load(count, part=part) == count
        assert part.state == index
    assert checkpoints.load(part=part) == saved[-1]
    after = _content(directory)
    assert {name: after.get(name, "missing") for name in before} == before
    assert len(list(directory.iterdir())) == len(foreign) + len(_NAMES) + 1 + len(expected)
    shutil.rmtree(directory)


def test_link_is_loaded_and_never_removed(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "other").save(5, part=Part("linked"), wait=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "5").symlink_to(tmp_path / "other" / "5", target_is_directory=True)
    checkpoints, part = Checkpoints(tmp_path / "run", keep=1), Part()
    assert checkpoints.load(part=part) == 5
    checkpoints.save(6, part=part, wait=True)
    assert (tmp_path / "run" / "5").is_symlink()
    assert Checkpoints(tmp_path / "other").load(part=part) == 5
