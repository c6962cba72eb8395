"""Crafted checkpoints with valid digests do no harm: they are refused, or change only the loaded part."""

import hashlib
import json
import math
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors.torch import save_file
from support.checkpointing.checkpoints import Part, same_bits, save_each, state_of
from support.examples import examples

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import rank_files
from torch_bridge.checkpointing.rank_files import SavedTensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of checkpoint 2, next to that of 1."""
    save_each(tmp_path, [1, 2])
    return tmp_path / "2"


def _check_refused(folder: Path, message: str, error: type[Exception] = RuntimeError) -> None:
    part = Part("as before")
    with pytest.raises(error, match=message):
        Checkpoints(folder.parent).load(2, part=part)
    assert part.state == "as before"


def _rewrite_json(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the content of rank-0.json, and give it the digest of its new content."""
    path = folder / "rank-0.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    change(record)
    _write(path, json.dumps(record, separators=(",", ":"))[:-1])


def _write(path: Path, text: str) -> None:
    path.write_text(text + f',"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}')


@pytest.mark.parametrize("name", ["rank-0.json", "rank-0.safetensors"])
def test_device_file_is_not_read(folder: Path, name: str) -> None:
    """Reading it would never end."""
    path = folder / name
    path.unlink()
    path.symlink_to("/dev/zero")
    _check_refused(folder, f"{name} is not a file")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "torch_bridge 2"),
        ("count", -2),
        ("ranks", 0),
        ("ranks", "1"),
        ("rank", 0.5),
        ("parts", ["part"]),
        ("parts", {"part": {}}),
        ("tensors", []),
        ("tensors", {"part.weights": {"shape": [-1], "sha256": ""}}),
        ("tensors", {"part.weights": {"shape": [50], "offsets": [0, 0], "sha256": ""}}),
    ],
)
def test_invalid_entry_is_refused(folder: Path, key: str, value: Any) -> None:
    _rewrite_json(folder, lambda record: record.update({key: value}))
    _check_refused(folder, f"rank-0.json has no valid {key if key != 'tensors' or not value else 'shape'}")


def test_wrong_rank_counts_as_damage(folder: Path) -> None:
    """Other ranks write save index 0, which would make the folder older than all."""
    _rewrite_json(folder, lambda record: record.update(number=0, rank=1))
    with pytest.warns(UserWarning, match="newer ones are damaged: 2"):
        assert Checkpoints(folder.parent).load(part=Part()) == 1


def test_save_index_beyond_float_range_is_harmless(folder: Path) -> None:
    _rewrite_json(folder, lambda record: record.update(number=10**400))
    checkpoints = Checkpoints(folder.parent)
    checkpoints.save(3, part=Part())
    assert checkpoints.counts() == [1, 3]


def test_invalid_json_is_refused(folder: Path) -> None:
    _write(folder / "rank-0.json", "{")
    _check_refused(folder, "rank-0.json can't be read")
    _write(folder / "rank-0.json", '{"a":' + "[" * 10**6)
    _check_refused(folder, "rank-0.json can't be read")
    _rewrite_json(folder.parent / "1", lambda record: record.update(ranks=10**9))
    with pytest.raises(RuntimeError, match=r"1: rank-1\.json is missing"):
        Checkpoints(folder.parent).load(1, part=Part())


_CHANGES: dict[str, list[Any]] = {
    "shape": [[2**50], [3], [-1], "50"],
    "stride": [[2**45], [0], [1, 1]],
    "key": ["part.other", "../../1/rank-0.json", "", 3, ["part.weights"]],
    "placements": [[1], ["0"], 3],
    "dtype": ["float64", "int8", "load", "nn.Module", 7],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in _CHANGES.items() for value in values]
)
def test_reference_beyond_its_file_is_refused(folder: Path, key: str, value: Any) -> None:
    """It can't claim more memory than the file has, and leads to no other file."""
    _rewrite_json(folder, lambda record: record["parts"]["part"]["state"]["weights"].update({key: value}))
    message = "make up the whole tensor|strides|placements|can't be read|in its file|has the shape|zip"
    _check_refused(folder, message, ValueError)


def test_shard_outside_its_tensor_is_refused(folder: Path) -> None:
    for offsets in ([1], [2**60]):
        _rewrite_json(folder, lambda record, at=offsets: record["tensors"]["part.weights"].update(offsets=at))
        _check_refused(folder, "the shards of part.weights don't make up", ValueError)


_Box = tuple[list[int], list[int]]


@st.composite
def _shards(draw: st.DrawFn) -> tuple[list[int], list[_Box]]:
    """Draw a shape, and boxes (offsets, shape) that may be a grid's cells, or miss or overlap one another."""
    cuts = [
        sorted({0, draw(st.integers(1, 5)), *draw(st.lists(st.integers(1, 5), max_size=2))})
        for _ in range(draw(st.integers(1, 3)))
    ]
    cells = product(*(pairwise(along) for along in cuts))
    boxes = [([begin for begin, _ in cell], [end - begin for begin, end in cell]) for cell in cells]
    boxes = draw(st.permutations(boxes))
    for change in draw(st.lists(st.sampled_from(["copy", "move", "swap", "drop"]), max_size=2)):
        index, dim = draw(st.integers(0, len(boxes) - 1)), draw(st.integers(0, len(cuts) - 1))
        offsets, size = map(list, boxes[index])
        if change == "copy":
            offsets = list(boxes[index - 1][0])
        elif change == "move":
            offsets[dim] += draw(st.integers(-offsets[dim], 2))
        elif change == "swap":
            size.reverse()
        boxes[index : index + 1] = [(offsets, size)] if change != "drop" or len(boxes) == 1 else []
    return [along[-1] for along in cuts], boxes


@examples(200)
@example(([4], [([0], [2]), ([1], [2])]))
@example(([2, 2], [([0, 0], [1, 2]), ([0, 0], [2, 1])]))
@given(_shards())
def test_gap_between_shards_is_refused(
    tmp_path_factory: pytest.TempPathFactory, shards: tuple[list[int], list[_Box]]
) -> None:
    """Shards that overlap may have as many elements as the tensor; the gap would be unset memory."""
    shape, boxes = shards
    directory, whole = tmp_path_factory.mktemp("run"), torch.arange(math.prod(shape)).view(shape)
    (directory / "1").mkdir()
    covered, reference = torch.zeros(shape, dtype=torch.int), {"$": "tensor", "key": "part", "dtype": "int64"}
    is_inside = True
    for rank, (offsets, size) in enumerate(boxes):
        place = tuple(slice(first, first + length) for first, length in zip(offsets, size, strict=True))
        covered[place] += 1
        is_inside &= list(whole[place].shape) == size
        values = torch.zeros(size, dtype=torch.int64)
        values[tuple(map(slice, whole[place].shape))] = whole[place]
        record: dict[str, Any] = {
            "save": "0" * 32,
            "number": 1,
            "count": 1,
            "ranks": len(boxes),
            "rank": rank,
        }
        record["parts"] = {} if rank else {"part": {"of": "state", "state": {**reference, "shape": shape}}}
        rank_files.write_files(directory / "1", rank, record, {"part": SavedTensor(values, offsets)}, {})
    part = Part("as before")
    if is_inside and bool((covered == 1).all()):
        Checkpoints(directory).load(part=part)
        assert same_bits(part.state, whole)
    else:
        with pytest.raises(ValueError, match="the shards of part don't make up"):
            Checkpoints(directory).load(part=part)
        assert part.state == "as before"


def _header(text: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text.encode()


_HEADERS = [
    b"",
    _header("{}", 2**62),
    _header("{}", 2**63),
    _header("[]"),
    _header('{"part.weights":{"dtype":"F32","shape":[50],"data_offsets":[0,9223372036854775807]}}'),
    _header('{"part.weights":{"dtype":"F32","shape":[9999999999999],"data_offsets":[0,200]}}') + b"0" * 200,
    _header('{"part.weights":{"dtype":"F32","shape":[50],"data_offsets":[-8,192]}}') + b"0" * 192,
    _header('{"other":{"dtype":"F32","shape":[50],"data_offsets":[0,200]}}') + b"0" * 200,
]


@pytest.mark.parametrize("content", _HEADERS)
def test_invalid_safetensors_header_is_refused(folder: Path, content: bytes) -> None:
    (folder / "rank-0.safetensors").write_bytes(content)
    _check_refused(folder, "2: rank-0.safetensors (is damaged|has other tensors)")


def test_tensor_of_other_shape_or_dtype_is_refused(folder: Path) -> None:
    """Its bytes still match the digest."""
    path, weights = folder / "rank-0.safetensors", state_of(2)["weights"]
    save_file({"part.weights": weights.view(5, 10)}, path)
    _check_refused(folder, "rank-0.safetensors has another shape of part.weights")
    save_file({"part.weights": weights.view(torch.int32)}, path)
    _check_refused(folder, "part.weights is torch.int32 in its file, and not torch.float32", ValueError)


class _Code:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_load_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """Neither from the files nor from an array of objects."""
    ran = tmp_path / "ran"
    content = pickle.dumps(_Code(ran))
    array = {"$": "scalar", "dtype": "O", "hex": content.hex()}
    _rewrite_json(folder, lambda record: record["parts"]["part"].update(state=array))
    _check_refused(folder, "NumPy array of object", ValueError)
    for name in ("rank-0.safetensors", "rank-0.json"):
        (folder / name).write_bytes(content)
        _check_refused(folder, f"{name} is damaged")
    assert not ran.exists()


def test_any_json_is_refused_or_loaded(folder: Path) -> None:
    """Whatever JSON replaces a state, a load returns it or raises; nothing is loaded halfway."""
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["$", "items", "a"]), inner)
            | st.fixed_dictionaries(
                {"$": st.sampled_from(["tuple", "dict", "set", "array", "scalar", "float", "int", "tensor"])},
                optional={"items": inner, "dtype": inner, "hex": inner, "content": inner, "shape": inner},
            )
        ),
        max_leaves=8,
    )

    @examples(60)
    @example({"$": "array", "dtype": None, "content": None, "shape": None})
    @example({"$": "float", "bits": "00"})
    @given(values)
    def load(state: Any) -> None:
        _rewrite_json(folder, lambda record: record["parts"]["part"].update(state=state))
        part = Part("as before")
        try:
            Checkpoints(folder.parent).load(2, part=part)
        except ValueError:
            assert part.state == "as before"

    load()


def test_copied_folder_is_same_checkpoint(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "moved" / "2")
    part = Part()
    assert Checkpoints(folder.parent / "moved").load(part=part) == 2
    assert same_bits(part.state, state_of(2))
