"""Foreign folders, whatever their names, are never listed, loaded, replaced or removed."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.checkpointing.checkpoints import Part
from support.examples import examples

from torch_bridge import Checkpoints


def _create_foreign(path: Path, is_empty: bool) -> None:
    path.mkdir()
    if not is_empty:
        (path / "state.json").write_text('{"step": 3}')
        (path / "0").mkdir()
        (path / "0" / ".metadata").write_bytes(b"\x80\x04N.")
        (path / "model.safetensors").touch()


_NAMES = ["notes", "01", "1.0", "-3", "٣", "best.1"]  # a copy of a checkpoint has one of these


def _content(path: Path) -> dict[str, bytes | None]:
    return {
        str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None
        for entry in path.rglob("*")
    }


@examples(30)
@given(
    st.dictionaries(st.integers(0, 9), st.booleans(), max_size=5),
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_saves_prune_only_their_own_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, foreign: dict[int, bool], saved: list[int], keep: int
) -> None:
    """The last saved ones, whatever their counts: a run may have rolled back."""
    directory = tmp_path_factory.mktemp("folder")
    Checkpoints(directory / "notes").save(1, part=Part(), wait=True)
    for name in _NAMES:
        shutil.copytree(directory / "notes" / "1", directory / name, dirs_exist_ok=True)
    for number, is_empty in foreign.items():
        _create_foreign(directory / str(number), is_empty)
    (directory / "15").touch()
    before = _content(directory)
    checkpoints, part = Checkpoints(directory, keep=keep), Part()
    assert checkpoints.steps() == []
    assert checkpoints.load(part=part) is None
    for number in foreign:
        with pytest.raises(ValueError, match=rf"no checkpoint {number}; it has \[\]"):
            checkpoints.load(number, part=part)
    expected: dict[int, int] = {}
    for index, count in enumerate(saved):
        checkpoints.save(count, part=Part(index))
        expected.pop(count, None)
        expected = dict([*expected.items(), (count, index)][-keep:])
        assert checkpoints.steps() == sorted(expected)
    for count, index in expected.items():
        assert checkpoints.load(count, part=part) == count
        assert part.state == index
    assert checkpoints.load(part=part) == saved[-1]
    after = _content(directory)
    assert {name: after.get(name, "missing") for name in before} == before
    assert len(list(directory.iterdir())) == len(foreign) + len(_NAMES) + 1 + len(expected)
    shutil.rmtree(directory)


def test_link_is_loaded_and_never_removed(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "other").save(5, part=Part("linked"), wait=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "5").symlink_to(tmp_path / "other" / "5", target_is_directory=True)
    checkpoints, part = Checkpoints(tmp_path / "run", keep=1), Part()
    assert checkpoints.load(part=part) == 5
    checkpoints.save(6, part=part, wait=True)
    assert (tmp_path / "run" / "5").is_symlink()
    assert Checkpoints(tmp_path / "other").load(part=part) == 5
