"""Crafted checkpoints with valid digests run no code, and damage nothing but the loaded part."""

import hashlib
import json
import math
import os
import pickle
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


def _check_rejected(folder: Path, message: str, error: type[Exception] = RuntimeError) -> None:
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
    text = json.dumps(record, separators=(",", ":"))[:-1]
    path.write_text(text + f',"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}')


def test_format_of_later_version_is_named(folder: Path) -> None:
    _rewrite_json(folder, lambda record: record.update(format="torch_bridge 2"))
    _check_rejected(folder, "rank-0.json has the format 'torch_bridge 2', and not 'torch_bridge 1'")


def test_wrong_rank_counts_as_damage(folder: Path) -> None:
    """Other ranks write save index 0, which would make the folder older than all."""
    _rewrite_json(folder, lambda record: record.update(number=0, rank=1))
    with pytest.warns(UserWarning, match="newer ones are damaged: 2"):
        assert Checkpoints(folder.parent).load(part=Part()) == 1


@pytest.mark.parametrize("key", ["part.other", "../../1/rank-0.json", "", 3])
def test_reference_leads_to_no_other_file(folder: Path, key: Any) -> None:
    _rewrite_json(folder, lambda record: record["parts"]["part"]["state"]["weights"].update(key=key))
    _check_rejected(folder, "make up the whole tensor", ValueError)


_Box = tuple[list[int], list[int]]


@st.composite
def _shards(draw: st.DrawFn) -> tuple[list[int], list[_Box]]:
    """Draw a shape, and the cells (offsets, shape) of a grid over it."""
    cuts = [
        sorted({0, draw(st.integers(1, 5)), *draw(st.lists(st.integers(1, 5), max_size=2))})
        for _ in range(draw(st.integers(1, 3)))
    ]
    cells = product(*(pairwise(along) for along in cuts))
    boxes = [([begin for begin, _ in cell], [end - begin for begin, end in cell]) for cell in cells]
    return [along[-1] for along in cuts], draw(st.permutations(boxes))


@examples(40)
@given(_shards(), st.booleans())
def test_shards_are_joined_unless_one_is_missing(
    tmp_path_factory: pytest.TempPathFactory, shards: tuple[list[int], list[_Box]], is_missing: bool
) -> None:
    shape, boxes = shards
    boxes = boxes[1:] if is_missing and len(boxes) > 1 else boxes
    directory, expected = tmp_path_factory.mktemp("run"), torch.arange(math.prod(shape)).view(shape)
    (directory / "1").mkdir()
    reference = {"$": "tensor", "key": "part", "dtype": "int64", "shape": shape}
    for rank, (offsets, size) in enumerate(boxes):
        place = tuple(slice(first, first + length) for first, length in zip(offsets, size, strict=True))
        record: dict[str, Any] = {
            "save": "0" * 32,
            "number": 1,
            "count": 1,
            "ranks": len(boxes),
            "rank": rank,
        }
        record["parts"] = {} if rank else {"part": {"of": "state", "state": reference}}
        shard = SavedTensor(expected[place].contiguous(), offsets)
        rank_files.write_files(directory / "1", rank, record, {"part": shard}, {})
    part = Part("as before")
    if len(boxes) < len(shards[1]):
        with pytest.raises(ValueError, match="the shards of part don't make up"):
            Checkpoints(directory).load(part=part)
        assert part.state == "as before"
    else:
        Checkpoints(directory).load(part=part)
        assert same_bits(part.state, expected)


def _header(text: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text.encode()


_HEADERS = [
    b"",
    _header("{}", 2**62),
    _header("[]"),
    _header('{"part.weights":{"dtype":"F32","shape":[50],"data_offsets":[0,9223372036854775807]}}'),
    _header('{"part.weights":{"dtype":"F32","shape":[9999999999999],"data_offsets":[0,200]}}') + b"0" * 200,
    _header('{"part.weights":{"dtype":"F32","shape":[50],"data_offsets":[-8,192]}}') + b"0" * 192,
    _header('{"other":{"dtype":"F32","shape":[50],"data_offsets":[0,200]}}') + b"0" * 200,
]


@pytest.mark.parametrize("content", _HEADERS)
def test_invalid_safetensors_header_is_rejected(folder: Path, content: bytes) -> None:
    (folder / "rank-0.safetensors").write_bytes(content)
    _check_rejected(folder, "2: rank-0.safetensors (is damaged|and rank-0.json list different)")


def test_tensor_of_other_shape_or_dtype_is_rejected(folder: Path) -> None:
    """No digest covers the header of the tensors."""
    path, weights = folder / "rank-0.safetensors", state_of(2)["weights"]
    save_file({"part.weights": weights.view(5, 10)}, path)
    _check_rejected(folder, "rank-0.safetensors has a different shape for part.weights")
    save_file({"part.weights": weights.view(torch.int32)}, path)
    _check_rejected(folder, "part.weights is torch.int32 in its file, and not torch.float32", ValueError)


class _Code:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_load_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """Neither from the files nor from an array of objects, whose bytes would be addresses."""
    ran = tmp_path / "ran"
    content = pickle.dumps(_Code(ran))
    weights = {"$": "tensor", "key": "part.weights", "dtype": "float32", "shape": [50]}
    for dtype in ("O", "O,O", "i8,O"):
        for array in (
            {"$": "scalar", "dtype": dtype, "hex": content.hex()},
            {"$": "array", "dtype": dtype, "shape": [1], "content": weights},
        ):
            _rewrite_json(folder, lambda record, array=array: record["parts"]["part"].update(state=array))
            _check_rejected(folder, f"NumPy array of {'object' if dtype == 'O' else '.*'}", ValueError)
    for name in ("rank-0.safetensors", "rank-0.json"):
        (folder / name).write_bytes(content)
        _check_rejected(folder, f"{name} is damaged")
    assert not ran.exists()


def test_any_json_is_rejected_or_loaded(folder: Path) -> None:
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
    @example({"$": "tensor", "key": "part.weights", "dtype": "float32", "shape": [2**50]})
    @example({"$": "tensor", "key": "part.weights", "dtype": "float32", "shape": [50], "stride": [0]})
    @example({"$": "tensor", "key": "part.weights", "dtype": "float32", "shape": [50], "stride": [2**50]})
    @given(values)
    def load(state: Any) -> None:
        _rewrite_json(folder, lambda record: record["parts"]["part"].update(state=state))
        part = Part("as before")
        try:
            Checkpoints(folder.parent).load(2, part=part)
        except Exception:
            assert part.state == "as before"

    load()
