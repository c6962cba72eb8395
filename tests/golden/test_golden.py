"""Saved states and curves of all versions are read: a resumed run has the recorded numbers.

The files are in a folder for each version, and never change. `support/golden/write.py` writes them.
"""

import warnings
from pathlib import Path

import pytest
from support.golden.curves import CURVES, DESCRIPTIONS, describe_learning_rates
from support.golden.files import FILES, continue_program, load, read_json
from support.golden.programs import CASES
from support.golden.write import missing_names, write

from plateau_jax import Curve
from plateau_jax.curves.serialization import CONSTRUCTORS, CURVE_CLASSES
from plateau_jax.shapes.known_shapes import SHAPES

_MAX_BYTES = 300_000
_RECORDED = repr([curve.to_dict() for curve in CURVES.values()])

# Other processors and other versions of torch may round differently (a fused multiply-add, the
# order of a sum), by a float32 ulp of 6e-8 in each of some operations in 12 updates. Losses and
# weights are around 1; a weight that cancels to nearly 0 keeps their absolute error.
_RTOL = 1e-5
_ATOL = 1e-6


def _label(path: Path) -> str:
    return path.relative_to(FILES).as_posix()


@pytest.mark.parametrize("file", sorted(FILES.glob("*/curves/*.json")), ids=_label)
def test_curve_has_recorded_learning_rates(file: Path) -> None:
    expected = read_json(file)
    curve = Curve.from_dict(expected.pop("curve"))
    assert describe_learning_rates(curve, expected.pop("peak")) == expected
    if file.stem in CURVES:
        assert curve == CURVES[file.stem]


@pytest.mark.parametrize("folder", sorted(FILES.glob("*/states/*")), ids=_label)
def test_saved_run_continues_as_recorded(folder: Path) -> None:
    case = CASES[folder.name]
    program = case.build()
    with warnings.catch_warnings():
        if case.processes > 1:
            # One process takes over from several, and has only the random numbers of the first.
            message = ".* was saved by 2 processes, and now there are 1"
            warnings.filterwarnings("ignore", message, UserWarning)
        load(case, program, folder)
    expected_updates = read_json(folder / "continued.json")
    updates = continue_program(case, program)
    for shown, expected in zip(updates, expected_updates, strict=True):
        assert shown["exact"] == expected["exact"]
        assert shown["close"] == pytest.approx(expected["close"], rel=_RTOL, abs=_ATOL)


def test_every_program_and_curve_has_a_file() -> None:
    assert missing_names() == [], "python -m support.golden.write, in tests/, writes them"


def test_every_kind_of_a_written_curve_is_recorded() -> None:
    written_kinds = {description.get("kind") for description in DESCRIPTIONS.values()}
    assert CONSTRUCTORS.keys() <= written_kinds


@pytest.mark.parametrize("kind", [kind for kind in CURVE_CLASSES if kind is not None])
def test_every_kind_is_recorded(kind: str) -> None:
    assert f"'kind': '{kind}'" in _RECORDED


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recorded(shape: str) -> None:
    assert f"'{shape.removesuffix('P')}" in _RECORDED


@pytest.mark.parametrize("name", ["scheduler", "plateau"])
def test_files_are_not_overwritten(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    with pytest.raises(FileExistsError):
        write(name, tmp_path)


def test_files_are_small() -> None:
    num_bytes = 0
    for path in FILES.glob("*/*/**/*"):
        if path.is_file():
            num_bytes += path.stat().st_size
    assert num_bytes < _MAX_BYTES
