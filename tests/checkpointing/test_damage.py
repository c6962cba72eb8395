"""Damage is named before any part changes, and an older checkpoint is loaded; crafted files run no code."""

import hashlib
import json
import math
import os
import pickle
import shutil
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors.torch import load_file, save_file
from support.checkpointing.checkpoints import Part, constant_model, same_bits, state_of
from support.examples import examples

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import rank_files
from torch_bridge.checkpointing.rank_files import SavedTensor
from torch_bridge.checkpointing.reading import SavedCheckpoint

JSON, TENSORS = "rank-0.json", "rank-0.safetensors"
WEIGHTS = {"$": "tensor", "key": "part.weights", "dtype": "float32", "shape": [50]}


def _change(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _rewrite(folder: Path, **entries: Any) -> None:
    """Change entries of the JSON file, and give it the digest of its new content."""
    record = json.loads((folder / JSON).read_text()) | entries
    del record["sha256"]
    text = json.dumps(record, separators=(",", ":"))[:-1]
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / JSON).write_text(text + f',"sha256":"{digest}"}}')


def _rewrite_state(folder: Path, state: Any) -> None:
    _rewrite(folder, parts={"part": {"of": "state", "state": state}})


def _save_tensors(folder: Path, **changed: torch.Tensor) -> None:
    tensors = load_file(folder / TENSORS)
    save_file(tensors | {f"part.{name}": tensor for name, tensor in changed.items()}, folder / TENSORS)


# What happens to the folder of checkpoint 2, and what is said.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut JSON": (lambda folder: _change(folder / JSON, lambda text: text[:-1]), f"{JSON} is damaged"),
    "empty JSON": (lambda folder: (folder / JSON).write_bytes(b""), f"{JSON} is damaged"),
    "no JSON": (lambda folder: (folder / JSON).unlink(), f"{JSON} is missing"),
    "cut tensors": (
        lambda folder: _change(folder / TENSORS, lambda text: text[:-1]),
        f"{TENSORS} is damaged",
    ),
    "empty tensors": (lambda folder: (folder / TENSORS).write_bytes(b""), f"{TENSORS} is damaged"),
    "no tensors": (lambda folder: (folder / TENSORS).unlink(), f"{TENSORS} is missing"),
    "other tensors": (
        lambda folder: _save_tensors(folder, weights=torch.ones(50)),
        f"{TENSORS} is damaged: the SHA-256 of part.weights differs",
    ),
    "more tensors": (lambda folder: _save_tensors(folder, more=torch.ones(1)), "list different tensors"),
    "other shape": (
        lambda folder: _save_tensors(folder, weights=state_of(2)["weights"].view(5, 10)),
        f"{TENSORS} has a different shape for part.weights",
    ),
    "checkpoint 1": (
        lambda folder: shutil.copytree(folder.parent / "1", folder, dirs_exist_ok=True),
        f"{JSON} belongs to a different checkpoint",
    ),
    "later format": (
        lambda folder: _rewrite(folder, format="torch_bridge 2"),
        f"{JSON} has the format 'torch_bridge 2', and not 'torch_bridge 1'",
    ),
    # Other ranks write save index 0, which would make the folder older than all.
    "rank 1": (
        lambda folder: _rewrite(folder, number=0, rank=1),
        f"{JSON} belongs to a different checkpoint",
    ),
    "two ranks": (lambda folder: _rewrite(folder, ranks=2), "rank-1.json is missing"),
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


def test_flipped_bit_is_detected(saved: Path, tmp_path: Path) -> None:
    @examples(60)
    @given(st.sampled_from([JSON, TENSORS]), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
    def flip(name: str, where: float, bit: int) -> None:
        directory = tmp_path / "run"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(saved, directory)
        content = bytearray((directory / "2" / name).read_bytes())
        content[int(where * len(content))] ^= 1 << bit
        (directory / "2" / name).write_bytes(content)
        _check_damage(directory, f"{name} (is damaged|has |and )")

    flip()


def test_unverifiable_checkpoint_is_not_loaded(copied: Path) -> None:
    """Any error in the check counts as damage, even one without a message."""
    checking = SavedCheckpoint.verify_digests

    def fails(checkpoint: SavedCheckpoint) -> None:
        if checkpoint.count == 2:
            raise MemoryError
        checking(checkpoint)

    with patch.object(SavedCheckpoint, "verify_digests", fails):
        _check_damage(copied, "MemoryError")


def test_all_damaged_checkpoints_are_named(copied: Path) -> None:
    for count in (1, 2):
        (copied / str(count) / JSON).unlink()
    for call in (Checkpoints(copied).load, Checkpoints(copied).load_model):
        model = {"part": Part()} if call.__name__ == "load" else {"model": constant_model(0)}
        with pytest.raises(RuntimeError, match=r"only damaged checkpoints: 2: .*is missing; 1: .*is missing"):
            call(**model)


def test_checkpoint_with_damaged_head_may_be_newest(copied: Path) -> None:
    """Each load names it. It no longer looks like this library's, so it is never replaced or removed."""
    (copied / "2" / JSON).write_bytes(b"?")
    checkpoints, part = Checkpoints(copied, keep=1), Part()
    assert checkpoints.counts() == [1]
    for count in (3, 2, 2):
        checkpoints.save(count, part=Part(count), wait=True)
        assert checkpoints.counts() == [count]
        with pytest.warns(UserWarning, match=rf"{count}.* is loaded: newer ones are damaged: 2: rank-0.json"):
            assert checkpoints.load(part=part) == part.state == count
    assert (copied / "2" / JSON).read_bytes() == b"?"


def test_digest_is_sha256_of_tensor_bytes(saved: Path) -> None:
    """The JSON file ends with its own digest. Any tool can check both."""
    tensors = load_file(saved / "2" / TENSORS)
    text = (saved / "2" / JSON).read_text()
    record = json.loads(text)
    assert same_bits(tensors["part.weights"], state_of(2)["weights"])
    digest = hashlib.sha256(tensors["part.weights"].numpy().tobytes()).hexdigest()
    assert record["tensors"]["part.weights"] == {"shape": [50], "sha256": digest}
    body = text.rpartition(',"sha256":')[0]
    assert record["sha256"] == hashlib.sha256(body.encode()).hexdigest()


class _Code:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("code_has_run",)


# States with valid digests, and what is said.
CRAFTED: list[tuple[Any, str]] = [
    (WEIGHTS | {"key": "../../1/rank-0.json"}, "make up the whole tensor"),
    (WEIGHTS | {"key": 3}, "make up the whole tensor"),
    (WEIGHTS | {"shape": [51]}, "make up the whole tensor"),
    (WEIGHTS | {"dtype": "int32"}, "part.weights is torch.float32 in its file, and not torch.int32"),
    ({"$": "code"}, "'code' is not a kind of value that a checkpoint holds"),
    ({"$": "dtype", "name": "nn"}, "'dtype' is not a kind of value"),
    # The bytes of an array of objects would be taken for their addresses.
    ({"$": "scalar", "dtype": "O", "hex": pickle.dumps(_Code()).hex()}, "part is a NumPy array of object"),
    ({"$": "array", "dtype": "O", "shape": [25], "content": WEIGHTS}, "part is a NumPy array of object"),
    ({"$": "array", "dtype": "i8,O", "shape": [1], "content": WEIGHTS}, "part is a NumPy array of"),
]


@pytest.mark.parametrize(("state", "message"), CRAFTED)
def test_crafted_state_is_rejected(
    copied: Path, monkeypatch: pytest.MonkeyPatch, state: Any, message: str
) -> None:
    monkeypatch.chdir(copied)
    part = Part("as before")
    _rewrite_state(copied / "2", state)
    with pytest.raises(ValueError, match=message):
        Checkpoints(copied).load(part=part)
    assert part.state == "as before"
    assert not Path("code_has_run").exists()


def test_any_json_is_rejected_or_loaded(copied: Path) -> None:
    """Whatever JSON replaces a state, a load returns it or raises; nothing is loaded halfway."""
    tags = ["tuple", "dict", "set", "array", "scalar", "float", "int", "tensor"]
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["$", "items", "a"]), inner)
            | st.fixed_dictionaries(
                {"$": st.sampled_from(tags)},
                optional={"items": inner, "dtype": inner, "hex": inner, "content": inner, "shape": inner},
            )
        ),
        max_leaves=8,
    )

    @examples(60)
    @example({"$": "array", "dtype": None, "content": None, "shape": None})
    @example({"$": "float", "bits": "00"})
    @example(WEIGHTS | {"shape": [2**50]})
    @example(WEIGHTS | {"stride": [0]})
    @example(WEIGHTS | {"stride": [2**50]})
    @given(values)
    def load(state: Any) -> None:
        _rewrite_state(copied / "2", state)
        part = Part("as before")
        try:
            Checkpoints(copied).load(2, part=part)
        except Exception:
            assert part.state == "as before"

    load()


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
    is_missing &= len(boxes) > 1
    boxes = boxes[is_missing:]
    directory, expected = tmp_path_factory.mktemp("run"), torch.arange(math.prod(shape)).view(shape)
    (directory / "1").mkdir()
    reference = {"$": "tensor", "key": "part", "dtype": "int64", "shape": shape}
    record: dict[str, Any] = {"save": "0" * 32, "number": 1, "count": 1, "ranks": len(boxes)}
    for rank, (offsets, size) in enumerate(boxes):
        place = tuple(slice(first, first + length) for first, length in zip(offsets, size, strict=True))
        of_rank = {"rank": rank, "parts": {} if rank else {"part": {"of": "state", "state": reference}}}
        shard = SavedTensor(expected[place].contiguous(), offsets)
        rank_files.write_files(directory / "1", rank, record | of_rank, {"part": shard}, {})
    part = Part("as before")
    if is_missing:
        with pytest.raises(ValueError, match="the shards of part don't make up"):
            Checkpoints(directory).load(part=part)
        assert part.state == "as before"
    else:
        Checkpoints(directory).load(part=part)
        assert same_bits(part.state, expected)
