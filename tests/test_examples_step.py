"""The two examples that train through `TrainStep`: what they print, and that a Ctrl-C leaves no trace."""

import math
import re

import matplotlib.image
import numpy as np
import pytest
import torch
from statsmodels.datasets import co2
from support.programs import EXAMPLES, Program, finish, number_after

pytestmark = pytest.mark.slow

LSTM = ("train_lstm.py", "--epochs", "30", "--hidden", "16", "--every", "50", "--output", "pictures/co2.png")
GPT = (
    *("train_gpt.py", "--steps", "200", "--every", "20", "--precision", "bf16", "--accumulation", "2"),
    *("--batch-size", "4", "--context", "32", "--width", "32", "--layers", "2"),
)
REFUSED = [
    ("lstm", ["--resume"], 2, "--resume: there is no checkpoint train_lstm.pt"),
    ("gpt", ["--resume"], 2, "--resume: there is no checkpoint train_gpt.pt"),
    ("lstm", ["--output", "co2.xyz"], 2, "--output co2.xyz must end in .png"),
    ("gpt", ["--batch-size", "0"], 2, "--steps, --batch-size, --accumulation,"),
]
for script in ("lstm", "gpt"):
    REFUSED += [
        (script, ["--peak", "nan"], 1, f"train_{script}.py: Invalid learning rate: nan"),
        (script, ["--device", "nowhere"], 2, "--device nowhere: "),
        (script, ["--checkpoint", "missing/a.pt"], 2, "missing/a.pt: there is no folder missing"),
    ]
    if not torch.cuda.is_available():
        REFUSED += [(script, ["--device", "cuda"], 2, "--device cuda: ")]


def start(folder, script, *arguments):
    return Program(EXAMPLES / script, *arguments, "--device", "cpu", folder=folder)


def interrupt(program, line_before):
    """Send a Ctrl-C once a line that begins so is printed; how many updates had taken place."""
    for line in program.lines():
        if line.startswith(line_before):
            program.interrupt()
            break
    message = finish(program, status=130)[-1]
    stopped = re.fullmatch(r"stopped after update (\d+); train_\w+\.pt goes on with --resume", message)
    return int(stopped[1])


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    """The folder and the lines of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("lstm")
    return folder, finish(start(folder, *LSTM))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    return folder, finish(start(folder, *GPT))


def test_lstm_beats_both_naive_forecasts(lstm):
    _, lines = lstm
    level = co2.load_pandas().data["co2"].resample("MS").mean().interpolate().to_numpy()
    months = np.arange(len(level) * 4 // 5, len(level) - 12)[:, None]
    later = months + np.arange(1, 13)
    rise = level[later] - level[months]
    rise_a_year_before = level[later - 12] - level[months - 12]
    for label, errors in (("last value:", rise), ("last year's changes:", rise - rise_a_year_before)):
        assert number_after(label, lines) == pytest.approx(np.sqrt(np.square(errors).mean()), abs=6e-4)
    assert number_after("LSTM:", lines) < 0.9 * number_after("last year's changes:", lines)


def test_lstm_draws_its_forecast(lstm):
    folder, _ = lstm
    pixels = matplotlib.image.imread(folder / "pictures" / "co2.png")
    assert min(pixels.shape[:2]) > 500
    assert len(np.unique(pixels.sum(-1))) > 100


def test_gpt_beats_byte_frequencies(gpt):
    _, lines = gpt
    of_model, of_frequencies = (
        number_after(label, lines) for label in ("loss of the model:", "loss of byte frequencies:")
    )
    assert of_model < of_frequencies < math.log(256)


@pytest.mark.parametrize(
    ("example", "line_before"), [("lstm", "    30 "), ("gpt", ""), ("gpt", "update 30:")]
)
def test_interrupted_and_resumed_prints_what_an_uninterrupted_run_does(
    request, tmp_path, example, line_before
):
    _, uninterrupted = request.getfixturevalue(example)
    arguments = {"lstm": LSTM, "gpt": GPT}[example]
    # Interrupted between two of the lines that are compared, which are 20 or 50 updates apart.
    updates = interrupt(start(tmp_path, *arguments, "--every", "30"), line_before)
    assert not list(tmp_path.glob("*.partial"))
    resumed = finish(start(tmp_path, *arguments, "--resume"))

    assert resumed[0].startswith("resumed from train_")
    assert f" after update {updates}" in resumed[0]
    numbers = [re.match(r"(?:update)? *(\d+)[: ]", line) for line in uninterrupted]
    expected = [
        line
        for line, number in zip(uninterrupted, numbers, strict=True)
        if number is None or int(number[1]) > updates
    ]
    assert len(expected) > len(uninterrupted) / 2
    assert resumed[1:] == expected


@pytest.mark.parametrize(("example", "arguments", "code", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, example, arguments, code, message):
    device = [] if "--device" in arguments else ["--device", "cpu"]
    program = Program(EXAMPLES / f"train_{example}.py", *arguments, *device, folder=tmp_path)
    status, output, errors = program.finish()
    assert status == code, errors
    assert output == ""
    assert message in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_lstm_resumes_with_the_settings_of_the_checkpoint(lstm, tmp_path):
    _, uninterrupted = lstm
    interrupt(start(tmp_path, *LSTM), "    50 ")
    resumed = finish(start(tmp_path, "train_lstm.py", "--resume"))
    assert resumed[-1] == uninterrupted[-1]
    assert [line for line in resumed if line.startswith("  LSTM:")] == [
        line for line in uninterrupted if line.startswith("  LSTM:")
    ]


def test_gpt_with_muon_and_adamw(tmp_path):
    lines = finish(start(tmp_path, "train_gpt.py", "--optimizer", "muon", "--steps", "60", "--every", "60"))
    assert number_after("loss of the model:", lines) < number_after("loss of byte frequencies:", lines)
    state = torch.load(tmp_path / "train_gpt.pt", weights_only=True)["step"]
    assert state["optimizer_type"] == ["Muon", "AdamW"]


def test_gpt_keeps_no_more_rows_than_it_prints_the_mean_of(gpt):
    """A checkpoint is as large after many updates as after few."""
    folder, lines = gpt
    rows = torch.load(folder / "train_gpt.pt", weights_only=True)["rows"]
    assert [row["applied"] for row in rows] == list(range(181, 201))
    mean = sum(row["loss"] for row in rows) / len(rows)
    assert f"update 200: loss {mean:.4f}," in "\n".join(lines)


def test_gpt_resumes_with_the_settings_of_the_checkpoint(gpt):
    folder, lines = gpt
    resumed = finish(start(folder, "train_gpt.py", "--resume"))
    assert resumed[2:] == [line for line in lines[1:] if not line.startswith("update ")]


def test_gpt_refuses_to_resume_under_another_curve(gpt):
    folder, _ = gpt
    status, _, errors = start(folder, "train_gpt.py", "--resume", "--steps", "5").finish()
    assert status == 1
    assert errors.startswith("train_gpt.py: state_dict was saved under PlateauCurve(total_steps=200, ")
