"""Damaged checkpoints: refused by name, before any part changes, and without running code from them."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints import Part, same, state_of
from support.examples import examples

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import manifest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 1 and 2."""
    directory = tmp_path_factory.mktemp("saved") / "run"
    for count in (1, 2):
        Checkpoints(directory).save(count, part=Part(state_of(count)))
    Checkpoints(directory).counts()
    return directory


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "run")


_FILES = ["state.json", "manifest.json", ".metadata", "__0_0.distcp"]


def _refused(directory: Path, message: str) -> None:
    """Checkpoint 2 is refused where it is asked for, and passed over where it is not."""
    part = Part("as before")
    with pytest.raises(RuntimeError, match=rf"only damaged checkpoints: 2: .*{message}"):
        Checkpoints(directory).load(2, part=part)
    assert part.state == "as before"
    with pytest.warns(UserWarning, match=rf"1 is loaded: newer ones are damaged: 2: .*{message}") as said:
        assert Checkpoints(directory).load(part=part) == 1
    assert [warning.filename for warning in said] == [__file__]
    assert same(part.state, state_of(1))


def test_a_flipped_bit(saved: Path, tmp_path: Path) -> None:
    """A flipped bit in any file is found before the file is used."""

    @examples(40)
    @given(st.sampled_from(_FILES), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
    def flip(name: str, where: float, bit: int) -> None:
        directory = tmp_path / "run"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(saved, directory)
        path = directory / "2" / "0" / name
        content = bytearray(path.read_bytes())
        content[int(where * len(content))] ^= 1 << bit
        path.write_bytes(content)
        _refused(directory, f"0/{name} is damaged")

    flip()


@pytest.mark.parametrize("name", _FILES)
def test_a_cut_and_a_missing_file(copied: Path, name: str) -> None:
    path = copied / "2" / "0" / name
    path.write_bytes(path.read_bytes()[:-1])
    _refused(copied, f"0/{name} ")
    path.unlink()
    _refused(copied, f"0/{name} is missing")


def test_a_manifest_of_another_checkpoint(copied: Path) -> None:
    shutil.rmtree(copied / "2")
    shutil.copytree(copied / "1", copied / "2")
    _refused(copied, "0/manifest.json is of another checkpoint")


def test_what_can_not_be_checked_is_not_loaded(copied: Path) -> None:
    """Any error in the check counts as damage, also one without a text."""
    checking = manifest.check

    def fails(path: Path, size: int, digest: str) -> None:
        if path.parent.parent.name == "2":
            raise MemoryError
        checking(path, size, digest)

    with patch.object(manifest, "check", fails):
        _refused(copied, "MemoryError")


def test_where_all_are_broken(copied: Path) -> None:
    for count in (1, 2):
        (copied / str(count) / "0" / "state.json").unlink()
    with pytest.raises(RuntimeError, match=r"only damaged checkpoints: 2: .*is missing; 1: .*is missing"):
        Checkpoints(copied).load(part=Part())


def test_a_warning_made_an_error_comes_before_anything_is_touched(copied: Path) -> None:
    (copied / "2" / "0" / "state.json").unlink()
    part = Part("as before")
    with pytest.raises(UserWarning, match="newer ones are damaged"):  # the filter that all tests have
        Checkpoints(copied).load(part=part)
    assert part.state == "as before"


def test_what_others_have_put_there(copied: Path) -> None:
    """Other files and folders are neither loaded, nor counted, nor removed."""
    for name in ("notes", "01", "1.0", "-3", "٣", "best.1"):
        shutil.copytree(copied / "1", copied / name)
    (copied / "7").touch()
    checkpoints = Checkpoints(copied, keep=1)
    assert checkpoints.counts() == [1, 2]
    checkpoints.save(3, part=Part())
    assert checkpoints.counts() == [3]
    assert {path.name for path in copied.iterdir()} == {"notes", "01", "1.0", "-3", "٣", "best.1", "7", "3"}


class _Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def _sealed(folder: Path) -> None:
    """Give a checkpoint that was changed the digests of its present files."""
    found = manifest.read(folder / "0")
    (folder / "0" / manifest.NAME).unlink()
    manifest.write(folder / "0", **{key: value for key, value in found.items() if key != "files"})  # type: ignore[arg-type]  (the values are those of a manifest)


def test_no_code_is_run_though_the_digests_fit(copied: Path, tmp_path: Path) -> None:
    ran, folder = tmp_path / "ran", copied / "2"
    contents = folder / "0" / ".metadata"
    sound = contents.read_bytes()
    contents.write_bytes(pickle.dumps(_Code(ran)))
    _sealed(folder)
    _refused(copied, r"\.metadata can't be read: it names posix.mkdir")
    # The same code in a field of a sound list of contents, and under another name.
    metadata = pickle.loads(sound)
    metadata.planner_data = _Code(ran)
    contents.write_bytes(pickle.dumps(metadata))
    _sealed(folder)
    _refused(copied, r"\.metadata can't be read: it names posix.mkdir")
    contents.write_bytes(b"ctorch\nos.mkdir\n(X\x03\x00\x00\x00ran\x85R.")
    _sealed(folder)
    _refused(copied, r"\.metadata can't be read: it names torch.os.mkdir")
    contents.write_bytes(pickle.dumps([]))
    _sealed(folder)
    _refused(copied, r"\.metadata is not a list of contents")
    assert not ran.exists()


def test_no_code_is_run_from_what_tensors_are_in(copied: Path, tmp_path: Path) -> None:
    """Code in place of a tensor: as a file for `torch.load`, and as bytes, which torch would unpickle."""
    ran, folder = tmp_path / "ran", copied / "2"
    contents = pickle.loads((folder / "0" / ".metadata").read_bytes())
    (key,) = contents.state_dict_metadata
    (place,) = contents.storage_data.values()
    torch.save(_Code(ran), folder / "0" / "__0_0.distcp")
    place.offset, place.length = 0, (folder / "0" / "__0_0.distcp").stat().st_size
    (folder / "0" / ".metadata").write_bytes(pickle.dumps(contents))
    _sealed(folder)
    part = Part("as before")
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir"):
        Checkpoints(copied).load(part=part)
    contents.state_dict_metadata[key] = torch.distributed.checkpoint.metadata.BytesStorageMetadata()
    (folder / "0" / ".metadata").write_bytes(pickle.dumps(contents))
    _sealed(folder)
    _refused(copied, r"\.metadata can't be read: it names .*BytesStorageMetadata")
    assert part.state == "as before"
    assert not ran.exists()


def test_a_tensor_of_which_a_part_is_missing(copied: Path) -> None:
    folder = copied / "2"
    contents = pickle.loads((folder / "0" / ".metadata").read_bytes())
    ((key, tensor),) = contents.state_dict_metadata.items()
    tensor.chunks.clear()
    (folder / "0" / ".metadata").write_bytes(pickle.dumps(contents))
    _sealed(folder)
    _refused(copied, r"part\['weights'\] is not there whole")
    assert key == "part['weights']"


def test_a_tensor_in_a_file_that_was_not_checked(copied: Path) -> None:
    folder = copied / "2"
    contents = pickle.loads((folder / "0" / ".metadata").read_bytes())
    (place,) = contents.storage_data.values()
    place.relative_path = "../../1/0/__0_0.distcp"
    (folder / "0" / ".metadata").write_bytes(pickle.dumps(contents))
    _sealed(folder)
    _refused(copied, r"\.metadata names \.\./\.\./1/0/__0_0\.distcp, which is none of its files")


def test_a_digest_is_sha_256_of_the_file(saved: Path) -> None:
    folder = saved / "2" / "0"
    files = json.loads((folder / manifest.NAME).read_text().partition("\n")[2])["files"]
    assert files.keys() == {path.name for path in folder.iterdir()} - {manifest.NAME}
    for name, (size, digest) in files.items():
        content = (folder / name).read_bytes()
        assert (size, digest) == (len(content), hashlib.sha256(content).hexdigest())
