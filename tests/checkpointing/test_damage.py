"""Damage is named before any part changes, and an older checkpoint is loaded; crafted files run no code."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file
from support.checkpointing.checkpoints import Part, constant_model, same_bits, state_of
from support.checkpointing.wrapped_tensors import Quantizing, Unlisted, quantized
from support.data.loaders import in_each
from support.examples import examples
from support.training.steps import make_step

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import loading, numpy_values, states, stored_values
from torch_bridge.checkpointing.checkpoint_dirs import CheckpointDir
from torch_bridge.checkpointing.file_format import rank_file
from torch_bridge.checkpointing.loading import SavedCheckpoint

MANIFEST, TENSORS = "checkpoint.json", "rank-0.safetensors"


def _sign(folder: Path, **entries: Any) -> None:
    """Change entries of the manifest, and give it the digest of its new content."""
    record = json.loads((folder / MANIFEST).read_text()) | entries
    del record["sha256"]
    text = json.dumps(record)[:-1]
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(f'{text}, "sha256": "{digest}"}}\n')


def _add_file(folder: Path) -> None:
    """Add a file that DCP's reader would read: it takes every one with this suffix."""
    save_file({"part.weights": torch.ones(50)}, folder / "more.safetensors")


# What happens to the folder of checkpoint 2, and what is said.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty manifest": (lambda folder: (folder / MANIFEST).write_bytes(b""), f"{MANIFEST} is damaged"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "empty tensors": (lambda folder: (folder / TENSORS).write_bytes(b""), f"{TENSORS} is damaged"),
    "no tensors": (lambda folder: (folder / TENSORS).unlink(), f"{TENSORS} is missing"),
    "one more file": (_add_file, "more.safetensors does not belong to it"),
    "checkpoint 1": (
        lambda folder: shutil.copytree(folder.parent / "1", folder, dirs_exist_ok=True),
        f"{MANIFEST} is that of checkpoint 1",
    ),
    "another kind": (lambda folder: _sign(folder, kind="loader"), f"{MANIFEST} is malformed"),
    "no number": (lambda folder: _sign(folder, format=None), f"{MANIFEST} is malformed"),
    "file of rank 1": (
        lambda folder: _sign(folder, files={TENSORS: "0" * 64, "rank-1.safetensors": "0" * 64}),
        r"rank-1.safetensors is missing",
    ),
}


def _check_damage(directory: Path, message: str) -> None:
    """Check that checkpoint 2 is rejected if requested, and skipped otherwise."""
    part, model, checkpoints = Part("as before"), constant_model(0), Checkpoints(directory)
    calls: list[Callable[[], object]] = [
        lambda: checkpoints.load(2, part=part, model=model),
        lambda: checkpoints.load_model(model, 2, part="model"),
        lambda: checkpoints.merge([2, 1], [0.5, 0.5], into=model, part="model"),
        lambda: checkpoints.merge([2, 1], [0.0, 1.0], into=model, part="model"),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=rf"a damaged checkpoint: 2: .*{message}"):
            call()
    with pytest.raises(UserWarning, match="newer ones are damaged"):  # the filter that all tests have
        checkpoints.load(part=part, model=model)
    assert part.state == "as before"
    assert (model.weight == 0).all()
    for call in (lambda: checkpoints.load(part=part), lambda: checkpoints.load_model(model, part="model")):
        with pytest.warns(
            UserWarning, match=rf"1 is loaded: newer ones are damaged: 2: .*{message}"
        ) as warned:
            assert call() == 1
        assert [warning.filename for warning in warned] == [__file__]
    assert same_bits(part.state, state_of(1))
    assert (model.weight == 1).all()


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_skipped(copied: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(copied / "2")
    _check_damage(copied, message)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [({"format": 2}, "has format 2"), ({"compressed": True}, "has the entry 'compressed'")],
)
def test_checkpoint_of_a_newer_version_is_not_skipped(
    copied: Path, entries: dict[str, Any], problem: str
) -> None:
    """The run would continue from an older checkpoint."""
    _sign(copied / "2", **entries)
    part = Part("as before")
    model = constant_model(0)
    checkpoints = Checkpoints(copied)
    calls: list[Callable[[], object]] = [
        lambda: checkpoints.load(part=part),
        lambda: checkpoints.load(2, part=part, model=model),
        lambda: checkpoints.load_model(model, part="model"),
        lambda: checkpoints.merge([1, 2], [0.5, 0.5], into=model, part="model"),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=f"{problem}, so it was saved by a newer version: update plateau-jax"
        ):
            call()
    assert part.state == "as before"
    assert (model.weight == 0).all()
    assert checkpoints.load(1, part=part) == 1


def test_save_is_newer_than_a_checkpoint_of_a_newer_version(copied: Path) -> None:
    """After a return to this version, its own saves are the newest."""
    _sign(copied / "2", format=2)
    part = Part("as before")
    checkpoints = Checkpoints(copied)
    checkpoints.load(1, part=part)
    checkpoints.save(3, part=part, wait=True)
    assert checkpoints.load(part=part) == 3


def test_step_of_a_newer_version_is_not_read(tmp_path: Path) -> None:
    """Only its state is newer: the manifest has the format of this version."""
    step = make_step()
    state = step.state_dict() | {"format": 2}
    checkpoints = Checkpoints(tmp_path)
    with patch.object(type(step), "state_dict", lambda step: state):
        checkpoints.save(1, step=step, wait=True)
    with pytest.raises(ValueError, match="step has format 2, so it was saved by a newer version"):
        checkpoints.load_model(step.model, part="step")


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_flipped_bit_is_detected(saved: Path, tmp_path: Path, name: str) -> None:
    """In every byte of the file."""
    directory = shutil.copytree(saved, tmp_path / "run")
    content = (directory / "2" / name).read_bytes()
    checkpoints = Checkpoints(directory)

    @examples(40)
    @given(st.integers(0, len(content) - 1), st.integers(0, 7))
    def flip(index: int, bit: int) -> None:
        flipped = bytearray(content)
        flipped[index] ^= 1 << bit
        (directory / "2" / name).write_bytes(flipped)
        part = Part("as before")
        with pytest.raises(RuntimeError, match=f"a damaged checkpoint: 2: {name} is damaged"):
            checkpoints.load(2, part=part)
        assert part.state == "as before"

    flip()
    _check_damage(directory, f"{name} is damaged")


def test_digests_are_sha256_of_files(saved: Path) -> None:
    """So that any tool can check them."""
    digest = hashlib.sha256((saved / "2" / TENSORS).read_bytes()).hexdigest()
    assert json.loads((saved / "2" / MANIFEST).read_text())["files"] == {TENSORS: digest}


def test_each_file_is_verified_by_one_rank(tmp_path: Path) -> None:
    """The order of a set differs between processes, so all ranks must share the sorted names."""
    checkpoint = CheckpointDir(1, tmp_path, 0.0, files={rank_file(number): "" for number in range(20)})
    shares = in_each(loading._files_to_verify, [checkpoint], processes=3)
    names = [name for turn in zip_longest(*shares) for file in turn if file for name in file[1:]]
    assert names == sorted(checkpoint.files)


def test_load_without_verifying_compares_no_digest(copied: Path) -> None:
    twos, eights = (np.full(50, value, np.float32).tobytes() for value in (2, 8))
    tensors = copied / "2" / TENSORS
    tensors.write_bytes(tensors.read_bytes().replace(twos, eights))
    part, checkpoints = Part(), Checkpoints(copied)
    assert checkpoints.load(verify=False, part=part) == 2
    assert part.state["weights"][0] == 8
    tensors.unlink()
    with pytest.warns(UserWarning, match=f"newer ones are damaged: 2: {TENSORS} is missing"):
        assert checkpoints.load(verify=False, part=part) == 1


def test_error_of_reading_is_raised_if_nothing_is_damaged(copied: Path) -> None:
    """An older checkpoint is not loaded in its place."""

    def fails(*_: object) -> None:
        raise MemoryError("no memory")

    with patch.object(SavedCheckpoint, "fill_tensors", fails), pytest.raises(MemoryError):
        Checkpoints(copied).load(part=Part())


def test_checkpoint_that_is_removed_while_it_is_read_is_an_error(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_part = loading.read_part

    def read_and_remove(*arguments: Any) -> Any:
        state = read_part(*arguments)
        shutil.rmtree(copied / "2")
        return state

    monkeypatch.setattr(loading, "read_part", read_and_remove)
    part = Part("as before")
    with pytest.raises(ValueError, match=r"has no checkpoint 2; it has \[1\]"):
        Checkpoints(copied).load(2, part=part)
    assert part.state == "as before"


def test_all_damaged_checkpoints_are_named(copied: Path) -> None:
    for step in (1, 2):
        (copied / str(step) / MANIFEST).unlink()
    for call in (Checkpoints(copied).load, Checkpoints(copied).load_model):
        model = {"part": Part()} if call.__name__ == "load" else {"model": constant_model(0)}
        with pytest.raises(RuntimeError, match=r"only damaged checkpoints: 2: .*is missing; 1: .*is missing"):
            call(**model)


def test_checkpoint_with_damaged_manifest_may_be_newest(copied: Path) -> None:
    """Each load names it. It is never replaced or removed."""
    (copied / "2" / MANIFEST).write_bytes(b"?")
    checkpoints, part = Checkpoints(copied, keep=1), Part()
    assert checkpoints.steps() == [1]
    for step in (3, 2, 2):
        checkpoints.save(step, part=Part(step), wait=True)
        assert checkpoints.steps() == [step]
        with pytest.warns(UserWarning, match=rf"{step}.* is loaded: newer ones are damaged: 2: {MANIFEST}"):
            assert checkpoints.load(part=part) == part.state == step
    assert (copied / "2" / MANIFEST).read_bytes() == b"?"


class _Code:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("code_has_run",)


def _unsplit(_: str, state: Any, __: Any) -> Any:
    return state


def _pickled(array: Any) -> tuple[str, torch.Tensor]:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return numpy_values.ARRAY, torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


class Crafted(NamedTuple):
    """A checkpoint that would run code if its content were trusted."""

    state: Any
    module: Any
    changes: dict[str, Any]
    """What replaces names of the module during the save."""
    message: str


def _crafted_class(name: str, message: str) -> Crafted:
    """Return a tensor that is said to be of a class of this name."""
    changes = {"name_in_safe_globals": lambda _: name}
    return Crafted(quantized(torch.ones(2, 2)), stored_values, changes, message)


CRAFTED = {
    "code": Crafted([_Code()], states, {"map_leaves": _unsplit}, "Weights only load failed"),
    "array by pickle": Crafted([np.ones(1)], states, {"map_leaves": _unsplit}, "Weights only load failed"),
    "array of objects": Crafted(
        np.array([_Code()]), numpy_values, {"KIND_CODES": "O", "to_bytes": _pickled}, "allow_pickle=False"
    ),
    "tensor of a function": _crafted_class(
        "os.mkdir", r"part is of os\.mkdir, which is not in torch's list of safe globals here"
    ),
    "tensor of a safe function": _crafted_class(
        "torch.nested._internal.nested_tensor._rebuild_njt", "part is of .*_rebuild_njt, which is not in"
    ),
    "tensor of an unlisted class": _crafted_class(
        f"{Unlisted.__module__}.Unlisted",
        r"part is of .*Unlisted, .* call .*add_safe_globals\(\[Unlisted\]\)",
    ),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_state_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It raises an `Exception`, which a training program's handlers catch."""
    monkeypatch.chdir(tmp_path)
    crafted = CRAFTED[name]
    checkpoints, part = Checkpoints(tmp_path), Part("as before")
    with patch.multiple(crafted.module, **crafted.changes):
        checkpoints.save(2, part=Part(crafted.state), wait=True)
    with pytest.raises(Exception, match=crafted.message):
        checkpoints.load(2, part=part)
    assert part.state == "as before"
    assert not Path("code_has_run").exists()


def test_weights_load_without_the_class_of_the_moments(tmp_path: Path) -> None:
    """As without torchao, which only the training run needs."""
    trained = constant_model(3)
    optimizer = Quantizing(trained.parameters())
    trained.get_parameter("weight").grad = torch.ones(1, 2)
    step = make_step(model=trained, optimizer=optimizer)
    optimizer.state[trained.get_parameter("weight")]["moment"] = quantized(torch.ones(1, 2))
    checkpoints, model = Checkpoints(tmp_path), constant_model(0)
    checkpoints.save(1, step=step, wait=True)
    with patch.object(torch.serialization, "get_safe_globals", list):
        assert checkpoints.load_model(model) == 1
        with pytest.raises(
            ValueError, match=r"step\.optimizer\.state\.0\.moment is of .*Wrapped, which is not"
        ):
            checkpoints.load(step=step)
    assert torch.equal(model.weight, trained.weight)
