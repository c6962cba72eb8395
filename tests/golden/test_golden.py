"""Saved states and curves of all versions are read: a resumed run has the recorded numbers.

The files are in a folder for each version, and never change. `support/golden/write.py` writes them.
"""

import warnings
from pathlib import Path

import pytest
import torch
from support.distributed.processes import run
from support.golden import curves, files, saved
from support.golden.integers import INTEGERS, SHAPES_OF_FILES, describe_integers
from support.golden.programs import CASES
from support.golden.write import missing_names, write

from plateau_jax import Curve
from plateau_jax.curves.serialization import CONSTRUCTORS, CURVE_CLASSES
from plateau_jax.shapes.known_shapes import SHAPES
from plateau_jax.shapes.shape import Shape

_MAX_BYTES = 300_000
_RECORDED = repr([curve.to_dict() for curve in curves.CURVES.values()])


def _label(path: Path) -> str:
    return path.relative_to(files.FILES).as_posix()


@pytest.mark.parametrize("file", sorted(files.FILES.glob("*/curves/*.json")), ids=_label)
def test_curve_has_recorded_learning_rates(file: Path) -> None:
    expected = files.read_json(file)
    curve = Curve.from_dict(expected.pop("curve"))
    assert curves.describe_learning_rates(curve, expected.pop("peak")) == expected
    if file.stem in curves.CURVES:
        assert curve == curves.CURVES[file.stem]


@pytest.mark.parametrize("file", sorted(files.FILES.glob("*/integers/*.json")), ids=_label)
def test_curve_has_recorded_integers(file: Path) -> None:
    """The learning rates above hide a change of a few units of 2⁻⁶²."""
    assert file.stem in INTEGERS
    assert describe_integers(file.stem) == files.read_json(file)


@pytest.mark.parametrize("folder", sorted(files.FILES.glob("*/states/*")), ids=_label)
def test_saved_run_continues_as_recorded(folder: Path) -> None:
    case = CASES[folder.name]
    program = case.build()
    with warnings.catch_warnings():
        if case.processes > 1:
            # One process takes over from several, and has only the random numbers of the first.
            message = ".* was saved by 2 processes, and now there are 1"
            warnings.filterwarnings("ignore", message, UserWarning)
        files.load(case, program, folder)
    expected_updates = files.read_json(folder / "continued.json")
    updates = files.continue_program(case, program)
    for shown, expected in zip(updates, expected_updates, strict=True):
        assert shown["exact"] == expected["exact"]
        assert shown["close"] == pytest.approx(expected["close"], rel=saved.RTOL, abs=saved.ATOL)


def _state_folders(*, several_processes: bool) -> list[Path]:
    folders: list[Path] = []
    for folder in sorted(files.FILES.glob("*/states/*")):
        if (CASES[folder.name].processes > 1) == several_processes:
            folders.append(folder)
    return folders


@pytest.mark.parametrize("folder", _state_folders(several_processes=False), ids=_label)
def test_run_writes_the_recorded_state(folder: Path, tmp_path: Path) -> None:
    """Equal, or equal but for entries with their defaults: an earlier version can read it."""
    files.save_state(folder.name, tmp_path)
    assert list(saved.differences(saved.read_saved(tmp_path), saved.read_saved(folder))) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", _state_folders(several_processes=True), ids=_label)
def test_processes_write_the_recorded_state(folder: Path, tmp_path: Path) -> None:
    run(files.write_state, folder.name, tmp_path, processes=CASES[folder.name].processes)
    assert list(saved.differences(saved.read_saved(tmp_path), saved.read_saved(folder))) == []


def test_difference_is_named() -> None:
    recorded = {"a": [{"curve": {"total_steps": 9}}], "b": torch.ones(2), "c": 0.5}
    written = {"a": [{"curve": {"total_steps": 8}, "clock": None, "note": 1}], "b": torch.zeros(2)}
    assert list(saved.differences(written, recorded)) == [
        ".a[0].curve.total_steps: 8, recorded 9",
        ".a[0].note = 1 is only written",
        ".b: tensor([0., 0.]), recorded tensor([1., 1.])",
        ".c = 0.5 is only recorded",
    ]


@pytest.mark.parametrize("file", sorted(files.FILES.glob(f"*/{files.DIGESTS}")), ids=_label)
def test_files_have_their_digests(file: Path) -> None:
    assert files.read_digests(file.parent) == files.digests_of(file.parent)


def test_digest_of_a_changed_file_stays(tmp_path: Path) -> None:
    Path(tmp_path, "a.json").write_text("1")
    files.add_digests(tmp_path)
    before = files.read_digests(tmp_path)
    Path(tmp_path, "a.json").write_text("2")
    Path(tmp_path, "b.json").write_text("3")
    files.add_digests(tmp_path)
    assert files.read_digests(tmp_path) == before | {"b.json": files.digests_of(tmp_path)["b.json"]}
    assert files.read_digests(tmp_path) != files.digests_of(tmp_path)


def test_every_program_and_curve_has_a_file() -> None:
    assert missing_names() == [], "python -m support.golden.write, in tests/, writes them"


def test_every_kind_of_a_written_curve_is_recorded() -> None:
    written_kinds = {description.get("kind") for description in curves.DESCRIPTIONS.values()}
    assert CONSTRUCTORS.keys() <= written_kinds


@pytest.mark.parametrize("kind", [kind for kind in CURVE_CLASSES if kind is not None])
def test_every_kind_is_recorded(kind: str) -> None:
    assert f"'kind': '{kind}'" in _RECORDED


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recorded(shape: str) -> None:
    assert f"'{shape.removesuffix('P')}" in _RECORDED


@pytest.mark.parametrize("shape", SHAPES.values())
def test_integers_of_every_power_at_its_ends_are_recorded(shape: type[Shape]) -> None:
    recorded = [name for names in SHAPES_OF_FILES.values() for name in names]
    for power in shape.powers or ("",):
        assert shape.name.replace("P", power) in recorded


@pytest.mark.parametrize("name", ["scheduler", "plateau", "plateau_integers"])
def test_files_are_not_overwritten(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    with pytest.raises(FileExistsError):
        write(name, tmp_path)


def test_files_are_small() -> None:
    num_bytes = 0
    for path in files.FILES.glob("*/*/**/*"):
        if path.is_file():
            num_bytes += path.stat().st_size
    assert num_bytes < _MAX_BYTES
