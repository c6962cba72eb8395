"""`python -m plateau_jax … --compare`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.curves.descriptions import build
from support.rejections import rejected

from plateau_jax import Curve, PlateauCurve, compare
from plateau_jax.__main__ import main

COSINE, LINEAR = PlateauCurve(1000), PlateauCurve(1000, plateaus=[(0, 60)], decay_shape="linear")
DESCRIBED = ["1000", "--plateau", "0", "60", "--decay-shape", "linear"]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Curve], str]:
    def save(curve: Curve) -> str:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps(curve.to_dict()))
        return str(file)

    return save


def test_compare_prints_the_table_of_files(saved, capsys) -> None:
    files = ["--from", saved(COSINE), "--from", saved(LINEAR), "--compare"]
    assert main(files) == 0
    assert capsys.readouterr().out == f"{compare(COSINE, LINEAR)}\n"
    assert main([*files, "--cooldown", "500", "100"]) == 0
    cooled = [curve.cooldown(500, 100) for curve in (COSINE, LINEAR)]
    assert capsys.readouterr().out == f"{compare(*cooled)}\n"


def test_described_curve_comes_first(saved, capsys) -> None:
    assert main(["--from", saved(COSINE), *DESCRIBED, "--compare"]) == 0
    assert capsys.readouterr().out == f"{compare(LINEAR, COSINE)}\n"


def test_peak_adds_the_best_peaks(saved, capsys) -> None:
    assert main([*DESCRIBED, "--from", saved(COSINE), "--compare", "--peak", "3e-4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    peaks = [float(line.split()[-1]) for line in lines[1:3]]
    assert peaks == pytest.approx([3e-4, 3e-4 * compare(LINEAR, COSINE).peaks[1]], rel=0.005)
    assert "if 0.0003 is the best of that curve" in " ".join(lines)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_names_fit_any_encoding(saved, encoding) -> None:
    again = LINEAR.then(COSINE, scale=0.5)
    command = [sys.executable, "-m", "plateau_jax", *DESCRIBED, "--from", saved(again), "--compare"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment)
    expected = str(compare(LINEAR, again))
    assert {"–", "×"} <= set(expected)
    if encoding == "ascii":
        expected = expected.replace("–", "?").replace("×", "?")
    assert (done.returncode, done.stderr, done.stdout.decode(encoding)) == (0, b"", f"{expected}\n")


def test_compare_can_also_draw_a_picture(saved, tmp_path, capsys) -> None:
    picture = tmp_path / "curves.png"
    assert main([*DESCRIBED, "--from", saved(COSINE), "--compare", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no curve: give TOTAL"),
        (["--from", "cosine", "--min-lr-ratio", "0.1"], "missing 1 required positional argument"),
        (["--from", "cosine", "--from", "zero"], "has no positive learning rate"),
        (["--from", "cosine", "--json"], "argument --compare: not allowed with argument --json"),
    ],
)
def test_invalid_comparisons_are_rejected(
    saved, tmp_path, capsys, arguments: list[str], message: str
) -> None:
    files = {"cosine": saved(COSINE), "zero": saved(build({"stages": [(5,)], "start": 0.0}))}
    picture = tmp_path / "curves.png"
    arguments = [files.get(word, word) for word in arguments]
    assert message in rejected(capsys, [*arguments, "--compare", "--plot", str(picture)])
    assert not picture.exists()
