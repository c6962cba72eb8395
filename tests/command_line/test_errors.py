"""What `python -m plateau_jax` rejects: one line, exit status 2, and no file is written.

Wrong options of a curve itself are in `curves/test_errors.py`.
"""

import sys
from pathlib import Path

import pytest
from support.commands import error_of, output_of

from plateau_jax import PlateauCurve


def check_no_file_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> list[str]:
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
        ("--warmup-steps 2%", "no curve: give TOTAL, --stage STEPS or --from FILE"),
        (
            "100 --start 1",
            "'start' is not an argument of PlateauCurve, which has total_steps, warmup_steps",
        ),
        (
            "100 --stage rest --warmup-steps 5",
            "'warmup_steps' is not an argument of StagedCurve, which has",
        ),
        ("--wsd", "no curve: give TOTAL, --stage STEPS or --from FILE"),
        ("100 --wsd", "warmup_steps is missing: StagedCurve.wsd needs total_steps, warmup_steps, "),
        (
            "100 --decay-steps 20%",
            "'decay_steps' is not an argument of PlateauCurve, which has total_steps, warmup_steps",
        ),
        (
            "100 --wsd --warmup-steps 5 --decay-steps 20% --plateau 50 30",
            "'plateaus' is not an argument of StagedCurve.wsd, which has total_steps, warmup_steps",
        ),
        ("100 --peak nan", "peak = nan must be"),
        ("100 --min-lr-ratio 0,1", "min_lr_ratio = '0,1' must be a number"),
        ("100 --warmup-steps 2,5%", "warmup_steps = '2,5%' must be a percentage"),
        ("100 --plateau 50,5 10", "plateaus[0].start = '50,5' must be a number"),
        ("100 --cooldown 50 half", "steps = 'half' must be an integer"),
        ("--from missing.json", "No such file or directory: 'missing.json'"),
        ("--from .", "Is a directory: '.'"),
        (
            "100 --from cosine.json",
            "--from takes a curve as it is: leave out TOTAL and the options of a curve",
        ),
        (
            "--from cosine.json --plateau 5 10 --decay-shape linear",
            "--from takes a curve as it is: leave out TOTAL and the options of a curve",
        ),
        (
            "--from cosine.json --from run.json --csv new.csv",
            "--csv takes one curve, not 2",
        ),
        ("--from cosine.json --from run.json --json", "--json takes one curve, not 2"),
        (
            "--compare --from cosine.json --min-lr-ratio 0.1",
            "total_steps is missing: PlateauCurve needs",
        ),
        ("--compare --from cosine.json --from zero.json", "has no positive learning rate"),
        ("100 --design", "--design opens a page: leave --plot out"),
        (
            "100 --export new.txt",
            "--export new.txt must end in .py or .json; for values, use --csv",
        ),
        ("100 --export new", "--export new must end in .py or .json; for values, use --csv"),
        ("100 --export new.py --peak nan", "peak = nan must be"),
        (
            "--from cosine.json --from run.json --export new.py",
            "--export new.py takes one curve, not 2",
        ),
        ("--from cosine.json --from run.json --export -", "--export - takes one curve, not 2"),
        ("100 --peak 1 --step-column n", "--step-column requires --log"),
        ("100 --lr-column lr", "--lr-column requires --log"),
        ("100 --port 8701", "--port requires --design"),
        ("100 --no-browser", "--no-browser requires --design"),
        ("100 --json --peak 1", "--json prints a curve, which has no peak: leave --peak out"),
    ],
)
def test_wrong_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    logs = check_no_file_is_written(folder, capsys, arguments, message)
    assert logs == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "arguments = None must be a mapping"),
        ("kind: plateau\ntotal_steps: 10K", "total_steps = '10K' must end in k for thousand"),
        (
            "kind: plateau\ntotal_steps: 100\nmin_lr_ratio: no",
            "min_lr_ratio = False must be a number",
        ),
        (
            "kind: plateau\ntotal_steps: 100\nwarmup_steps: 2026-01-01",
            "warmup_steps = datetime.date(2026, 1, 1)",
        ),
        ("total_steps: 100", "kind is missing: write one of"),
        ("kind: plateau\npeak: 1", "'peak' is not an argument of PlateauCurve"),
        ("total_steps: [100", "this is not YAML: while parsing a flow sequence"),
        ("a: !!python/name:os.system", "this is not YAML: could not determine a constructor"),
    ],
)
def test_wrong_yaml(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    pytest.importorskip("yaml")
    Path("wrong.yaml").write_text(text)
    check_no_file_is_written(folder, capsys, "--from wrong.yaml", f"wrong.yaml: {message}")


def test_yaml_without_pyyaml(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    Path("curve.yaml").write_text("total_steps: 100")
    message = "curve.yaml: to read YAML, pip install pyyaml"
    check_no_file_is_written(folder, capsys, "--from curve.yaml", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("1000 --fit log.csv", "--fit requires --compare"),
        ("1000 --design --fit log.csv", "--fit requires --compare"),
        (
            "1000 --compare --fit log.csv",
            "no usual column for lr among 'step', 'loss': give",
        ),
        (
            "1000 --compare --fit log.csv run.json",
            "no usual column for lr among 'step', 'loss': give",
        ),
        ("1000 --log low.csv", "--log requires --peak"),
        ("--peak 1 --log low.csv", "no curve: give TOTAL, --stage STEPS or --from FILE"),
        ("1000 --peak 1 --log log.csv", "among 'step', 'loss': name one with --lr-column"),
        (
            "1000 --peak 1 --log low.csv --step-column n",
            "no column step = 'n', only 'step', 'loss', 'lr': name one with --step-column",
        ),
        ("1000 --peak 1 --log none.csv", "No such file or directory: 'none.csv'"),
        ("--from run.json --from cosine.json --peak 1 --log low.csv", "--log takes one curve"),
        ("1000 --compare --fit several.csv", "name one in Python, with loss="),
        ("1000 --compare --fit none.csv", "No such file or directory: 'none.csv'"),
        (
            "1000 --compare --fit log.csv run.json run.json",
            "not 2 curves. To fit several logs, repeat",
        ),
        (
            "1000 --compare --peak 1 --fit log.csv low.csv",
            "(char 0)). To fit several logs, repeat --fit",
        ),
        (
            "1000 --compare --peak 1 --fit log.csv low.csv",
            "the second file of --fit must be a curve (low.csv: Expecting value:",
        ),
        (
            "9000 --compare --peak 1 --fit log.csv run.json",
            "a forecast reaches at most 4 times",
        ),
        (
            "1000 --compare --peak 0 --fit log.csv run.json",
            "log.csv: peak_value = 0.0 must be positive",
        ),
        (
            "1000 --compare --fit low.csv --fit middle.csv",
            "fit the runs of each peak alone",
        ),
    ],
)
def test_wrong_logs(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    check_no_file_is_written(folder, capsys, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("100 --plateau 50", "expected 2 arguments"),
        ("100 --peak high", "invalid float value: 'high'"),
        ("100 --peak 0,001", "invalid float value: '0,001'"),
        ("--from", "expected one argument"),
        ("100 --stage", "expected at least one argument"),
        ("100 --warmup_steps 50", "unrecognized arguments: --warmup_steps 50\n"),
        ("100 --min-lr 1e-5", "unrecognized arguments: --min-lr 1e-5\n"),
        ("100 --export new.py --csv new.csv", "argument --csv: not allowed with argument --export"),
        ("100 --json --csv -", "argument --csv: not allowed with argument --json"),
        (
            "--from cosine.json --compare --json",
            "argument --json: not allowed with argument --compare",
        ),
    ],
)
def test_options_that_do_not_parse(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    printed = error_of(capsys, *arguments.split())
    assert message in printed
    check_known_options(printed)


@pytest.mark.parametrize(
    "option",
    [
        "--warmup-step",
        "--min-lr-rati",
        "--platea",
        "--stag",
        "--fro",
        "--cooldow",
        "--pea",
        "--cs",
        "--min-lr",
        "--warmup-shap",
        "--init-lr",
        "--p",
        "--f",
    ],
)
def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture[str], option: str) -> None:
    """`--min-lr 1e-5` must not become `--min-lr-ratio`."""
    printed = error_of(capsys, "100", option, "5")
    assert f"unrecognized arguments: {option}" in printed
    check_known_options(printed)


def check_known_options(printed: str) -> None:
    """Check that the message lists the options."""
    assert "--warmup-steps" in printed
    assert "--min-lr-ratio" in printed
    assert "--plateau" in printed
    assert "--stage" in printed
    assert "--from" in printed
    assert "--cooldown" in printed
    assert "--peak" in printed
    assert "--csv" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("\0\x01\udcff", "can't decode byte 0xff"),
        (
            '{"kind": "plateau", "total_steps": 9, "warmup_step": 3}',
            "'warmup_step' is not an argument of PlateauCurve, which has",
        ),
        ('{"kind": "cooldown", "curve": ' * 100_000, "maximum recursion depth exceeded"),
    ],
    ids=["empty", "binary", "unknown argument", "unfinished"],
)
def test_file_without_a_curve_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "curve.json"
    path.write_text(text, errors="surrogateescape")
    error = error_of(capsys, "--from", str(path)).splitlines()[-1]
    assert f"{path}: " in error
    assert message in error


def test_unknown_picture_format_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--csv", str(tmp_path / "rates.csv"), "--plot", str(tmp_path / "curve.xyz")]
    assert "xyz" in error_of(capsys, "100", *files)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--csv", "--plot"])
@pytest.mark.parametrize(
    "name",
    ["missing/file.png", "directory.png"],
)
def test_unwritable_file_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, name: str
) -> None:
    (tmp_path / "directory.png").mkdir()
    path = tmp_path / name
    assert f"'{path}'\n" in error_of(capsys, "100", option, str(path))
    assert [file.name for file in tmp_path.rglob("*")] == ["directory.png"]


@pytest.mark.parametrize("suffix", ["py", "json"])
@pytest.mark.parametrize("name", ["missing/file", "directory"])
def test_unwritable_export_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, name: str
) -> None:
    (tmp_path / f"directory.{suffix}").mkdir()
    path = tmp_path / f"{name}.{suffix}"
    assert f"'{path}'\n" in error_of(capsys, "100", "--export", str(path))
    assert [file.name for file in tmp_path.rglob("*")] == [f"directory.{suffix}"]


def test_full_disk_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No space left" in error_of(capsys, "100", "--csv", "/dev/full")


def test_only_pictures_need_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    printed = error_of(capsys, "100", "--plot", str(tmp_path / "curve.png"))
    assert "--plot needs matplotlib: pip install 'plateau-jax[plot]'" in printed
    assert output_of(capsys, "100") == PlateauCurve(100).describe() + "\n"
