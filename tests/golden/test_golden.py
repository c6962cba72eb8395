"""Saved states and curves of all versions are read: a run that resumes continues with the recorded numbers.

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

# Other processors and other versions of torch may round differently (a fused multiply-add, the order of a
# sum), by a float32 ulp of 6e-8 in each of some operations in 12 updates. Losses and weights are around 1; a
# weight that cancels to nearly 0 keeps their absolute error.
_RTOL, _ATOL = 1e-5, 1e-6


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
            warnings.filterwarnings("ignore", ".* was saved by 2 processes, and now there are 1", UserWarning)
        load(case, program, folder)
    expected_updates = read_json(folder / "continued.json")
    updates = continue_program(case, program)
    for shown, expected in zip(updates, expected_updates, strict=True):
        assert shown["exact"] == expected["exact"]
        assert shown["close"] == pytest.approx(expected["close"], rel=_RTOL, abs=_ATOL)


def test_every_program_and_curve_has_a_file() -> None:
    assert missing_names() == [], "python -m support.golden.write, in tests/, writes them"


def test_every_kind_and_shape_is_recorded() -> None:
    written_kinds = {description.get("kind") for description in DESCRIPTIONS.values()}
    described = repr([curve.to_dict() for curve in CURVES.values()])
    for kind in CURVE_CLASSES.keys() - {None}:
        assert f"'kind': '{kind}'" in described
    assert CONSTRUCTORS.keys() <= written_kinds
    for shape in SHAPES:
        assert f"'{shape.removesuffix('P')}" in described


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    for name in ("scheduler", "plateau"):
        write(name, tmp_path)
        with pytest.raises(FileExistsError):
            write(name, tmp_path)


def test_files_are_small() -> None:
    files = [path for path in FILES.glob("*/*/**/*") if path.is_file()]
    assert sum(file.stat().st_size for file in files) < _MAX_BYTES
