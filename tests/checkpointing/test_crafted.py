"""Crafted checkpoints, whose digests fit: they lead nowhere, and change nothing but what is loaded."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import Part, same, state_of
from torch.distributed.checkpoint import Metadata, metadata
from torch.distributed.checkpoint.metadata import TensorProperties

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import files, manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoint 2, of 1 and 2."""
    for count in (1, 2):
        Checkpoints(tmp_path).save(count, part=Part(state_of(count)), wait=True)
    return tmp_path / "2"


def _refused(folder: Path, message: str) -> None:
    part = Part("as before")
    with pytest.raises(RuntimeError, match=f"only damaged checkpoints: 2: {message}"):
        Checkpoints(folder.parent).load(2, part=part)
    assert part.state == "as before"


def _with_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "0" / manifest.NAME
    content = json.loads(path.read_text().partition("\n")[2])
    change(content)
    files.write_with_digest(path, json.dumps(content).encode())


@pytest.mark.parametrize("name", ["../../dev/zero", "/dev/zero", "..", ".", "", "a/b", "a\\b", "a\0b"])
def test_a_name_that_leads_out_of_the_folder(folder: Path, name: str) -> None:
    _with_manifest(folder, lambda found: found["files"].update({name: [0, "0" * 64]}))
    _refused(folder, "0/manifest.json names the file .* which is not in its folder")


def test_a_device_is_not_read(folder: Path) -> None:
    """It would be read for ever: neither as a file of the checkpoint nor as its manifest."""
    path = folder / "0" / "state.json"
    path.unlink()
    path.symlink_to("/dev/zero")
    _refused(folder, "0/state.json is not a file")
    path = folder / "0" / manifest.NAME
    path.unlink()
    path.symlink_to("/dev/zero")
    assert Checkpoints(folder.parent).counts() == [1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("processes", 0),
        ("processes", "1"),
        ("count", -2),
        ("parts", {"part": 1}),
        ("own", None),
        ("files", []),
        ("save", 1),
        ("number", True),
        ("number", 0.5),
    ],
)
def test_an_entry_of_another_kind(folder: Path, key: str, value: Any) -> None:
    _with_manifest(folder, lambda found: found.update({key: value}))
    _refused(folder, f"0/manifest.json has {key} = ")


def test_a_line_of_another_kind_and_no_manifest_at_all(folder: Path) -> None:
    _with_manifest(folder, lambda found: found["files"].update({".metadata": [-1, "0" * 64]}))
    _refused(folder, r"0/manifest.json has \[-1, '0+'\] for the file '.metadata'")
    _with_manifest(folder, lambda found: found["files"].clear())
    _refused(folder, "0/manifest.json names no state.json")
    files.write_with_digest(folder / "0" / manifest.NAME, b"[]")
    _refused(folder, "0/manifest.json is not a manifest")
    files.write_with_digest(folder / "0" / manifest.NAME, b"{")
    _refused(folder, "0/manifest.json can't be read")


def _sealed(folder: Path) -> None:
    found = manifest.read(folder / "0")
    (folder / "0" / manifest.NAME).unlink()
    manifest.write(folder / "0", **{key: value for key, value in found.items() if key != "files"})  # type: ignore[arg-type]  (the values are those of a manifest)


def _string(text: str) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


def _setting(module: str, name: str, attribute: str) -> bytes:
    """A pickle that sets an attribute of a global by BUILD: with a state of slots, and with a mapping."""
    found = f"c{module}\n{name}\n".encode()
    slots = b"(" + found + b"N}" + _string(attribute) + _string("crafted") + b"s\x86b"
    return b"\x80\x02" + slots + found + b"}" + _string(attribute) + _string("crafted") + b"sb."


_GLOBALS = {
    ("torch.distributed.checkpoint.metadata", "Metadata"): Metadata,
    ("torch.distributed.checkpoint.metadata", "TensorProperties"): TensorProperties,
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"): metadata._MEM_FORMAT_ENCODING,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
    ("torch", "float32"): torch.float32,
}


@pytest.mark.parametrize("name", list(_GLOBALS), ids=".".join)
@pytest.mark.parametrize("attribute", ["__init__", "__setstate__", "__defaults__", "crafted"])
def test_nothing_of_a_class_is_set(folder: Path, name: tuple[str, str], attribute: str) -> None:
    missing = object()
    before = getattr(_GLOBALS[name], attribute, missing)
    (folder / "0" / ".metadata").write_bytes(_setting(*name, attribute))
    _sealed(folder)
    _refused(folder, r"\.metadata ")
    assert getattr(_GLOBALS[name], attribute, missing) == before
    part = Part()
    assert Checkpoints(folder.parent).load(1, part=part) == 1
    assert same(part.state, state_of(1))


def _places(found: Any) -> Any:
    (place,) = found.storage_data.values()
    return place


def _described(found: Any) -> Any:
    (tensor,) = found.state_dict_metadata.values()
    return tensor


def _set(**fields: Any) -> Callable[[Any], None]:
    def change(of: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(of, name, value)

    return change


@pytest.mark.parametrize(
    ("of", "change", "message"),
    [
        (_places, _set(length=2**40), "names a place behind the end of __0_0.distcp"),
        (_places, _set(offset=-1), "-1 in place of a count"),
        (_places, _set(length=10), r"part\['weights'\] is not there whole"),
        (_places, _set(relative_path=3), "int in place of str"),
        (_places, _set(transform_descriptors=["zstd"]), "its files are transformed"),
        (_described, _set(size=[50]), "list in place of tuple"),
        (_described, _set(chunks={}), "dict in place of list"),
        (_described, _set(properties=None), "something in place of TensorProperties"),
        (_described, _set(size=torch.Size([2**50])), r"part\['weights'\] is not there whole"),
        (lambda found: found, _set(state_dict_metadata=[]), "list in place of dict"),
        (lambda found: found, _set(storage_data=None), "NoneType in place of dict"),
    ],
)
def test_a_field_of_another_kind(folder: Path, of: Any, change: Any, message: str) -> None:
    path = folder / "0" / ".metadata"
    found = pickle.loads(path.read_bytes())
    change(of(found))
    path.write_bytes(pickle.dumps(found))
    _sealed(folder)
    _refused(folder, f".*{message}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", [2**50]),
        ("shape", [3]),
        ("stride", [2**45]),
        ("key", "part['other']"),
        ("placements", [1]),
        ("placements", ["0"]),
        ("placements", 3),
    ],
)
def test_a_tensor_larger_than_its_file_takes_no_memory(folder: Path, key: str, value: Any) -> None:
    path = folder / "0" / "state.json"
    content = json.loads(path.read_text())
    content["parts"]["part"]["state"]["weights"][key] = value
    path.write_text(json.dumps(content))
    _sealed(folder)
    part = Part("as before")
    with pytest.raises(
        ValueError, match=r"is not there whole|more memory than its shape|placements|can't be read"
    ):
        Checkpoints(folder.parent).load(2, part=part)
    assert part.state == "as before"


def test_a_whole_copy_is_the_same_checkpoint(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "moved" / "2")
    part = Part()
    assert Checkpoints(folder.parent / "moved").load(part=part) == 2
    assert same(part.state, state_of(2))
