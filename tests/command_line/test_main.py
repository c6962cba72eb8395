"""`python -m plateau_jax`: its table, its files, and its errors."""

import csv
import itertools
import json
import re
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

from plateau_jax import Curve, CurveWarning, PlateauCurve, StagedCurve
from plateau_jax.__main__ import main
from plateau_jax.numerics import exact_segments
from plateau_jax.option_parser import OptionWords
from plateau_jax.validation.messages import message_of

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
    assert "--warmup-steps 100 must lie in" in done.stderr
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


def test_failed_picture_keeps_the_old_file(tmp_path, capsys, monkeypatch):
    from matplotlib.figure import Figure

    def fail(figure, file, **_):
        file.write(b"half")
        raise OSError("no space left")

    path = tmp_path / "curve.png"
    path.write_text("what was there")
    monkeypatch.setattr(Figure, "savefig", fail)
    assert "no space left" in rejected(capsys, ["100", "--plot", str(path)])
    assert path.read_text() == "what was there"


def test_new_file_has_default_permissions(tmp_path, capsys):
    (tmp_path / "another").touch()
    assert main(["10", "--csv", str(tmp_path / "rates.csv")]) == 0
    assert (tmp_path / "rates.csv").stat().st_mode == (tmp_path / "another").stat().st_mode


def test_warning_is_one_line():
    done = subprocess.run(
        [*COMMAND, "100", "--plateau", "0.5", "0.3"], capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("python -m plateau_jax: warning: --plateau 0.5 0.3 look like fractions")
    assert line.endswith("For fractions write --plateau 50 30")


def test_standard_output_is_written_in_place():
    done = subprocess.run([*COMMAND, "2", "--csv", "/dev/stdout"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:4] == ["step,learning_rate", "0,1.0", "1,0.5", "2,0.0"]
    assert done.stdout.endswith(PlateauCurve(2).describe() + "\n")


def test_arguments_print_the_table(capsys):
    assert main(ARGUMENTS) == 0
    assert capsys.readouterr().out == CURVE.describe() + "\n"
    assert main(["7"]) == 0
    assert capsys.readouterr().out == PlateauCurve(7).describe() + "\n"


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
    assert (
        main([*arguments, "--plateau", "50", "12.5", "--peak", repr(peak), "--csv", str(path), "--json"]) == 0
    )
    curve = PlateauCurve.from_dict(json.loads(capsys.readouterr().out))
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
        assert capsys.readouterr().out == exact_segments.as_text(CURVE.rows, np.float32(3e-4)) + "\n"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_longest_curve_can_be_drawn(tmp_path):
    path = tmp_path / "curve.png"
    assert main([str(2**31 - 1), "--warmup-steps", "5000", "--plateau", "0", "80", "--plot", str(path)]) == 0
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("0", "TOTAL = 0"),
        ("-5", "TOTAL = -5"),
        ("2147483648", "TOTAL = 2147483648"),
        ("1e50", f"TOTAL = {10**50} must lie in"),
        ("10.5", "argument TOTAL: '10.5' must be an integer"),
        ("1e-1", "'1e-1' must be an integer"),
        ("1e999999999", "'1e999999999' must be an integer"),
        ("nan", "'nan' must be an integer"),
        ("inf", "'inf' must be an integer"),
        ("", "required: TOTAL"),
        ("100 --warmup-steps 100", "--warmup-steps 100"),
        ("100 --warmup-steps -1", "--warmup-steps -1"),
        ("100 --plateau 50", "expected 2 arguments"),
        ("100 --plateau 90 20", "--plateau 90 20 lasts from step 90 to step 110, past TOTAL = 100\n"),
        ("100 --plateau -1 20", "--plateau -1.0 20.0"),
        ("100 --plateau nan 20", "--plateau nan 20.0"),
        (
            "100 --plateau 10 20 --absolute-plateau 20 20",
            "--plateau 10 20 lasts from step 10 to step 30 and overlaps --absolute-plateau 20 20, which",
        ),
        ("100 --plateau 0 100", "left to decay"),
        ("100 --absolute-plateau 90 20", "past TOTAL"),
        ("100 --absolute-plateau 9.5 20", "'9.5' must be an integer"),
        ("100 --decay-shape square", "--decay-shape 'square'"),
        ("100 --decay-shape 1-x^P", "--decay-shape '1-x^P': write P as a decimal"),
        ("100 --decay-shape 1-x^30", "--decay-shape '1-x^30': P = 30 must lie in [0.05, 20]"),
        ("100 --decay-shape t^-1", "--decay-shape 't^-1' must be one of"),
        ("100 --warmup-steps 5 --warmup-shape 1-sqrt", "--warmup-shape '1-sqrt'"),
        ("100 --init-lr-ratio 1.5", "--init-lr-ratio 1.5"),
        ("100 --min-lr-ratio 1.5", "--min-lr-ratio 1.5"),
        ("100 --min-lr-ratio nan", "--min-lr-ratio nan"),
        ("100 --peak nan", "--peak nan"),
        ("100 --peak inf", "--peak inf"),
        ("100 --peak -1", "--peak -1.0"),
        ("100 --peak 1e-40", "--peak 1e-40"),
        ("100 --peak high", "invalid float value: 'high'"),
        ("100 --cooldown 50", "expected 2 arguments"),
        ("100 --cooldown -1 50", "error: AT of --cooldown = -1 must be at least 0"),
        ("100 --cooldown 50 0", "error: STEPS of --cooldown = 0 must be at least 1"),
        ("100 --cooldown 2147483647 1", "error: AT of --cooldown + STEPS of --cooldown = 2147483648 must be"),
        ("--from", "expected one argument"),
        ("--from missing.json", "--from missing.json: No such file"),
        ("--from .", "--from .: Is a directory"),
        ("100 --from missing.json", "--from takes a curve as it is, without TOTAL"),
        ("--from missing.json --plateau 5 10 --decay-shape linear", "without --plateau, --decay-shape"),
        ("100 --nonsense", "unrecognized arguments: --nonsense\n"),
        ("100 200", "unrecognized arguments: 200\n"),
        ("100 --warmup 50", "--warmup 50; did you mean --warmup-steps?"),
        ("100 --warmup_steps 50", "--warmup_steps 50; did you mean --warmup-steps?"),
        ("100 --plateaus 5 10", "did you mean --plateau?"),
        ("100 --absolute-plateaus=5", "did you mean --absolute-plateau?"),
        ("--total-steps 100", "did you mean TOTAL?"),
        ("100 --min-lr 1e-5", "did you mean --min-lr-ratio?"),
        ("100 --plot -", "--plot - is not possible: give a file, as in --plot curve.png"),
        ("100 --plateau 150 20", "in steps: --absolute-plateau 150 20"),
        ("100 --plateau 60 80", "a duration: 60–80 % is --plateau 60 20\n"),
        ("100 --absolute-plateau 60 80", "a number of steps: 60–80 is --absolute-plateau 60 20\n"),
        ("100 --plateau 0 100", "never decays write --stage 100 --start 1.0\n"),
        ("100 --warmup-steps 5 --plateau 0 100", "write --stage 5 1.0 --stage 95\n"),
        ("100 --decay-shape exponential", "have it: --stage 100 1.0 --stage 900 0.01 exponential\n"),
        ("100 --warmup-steps 2%%", "--warmup-steps '2%%' must be a percentage"),
        ("100 --warmup-steps 100%", "--warmup-steps 100 must lie in 0 … TOTAL"),
        ("100 --warmup-steps 0.05", "5 % of 100 steps is --warmup-steps 5, or --warmup-steps 5%\n"),
        ("100 --warmup-steps half", "argument --warmup-steps: 'half' must be an integer"),
        ("--warmup-steps 2%", "required: TOTAL"),
        ("--stage 2% 1.0", "--stage 2% 1.0: steps = '2%' is a fraction of all steps, and needs TOTAL before"),
        (
            "--stage rest 100",
            "--stage rest 100: steps = 'rest' is a fraction of all steps, and needs TOTAL bef",
        ),
        ("--stage 0 1", "--stage options last 0 steps"),
        ("--stage 5 1 --stage 5 0.5 (1-x)^2 100", "--stage 5 0.5 (1-x)^2 100 must be a stage (steps, to, sh"),
        ("100 --stage", "argument --stage: expected at least one argument"),
        ("100 --stage ten 1", "--stage ten 1: steps = 'ten' must be an integer"),
        ("100 --stage 100% up", "--stage 100% up: to = 'up' must be a number"),
        ("--stage 50 1.5", "--stage 50 1.5: to = 1.5 must lie in [0, 1]"),
        ("100 --stage 1 50%", "the steps come first: --stage 50% 1\n"),
        ("--stage 50 1 sqrt", "--stage 50 1 sqrt: shape = 'sqrt' must be one of"),
        ("100 --stage rest 1 exponential", "--stage number 1: an exponential stage from or to 0"),
        ("100 --stage rest --stage rest", "--stage rest: steps = 'rest' may be given once only"),
        ("100 --stage 50 1 --stage 20 0", "--stage options last 70 steps, not TOTAL = 100: 30 missing"),
        (
            "100 --stage 500 1 --stage rest 0",
            "--stage options without the 'rest' last 500 steps, more than T",
        ),
        ("100 --stage rest --start 2", "--start 2.0 must lie in [0, 1]"),
        ("100 --stage rest --start nan", "--start nan must be finite"),
        ("100 --start 1", "--start requires --stage"),
        ("100 --stage rest --warmup-steps 5", "--stage describes the whole curve, without --warmup-steps\n"),
        ("--stage 5 1 --from missing.json", "--from takes a curve as it is, without --stage"),
        ("100 --stages 5 1", "did you mean --stage?"),
    ],
)
def test_invalid_arguments_write_no_file(tmp_path, capsys, arguments, message):
    files = ["--csv", str(tmp_path / "rates.csv"), "--plot", str(tmp_path / "curve.png")]
    (line,) = rejected(capsys, [*files, *arguments.split()]).splitlines(keepends=True)
    assert line.startswith("python -m plateau_jax: error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["1e3", "1E3", "+1.0e3", "1000.0", "1_000", "1_0e2", "1000"])
def test_integers_have_the_forms_of_the_page(capsys, text):
    total = ["10000", "--warmup-steps", text, "--absolute-plateau", text, text, "--cooldown", "6e3", text]
    assert main([*total, "--json"]) == 0
    curve = PlateauCurve(10_000, warmup_steps=1000, absolute_plateaus=[(1000, 1000)]).cooldown(6000, 1000)
    assert Curve.from_dict(json.loads(capsys.readouterr().out)) == curve


def test_picture_that_needs_tex_is_rejected_in_a_line(tmp_path, capsys, monkeypatch):
    from matplotlib import rcParams

    monkeypatch.setitem(rcParams, "pgf.texsystem", "lualatex")
    monkeypatch.setenv("PATH", "")  # without TeX
    path = tmp_path / "curve.pgf"
    (line,) = rejected(capsys, ["100", "--plot", str(path)]).splitlines()
    assert f"{path} cannot be written: 'lualatex' not found" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("1000 --plateau 0 0.7", "write --plateau 0 70"),
        ("1000 --plateau 0 0.5 --plateau 0.6 0.3", "write --plateau 0 50 --plateau 60 30"),
        ("1000 --plateau 50 0.05", "a number of steps: --absolute-plateau 500 1"),
        ("1000 --min-lr-ratio 1e-6", "write --min-lr-ratio with the value of 1e-06 / peak"),
        ("100 --stage rest", "begin at the peak write --start 1.0"),
        ("100 --stage 0.5% 1 --stage rest", "larger percentage, or a number of steps"),
        ("100 --warmup-steps 0.5%", "larger percentage, or a number of steps"),
    ],
)
def test_warnings_name_options(line, written):
    with pytest.warns(CurveWarning) as caught:
        assert main(line.split()) == 0
    message = OptionWords().text(message_of(caught[0].message))
    assert message.endswith(written)
    assert not re.search(r"plateaus|stages|_ratio|_steps|=(?! ')|\(\d", message)


def test_unknown_picture_format_leaves_no_file(tmp_path, capsys):
    files = ["--csv", str(tmp_path / "rates.csv"), "--plot", str(tmp_path / "curve.xyz")]
    assert "xyz" in rejected(capsys, ["100", *files])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--csv", "--plot"])
@pytest.mark.parametrize("name", ["missing/file.png", "folder.png"])
def test_unwritable_file_is_rejected(tmp_path, capsys, option, name):
    (tmp_path / "folder.png").mkdir()
    path = tmp_path / name
    message = rejected(capsys, ["100", option, str(path)])
    assert str(path) in message
    assert [file.name for file in tmp_path.rglob("*")] == ["folder.png"]


def test_only_pictures_need_matplotlib(tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "--plot needs matplotlib: pip install 'plateau-jax[plot]'" in rejected(
        capsys, ["100", "--plot", str(tmp_path / "curve.png")]
    )
    assert main(["100"]) == 0
    assert capsys.readouterr().out == PlateauCurve(100).describe() + "\n"
