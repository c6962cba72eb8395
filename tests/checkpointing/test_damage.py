"""Damage is named before any part changes, and an older checkpoint is loaded; no file runs code."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file
from support.checkpointing.checkpoints import Part, assert_same_bits, constant_model, state_of
from support.checkpointing.wrapped_tensors import Quantizing, quantized
from support.data.loaders import on_each_rank
from support.examples import examples
from support.training.steps import make_step

from torch_bridge import Checkpoints
from torch_bridge.training.checkpointing import loading, stored_values
from torch_bridge.training.checkpointing.file_format import TensorReader, rank_file

MANIFEST = "checkpoint.json"
TENSORS = "rank-0.safetensors"


def change_manifest(directory, **entries):
    """Change entries of the manifest, and give it the digest of its new content."""
    path = directory / MANIFEST
    record = json.loads(path.read_text())
    record.update(entries)
    del record["sha256"]
    text = json.dumps(record).removesuffix("}")
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(f'{text}, "sha256": "{digest}"}}\n')


# Damage to checkpoint 2 of two.


@pytest.fixture
def step_2(copied):
    """The directory of checkpoint 2."""
    return copied / "2"


def check_reads_fail(directory, error, message):
    """Check that every way to read checkpoint 2 is an error, and changes nothing."""
    part = Part("as before")
    model = constant_model(0)
    checkpoints = Checkpoints(directory)
    with pytest.raises(error, match=message):
        checkpoints.load(2, part=part, model=model)
    with pytest.raises(error, match=message):
        checkpoints.load_model(model, 2, part="model")
    assert part.state == "as before"
    assert (model.weight == 0).all()


def check_damage(directory, damage):
    """Check that checkpoint 2 is rejected if requested, and skipped otherwise."""
    check_reads_fail(directory, RuntimeError, rf"a damaged checkpoint: 2: .*{damage}")
    part = Part("as before")
    model = constant_model(0)
    checkpoints = Checkpoints(directory)
    with pytest.raises(UserWarning, match="newer ones are damaged"):  # the filter of all tests
        checkpoints.load(part=part, model=model)
    assert part.state == "as before"
    assert (model.weight == 0).all()

    message = rf"1 is loaded: newer ones are damaged: 2: .*{damage}"
    with pytest.warns(UserWarning, match=message) as warned:
        assert checkpoints.load(part=part, partial=True) == 1
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(UserWarning, match=message) as warned:
        assert checkpoints.load_model(model, part="model") == 1
    assert [warning.filename for warning in warned] == [__file__]
    assert_same_bits(part.state, state_of(1))
    assert (model.weight == 1).all()


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_missing_file(copied, step_2, name):
    (step_2 / name).unlink()
    check_damage(copied, f"{name} can't be read: .*No such file")


def test_additional_file(copied, step_2):
    """DCP's reader would read it: it takes every one with this suffix."""
    save_file({"part.weights": torch.ones(50)}, step_2 / "more.safetensors")
    check_damage(copied, "more.safetensors does not belong to it")


def test_manifest_of_a_different_checkpoint(copied, step_2):
    shutil.copytree(copied / "1", step_2, dirs_exist_ok=True)
    check_damage(copied, f"{MANIFEST} is that of checkpoint 1")


def test_manifest_of_a_different_kind(copied, step_2):
    change_manifest(step_2, kind="loader")
    check_damage(copied, f"{MANIFEST} is malformed")


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_flipped_bit_is_detected(copied, step_2, name):
    """In every byte of the file."""
    file = step_2 / name
    content = file.read_bytes()
    checkpoints = Checkpoints(copied)
    message = f"a damaged checkpoint: 2: {name} is damaged"

    @examples(40)
    @given(st.integers(0, len(content) - 1), st.integers(0, 7))
    def flip(index, bit):
        flipped = bytearray(content)
        flipped[index] ^= 1 << bit
        file.write_bytes(flipped)
        part = Part("as before")
        with pytest.raises(RuntimeError, match=message):
            checkpoints.load(2, part=part, partial=True)
        assert part.state == "as before"

    flip()
    check_damage(copied, f"{name} is damaged")


def test_all_damaged_checkpoints_are_named(copied, step_2):
    (copied / "1" / MANIFEST).unlink()
    (step_2 / MANIFEST).unlink()
    checkpoints = Checkpoints(copied)
    message = r"only damaged checkpoints: 2: .*No such file.*; 1: .*No such file"
    with pytest.raises(RuntimeError, match=message):
        checkpoints.load(part=Part())
    with pytest.raises(RuntimeError, match=message):
        checkpoints.load_model(model=constant_model(0))


def test_checkpoint_with_damaged_manifest_may_be_newest(copied, step_2):
    """Each load names it. It is never replaced or removed."""
    (step_2 / MANIFEST).write_bytes(b"?")
    checkpoints = Checkpoints(copied, keep=1)
    assert checkpoints.steps() == [1]
    for step in (3, 2, 2):
        checkpoints.save(step, part=Part(step), wait=True)
        assert checkpoints.steps() == [step]
        part = Part()
        message = rf"{step}.* is loaded: newer ones are damaged: 2: {MANIFEST}"
        with pytest.warns(UserWarning, match=message):
            assert checkpoints.load(part=part) == step
        assert part.state == step
    with pytest.warns(UserWarning, match=message):
        assert checkpoints.load(2, part=part) == 2
    assert (step_2 / MANIFEST).read_bytes() == b"?"


def test_load_that_starts_again_warns_at_the_users_line(copied, step_2):
    """Another process has saved a checkpoint meanwhile."""
    (step_2 / MANIFEST).unlink()
    read_verified = loading.read_verified

    def read_after_a_save(*arguments, **options):
        shutil.copytree(step_2, copied / "3", dirs_exist_ok=True)
        return read_verified(*arguments, **options)

    with (
        patch.object(loading, "read_verified", read_after_a_save),
        pytest.warns(UserWarning, match=r"newer ones are damaged: 3: .*; 2: ") as warned,
    ):
        assert Checkpoints(copied).load(part=Part(), partial=True) == 1
    assert [warning.filename for warning in warned] == [__file__]


# Different versions.


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"format": 2}, "has format 2, so it was"),
        ({"compressed": True}, "has the entry 'compressed', .* it was"),
    ],
)
def test_checkpoint_of_a_different_version_is_not_skipped(copied, step_2, entries, problem):
    """The run would continue from an older checkpoint."""
    change_manifest(step_2, **entries)
    message = f"{problem} saved by a different version of plateau-jax"
    check_reads_fail(copied, ValueError, message)
    part = Part()
    checkpoints = Checkpoints(copied)
    with pytest.raises(ValueError, match=message):
        checkpoints.load(part=part, partial=True)
    with pytest.raises(ValueError, match=message):
        checkpoints.load_model(constant_model(0), part="model")
    assert checkpoints.load(1, part=part, partial=True) == 1


def test_step_of_a_different_version_is_not_read(tmp_path):
    """Only its state differs: the manifest has the format of this version."""
    step = make_step()
    later = Part({**step.state_dict(), "format": 2})
    checkpoints = Checkpoints(tmp_path)
    with patch.object(type(step), "state_dict", lambda step: later.state):
        checkpoints.save(1, step=step, wait=True)
    message = "step has format 2, so it was saved by a different version"
    with pytest.raises(ValueError, match=message):
        checkpoints.load_model(step.model, part="step")


# Digests.


def test_digests_are_sha256_of_files(saved):
    """So that any tool can check them."""
    content = (saved / "2" / TENSORS).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    manifest = json.loads((saved / "2" / MANIFEST).read_text())
    assert manifest["files"] == {TENSORS: digest}
    entries = "kind format step save_index world_size parts files sha256"
    assert list(manifest) == entries.split()


def test_each_file_is_verified_by_one_rank(tmp_path):
    """In the order of the ranks, so each can verify what it wrote; that of a set differs."""
    names = [rank_file(number) for number in range(20)]
    files = dict.fromkeys(names, "")
    checkpoint = SimpleNamespace(path=tmp_path, manifest={"files": files})
    expected = [names[0::3], names[1::3], names[2::3]]
    assert on_each_rank(loading.files_to_verify, checkpoint, processes=3) == expected


def test_load_without_verifying_compares_no_digest(copied, step_2):
    twos = np.full(50, 2, np.float32).tobytes()
    eights = np.full(50, 8, np.float32).tobytes()
    tensors = step_2 / TENSORS
    content = tensors.read_bytes()
    tensors.write_bytes(content.replace(twos, eights))
    part = Part()
    checkpoints = Checkpoints(copied)
    assert checkpoints.load(verify=False, partial=True, part=part) == 2
    assert part.state["weights"][0] == 8
    tensors.unlink()
    message = f"newer ones are damaged: 2: {TENSORS} can't be read"
    with pytest.warns(UserWarning, match=message):
        assert checkpoints.load(verify=False, partial=True, part=part) == 1


# Errors that are not damage.


def test_error_of_reading_is_not_damage(copied):
    """An older checkpoint is not loaded in its place."""

    def fails(*_):
        raise MemoryError("no memory")

    checkpoints = Checkpoints(copied)
    with patch.object(TensorReader, "fill_tensors", fails), pytest.raises(MemoryError):
        checkpoints.load(part=Part())


# Crafted checkpoints, which would run code if their content were trusted.


class Code:
    """Creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("code_has_run",)


@pytest.mark.parametrize("is_in_structure", [True, False])
def test_crafted_checkpoint_runs_no_code(tmp_path, monkeypatch, is_in_structure):
    """Its code is in the structure, or in place of a tensor that is stored as bytes."""
    monkeypatch.chdir(tmp_path)
    to_bytes = stored_values.to_bytes

    def craft(value):
        if isinstance(value, dict) == is_in_structure:
            return to_bytes(Code())
        return to_bytes(value)

    checkpoints = Checkpoints(tmp_path)
    with patch.object(stored_values, "to_bytes", craft):
        part = Part({"a": torch.ones(2, dtype=torch.complex128)})
        checkpoints.save(2, part=part, wait=True)
    part = Part("as before")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        checkpoints.load(2, part=part, partial=True)
    assert part.state == "as before"
    assert not Path("code_has_run").exists()


def test_weights_load_without_the_class_of_the_moments(tmp_path):
    """As without torchao, which only the training run needs."""
    trained = constant_model(3)
    optimizer = Quantizing(trained.parameters())
    trained.weight.grad = torch.ones(1, 2)
    step = make_step(model=trained, optimizer=optimizer)
    optimizer.state[trained.weight]["moment"] = quantized(torch.ones(1, 2))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, wait=True)
    model = constant_model(0)
    safe = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        assert checkpoints.load_model(model) == 1
        with pytest.raises(pickle.UnpicklingError, match=r"GLOBAL .*\.Wrapped"):
            checkpoints.load(step=step)
    finally:
        torch.serialization.add_safe_globals(safe)
    assert torch.equal(model.weight, trained.weight)
