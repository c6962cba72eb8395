"""What `python -m plateau_jax` prints and writes."""

import io
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.commands import output_of
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.runs import peaks

import plateau_jax
from plateau_jax import PlateauCurve, StagedCurve, compare, compare_log, plot
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.command_line.main import main
from plateau_jax.tools.drawing import plots
from plateau_jax.tools.drawing.segment_table import segment_table

pytestmark = pytest.mark.usefixtures("folder")

# A test that prints draws each example in the same function-scoped fixtures.
DRAWN = {"suppress_health_check": [HealthCheck.function_scoped_fixture]}
ignore_curve_warnings = pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")

COSINE = PlateauCurve(1000)
LINEAR = PlateauCurve(1000, plateaus=[(0, 60)], decay_shape="linear")


def read_curve(text):
    return Curve.from_dict(json.loads(text))


def saved(name):
    text = Path(f"{name}.json").read_text()
    return read_curve(text)


@pytest.fixture
def printed_by(capsys):
    """A function that runs a command and returns what it prints."""

    def run(command):
        return output_of(capsys, *command.split())

    return run


# Curves.


def test_wsd_of_every_option(printed_by):
    curve = StagedCurve.wsd(
        10_000,
        warmup_steps="5%",
        decay_steps=2000,
        decay_shape="exponential",
        min_lr_ratio=0.1,
        start=0.25,
    )
    required = "10000 --wsd --warmup-steps 5% --decay-steps 2000"
    optional = "--decay-shape exponential --min-lr-ratio 0.1 --start 0.25"
    printed = printed_by(f"{required} {optional} --json")
    assert read_curve(printed) == curve


def test_json_of_numbers_in_any_spelling(printed_by):
    printed = printed_by("1e4 --warmup-steps 1k --cooldown 6e3 1_000 --json")
    curve = PlateauCurve(10_000, warmup_steps=1000)
    expected = json.dumps(curve.cooldown(6000, 1000).to_dict())
    assert printed == f"{expected}\n"


def test_csv_on_standard_output(printed_by):
    printed = printed_by("2 --csv - --peak 0.5")
    assert printed == "step,learning_rate\n0,0.5\n1,0.25\n2,0.0\n"


# Comparisons.


def test_options_are_compared_with_a_file(printed_by):
    command = "--from cosine.json 1000 --plateau 0 60 --decay-shape linear --compare"
    assert printed_by(command) == f"{compare(LINEAR, COSINE)}\n"


def last_number(line):
    return float(line.split()[-1])


def test_peak_adds_the_best_peaks(printed_by):
    command = "1000 --plateau 0 60 --decay-shape linear --from cosine.json --compare"
    printed = printed_by(f"{command} --peak 3e-4")
    _, first, second, *_ = printed.splitlines()
    assert last_number(first) == 3e-4
    ratio = compare(LINEAR, COSINE).peaks[1]
    assert last_number(second) == pytest.approx(3e-4 * ratio, rel=0.005)


# Options and files of any curve.


def test_curve_may_come_from_standard_input(printed_by, monkeypatch):
    text = io.BytesIO(Path("then.json").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    printed = printed_by("--from - --json")
    assert json.loads(printed) == saved("then").to_dict()


CURVE_IN_YAML = """\
kind: plateau
total_steps: 10k
warmup_steps: 2%
plateaus: [[0, 40], [50, 10]]
min_lr_ratio: 0.001
"""


@pytest.mark.slow
def test_curve_may_be_in_yaml(printed_by):
    pytest.importorskip("yaml")
    Path("CURVE.YAML").write_text(CURVE_IN_YAML)
    plateaus = [(0, 40), (50, 10)]
    curve = PlateauCurve(10_000, warmup_steps=200, plateaus=plateaus, min_lr_ratio=0.001)
    printed = printed_by("--from CURVE.YAML --json")
    assert json.loads(printed) == curve.to_dict()


@ignore_curve_warnings
@settings(**DRAWN)
@given(descriptions(depth=0, kind="plateau"))
def test_every_argument_has_an_option(capsys, description):
    words = [str(description["total_steps"])]
    for start, duration in description["plateaus"]:
        words += ["--plateau", repr(start), repr(duration)]
    for start, length in description["absolute_plateaus"]:
        words += ["--absolute-plateau", str(start), str(length)]
    words += ["--warmup-steps", str(description["warmup_steps"])]
    words += ["--warmup-shape", description["warmup_shape"]]
    words += ["--min-lr-ratio", str(description["min_lr_ratio"])]
    words += ["--init-lr-ratio", str(description["init_lr_ratio"])]
    words += ["--decay-shape", description["decay_shape"]]
    printed = output_of(capsys, *words, "--json")
    assert read_curve(printed) == build(description)


def expressible(stage):
    """Leave out a shape without a level, which has no effect and no spelling as an option."""
    if len(stage) > 1 and stage[1] is None:
        return stage[:1]
    return stage


@ignore_curve_warnings
@settings(**DRAWN)
@given(descriptions(kind="staged"), st.data())
def test_every_staged_curve_has_options(capsys, description, data):
    stages = list(map(expressible, description["stages"]))
    words = ["--start", str(description["start"])]
    rest = -1
    if data.draw(st.booleans()):
        total = sum(stage[0] for stage in stages)
        words.append(str(total))
        rest = data.draw(st.integers(-1, len(stages) - 1))
    for index, (steps, *level) in enumerate(stages):
        if index == rest:
            steps = "rest"
        words += ["--stage", str(steps), *map(str, level)]
    printed = output_of(capsys, *words, "--json")
    curve = build({**description, "stages": stages})
    assert read_curve(printed) == curve


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@examples(60, **DRAWN)
@given(descriptions(scaled=True), peaks)
def test_every_curve_has_a_table_of_learning_rates(printed_by, description, peak):
    curve = build(description)
    Path("curve.json").write_text(json.dumps(curve.to_dict()))
    printed = printed_by(f"--from curve.json --peak {peak!r}")
    header, *lines = printed.splitlines()
    header_of_levels, *lines_of_levels = curve.describe().splitlines()
    assert " ".join(header.split()) == "first step last step kind lr from lr to"
    assert " ".join(header_of_levels.split()) == "first step last step kind from to"
    for line, line_of_levels in zip(lines, lines_of_levels, strict=True):
        *segment, lr, _ = line.split()
        *expected_segment, _, _ = line_of_levels.split()
        assert segment == expected_segment
        level = np.float32(curve(int(segment[0])))
        # The table shows exact levels; the curve's own values are rounded to about 2⁻⁶².
        assert lr == f"{np.float32(peak) * level:.6g}" or level < 2.0**-60
        assert len(line) == len(header)


# Files.


def test_csv_has_every_value(printed_by):
    printed = printed_by("--from scaled.json --csv new.csv --peak 3e-4")
    assert printed.startswith("first step")
    check_csv(saved("scaled"), 3e-4)


def test_csv_of_a_long_curve(printed_by):
    """Values are written 2¹⁶ steps at a time."""
    printed_by(f"{2**17 + 17} --csv new.csv")
    check_csv(PlateauCurve(2**17 + 17), 1.0)


def check_csv(curve, peak):
    assert Path("new.csv").read_text().startswith("step,learning_rate\n0,")
    steps, lrs = np.loadtxt("new.csv", delimiter=",", skiprows=1).T
    expected_steps = np.arange(curve.total_steps + 1)
    expected_lrs = curve.learning_rate(expected_steps, peak)
    np.testing.assert_array_equal(steps, expected_steps)
    np.testing.assert_array_equal(lrs.astype(np.float32), expected_lrs)


def test_interrupted_command_leaves_the_file_as_it_was(printed_by, monkeypatch):
    printed_by("100 --csv new.csv")
    before = Path("new.csv").read_bytes()

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(PlateauCurve, "learning_rate", fail)
    with pytest.raises(KeyboardInterrupt):
        main(["50", "--csv", "new.csv"])
    assert Path("new.csv").read_bytes() == before
    assert not [*Path().glob(".new*")]


PLATEAUS = PlateauCurve(10_000, warmup_steps=500, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
OPTIONS = "10000 --warmup-steps 500 --plateau 50 30 --plateau 85 10 --min-lr-ratio 0.1"


def test_exported_file_on_standard_output(printed_by):
    printed = printed_by(f"{OPTIONS} --export -")
    assert printed == PLATEAUS.to_source()
    printed_with_peak = printed_by(f"{OPTIONS} --export - --peak 0.1")
    assert printed_with_peak == PLATEAUS.to_source(0.1)


@pytest.mark.parametrize(("option", "peak"), [("", 1.0), ("--peak 3e-4", float(np.float32(3e-4)))])
def test_exported_vectors(printed_by, option, peak):
    printed = printed_by(f"--from stairs.json --from scaled.json --export new.json {option}")
    assert printed.count("first step") == 2
    content = json.loads(Path("new.json").read_text())
    assert content["peak"] == peak
    first, second = content["curves"]
    assert Curve.from_dict(first["curve"]) == saved("stairs")
    assert Curve.from_dict(second["curve"]) == saved("scaled")


def test_written_files_have_their_format_and_are_reported(capsys):
    assert main(["100", "--plot", "new", "--csv", "new.csv"]) == 0
    assert capsys.readouterr().err == "wrote new.png\nwrote new.csv\n"
    png = Path("new.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert main(["100", "--plot", "new.svg", "--export", "new.py"]) == 0
    assert capsys.readouterr().err == "wrote new.svg\nwrote new.py\n"
    assert Path("new.py").read_text() == PlateauCurve(100).to_source()
    svg = ElementTree.parse("new.svg")
    assert svg.getroot().tag.endswith("svg")


@pytest.fixture
def drawn(monkeypatch):
    """The curves of each plot, with the peak."""
    plots_so_far = []

    def draw(curves, **options):
        plots_so_far.append((curves, options["peak_value"]))
        return plot(curves, **options)

    monkeypatch.setattr(plots, "plot", draw)
    return plots_so_far


FILES = "--from stairs.json --from then.json --from scaled.json"


def test_several_files_are_drawn_together(printed_by, drawn):
    printed = printed_by(f"{FILES} --cooldown 20 10 --plot new.svg --peak 0.5")
    curves = []
    tables = []
    for name in ("stairs", "then", "scaled"):
        curve = saved(name).cooldown(20, 10)
        table = segment_table(curve.segments, np.float32(0.5))
        curves.append(curve)
        tables.append(table)
    assert printed == "\n\n".join(tables) + "\n"
    assert drawn == [(curves, 0.5)]


# Logs.


def test_log_is_compared_with_the_curve(printed_by):
    printed = printed_by("--from run.json --peak 1e-3 --log low.csv")
    comparison = compare_log("low.csv", saved("run"), 1e-3)
    assert printed == f"{comparison}\n"
    assert "the peak is 0.0005, 0.5 times the given one" in printed


def test_log_may_come_from_standard_input(printed_by, monkeypatch):
    text = io.BytesIO(Path("low.csv").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    printed = printed_by("--from run.json --peak 1e-3 --log -")
    assert printed == f"{compare_log('low.csv', saved('run'), 1e-3)}\n"


def test_columns_of_a_log_are_named(printed_by):
    Path("renamed.csv").write_text(Path("low.csv").read_text().replace("step,lr", "n,rate"))
    printed = printed_by(
        "--from run.json --peak 5e-4 --log renamed.csv --step-column n --lr-column rate"
    )
    assert "all are on the curve" in printed


def test_version(printed_by):
    assert printed_by("--version") == f"plateau-jax {plateau_jax.__version__}\n"
