"""`python -m plateau_jax`: its table, its files, and its errors."""

import csv
import itertools
import json
import signal
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import arguments as curve_arguments
from support.examples import examples
from support.rejections import rejected
from support.schedulers.runs import peaks

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.__main__ import main
from plateau_jax.drawing.tables import segments_as_text

COMMAND = [sys.executable, "-m", "plateau_jax"]
CURVE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
PLATEAUS = ["--plateau", "50", "30", "--plateau", "85", "10"]
ARGUMENTS = ["10000", "--warmup-steps", "500", *PLATEAUS, "--min-lr-ratio", "0.1"]


def _to_options(arguments):
    """Return the arguments of a `PlateauCurve` as command-line options."""
    words = [str(arguments["total_steps"])]
    for option, name in (("plateau", "plateaus"), ("absolute-plateau", "absolute_plateaus")):
        for pair in arguments[name]:
            words += [f"--{option}", *map(repr, pair)]
    for option, name in (("warmup-steps", "warmup_steps"), ("warmup-shape", "warmup_shape")):
        words += [f"--{option}", str(arguments[name])]
    for name in ("min_lr_ratio", "init_lr_ratio", "decay_shape"):
        words += [f"--{name.replace('_', '-')}", str(arguments[name])]
    return words


def test_command_prints_the_table():
    done = subprocess.run([*COMMAND, *ARGUMENTS], capture_output=True, text=True, check=True)
    assert done.stdout == CURVE.describe() + "\n"
    assert done.stderr == ""


def test_command_exits_with_2_and_the_message():
    done = subprocess.run([*COMMAND, "100", "--warmup-steps", "100"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("python -m plateau_jax: error: warmup_steps = 100 must lie in")
    assert "Traceback" not in done.stderr


# A process started in the background inherits an ignored SIGINT; one started in a terminal does not.
AT_A_TERMINAL = [
    sys.executable,
    "-c",
    """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("plateau_jax", run_name="__main__", alter_sys=True)
""",
]


@pytest.mark.slow
def test_ctrl_c_ends_without_a_traceback(tmp_path):
    path = tmp_path / "huge.csv"
    process = subprocess.Popen([*AT_A_TERMINAL, str(2**31 - 1), "--csv", str(path)], stderr=subprocess.PIPE)
    try:
        while not (path.exists() and path.stat().st_size):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (130, b"")


def test_warning_is_one_line():
    done = subprocess.run(
        [*COMMAND, "100", "--plateau", "0.5", "0.3"], capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("python -m plateau_jax: warning: plateaus = [(0.5, 0.3)] look like fractions")


def test_standard_output_is_written_in_place():
    done = subprocess.run([*COMMAND, "2", "--csv", "/dev/stdout"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:4] == ["step,learning_rate", "0,1.0", "1,0.5", "2,0.0"]
    assert done.stdout.endswith(PlateauCurve(2).describe() + "\n")


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(curve_arguments())
def test_every_argument_has_an_option(capsys, arguments):
    assert main([*_to_options(arguments), "--json"]) == 0
    assert PlateauCurve.from_dict(json.loads(capsys.readouterr().out)) == PlateauCurve(**arguments)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(descriptions(kind="stages"), st.data())
def test_every_staged_curve_has_options(capsys, description, data):
    # A shape without a level has no effect, and the command line cannot say it.
    stages = [stage[:1] if len(stage) > 1 and stage[1] is None else stage for stage in description["stages"]]
    words = [["--stage", *map(str, stage)] for stage in stages]
    total = sum(steps for steps, *_ in stages)
    with_total = data.draw(st.booleans())
    if with_total and data.draw(st.booleans()):
        data.draw(st.sampled_from(words))[1] = "rest"
    start = ["--start", str(description["start"])]
    assert main([*[str(total)] * with_total, *itertools.chain(*words), *start, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert Curve.from_dict(written) == build({**description, "stages": stages})


def test_lengths_may_be_percentages(capsys):
    stages = "--stage 2% 1.0 --stage rest --stage 20% 0 1-sqrt"
    assert main(f"1e4 {stages} --cooldown 5000 500".split()) == 0
    curve = StagedCurve([("2%", 1.0), ("rest",), ("20%", 0, "1-sqrt")], total_steps=10_000)
    assert capsys.readouterr().out == curve.cooldown(5000, 500).describe() + "\n"
    assert main(["10000", "--warmup-steps", "2%"]) == 0
    assert capsys.readouterr().out == PlateauCurve(10_000, warmup_steps=200).describe() + "\n"


def test_staged_curve_is_compared_with_files(tmp_path, capsys):
    path = tmp_path / "cosine.json"
    path.write_text(json.dumps(PlateauCurve(1000, warmup_steps=20).to_dict()))
    stages = ["--stage", "2%", "1.0", "--stage", "rest"]
    assert main(["1000", *stages, "--from", str(path), "--compare"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 2


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 300), st.integers(0, 99), st.floats(0, 1), peaks)
def test_json_and_csv_match_the_curve(tmp_path, capsys, total, percent, ratio, peak):
    path = tmp_path / "rates.csv"
    warmup = (total - 1) * percent // 100
    arguments = [str(total), "--warmup-steps", str(warmup), "--min-lr-ratio", repr(ratio)]
    arguments += ["--plateau", "50", "12.5", "--peak", repr(peak)]
    assert main([*arguments, "--csv", str(path)]) == main([*arguments, "--json"]) == 0
    curve = PlateauCurve.from_dict(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert curve == PlateauCurve(total, warmup_steps=warmup, plateaus=[(50, 12.5)], min_lr_ratio=ratio)

    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["step", "learning_rate"]
    assert [int(step) for step, _ in rows] == list(range(total + 1))
    written = np.array([np.float32(lr) for _, lr in rows])
    expected = np.float32(peak) * curve(np.arange(total + 1))
    np.testing.assert_array_equal(written.view(np.int32), expected.view(np.int32))


def test_cooldown_of_described_curve(capsys):
    assert main([*ARGUMENTS, "--cooldown", "6000", "500", "--json"]) == 0
    assert Curve.from_dict(json.loads(capsys.readouterr().out)) == CURVE.cooldown(6000, 500)


def test_long_csv_is_complete(tmp_path):
    path = tmp_path / "rates.csv"
    total = 3 * 2**16 + 17
    assert main([str(total), "--csv", str(path)]) == 0
    values = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float64)
    np.testing.assert_array_equal(values[:, 0], np.arange(total + 1))
    np.testing.assert_array_equal(values[:, 1].astype(np.float32), PlateauCurve(total)(np.arange(total + 1)))


def test_suffix_determines_the_picture_format(tmp_path, capsys):
    png, svg = tmp_path / "curve.png", tmp_path / "curve.svg"
    for path in (png, svg):
        assert main([*ARGUMENTS, "--peak", "3e-4", "--plot", str(path)]) == 0
        assert capsys.readouterr().out == segments_as_text(CURVE.rows, np.float32(3e-4)) + "\n"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_longest_curve_can_be_drawn(tmp_path):
    path = tmp_path / "curve.png"
    assert main([str(2**31 - 1), "--warmup-steps", "5000", "--plateau", "0", "80", "--plot", str(path)]) == 0
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("0", "total_steps = 0 must lie in"),
        ("-5", "total_steps = -5 must lie in"),
        ("1e50", f"total_steps = {10**50} must lie in"),
        ("10.5", "total_steps = 10.5 must be an integer"),
        ("1e999999999", "total_steps = '1e999999999' must be an integer"),
        ("nan", "total_steps = 'nan' must be an integer"),
        ("", "no curve: give TOTAL, --stage STEPS or --from FILE"),
        ("100 --warmup-steps 100", "warmup_steps = 100 must lie in 0 … total_steps - 1 = 99"),
        ("100 --warmup-steps 0.05", "warmup_steps = 0.05 must be an integer, or a percentage of total_steps"),
        ("100 --warmup-steps 2%%", "warmup_steps = '2%%' must be a percentage"),
        ("--warmup-steps 2%", "no curve: give TOTAL, --stage STEPS or --from FILE"),
        ("100 --plateau 90 20", "plateaus[0] = (90, 20) must end by total_steps = 100"),
        ("100 --plateau -1 20", "plateaus[0] = (-1, 20) must lie in 0 … 100 %"),
        ("100 --plateau nan 20", "plateaus[0].start = 'nan' must be a number"),
        (
            "100 --plateau 10 20 --absolute-plateau 20 20",
            "plateaus[0] = (10, 20) must end before the next plateau starts, at step 20",
        ),
        ("100 --absolute-plateau 9.5 20", "absolute_plateaus[0].start = 9.5 must be an integer"),
        ("100 --decay-shape 1-x^30", "decay_shape = '1-x^30' must have a P in [0.05, 20]"),
        ("100 --min-lr-ratio 1.5", "min_lr_ratio = 1.5 must lie in [0, 1]"),
        ("100 --min-lr-ratio high", "min_lr_ratio = 'high' must be a number"),
        ("100 --peak nan", "peak = nan must be"),
        ("100 --peak 1e-40", "peak = 1e-40 must be 0, or finite and at least"),
        ("100 --cooldown -1 50", "at = -1 must be at least 0"),
        ("100 --cooldown 50 half", "steps = 'half' must be an integer"),
        ("--from missing.json", "No such file or directory: 'missing.json'"),
        ("--from .", "Is a directory: '.'"),
        ("100 --from missing.json", "--from takes a curve as it is: leave out TOTAL"),
        (
            "--from missing.json --plateau 5 10 --decay-shape linear",
            "leave out TOTAL and the options of a curve",
        ),
        ("--stage 2% 1.0", "stages[0].steps = '2%' is a fraction of all steps, and needs total_steps"),
        ("--stage 0 1", "stages add up to 0 steps"),
        ("--stage 5 1 --stage 5 0.5 (1-x)^2 100", "stages[1] = [5, 0.5, '(1-x)^2', 100] must be a stage"),
        ("100 --stage ten 1", "stages[0].steps = 'ten' must be an integer"),
        ("100 --stage 1 50%", "stages[0].to = '50%' must be a number"),
        ("--stage 50 1 sqrt", "stages[0].shape = 'sqrt' must be one of"),
        ("100 --stage rest --start 2", "start = 2 must lie in [0, 1]"),
        ("100 --start 1", "'start' is not an argument of PlateauCurve, which has total_steps, warmup"),
        (
            "100 --stage rest --warmup-steps 5",
            "'warmup_steps' is not an argument of StagedCurve, which",
        ),
        ("100 --design", "--design opens a page: leave --plot out"),
    ],
)
def test_invalid_arguments_write_no_file(tmp_path, capsys, arguments, message):
    files = ["--plot", str(tmp_path / "curve.png")]
    if "--design" not in arguments:
        files += ["--csv", str(tmp_path / "rates.csv")]
    (line,) = rejected(capsys, [*files, *arguments.split()]).splitlines(keepends=True)
    assert line.startswith("python -m plateau_jax: error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("100 --plateau 50", "expected 2 arguments"),
        ("100 --peak high", "invalid float value: 'high'"),
        ("--from", "expected one argument"),
        ("100 --stage", "expected at least one argument"),
        ("100 200", "unrecognized arguments: 200\n"),
        ("100 --warmup_steps 50", "unrecognized arguments: --warmup_steps 50\n"),
        ("100 --min-lr 1e-5", "unrecognized arguments: --min-lr 1e-5\n"),
    ],
)
def test_unknown_options_are_named_with_the_known_ones(capsys, arguments, message):
    printed = rejected(capsys, arguments.split())
    assert message in printed
    assert all(option in printed for option in ("--warmup-steps", "--min-lr-ratio", "--plateau", "--stage"))


@pytest.mark.parametrize("text", ["1e3", "1E3", "+1e3", "1_000", "1_0e2", "1000"])
def test_integers_have_the_forms_of_the_page(capsys, text):
    total = ["10000", "--warmup-steps", text, "--absolute-plateau", text, text, "--cooldown", "6e3", text]
    assert main([*total, "--json"]) == 0
    curve = PlateauCurve(10_000, warmup_steps=1000, absolute_plateaus=[(1000, 1000)]).cooldown(6000, 1000)
    assert Curve.from_dict(json.loads(capsys.readouterr().out)) == curve


def test_unknown_picture_format_leaves_no_file(tmp_path, capsys):
    files = ["--csv", str(tmp_path / "rates.csv"), "--plot", str(tmp_path / "curve.xyz")]
    assert "xyz" in rejected(capsys, ["100", *files])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--csv", "--plot"])
@pytest.mark.parametrize(
    "name", ["missing/file.png", "folder.png", f"{'n' * 300}.png"], ids=lambda name: name[:7]
)
def test_unwritable_file_is_rejected(tmp_path, capsys, option, name):
    (tmp_path / "folder.png").mkdir()
    path = tmp_path / name
    assert f"'{path}'\n" in rejected(capsys, ["100", option, str(path)])
    assert [file.name for file in tmp_path.rglob("*")] == ["folder.png"]
    assert "No space left" in rejected(capsys, ["100", "--csv", "/dev/full"])


def test_only_pictures_need_matplotlib(tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "--plot needs matplotlib: pip install 'plateau-jax[plot]'" in rejected(
        capsys, ["100", "--plot", str(tmp_path / "curve.png")]
    )
    assert main(["100"]) == 0
    assert capsys.readouterr().out == PlateauCurve(100).describe() + "\n"
