"""`python -m plateau_jax --from`: curves written as JSON, and files without a curve."""

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.rejections import rejected

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve, plot, plots
from plateau_jax.__main__ import main

PLATEAUS = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
STAIRS = StagedCurve([(10, 1.0), (20,), (0, 0.5), (20, 0.25, "exponential")], start=0.5)
KINDS = [
    PLATEAUS,
    STAIRS,
    STAIRS.cooldown(25, 10, to=0.1),
    PLATEAUS.then(STAIRS, scale=0.5).cooldown(1030, 5),
    PLATEAUS.part(50, 700),
    BatchPlan([(0, 8), (4000, 16)]).scale(PLATEAUS, 8, reference=16),
]


def _write_curve(path, curve):
    path.write_text(json.dumps(curve.to_dict()))
    return str(path)


@pytest.mark.parametrize("curve", KINDS, ids=lambda curve: type(curve).__name__)
def test_curve_from_file_matches_the_saved_one(tmp_path, capsys, monkeypatch, curve):
    file = _write_curve(tmp_path / "curve.json", curve)
    assert main(["--from", file]) == 0
    assert capsys.readouterr().out == curve.describe() + "\n"

    rates = tmp_path / "rates.csv"
    assert main(["--from", file, "--csv", str(rates), "--peak", "3e-4"]) == 0
    capsys.readouterr()
    assert main(["--from", file, "--json"]) == 0
    assert Curve.from_dict(json.loads(capsys.readouterr().out)) == curve
    written = np.loadtxt(rates, delimiter=",", skiprows=1, dtype=np.float32)[:, 1]
    expected = np.float32(3e-4) * curve(np.arange(curve.total_steps + 1))
    np.testing.assert_array_equal(written.view(np.int32), expected.view(np.int32))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(file).read_bytes())))
    assert main(["--from", "-", "--json"]) == 0
    assert Curve.from_dict(json.loads(capsys.readouterr().out)) == curve


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(descriptions(scaled=True))
def test_every_curve_can_be_read_back(tmp_path, capsys, description):
    curve = build(description)
    assert main(["--from", _write_curve(tmp_path / "curve.json", curve), "--json"]) == 0
    assert Curve.from_dict(json.loads(capsys.readouterr().out)) == curve


def test_several_files_are_drawn_together(tmp_path, capsys, monkeypatch):
    picture = tmp_path / "curves.svg"
    files = [_write_curve(tmp_path / f"{number}.json", curve) for number, curve in enumerate(KINDS)]
    options = [word for file in files for word in ("--from", file)]
    drawn = []

    def draw(curves, **options):
        drawn.extend(curves)
        return plot(curves, **options)

    monkeypatch.setattr(plots, "plot", draw)
    assert main([*options, "--plot", str(picture), "--cooldown", "20", "10"]) == 0
    cooled = [curve.cooldown(20, 10) for curve in KINDS]
    assert drawn == cooled
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert capsys.readouterr().out == "\n\n".join(curve.describe() for curve in cooled) + "\n"


@pytest.mark.parametrize("option", ["--csv", "--json"])
def test_single_curve_options_refuse_two_curves(tmp_path, capsys, option):
    file, rates = _write_curve(tmp_path / "curve.json", STAIRS), tmp_path / "rates.csv"
    value = [str(rates)] if option == "--csv" else []
    message = rejected(capsys, ["--from", file, "--from", file, option, *value])
    assert "--csv and --json take one curve, not 2" in message
    assert not rates.exists()


NO_CURVE = {
    "": "Expecting value",
    "curve": "Expecting value",
    '{"kind": "staged"': "Expecting ",
    "\0\x01\udcff": "can't decode byte 0xff",
    "[]": "arguments = [] must be a mapping",
    "{}": "missing 1 required positional argument: 'total_steps'",
    '{"total_steps": 9, "warmup_steps": 9}': "warmup_steps = 9 must lie in 0 … total_steps - 1 = 8",
    '{"total_steps": 9, "warmup_step": 3}': "'warmup_step' is not an argument of PlateauCurve, which has",
    '{"kind": {}}': "kind = {} must be one of",
    '{"stages": [[9], ["2%", 0]]}': "stages[1].steps = '2%' is a fraction of all steps, and needs total_st",
    '{"kind": "staged", "start": 1e999, "stages": [[1]]}': "start = inf must be finite",
    '{"kind": "then", "curve": 1, "other": 2, "scale": 1}': "curve = 1 must be a mapping",
    "[" * 100_000: "maximum recursion depth exceeded",
    '{"kind": "cooldown", "curve": ' * 100_000: "maximum recursion depth exceeded",
    '{"kind": "cooldown", "curve": ' * 65 + "{}" + "}" * 65: "derived curves are nested more than 64 deep",
}


@pytest.mark.parametrize("text", NO_CURVE, ids=lambda text: text[:40])
def test_file_without_a_curve_is_refused(tmp_path, capsys, text):
    path = tmp_path / "curve.json"
    path.write_text(text, errors="surrogateescape")
    message = rejected(capsys, ["--from", str(path)]).splitlines()[-1]
    assert f"{path}: " in message
    assert NO_CURVE[text] in message


single = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
several = st.lists(single, max_size=4) | st.dictionaries(st.text(), single, max_size=4)
anything = single | several | st.lists(several, max_size=2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KINDS), st.data(), anything)
def test_no_file_content_causes_a_traceback(tmp_path, capsys, curve, data, value):
    """Replace one value in a curve's JSON, at any depth."""
    written = {"kind": "then", "curve": curve.to_dict(), "other": curve.to_dict(), "scale": 1}
    inside = written
    while isinstance(inside, dict | list) and inside:
        key = data.draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        if not isinstance(inside[key], dict | list) or data.draw(st.booleans()):
            break
        inside = inside[key]
    if inside:
        inside[key] = value
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(written))
    code = 2
    with suppress(SystemExit):
        code = main(["--from", str(path)])
    printed = capsys.readouterr()
    assert bool(printed.out) == (code == 0)
    assert (f"error: {path}: " in printed.err) == (code == 2)


@pytest.mark.parametrize("more", [[], ["--json"], ["--csv", "/dev/stdout"]], ids=str)
def test_closed_pipe_is_not_an_error(more):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "plateau_jax", "100000", *more]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("more", [[], ["--json"]], ids=str)
def test_full_disk_is_a_one_line_error(more):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "plateau_jax", "10", *more]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "python -m plateau_jax: error: No space left on device\n"
    assert done.returncode == 2
