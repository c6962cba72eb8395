"""The program for each other library uses the curve's learning rates, and resumes.

Each runs once without interruption, and once killed and started again. A program that has finished
makes no update when it is started again. A program whose library is not installed is skipped;
`.[libraries]` installs some of them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.docs.pages import ROOT, section_named
from support.programs import Program
from trainers import recorded
from trainers.library_programs import PROGRAMS, SET_UP

from plateau_jax import StagedCurve

pytestmark = pytest.mark.slow

UPDATES = 120
PEAK = 0.01
CURVE = StagedCurve([(12, 1.0), (84,), (24, 0.0, "1-sqrt")])
KILLED_AFTER = 70


def program_of(library):
    """Return a program that trains in a library; only that of Keras is on the page as a whole."""
    if library == "Keras 3":
        (code,) = section_named(library).code_in("py")
        return code
    return SET_UP + PROGRAMS[library]


@pytest.mark.parametrize("library", PROGRAMS)
def test_program_has_the_lines_of_the_page(library):
    (code,) = section_named(library).code_in("py")
    _, _, lines = code.partition("\n")  # without the comment that says where they go
    assert lines in PROGRAMS[library]


@dataclass(frozen=True)
class LibraryProgram:
    heading: str
    package: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    records_per_update: int = 1
    """More for a rollout with several updates."""
    repeats_results: bool = True
    """Does the resumed run print the numbers of the uninterrupted one?"""

    def __str__(self):
        return " ".join([self.heading, *self.environment.values()])


LIBRARY_PROGRAMS = [
    LibraryProgram("Keras 3", "keras", {"KERAS_BACKEND": "jax"}),
    LibraryProgram("Keras 3", "keras", {"KERAS_BACKEND": "torch"}),
    LibraryProgram("MLX", "mlx"),
    LibraryProgram("PyTorch Ignite", "ignite"),
    LibraryProgram("skorch", "skorch"),
    LibraryProgram(
        "Stable-Baselines3", "stable_baselines3", records_per_update=4, repeats_results=False
    ),
]


def run(program, folder, killed_after=-1):
    """Run a program in a separate process, which may be killed after a number of records.

    Returns its learning rates, and the lines that it has printed about its final loss.
    """
    folder.mkdir(exist_ok=True)
    file_of_lrs = folder / "lrs.txt"
    arguments = (str(file_of_lrs), str(killed_after))
    code = program_of(program.heading)
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    path = f"{ROOT / 'tests'}{os.pathsep}{ROOT}"
    cache = folder.parent / "jax"  # of all processes of a test
    environment = {
        "PYTHONPATH": path,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        **program.environment,
    }
    script = Path(recorded.__file__)
    process = Program(script, file, *arguments, folder=folder, environment=environment)
    status, output, errors = process.finish()
    if killed_after >= 0:
        assert status != 0
    else:
        assert status == 0, errors
    lrs = [float.fromhex(line) for line in file_of_lrs.read_text().splitlines()]
    results = [line for line in output.splitlines() if line.startswith("final ")]
    return lrs, results


@pytest.mark.parametrize("program", LIBRARY_PROGRAMS, ids=str)
def test_program_uses_the_curve_and_resumes(program, tmp_path):
    if find_spec(program.package) is None:
        pytest.skip(f"needs {program.package}")
    expected = []
    for step in range(UPDATES):
        lr = CURVE.learning_rate(step, PEAK)
        expected += [lr] * program.records_per_update

    folder = tmp_path / "uninterrupted"
    lrs, results = run(program, folder)
    assert lrs == expected
    finished_lrs, _ = run(program, folder)
    assert finished_lrs == []

    folder = tmp_path / "resumed"
    killed_after = KILLED_AFTER * program.records_per_update
    lrs_before, _ = run(program, folder, killed_after)
    assert lrs_before == expected[:killed_after]
    lrs_after, resumed_results = run(program, folder)
    count = len(lrs_after)
    updates_left = len(expected) - killed_after
    assert updates_left <= count < len(expected)
    assert lrs_after == expected[-count:]
    if program.repeats_results:
        assert resumed_results == results
