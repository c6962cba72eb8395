"""What `python -m plateau_jax` prints and writes."""

import io
import itertools
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.commands import output_of
from support.curves.descriptions import build, descriptions
from support.curves.strategies import arguments as curve_arguments
from support.errors import pairs
from support.examples import examples
from support.schedulers.runs import peaks

from plateau_jax import LossRun, PlateauCurve, StagedCurve, compare, fit_losses, plot
from plateau_jax.__main__ import main
from plateau_jax.curves import plots
from plateau_jax.curves.curve import Curve
from plateau_jax.drawing.segment_table import segment_table

DRAWN = {"suppress_health_check": [HealthCheck.function_scoped_fixture]}


def saved(name):
    return Curve.from_dict(json.loads(Path(f"{name}.json").read_text()))


CURVE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
TEXT = "10000 --warmup-steps 500 --plateau 50 30 --plateau 85 10 --min-lr-ratio 0.1"
STAGED = StagedCurve([("2%", 1.0), ("rest",), ("20%", 0, "1-sqrt")], total_steps=10_000)
STAGES = "--stage 2% 1.0 --stage rest --stage 20% 0 1-sqrt"
LINEAR = PlateauCurve(1000, plateaus=[(0, 60)], decay_shape="linear")

# Arguments, and what is printed.
PRINTED = [
    (TEXT, lambda: CURVE.describe()),
    (f"{TEXT} --peak 3e-4", lambda: segment_table(CURVE._rows, np.float32(3e-4)).as_text()),
    (f"{TEXT} --peak 1", lambda: segment_table(CURVE._rows, np.float32(1)).as_text()),
    ("2 --csv - --peak 0.5", lambda: "step,learning_rate\r\n0,0.5\r\n1,0.25\r\n2,0.0\r"),
    (f"1e4 {STAGES} --cooldown 5000 500", lambda: STAGED.cooldown(5000, 500).describe()),
    ("1e4 --warmup-steps +1e3 --cooldown 6e3 1_000 --json",
     lambda: json.dumps(PlateauCurve(10_000, warmup_steps=1000).cooldown(6000, 1000).to_dict())),
    ("--from stairs.json --from then.json",
     lambda: saved("stairs").describe() + "\n\n" + saved("then").describe()),
    ("--from cosine.json --from linear.json --compare --cooldown 500 100",
     lambda: compare(PlateauCurve(1000).cooldown(500, 100), LINEAR.cooldown(500, 100))),
    ("--from cosine.json 1000 --plateau 0 60 --decay-shape linear --compare",
     lambda: compare(LINEAR, saved("cosine"))),
    (f"10000 {STAGES} --from cosine.json --compare", lambda: compare(STAGED, saved("cosine"))),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), PRINTED, ids=[row[0] for row in PRINTED])
def test_command_prints(folder, capsys, arguments, expected):
    assert output_of(capsys, *arguments.split()) == f"{expected()}\n"


def test_curve_may_come_from_standard_input(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("then.json").read_bytes())))
    assert json.loads(output_of(capsys, "--from", "-", "--json")) == saved("then").to_dict()


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@settings(**DRAWN)
@given(curve_arguments())
def test_every_argument_has_an_option(capsys, arguments):
    words = [str(arguments["total_steps"])]
    for option, name in (("plateau", "plateaus"), ("absolute-plateau", "absolute_plateaus")):
        for pair in arguments[name]:
            words += [f"--{option}", *map(repr, pair)]
    for name in ("warmup_steps", "warmup_shape", "min_lr_ratio", "init_lr_ratio", "decay_shape"):
        words += [f"--{name.replace('_', '-')}", str(arguments[name])]
    printed = output_of(capsys, *words, "--json")
    assert PlateauCurve.from_dict(json.loads(printed)) == PlateauCurve(**arguments)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@settings(**DRAWN)
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
    printed = output_of(capsys, *[str(total)] * with_total, *itertools.chain(*words), *start, "--json")
    assert Curve.from_dict(json.loads(printed)) == build({**description, "stages": stages})


@examples(60, **DRAWN)
@given(descriptions(scaled=True), peaks)
def test_every_curve_is_read_from_a_file(tmp_path, capsys, description, peak):
    curve, file = build(description), tmp_path / "curve.json"
    file.write_text(re.sub("'", '"', repr(curve.to_dict()).replace("None", "null")))
    assert Curve.from_dict(json.loads(output_of(capsys, "--from", str(file), "--json"))) == curve
    head, *lines = output_of(capsys, "--from", str(file), "--peak", repr(peak)).splitlines()
    bare_head, *bare = curve.describe().splitlines()
    assert bare_head.split() == ["first", "step", "last", "step", "kind", "from", "to"]
    assert head.split() == ["first", "step", "last", "step", "kind", "lr", "from", "lr", "to"]
    for line, its_bare in pairs(lines, bare):
        assert line.split()[:-2] == its_bare.split()[:-2]
        level = np.float32(curve(int(line.split()[0])))
        # The table shows exact levels; the curve's own values are rounded to about 2⁻⁶².
        assert line.split()[-2] == f"{np.float32(peak) * level:.6g}" or level < 2.0**-60
        assert len(line) == len(head)


@pytest.mark.parametrize(
    ("name", "peak"),
    [("plateaus", 3e-4), ("stairs", None), ("cooldown", 0.1), ("scaled", 0.1), ("long", None)],
)
def test_csv_has_every_value(folder, capsys, name, peak):
    curve = PlateauCurve(2**17 + 17) if name == "long" else saved(name)  # written 2¹⁶ steps at a time
    Path("long.json").write_text(json.dumps(curve.to_dict()))
    with_peak = [] if peak is None else ["--peak", str(peak)]
    assert output_of(capsys, "--from", "long.json", "--csv", "new.csv", *with_peak).startswith("first step")
    assert Path("new.csv").read_text().startswith("step,learning_rate\n0,")
    steps, lrs = np.loadtxt("new.csv", delimiter=",", skiprows=1).T
    np.testing.assert_array_equal(steps, np.arange(curve.total_steps + 1))
    expected = np.float32(peak or 1) * curve(np.arange(curve.total_steps + 1))
    np.testing.assert_array_equal(lrs.astype(np.float32), expected)


def test_written_files_are_reported_and_have_their_format(folder, capsys):
    for suffix in ("svg", "png"):
        assert main(["100", "--plot", f"new.{suffix}", "--csv", "new.csv"]) == 0
        assert capsys.readouterr().err == f"wrote new.{suffix}\nwrote new.csv\n"
    assert Path("new.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse("new.svg").getroot().tag.endswith("svg")


def test_several_files_are_drawn_together(folder, capsys, monkeypatch):
    drawn = []

    def draw(curves, **options):
        drawn.append((curves, options["peak_value"]))
        return plot(curves, **options)

    monkeypatch.setattr(plots, "plot", draw)
    files = [word for name in ("stairs", "then", "scaled") for word in ("--from", f"{name}.json")]
    cooled = [saved(name).cooldown(20, 10) for name in ("stairs", "then", "scaled")]
    printed = output_of(capsys, *files, "--plot", "new.svg", "--cooldown", "20", "10", "--peak", "0.5")
    tables = [segment_table(curve._rows, np.float32(0.5)).as_text() for curve in cooled]
    assert printed == "\n\n".join(tables) + "\n"
    assert output_of(capsys, *files, "--compare", "--plot", "new.png").startswith(" ")
    (first, peak), (second, plain) = drawn
    assert (first, peak, len(second), plain) == (cooled, 0.5, 3, 1.0)


def test_peak_adds_the_best_peaks(folder, capsys):
    described = ["1000", "--plateau", "0", "60", "--decay-shape", "linear"]
    lines = output_of(capsys, *described, "--from", "cosine.json", "--compare", "--peak", "3e-4").splitlines()
    best = [float(line.split()[-1]) for line in lines[1:3]]
    assert best == pytest.approx([3e-4, 3e-4 * compare(LINEAR, saved("cosine")).peaks[1]], rel=0.005)
    assert "if 0.0003 is the first curve" in " ".join(lines)


NO_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
LONGER = PlateauCurve(2000, plateaus=[(55, 40)])


def test_fit_prints_forecasts_of_all_curves(folder, capsys):
    fit = fit_losses(LossRun.read("log.csv", saved("run"), 2e-3))
    options = ["--from", "longer.json", "--peak", "2e-3", "--fit", "log.csv", "run.json"]
    assert main(["1000", "--compare", *options]) == 0
    named = {"1000 steps, no plateau": PlateauCurve(1000), "2000 steps, plateau 55–95 %": LONGER}
    out, err = capsys.readouterr()
    assert (out, err) == (f"{fit.compare(named, 2e-3)}\n", "log.csv: 50 logged losses, up to step 1000\n")
    assert " ".join(out.split()).count(NO_WARMUP) == 2


def test_logged_learning_rates_suffice(folder, capsys):
    """One curve is enough, and several runs are fitted together."""
    assert main(["1500", "--compare", "--fit", "middle.csv", "--fit", "middle.csv"]) == 0
    run = LossRun.read("middle.csv")
    loss = fit_losses([run, run]).predict(PlateauCurve(1500)).loss
    out, err = capsys.readouterr()
    assert err.splitlines() == ["middle.csv: 50 logged losses, up to step 1000"] * 2
    assert f" {loss:.3f} " in out.splitlines()[1]
