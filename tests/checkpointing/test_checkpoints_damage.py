"""Damaged checkpoints are named before any part changes, and the previous one is loaded."""

import hashlib
import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from support.checkpointing.checkpoints import Part, same_bits, save_each, state_of
from support.examples import examples

from torch_bridge import Checkpoints
from torch_bridge.checkpointing.reading import SavedCheckpoint

_FILES = ["rank-0.json", "rank-0.safetensors"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 1 and 2."""
    directory = tmp_path_factory.mktemp("saved") / "run"
    save_each(directory, [1, 2])
    return directory


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "run")


def _check_refused(directory: Path, message: str) -> None:
    """Check that checkpoint 2 is rejected if requested, and skipped otherwise."""
    part = Part("as before")
    with pytest.raises(RuntimeError, match=rf"a damaged checkpoint: 2: .*{message}"):
        Checkpoints(directory).load(2, part=part)
    assert part.state == "as before"
    with pytest.warns(UserWarning, match=rf"1 is loaded: newer ones are damaged: 2: .*{message}") as warned:
        assert Checkpoints(directory).load(part=part) == 1
    assert [warning.filename for warning in warned] == [__file__]
    assert same_bits(part.state, state_of(1))


def test_flipped_bit_is_detected(saved: Path, tmp_path: Path) -> None:
    """A flipped bit in any file is found before the file is used."""

    @examples(60)
    @given(st.sampled_from(_FILES), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
    def flip(name: str, where: float, bit: int) -> None:
        directory = tmp_path / "run"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(saved, directory)
        path = directory / "2" / name
        content = bytearray(path.read_bytes())
        content[int(where * len(content))] ^= 1 << bit
        path.write_bytes(content)
        _check_refused(directory, f"{name} (is damaged|has )")

    flip()


@pytest.mark.parametrize("name", _FILES)
def test_truncated_or_missing_file_is_detected(copied: Path, name: str) -> None:
    path = copied / "2" / name
    path.write_bytes(path.read_bytes()[:-1])
    _check_refused(copied, f"{name} is damaged")
    path.write_bytes(b"")
    _check_refused(copied, f"{name} is damaged")
    path.unlink()
    _check_refused(copied, f"{name} is missing")


def test_files_of_other_checkpoint_are_detected(copied: Path) -> None:
    for path in (copied / "1").iterdir():
        shutil.copy(path, copied / "2")
    _check_refused(copied, "rank-0.json belongs to a different checkpoint")


def test_checkpoint_with_damaged_head_may_be_newest(tmp_path: Path) -> None:
    """Each load names it. It no longer looks like this library's, so it is never removed."""
    save_each(tmp_path, [1, 2, 3], keep=3)
    checkpoints, part = Checkpoints(tmp_path), Part()
    path = tmp_path / "2" / "rank-0.json"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert checkpoints.counts() == [1, 3]
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"3(.1)? is loaded: newer ones are damaged: 2: rank-0.json"):
            assert checkpoints.load(part=part) == 3
        Checkpoints(tmp_path, keep=1).save(3, part=part, wait=True)
    assert checkpoints.counts() == [3]
    assert path.exists()


def test_unverifiable_checkpoint_is_not_loaded(copied: Path) -> None:
    """Any error in the check counts as damage, even one without a message."""
    checking = SavedCheckpoint.verify_digests

    def fails(checkpoint: SavedCheckpoint) -> None:
        if checkpoint.count == 2:
            raise MemoryError
        checking(checkpoint)

    with patch.object(SavedCheckpoint, "verify_digests", fails):
        _check_refused(copied, "MemoryError")


def test_damaged_checkpoint_can_be_saved_again(copied: Path) -> None:
    """It keeps its folder, and the new one of its count is loaded."""
    (copied / "2" / "rank-0.json").write_bytes(b"")
    checkpoints, part = Checkpoints(copied), Part()
    checkpoints.save(2, part=Part("again"), wait=True)
    for count in (2, None):
        with pytest.warns(UserWarning, match=r"2\.1 is loaded: newer ones are damaged: 2: rank-0\.json"):
            assert checkpoints.load(count, part=part) == 2
        assert part.state == "again"


def test_all_damaged_checkpoints_are_named(copied: Path) -> None:
    for count in (1, 2):
        (copied / str(count) / "rank-0.json").unlink()
    with pytest.raises(RuntimeError, match=r"only damaged checkpoints: 2: .*is missing; 1: .*is missing"):
        Checkpoints(copied).load(part=Part())


def test_warning_as_error_leaves_parts_unchanged(copied: Path) -> None:
    (copied / "2" / "rank-0.json").unlink()
    part = Part("as before")
    with pytest.raises(UserWarning, match="newer ones are damaged"):  # the filter that all tests have
        Checkpoints(copied).load(part=part)
    assert part.state == "as before"


def test_digest_is_sha256_of_tensor_bytes(saved: Path) -> None:
    """The JSON file ends with its own digest. Any tool can check both."""
    tensors = load_file(saved / "2" / "rank-0.safetensors")
    text = (saved / "2" / "rank-0.json").read_text()
    record = json.loads(text)
    assert same_bits(tensors["part.weights"], state_of(2)["weights"])
    digest = hashlib.sha256(tensors["part.weights"].numpy().tobytes()).hexdigest()
    assert record["tensors"] == {"part.weights": {"shape": [50], "sha256": digest}}
    body = text.rpartition(',"sha256":')[0]
    assert record["sha256"] == hashlib.sha256(body.encode()).hexdigest()
