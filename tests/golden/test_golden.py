"""Saved states and curves of all versions are read: a resumed run has the recorded numbers.

The files are in a folder for each version, and never change. `support/golden/write.py` writes them.
"""

import io
import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.distributed.processes import run
from support.golden import curves, files
from support.golden.programs import CASES
from support.golden.tables import TABLES, describe_tables
from support.golden.write import missing_names, write
from torch import Tensor

from plateau_jax import Curve
from plateau_jax.clocks.known_rules import RULES
from plateau_jax.curves.serialization import CONSTRUCTORS, CURVE_CLASSES
from plateau_jax.shapes.known_shapes import SHAPES

# Other processors and other versions of torch may round differently (a fused multiply-add, the
# order of a sum), by a float32 ulp of 6e-8 in each of some operations in 12 updates. Losses and
# weights are around 1; a weight that cancels to nearly 0 keeps their absolute error.
RTOL = 1e-5
ATOL = 1e-6

_RESULTS_OF_TORCH = ".loss", ".grad_norm"
"""The ends of the paths of such numbers that are not tensors."""

_MAX_BYTES = 300_000
_RECORDED = repr([curve.to_dict() for curve in curves.CURVES.values()])


def _label(path: Path) -> str:
    return path.relative_to(files.FILES).as_posix()


CURVE_FILES = sorted(files.FILES.glob("*/curves/*.json"))
TABLE_FILES = sorted(files.FILES.glob("*/tables/*.json"))
STATE_FOLDERS = sorted(files.FILES.glob("*/states/*"))
DIGEST_FILES = sorted(files.FILES.glob(f"*/{files.DIGESTS}"))


@pytest.mark.parametrize("file", CURVE_FILES, ids=_label)
def test_curve_has_recorded_learning_rates(file: Path) -> None:
    expected = files.read_json(file)
    curve = Curve.from_dict(expected.pop("curve"))
    peak = expected.pop("peak")
    assert curves.describe_learning_rates(curve, peak) == expected
    if file.stem in curves.CURVES:
        assert curve == curves.CURVES[file.stem]


@pytest.mark.parametrize("file", TABLE_FILES, ids=_label)
def test_tables_have_recorded_integers(file: Path) -> None:
    """The learning rates above hide a change of a few units of a coefficient."""
    assert file.stem in TABLES
    recorded = files.read_json(file)
    digests = describe_tables(file.stem)
    assert {name: digests[name] for name in recorded} == recorded


@pytest.mark.parametrize("folder", STATE_FOLDERS, ids=_label)
def test_saved_run_continues_as_recorded(folder: Path) -> None:
    case = CASES[folder.name]
    program = case.build()
    with warnings.catch_warnings():
        if case.processes > 1:
            # One process takes over from several, and has only the random numbers of the first.
            message = ".* was saved with a world size of 2, which is now 1"
            warnings.filterwarnings("ignore", message, UserWarning)
        files.load(case, program, folder)
    expected_updates = files.read_json(folder / "continued.json")
    updates = files.continue_program(case, program)
    for shown, expected in zip(updates, expected_updates, strict=True):
        assert shown["exact"] == expected["exact"]
        assert shown["close"] == pytest.approx(expected["close"], rel=RTOL, abs=ATOL)


# What a program has written, and how it differs from what another version wrote.


def read_saved(folder: Path) -> dict[str, Any]:
    """Return the content of all files of a state, by their path."""
    saved: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".pt":
            saved[name] = torch.load(path, weights_only=True)
        elif path.suffix == ".safetensors":
            saved[name] = _read_tensors(path)
        elif path.name == "checkpoint.json":
            manifest = files.read_json(path)
            saved[name] = _without_digests(manifest)
        elif path.name == "state.json":
            saved[name] = files.read_json(path)
    return saved


def _read_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a checkpoint's file by name, and the structures that some contain."""
    values: dict[str, Any] = {}
    for name, tensor in load_file(path).items():
        values[name] = tensor
        if name.endswith("/structure"):
            content = io.BytesIO(tensor.numpy().tobytes())
            values[name] = torch.load(content, weights_only=True)
    return values


def _without_digests(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without the digests, in which the last bit of a weight counts."""
    return {**manifest, "files": sorted(manifest["files"]), "sha256": ""}


def differences(written: Any, recorded: Any, path: str = "") -> Iterator[str]:
    """Yield each difference between two saved values."""
    if isinstance(written, dict) and isinstance(recorded, dict):
        yield from _differing_entries(written, recorded, path)
    elif isinstance(written, list | tuple) and isinstance(recorded, list | tuple):
        if len(written) != len(recorded):
            yield f"{path}: {len(written)} items, recorded {len(recorded)}"
            return
        for index, pair in enumerate(zip(written, recorded, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif not _are_close(written, recorded, path):
        yield f"{path}: {written!r}, recorded {recorded!r}"


def _differing_entries(
    written: dict[str, Any], recorded: dict[str, Any], path: str
) -> Iterator[str]:
    for name, value in {**recorded, **written}.items():
        entry = f"{path}.{name}"
        if name in written and name in recorded:
            yield from differences(value, recorded[name], entry)
            continue
        side = "written"
        if name in recorded:
            side = "recorded"
        # Each version of torch has its own options of optimizers.
        if ".param_groups[" not in path:
            yield f"{entry} = {value!r} is only {side}"


def _are_close(written: Any, recorded: Any, path: str) -> bool:
    """Return True for equal values, and for nearly equal results of torch's arithmetic."""
    # Random numbers depend on what the process has drawn before.
    if ".random." in path or ".random-states" in path:
        return True
    if isinstance(written, Tensor) and isinstance(recorded, Tensor):
        if written.dtype != recorded.dtype:
            return False
        if written.shape != recorded.shape:
            return False
        if written.is_meta:  # it stands for a tensor with a name
            return True
        return torch.allclose(written, recorded, rtol=RTOL, atol=ATOL)
    if path.endswith(_RESULTS_OF_TORCH):
        return math.isclose(written, recorded, rel_tol=RTOL, abs_tol=ATOL)
    return type(written) is type(recorded) and written == recorded


def check_written(folder: Path, recorded_folder: Path) -> None:
    """Check that both are equal, so that the version that recorded can read what is written."""
    written = read_saved(folder)
    recorded = read_saved(recorded_folder)
    assert list(differences(written, recorded)) == []


def _is_by_processes(folder: Path) -> bool:
    return CASES[folder.name].processes > 1


FOLDERS_BY_PROCESSES = list(filter(_is_by_processes, STATE_FOLDERS))
FOLDERS_BY_ONE_PROCESS = list(itertools.filterfalse(_is_by_processes, STATE_FOLDERS))


@pytest.mark.parametrize("folder", FOLDERS_BY_ONE_PROCESS, ids=_label)
def test_run_writes_the_recorded_state(folder: Path, tmp_path: Path) -> None:
    files.save_state(folder.name, tmp_path)
    check_written(tmp_path, folder)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS_BY_PROCESSES, ids=_label)
def test_processes_write_the_recorded_state(folder: Path, tmp_path: Path) -> None:
    processes = CASES[folder.name].processes
    run(files.write_state, folder.name, tmp_path, processes=processes)
    check_written(tmp_path, folder)


def test_difference_is_named() -> None:
    recorded = {
        "a": [{"curve": {"total_steps": 9}}],
        "b": torch.ones(2),
        "c": 0.5,
    }
    written = {
        "a": [{"curve": {"total_steps": 8}, "note": 1}],
        "b": torch.zeros(2),
    }
    assert list(differences(written, recorded)) == [
        ".a[0].curve.total_steps: 8, recorded 9",
        ".a[0].note = 1 is only written",
        ".b: tensor([0., 0.]), recorded tensor([1., 1.])",
        ".c = 0.5 is only recorded",
    ]


@pytest.mark.parametrize("file", DIGEST_FILES, ids=_label)
def test_files_have_their_digests(file: Path) -> None:
    folder = file.parent
    assert files.read_digests(folder) == files.digests_of(folder)


def test_digest_of_a_changed_file_stays(tmp_path: Path) -> None:
    first = tmp_path / "a.json"
    second = tmp_path / "b.json"
    first.write_text("1")
    files.add_digests(tmp_path)
    before = files.read_digests(tmp_path)
    first.write_text("2")
    second.write_text("3")
    files.add_digests(tmp_path)
    after = files.read_digests(tmp_path)
    actual = files.digests_of(tmp_path)
    assert after == before | {"b.json": actual["b.json"]}
    assert after != actual


def test_every_program_and_curve_has_a_file() -> None:
    assert missing_names() == [], "python -m support.golden.write, in tests/, writes them"


def test_every_kind_of_a_written_curve_is_recorded() -> None:
    descriptions = curves.DESCRIPTIONS.values()
    written_kinds = {description.get("kind") for description in descriptions}
    assert CONSTRUCTORS.keys() <= written_kinds


@pytest.mark.parametrize("kind", [kind for kind in CURVE_CLASSES if kind is not None])
def test_every_kind_is_recorded(kind: str) -> None:
    assert f"'kind': '{kind}'" in _RECORDED


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recorded(shape: str) -> None:
    assert f"'{shape.removesuffix('P')}" in _RECORDED


@pytest.mark.parametrize("kind", RULES)
def test_a_state_has_every_rule(kind: str) -> None:
    states = [path.read_text(encoding="utf-8") for path in files.FILES.glob("*/states/*/*.json")]
    assert any(f'"{kind}"' in state for state in states)


@pytest.mark.parametrize("name", ["scheduler", "plateau", "tables_of_linear"])
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
