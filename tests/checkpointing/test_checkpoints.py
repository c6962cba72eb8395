"""Checkpoints of one process: contents of a save, pruning, loading of all parts or none."""

import copy
import itertools
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from hypothesis import given, strategies as st
from support.checkpointing.checkpoints import Part, Rejecting, leftovers, same_bits
from support.data.loaders import WORKERS
from support.examples import examples
from support.lines import Lines, Stop
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch import nn

from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, MetricLog, TrainStep, make_loader
from torch_bridge.checkpointing import background, checkpoints as checkpoints_module, rank_files
from torch_bridge.checkpointing.background import BackgroundTask
from torch_bridge.checkpointing.loading_parts import load_all_or_none
from torch_bridge.checkpointing.rank_content import RankContent

pytestmark = WORKERS


class Run:
    """A training run with all the parts that a resume needs."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        model = Net(seed, dropout=0.5)
        self.parts: dict[str, Any] = {
            "step": TrainStep(model, make_optimizer("adamw", model), mean_loss, CURVE),
            "loader": make_loader(list(zip(*_rows(), strict=True)), 4, num_workers=0),
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


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(54.0).view(18, 3) / 54, torch.ones(18, 2)


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


def test_save_keeps_state_at_call(tmp_path: Path) -> None:
    model, values, part = nn.Linear(3, 2), {"a": [1]}, Part({"t": torch.zeros(4)})
    go, writing = Event(), rank_files.save_file

    def waits(*arguments: Any) -> Any:
        go.wait()
        return writing(*arguments)

    before = {name: value.clone() for name, value in model.state_dict().items()}
    checkpoints = Checkpoints(tmp_path)
    with patch.object(rank_files, "save_file", waits):
        checkpoints.save(1, model=model, values=values, part=part)
        with torch.no_grad():
            model.weight.zero_()
        values["a"].append(2)
        part.state["t"].fill_(1)
        go.set()
        assert checkpoints.counts() == [1]
    assert checkpoints.load(model=model, values=values, part=part) == 1
    assert same_bits(dict(model.state_dict()), before)
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
    part = Part(torch.ones(1))
    one.save(1, part=part)
    assert two.counts() == [1]
    two.save(1, part=Part(torch.zeros(1)))
    assert one.load(part=part) == 1
    assert same_bits(part.state, torch.zeros(1))
    one.save(2, part=part)
    assert two.load(part=part) == 2
    assert leftovers(tmp_path / "folder", [1, 2]) == []


def test_interrupted_step_can_be_loaded(tmp_path: Path) -> None:
    step, checkpoints = make_step(), Checkpoints(tmp_path)
    checkpoints.save(0, step=step)
    step._steppers.is_partial = True
    with pytest.raises(RuntimeError, match="an update was interrupted"):
        checkpoints.save(1, step=step)
    assert checkpoints.load(step=step) == 0
    step(batches(1)[0])


def test_empty_folder_has_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none" / "yet")
    assert checkpoints.counts() == []
    assert checkpoints.load(values=[1]) is None
    with pytest.raises(ValueError, match=r"no checkpoint 3; it has \[\]"):
        checkpoints.load(3, values=[1])
    assert not (tmp_path / "none").exists()
    checkpoints.save(0, values=[1])
    assert checkpoints.load(values=[]) == 0
    with pytest.raises(ValueError, match=r"no checkpoint 3; it has \[0\]"):
        checkpoints.load(3, values=[1])


def test_loaded_state_can_be_trained_in_inference_mode(tmp_path: Path) -> None:
    """A state loaded in inference mode can be trained on."""
    model, checkpoints = nn.Linear(2, 1), Checkpoints(tmp_path)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with torch.inference_mode():
            checkpoints.save(1, model=model, optimizer=optimizer)
            checkpoints.load(model=model, optimizer=optimizer)


def test_default_device_does_not_hold_states(tmp_path: Path) -> None:
    part, checkpoints = Part({"a": torch.ones(2, 3).t(), "b": torch.ones(2)}), Checkpoints(tmp_path)
    with torch.device("meta"):
        checkpoints.save(1, part=part)
        checkpoints.load(part=part)
    assert same_bits(part.state, {"a": torch.ones(2, 3).t(), "b": torch.ones(2)})


def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "folder")
    for name, what in (("file", "not a directory"), ("link", "a link to a missing directory")):
        for directory in (tmp_path / name, tmp_path / name / "new" / "run"):
            message = f"directory = '{directory}': {tmp_path / name} is {what}"
            with pytest.raises(NotADirectoryError, match=re.escape(message)):
                Checkpoints(directory)
    for keep, error in ((0, ValueError), (True, TypeError), (1.0, TypeError)):
        with pytest.raises(error, match="keep = "):
            Checkpoints(tmp_path, keep=keep)  # type: ignore[arg-type]  (that is what is tested)
    checkpoints: Any = Checkpoints(tmp_path / "folder")
    with pytest.raises(
        ValueError, match="'__metadata__' must be a valid variable name, and not __metadata__"
    ):
        checkpoints.save(1, __metadata__=Part(torch.ones(2)))
    with pytest.raises(TypeError, match=r"model = .* must be a module") as caught:
        checkpoints.load_model(list(range(10_000)))
    assert len(str(caught.value)) < 300
    for count, error in ((-1, ValueError), (True, TypeError), ("1", TypeError)):
        with pytest.raises(error, match="count = "):
            checkpoints.save(count, values=[1])
        with pytest.raises(error, match="count = "):
            checkpoints.load(count, values=[1])
    for call in (lambda **parts: checkpoints.save(1, **parts), checkpoints.load):
        with pytest.raises(ValueError, match="there are no parts"):
            call()
        for part in (3, "text", None, (1, 2), Part, torch.ones(1)):
            with pytest.raises(TypeError, match=r"odd = .* must have state_dict and load_state_dict"):
                call(odd=part)
        with pytest.raises(ValueError, match=r"'\.\./up' must be a valid variable name"):
            call(**{"../up": []})
    for part in (Part(1), {"a": 1}, [1]):
        with pytest.raises(TypeError, match=r"wait = .* must be True or False: pass parts by name"):
            checkpoints.save(1, part, values=[1])
    assert not (tmp_path / "folder").exists()
    checkpoints.save(1, one=[1], two={"a": 1})
    with pytest.raises(ValueError, match=r"has the parts \['one', 'two'\], and not \['three'\]"):
        checkpoints.load(one=[], three=[])
    assert checkpoints.load(one=(some := [])) == 1
    assert some == [1]
    with pytest.raises(ValueError, match="two was saved as a dict, and here it is a list"):
        checkpoints.load(one=(one := [5]), two=[])
    assert one == [5]
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            copied(checkpoints)


def test_part_may_have_any_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, self=[1], directory=[2], Self=[3])
    parts: dict[str, list[int]] = {"self": [], "directory": [], "Self": []}
    checkpoints.load(**parts)  # type: ignore[arg-type]  (none of them is called count)
    assert parts == {"self": [1], "directory": [2], "Self": [3]}


def test_rejected_save_leaves_no_files(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, values=[1])
    with pytest.raises(TypeError, match=r"part.a is of builtins.object"):
        checkpoints.save(2, values=[2], part=Part({"a": object()}))
    assert checkpoints.counts() == [1]
    assert leftovers(tmp_path, [1]) == []


@pytest.mark.parametrize("call", ["save", "save and wait", "load", "counts"])
def test_next_call_raises_background_error(tmp_path: Path, call: str) -> None:
    """A save starts before it raises the error of an earlier one: a failure costs only one checkpoint."""
    checkpoints, part = Checkpoints(tmp_path), Part(torch.ones(2))
    checkpoints.save(1, part=part)
    checkpoints.counts()
    with patch.object(rank_files, "save_file", side_effect=OSError("the disk is full")):
        checkpoints.save(2, part=part)
        checkpoints._background._pending.exception()
    calls: dict[str, Any] = {
        "save": lambda: checkpoints.save(3, part=part),
        "save and wait": lambda: checkpoints.save(3, wait=True, part=part),
        "load": lambda: checkpoints.load(part=part),
        "counts": checkpoints.counts,
    }
    with pytest.raises(OSError, match="the disk is full") as caught:
        calls[call]()
    saved = [1, 3] if "save" in call else [1]
    note = "An earlier save failed. The save of checkpoint 3 has started."
    assert getattr(caught.value, "__notes__", []) == [note] * (3 in saved)
    assert checkpoints.counts() == saved
    checkpoints.save(2, part=part)
    assert checkpoints.counts() == sorted([*saved, 2])
    assert leftovers(tmp_path, [*saved, 2]) == []


def test_each_failed_save_is_reported(tmp_path: Path) -> None:
    """Also if the next one is rejected, or fails as well."""
    checkpoints, part = Checkpoints(tmp_path), Part(torch.ones(2))
    with patch.object(
        rank_files, "save_file", side_effect=[OSError("one"), OSError("two"), OSError("three")]
    ):
        checkpoints.save(1, part=part)
        with pytest.raises(TypeError, match="part is of"):
            checkpoints.save(2, part=Part(object()))
        with pytest.raises(OSError, match="one"):
            checkpoints.save(2, part=part)
        with pytest.raises(OSError, match="three") as caught:
            checkpoints.save(3, part=part, wait=True)
    assert str(caught.value.__context__) == "two"
    assert checkpoints.counts() == []
    assert leftovers(tmp_path, []) == []


def test_error_of_a_save_does_not_keep_its_copy() -> None:
    """The next save makes another copy before it raises the error."""
    task, threads, content = BackgroundTask(), list[Thread](), RankContent({})
    reference = ref(content)

    def recorded(**options: Any) -> Thread:
        threads.append(Thread(**options))
        return threads[-1]

    with patch.object(background, "Thread", recorded):
        task.start(partial(content.write_files, Path(os.devnull), "0" * 32, 1, 0, 1, 1))
    del content
    error = task.wait()
    threads[0].join()
    assert isinstance(error, NotADirectoryError)
    assert reference() is None


def test_threads_that_save_lose_no_checkpoint(tmp_path: Path) -> None:
    checkpoints, threads = Checkpoints(tmp_path, keep=60), 4
    begin = Barrier(threads)

    def save_some(first: int) -> list[int | None]:
        begin.wait()
        loaded: list[int | None] = []
        for count in range(first, 60, threads):
            checkpoints.save(count, part=Part(count))
            assert count in checkpoints.counts()
            loaded.append(checkpoints.load(count, part=Part()))
        return loaded

    with ThreadPoolExecutor(threads) as pool:
        for first, loaded in enumerate(pool.map(save_some, range(threads))):
            assert loaded == list(range(first, 60, threads))
    assert checkpoints.counts() == list(range(60))
    assert leftovers(tmp_path, range(60)) == []


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
    assert checkpoints.counts() == [0, 1, 2]
    assert leftovers(tmp_path, [0, 1, 2]) == []


_PROGRAM = """
import sys, torch
from torch_bridge import Checkpoints
from torch_bridge.checkpointing import rank_files
class Part:
    def state_dict(self): return torch.ones(2)
    def load_state_dict(self, state_dict): pass
Checkpoints(sys.argv[1] + "/one").save(1, part=Part())
def fails(*_): raise OSError("the disk is full")
two = Checkpoints(sys.argv[1] + "/two")
two.save(1, part=Part(), wait=True)
rank_files.save_file = fails
two.save(2, part=Part())
"""


@pytest.mark.slow
def test_program_end_completes_save_and_prints_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stderr.endswith("OSError: the disk is full\n")
    assert Checkpoints(tmp_path / "one").counts() == [1]
    assert Checkpoints(tmp_path / "two").counts() == [1]


_FORKED = """
import os, sys, threading, warnings
from torch_bridge.checkpointing.background import BackgroundTask
from torch_bridge.checkpointing.loading_parts import load_all_or_none
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, in later Pythons
go = threading.Event()
background = BackgroundTask.named("")
background.start(go.wait)
def hold_lock():
    with background.lock:
        held.set()
        go.wait()
held = threading.Event()
threading.Thread(target=hold_lock).start()
held.wait()
if not (child := os.fork()):
    background.finish()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert background._pending
go.set()
"""


@pytest.mark.slow
def test_forked_process_does_not_wait() -> None:
    """The pending save and the lock belong to the parent: neither a call nor the end of the child waits."""
    subprocess.run([sys.executable, "-c", _FORKED], check=True, timeout=120)


def test_save_survives_interrupt_while_waiting(tmp_path: Path) -> None:
    """The save continues, and the next one waits for it."""
    checkpoints, part = Checkpoints(tmp_path), Part(torch.ones(2))
    with (
        patch("concurrent.futures.Future.exception", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        checkpoints.save(1, part=part, wait=True)
    checkpoints.save(2, part=part, wait=True)
    assert checkpoints.counts() == [1, 2]


def _module(state: int) -> nn.Module:
    module = nn.Linear(2, 2)
    for parameter in module.parameters():
        nn.init.constant_(parameter, state)
    return module


_KINDS: dict[str, Any] = {
    "object": Part,
    "module": _module,
    "dictionary": lambda state: {"a": state},
    "list": lambda state: [state],
}


def _state_of(part: Any) -> Any:
    if isinstance(part, nn.Module):
        return [parameter.tolist() for parameter in part.parameters()]
    return part.state if isinstance(part, Part) else copy.copy(part)


@examples(15)
@given(st.lists(st.sampled_from(list(_KINDS)), max_size=4), st.data())
def test_rejecting_part_leaves_all_unchanged(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], data: st.DataObject
) -> None:
    """At any position among the parts, and after it has changed itself; without it all are loaded."""
    checkpoints = Checkpoints(tmp_path_factory.mktemp("rejected"))

    def parts(state: int) -> dict[str, Any]:
        return {f"{kind}{number}": _KINDS[kind](state) for number, kind in enumerate(kinds)}

    saved, here = {**parts(1), "rejecting": Part(1)}, {**parts(0), "rejecting": Rejecting(0)}
    checkpoints.save(1, **saved)
    here = {name: here[name] for name in data.draw(st.permutations(list(here)))}
    before = {name: _state_of(part) for name, part in here.items()}
    with pytest.raises(KeyError, match="another one"):
        checkpoints.load(**here)  # type: ignore[arg-type]  (none of them is called count)
    assert {name: _state_of(part) for name, part in here.items()} == before
    here["rejecting"] = Part(0)
    assert checkpoints.load(**here) == 1  # type: ignore[arg-type]  (the same)
    assert {name: _state_of(part) for name, part in here.items()} == {
        name: _state_of(saved[name]) for name in here
    }


@pytest.mark.slow
def test_load_interrupted_at_any_line(tmp_path: Path) -> None:
    """No part is loaded."""

    def build(updates: int) -> dict[str, Any]:
        step, model = make_step("momentum", Net(updates)), Net(updates)
        train(step, batches(updates))
        optimizer = copy.deepcopy(step.optimizer.state_dict())
        parts = {"step": step, "model": model, "optimizer": make_optimizer("momentum", model)}
        parts["optimizer"].load_state_dict(optimizer)
        return {**parts, "part": Part(updates), "values": {"a": updates}, "items": [updates]}

    def states() -> list[Any]:
        return [part.state_dict() if hasattr(part, "state_dict") else part.copy() for part in here.values()]

    checkpoints, here = Checkpoints(tmp_path), build(2)
    checkpoints.save(1, **build(1), wait=True)
    before = states()
    for stop_at in itertools.count(1):

        def load_until(loading: Any, stop_at: int = stop_at) -> None:
            with Lines(stop_at):
                load_all_or_none(loading)

        try:
            with patch.object(checkpoints_module, "load_all_or_none", load_until):
                checkpoints.load(**here)
        except Stop:
            assert equal_trees(states(), before), f"at line {stop_at}"
        else:
            break
    assert states()[3:] == [1, {"a": 1}, [1]]
    assert stop_at > 1000


def test_part_that_is_not_restored_is_named(tmp_path: Path) -> None:
    """The part had no state before, like an interrupted training step."""
    checkpoints, without = Checkpoints(tmp_path), Part(0)
    checkpoints.save(1, without=Part(1), rejecting=Part(1))
    with (
        patch.object(without, "state_dict", side_effect=RuntimeError),
        pytest.raises(KeyError, match="another one") as caught,
    ):
        checkpoints.load(without=without, rejecting=Rejecting(0))
    *_, note = caught.value.__notes__  # the last: parts are restored in reverse order
    assert note.startswith("without could not be restored: ")


def test_interrupted_step_that_is_not_restored_makes_no_update(tmp_path: Path) -> None:
    step, checkpoints = make_step(), Checkpoints(tmp_path)
    checkpoints.save(1, step=step, rejecting=Part(1))
    step._steppers.is_partial = True
    with pytest.raises(KeyError, match="another one"):
        checkpoints.load(step=step, rejecting=Rejecting(0))
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        step(batches(1)[0])


def test_part_built_with_strict_false_takes_other_plan(tmp_path: Path) -> None:
    """`Checkpoints` calls `load_state_dict` without `strict=`, so it is set when the part is built."""
    new_curve = PlateauCurve(CURVE.total_steps, warmup_steps=1)
    checkpoints, saved = Checkpoints(tmp_path), make_step(model=Net(0))
    train(saved, batches(3))
    checkpoints.save(3, part=saved)
    part = make_step(model=Net(0), curve=new_curve)
    with pytest.raises(ValueError, match=r"strict=False to .*, or to TrainStep if Checkpoints .*loads"):
        checkpoints.load(part=part)
    part = make_step(model=Net(0), curve=new_curve, strict=False)
    assert checkpoints.load(part=part) == 3
    assert part.state_dict()["applied"] == 3
