"""Checkpoints of one process: runs resume, saves run in the background, foreign folders stay."""

import copy
import errno
import gc
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from unittest.mock import patch
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors import SafetensorError
from support.checkpointing.checkpoints import (
    Part,
    Rejecting,
    assert_same_bits,
    check_no_leftovers,
    saving_is_busy,
    wait_for_saves,
)
from support.checkpointing.wrapped_tensors import quantized
from support.distributed.threads import on_ranks
from support.examples import examples
from support.training.models import Net, batches, counting_loss
from support.training.steps import make_step
from torch import nn
from torch.optim.swa_utils import AveragedModel

from torch_bridge import Checkpoints, MetricLog, make_loader
from torch_bridge.training.checkpointing import file_format

SAMPLES = [(inputs, torch.ones(2)) for inputs in torch.arange(54.0).view(18, 3) / 54]


class FullRun:
    """A training run with all the parts that a resume needs."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.step = make_step(model=Net(seed, dropout=0.5))
        self.loader = make_loader(SAMPLES, 4, num_workers=0)
        self.log = MetricLog(every=3)
        self.progress = {"epoch": 0, "best": [0.5]}
        self.seen = []

    @property
    def parts(self):
        return vars(self)

    def train(self, updates):
        """Train, and return the results of all updates so far."""
        done = 0
        while done < updates:
            for inputs, targets in self.loader:
                self.log(self.step((inputs, targets)))
                self.seen.append(inputs.sum().item())
                done += 1
                if done == updates:
                    break
            else:
                self.progress["epoch"] += 1
        self.log.flush()
        return [self.log.rows, self.progress, self.seen, self.step.state_dict()]


def test_resume_matches_uninterrupted_run(tmp_path):
    expected = FullRun(0).train(9)
    run = FullRun(0)
    directory = tmp_path / "new" / "run"
    checkpoints = Checkpoints(directory)
    assert checkpoints.load(**run.parts) is None
    run.train(5)
    checkpoints.save(5, **run.parts)
    run.train(1)

    resumed = FullRun(1)
    progress = resumed.progress
    assert Checkpoints(directory).load(5, **resumed.parts) == 5
    assert resumed.progress is progress
    assert_same_bits(resumed.train(4), expected)

    assert checkpoints.load(**run.parts) == 5
    assert_same_bits(run.train(4), expected)


def test_model_loads_in_a_different_dtype(tmp_path):
    """From a step, whose random numbers are not restored."""
    model = Net(1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, step=make_step(model=model))
    in_bfloat16 = Net(2).bfloat16()
    torch.rand(1)
    random = torch.get_rng_state()
    assert checkpoints.load_model(in_bfloat16) == 7
    assert_same_bits(in_bfloat16.state_dict(), model.bfloat16().state_dict())
    assert torch.equal(torch.get_rng_state(), random)


def test_averaged_model_loads_into_its_module(tmp_path):
    """The buffers of a batch normalization, which have a version, are among its state."""
    model = nn.Sequential(Net(), nn.BatchNorm1d(2))
    mean = AveragedModel(model)
    mean.update_parameters(model)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, mean=mean)
    for tensor in model.state_dict().values():
        tensor.add_(1)
    checkpoints.load_model(model, part="mean")
    assert_same_bits(model.state_dict(), mean.module.state_dict())
    other = AveragedModel(model)
    checkpoints.load_model(other, part="mean")
    assert_same_bits(other.state_dict(), mean.state_dict())


class Tied(nn.Module):
    """Two layers that share a weight, and a seed as extra state."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.seed = seed

    def get_extra_state(self):
        return {"seed": self.seed, "array": np.arange(self.seed)}

    def set_extra_state(self, state):
        self.seed = state["seed"]
        assert state["array"].tolist() == list(range(self.seed))


def test_load_model_keeps_ties_and_extra_state(tmp_path):
    saved = Tied(3)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=saved)
    tied = Tied(9)
    checkpoints.load_model(tied, part="model")
    assert tied.second.weight is tied.first.weight
    assert torch.equal(tied.first.weight, saved.first.weight)
    assert tied.seed == 3

    untied = Tied(9)
    untied.second.weight = nn.Parameter(torch.zeros(3, 3))
    checkpoints.load_model(untied, part="model")
    assert torch.equal(untied.first.weight, saved.first.weight)
    assert torch.equal(untied.second.weight, saved.first.weight)


def test_count_of_another_module_is_not_dropped(tmp_path):
    model = nn.Linear(2, 1)
    model.register_buffer("n_averaged", torch.tensor(3))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model)
    with pytest.raises(ValueError, match=r"n_averaged: \(\) in the checkpoint, missing here"):
        checkpoints.load_model(nn.Linear(2, 1), part="model")


def test_save_keeps_state_at_call(tmp_path):
    """Also that of tensors whose copies to the CPU share their memory."""
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    values = {"a": [1]}
    moments = [torch.arange(12.0).view(4, 3), torch.ones(4, 3)]
    first, second = map(quantized, moments)
    part = Part({"t": torch.zeros(4), "moments": [first, first, second]})
    checkpoints = Checkpoints(tmp_path)
    with saving_is_busy():
        checkpoints.save(1, self=model, directory=values, Self=part)  # any names
        nn.init.zeros_(model.weight)
        values["a"].append(2)
        part.state["t"].fill_(1)
        for tensor in (*first.tensors.values(), *second.tensors.values()):
            tensor.zero_()
    assert checkpoints.load(self=model, directory=values, Self=part) == 1
    assert_same_bits(model.state_dict(), before)
    assert values == {"a": [1]}
    expected_moments = [quantized(moments[index]) for index in (0, 0, 1)]
    assert_same_bits(part.state, {"t": torch.zeros(4), "moments": expected_moments})


def test_files_have_usual_permissions(tmp_path):
    """Whoever may read other files of the program may read these: another user may evaluate."""
    usual = tmp_path / "usual"
    usual.touch()
    Checkpoints(tmp_path).save(1, part=Part(torch.ones(2)), wait=True)
    for file in (tmp_path / "1").iterdir():
        assert file.stat().st_mode == usual.stat().st_mode


def test_two_objects_share_one_folder(tmp_path):
    """They wait for each other's saves, even under different paths."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder", target_is_directory=True)
    one = Checkpoints(tmp_path / "folder")
    two = Checkpoints(tmp_path / "link")
    part = Part(1)
    one.save(1, part=part)
    assert two.steps() == [1]
    two.save(1, part=Part(0))
    assert one.load(part=part) == 1
    assert part.state == 0
    one.save(2, part=part)
    assert two.load(part=part) == 2
    check_no_leftovers(tmp_path / "folder", [1, 2])


# Saves that fail.


def test_full_disk_is_an_os_error(tmp_path):
    """A limit on the size of files stands in for the disk."""
    checkpoints = Checkpoints(tmp_path)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
    try:
        with pytest.raises(OSError, match=rf"{tmp_path}.*rank-0") as caught:
            checkpoints.save(1, part=Part(torch.ones(1_000_000)), wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert caught.value.errno == errno.EFBIG
    assert checkpoints.steps() == []
    check_no_leftovers(tmp_path, [])


@pytest.fixture
def failed_save(tmp_path):
    """Checkpoint 1, and a failed save of checkpoint 2 whose error has not been raised."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, part=Part(torch.ones(2)))
    checkpoints.steps()
    with patch.object(file_format, "save_file", side_effect=OSError("the disk is full")):
        checkpoints.save(2, part=Part(torch.ones(2)))
        wait_for_saves()
    return checkpoints


@pytest.mark.parametrize("wait", [False, True])
def test_next_save_raises_background_error(failed_save, wait):
    """It starts before it raises the error: a failure costs only one checkpoint."""
    with pytest.raises(OSError, match="the disk is full") as caught:
        failed_save.save(3, part=Part(torch.ones(2)), wait=wait)
    failed, started = caught.value.__notes__
    assert f"checkpoint 2 in {failed_save.directory} failed" in failed
    assert "3 has started" in started
    assert failed_save.steps() == [1, 3]
    failed_save.save(2, part=Part(torch.ones(2)))
    assert failed_save.steps() == [1, 2, 3]
    check_no_leftovers(failed_save.directory, [1, 2, 3])


def test_each_failed_save_is_reported(tmp_path):
    """Also if the next one is rejected, or fails as well."""
    checkpoints = Checkpoints(tmp_path)
    part = Part(torch.ones(2))
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
    check_no_leftovers(tmp_path, [])


@pytest.mark.parametrize("fails", [False, True])
def test_ended_save_keeps_no_copy(tmp_path, fails):
    """Not even until Python collects garbage: the next save makes another copy."""
    copies = []
    save_file = file_format.save_file

    def save_or_fail(tensors, *arguments):
        copies.extend(ref(tensor) for tensor in tensors.values())
        if fails:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save_file(tensors, *arguments)

    gc.disable()
    try:
        with patch.object(file_format, "save_file", save_or_fail):
            Checkpoints(tmp_path).save(1, part=Part(torch.ones(2)))
            wait_for_saves()
        assert copies
        assert not any(copied() is not None for copied in copies)
    finally:
        gc.enable()
    with suppress(OSError):
        assert Checkpoints(tmp_path).steps() == [1]


# Threads, signals and the end of the program.


def test_threads_that_save_lose_no_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=16)
    begin = Barrier(4)

    def save_every_fourth(first):
        begin.wait()
        loaded = []
        for step in range(first, 16, 4):
            checkpoints.save(step, part=Part(step))
            assert step in checkpoints.steps()
            loaded.append(checkpoints.load(step, part=Part()))
        return loaded

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(save_every_fourth, range(4)))
    assert loaded == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert checkpoints.steps() == list(range(16))
    check_no_leftovers(tmp_path, range(16))


PROGRAM = """
import sys, torch
from torch_bridge import Checkpoints
from torch_bridge.training.checkpointing import file_format
class OneTensor:
    def state_dict(self): return torch.ones(2)
    def load_state_dict(self, state_dict): pass
Checkpoints(sys.argv[1] + "/one").save(1, part=OneTensor())
def fails(*_): raise OSError("the disk is full")
two = Checkpoints(sys.argv[1] + "/two")
two.save(1, part=OneTensor(), wait=True)
file_format.save_file = fails
two.save(2, part=OneTensor())
"""


@pytest.mark.slow
def test_program_end_completes_save_and_prints_error(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "OSError: the disk is full\nThe save of checkpoint 2 in " in ended.stderr
    assert Checkpoints(tmp_path / "one").steps() == [1]
    assert Checkpoints(tmp_path / "two").steps() == [1]


# Forked processes.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_process_saves_and_loads(tmp_path):
    """Its parent has a pending save."""
    checkpoints = Checkpoints(tmp_path / "parent")
    checkpoints.save(1, part=Part(1), wait=True)
    in_child = Checkpoints(tmp_path / "child")

    def use():
        part = Part()
        assert checkpoints.load(part=part) == 1
        assert part.state == 1
        in_child.save(7, part=Part(7))
        in_child.save(8, part=Part(8))

    with saving_is_busy():
        checkpoints.save(2, part=Part(2))
        child = multiprocessing.get_context("fork").Process(target=use, daemon=True)
        # Python and JAX warn of any fork of a process with threads.
        with warnings.catch_warnings(action="ignore"):
            child.start()
        child.join(30)
        assert child.exitcode == 0
    assert in_child.steps() == [7, 8]
    assert checkpoints.steps() == [1, 2]


# Parts that cannot be loaded.


def test_parts_before_a_rejecting_one_are_loaded(tmp_path):
    """Those after it keep their state; without the rejecting one all are loaded."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, part=Part(1), values=[1], rejecting=Part(1))
    part = Part(0)
    values = [0]
    with pytest.raises(KeyError, match="a different one"):
        checkpoints.load(part=part, rejecting=Rejecting(0), values=values)
    assert [part.state, *values] == [1, 0]
    assert checkpoints.load(part=part, values=values, rejecting=Part()) == 1
    assert [part.state, *values] == [1, 1]


# Foreign folders, whatever their names, are never listed, loaded, replaced or removed.

# A copy of a checkpoint has one of these names.
NAMES_OF_COPIES = ["notes", "01", "1.0", "-3", "٣", "best.1"]


def create_foreign_folder(path, is_empty):
    path.mkdir()
    if not is_empty:
        (path / "state.json").write_text('{"step": 3}')
        (path / "0").mkdir()
        (path / "0" / ".metadata").write_bytes(b"\x80\x04N.")
        (path / "model.safetensors").touch()


def content_of(directory):
    """Return the content of each file; None for a folder."""
    content = {}
    for path in directory.rglob("*"):
        content[path] = None
        if path.is_file():
            content[path] = path.read_bytes()
    return content


@examples(30)
@given(
    foreign=st.dictionaries(st.integers(0, 9), st.booleans(), max_size=5),
    saved=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    keep=st.integers(1, 4),
)
def test_saves_prune_only_their_checkpoints(tmp_path_factory, foreign, saved, keep):
    """The last saved ones, whatever their steps: a run may have rolled back."""
    directory = tmp_path_factory.mktemp("folder")
    Checkpoints(directory / "notes").save(1, part=Part(), wait=True)
    for name in NAMES_OF_COPIES:
        shutil.copytree(directory / "notes" / "1", directory / name, dirs_exist_ok=True)
    for number, is_empty in foreign.items():
        create_foreign_folder(directory / str(number), is_empty)
    (directory / "15").touch()
    before = content_of(directory)
    number_of_entries = len(list(directory.iterdir()))

    checkpoints = Checkpoints(directory, keep=keep)
    part = Part()
    assert checkpoints.steps() == []
    assert checkpoints.load(part=part) is None
    for number in foreign:
        with pytest.raises(ValueError, match=rf"no checkpoint {number}; it has \[\]"):
            checkpoints.load(number, part=part)

    kept = {}
    for index, step in enumerate(saved):
        checkpoints.save(step, part=Part(index))
        kept.pop(step, None)
        kept[step] = index
        kept = dict(list(kept.items())[-keep:])
        assert checkpoints.steps() == sorted(kept)
    for step, index in kept.items():
        assert checkpoints.load(step, part=part) == step
        assert part.state == index
    assert checkpoints.load(part=part) == saved[-1]

    after = content_of(directory)
    for path, content in before.items():
        assert path in after
        assert after[path] == content
    assert len(list(directory.iterdir())) == number_of_entries + len(kept)
    shutil.rmtree(directory)


def test_link_is_loaded_and_never_removed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    Checkpoints(elsewhere).save(5, part=Part("linked"), wait=True)
    link = tmp_path / "run" / "5"
    link.parent.mkdir()
    link.symlink_to(elsewhere / "5", target_is_directory=True)
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    part = Part()
    assert checkpoints.load(part=part) == 5
    checkpoints.save(6, part=part, wait=True)
    assert link.is_symlink()
    assert Checkpoints(elsewhere).load(part=part) == 5


# More ranks than before, here threads.


def test_new_rank_keeps_its_carry(tmp_path):
    def build(count):
        return make_step(loss_fn=counting_loss, carry=torch.tensor(count))

    saved = build(10.0)
    saved(*batches(2))
    Checkpoints(tmp_path).save(1, step=saved, wait=True)

    def load():
        step = build(0.0)
        Checkpoints(tmp_path).load(step=step, partial=True)
        return step.state_dict()["carry"]

    with pytest.warns(UserWarning, match="which is now 2: .* keep their random numbers"):
        assert on_ranks(load, 2) == [[12.0], [0.0]]
