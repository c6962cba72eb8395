"""What `python -m plateau_jax` rejects: one line, exit status 2, and no file is written.

Other wrong arguments of a curve are in `curves/test_errors.py`.
"""

import resource
import sys
from pathlib import Path

import pytest
from support.commands import error_of, output_of

from plateau_jax import PlateauCurve


def check_no_file_is_written(folder, capsys, arguments, message):
    before = set(folder.iterdir())
    printed = error_of(capsys, "--plot", "new.png", *arguments.split())
    *logs, error = printed.splitlines()
    assert error.startswith("python -m plateau_jax: error: ")
    assert message in error
    assert set(folder.iterdir()) == before
    return logs


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "no curve: give TOTAL, --stage STEPS or --from FILE"),
        (
            "100 --wsd",
            "StagedCurve.wsd: missing a required argument: 'warmup_steps'; its arguments are ",
        ),
        ("--stage Rest", "stages[0].steps = 'Rest' must be an integer or text"),
        ("100 --plateau 9,5 5", "plateaus[0].start = '9,5' must be a number"),
        ("100 --peak nan", "peak = nan must be"),
        ("--from missing.json", "No such file or directory: 'missing.json'"),
        (
            "100 --from cosine.json",
            "--from takes a curve as it is: leave out TOTAL and the options of a curve",
        ),
        ("--from cosine.json --from run.json --csv new.csv", "--csv takes one curve, not 2"),
        ("100 --design", "--design opens a page: leave --plot out"),
        (
            "100 --export new.txt",
            "--export new.txt must end in .py or .json; for values, use --csv",
        ),
        (
            "--from cosine.json --from run.json --export new.py",
            "--export new.py takes one curve, not 2",
        ),
        ("1000 --log low.csv", "--log requires --peak"),
        (
            "1000 --peak 1 --log losses.csv",
            "'loss': name one with lr=, or in a shell with --lr-col",
        ),
        ("--from run.json --from cosine.json --peak 1 --log low.csv", "--log takes one curve"),
        ("100 --peak 1 --step-column n", "--step-column requires --log"),
        ("100 --lr-column lr", "--lr-column requires --log"),
        ("100 --port 8701", "--port requires --design"),
        ("100 --no-browser", "--no-browser requires --design"),
        ("100 --json --peak 1", "--json prints a curve, which has no peak: leave --peak out"),
    ],
)
def test_wrong_arguments(folder, capsys, arguments, message):
    logs = check_no_file_is_written(folder, capsys, arguments, message)
    assert logs == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: plateau\ntotal_steps: 100\nmin_lr_ratio: 1e-2",  # PyYAML reads 1e-2 as text
            "min_lr_ratio = '1e-2' must be a number, not text: write 0.01",
        ),
        ("\n", "the file is empty"),
        ("a: !!python/name:os.system", "this is not YAML: could not determine a constructor"),
    ],
)
def test_wrong_yaml(folder, capsys, text, message):
    pytest.importorskip("yaml")
    Path("wrong.yaml").write_text(text)
    check_no_file_is_written(folder, capsys, "--from wrong.yaml", f"wrong.yaml: {message}")


def test_yaml_without_pyyaml(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    Path("curve.yaml").write_text("total_steps: 100")
    message = "curve.yaml: to read YAML, pip install pyyaml"
    check_no_file_is_written(folder, capsys, "--from curve.yaml", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # It must not become --min-lr-ratio.
        ("100 --min-lr 1e-5", "unrecognized arguments: --min-lr 1e-5\n"),
        ("100 --export new.py --csv new.csv", "argument --csv: not allowed with argument --export"),
    ],
)
def test_options_that_do_not_parse(capsys, arguments, message):
    printed = error_of(capsys, *arguments.split())
    assert message in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ('{"kind": "plateau", "total_', "the file ends too early"),
        ('{"kind": "plateau", "total_steps": 2e5}', "total_steps = 200000.0 must be an integer"),
        ('{"kind": "cooldown", "curve": ' * 100_000, "maximum recursion depth exceeded"),
    ],
    ids=["empty", "cut off", "wrong", "nested"],
)
def test_wrong_json_file(tmp_path, capsys, text, message):
    path = tmp_path / "curve.json"
    path.write_text(text)
    error = error_of(capsys, "--from", str(path)).splitlines()[-1]
    assert f"{path}: " in error
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("1000 --peak -1e-3", "peak = -0.001 must be 0, or a finite float32"),
        ("1000 --pek 3", "unrecognized arguments: --pek 3"),
        ("1000 --wsd --stage 5", "--wsd builds the stages: leave --stage out"),
        (
            "1000 --start 0.5",
            "PlateauCurve: got an unexpected keyword argument 'start'; its arguments are ",
        ),
        (
            "--stage 9 1 --min-lr-ratio 0.1",
            "StagedCurve: got an unexpected keyword argument 'min_lr_ratio'; its arguments are ",
        ),
        ("1000 --plot -", "--plot writes a picture: give a file name, not -"),
    ],
)
def test_error_is_one_line(capsys, arguments, message):
    printed = error_of(capsys, *arguments.split())
    assert printed.startswith(f"python -m plateau_jax: error: {message}")
    assert printed.count("\n") == 1
    assert "version" not in printed


@pytest.mark.parametrize("arguments", ["--from -", "1000 --peak 1 --log -"])
def test_closed_standard_input(capsys, monkeypatch, arguments):
    monkeypatch.setattr("sys.stdin", None)
    assert error_of(capsys, *arguments.split()).endswith("error: standard input is closed\n")


def test_unknown_picture_format_leaves_no_file(tmp_path, capsys):
    files = ["--csv", str(tmp_path / "rates.csv"), "--plot", str(tmp_path / "curve.xyz")]
    assert "xyz" in error_of(capsys, "100", *files)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--csv", "--plot", "--export"])
@pytest.mark.parametrize("name", ["missing/file.json", "directory.json"])
def test_unwritable_file_is_rejected(tmp_path, capsys, option, name):
    (tmp_path / "directory.json").mkdir()
    path = tmp_path / name
    if option == "--plot":
        (tmp_path / "directory.png").mkdir()
        path = path.with_suffix(".png")
    before = set(tmp_path.rglob("*"))
    assert f"'{path}'\n" in error_of(capsys, "100", option, str(path))
    assert set(tmp_path.rglob("*")) == before


def test_full_disk_names_the_file_and_leaves_it(tmp_path, capsys):
    path = tmp_path / "values.csv"
    path.write_text("step,learning_rate\n")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, usual[1]))
    try:
        printed = error_of(capsys, "100000", "--csv", str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert printed.endswith(f"File too large: '{path}'\n")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["step,learning_rate\n"]


def test_only_pictures_need_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    printed = error_of(capsys, "100", "--plot", str(tmp_path / "curve.png"))
    assert "--plot needs matplotlib: pip install 'plateau-jax[plot]'" in printed
    assert output_of(capsys, "100") == PlateauCurve(100).describe() + "\n"
