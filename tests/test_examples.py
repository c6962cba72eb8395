"""The example programs run, say what they promise, draw what they say, and a Ctrl-C leaves no trace.

In one file, so that one process that has imported all they need is forked for each of them.
"""

import math
import re

import matplotlib.image
import numpy as np
import pytest
import torch
from statsmodels.datasets import co2
from support.programs import EXAMPLES, Program, run

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
    ("digits", ["--plateau", "50", "60"], 2, "past total_steps"),
    ("digits", ["--warmup", "1000"], 2, "warmup_steps = 1000"),
    ("digits", ["--peak", "-1"], 2, "peak_value = -1.0"),
    ("digits", ["--batch-size", "0"], 2, "--batch-size 0"),
    ("digits", ["--seed", "-1"], 2, "--seed -1"),
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


def finish(program, status=0):
    """The lines that it printed."""
    found, output, errors = program.finish()
    assert found == status, errors
    assert "Traceback" not in errors
    return output.splitlines()


def interrupt(program, line_before):
    """Send a Ctrl-C once a line that begins so is printed; how many updates had taken place."""
    for line in program.lines():
        if line.startswith(line_before):
            program.interrupt()
            break
    message = finish(program, status=130)[-1]
    stopped = re.fullmatch(r"stopped after update (\d+); train_\w+\.pt goes on with --resume", message)
    return int(stopped[1])


def number_after(label, lines):
    (line,) = (line for line in lines if line.strip().startswith(label))
    return float(re.search(r"[\d.]+(e[+-]\d+)?", line.partition(label)[2])[0])


def assert_is_a_picture(path):
    pixels = matplotlib.image.imread(path)
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 20


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
    device = [] if example == "digits" or "--device" in arguments else ["--device", "cpu"]
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


def test_train_digits_gives_equal_rates_and_losses_that_agree(tmp_path):
    picture = tmp_path / "new" / "digits.png"
    plateaus = "--plateau", 10, 20, "--plateau", 70, 30
    arguments = ["--steps", 60, *plateaus, "--seed", 3, "--output", picture]
    lines = run(EXAMPLES / "train_digits.py", *arguments, folder=tmp_path).splitlines()

    assert "steps at which the two learning rates differ: 0 of 60" in lines
    assert number_after("largest difference between the two losses", lines) < 1e-5
    for framework in ("JAX", "PyTorch"):
        assert number_after(f"test accuracy in {framework}", lines) > 70
    assert_is_a_picture(picture)


def test_train_digits_ends_quietly_when_interrupted(tmp_path):
    program = Program(EXAMPLES / "train_digits.py", "--steps", 20_000, folder=tmp_path)
    for line in program.lines():
        if re.match(r"\s*0  0\.0", line):
            break
    program.interrupt()
    status, rest, errors = program.finish()
    assert status == 130, errors
    assert rest.endswith("stopped\n")
    assert errors == ""
    assert list(tmp_path.iterdir()) == []


def test_sweep_trains_every_curve_at_once_and_in_turn(tmp_path):
    picture = tmp_path / "new" / "sweep.png"
    arguments = ["--steps", 40, "--batch-size", 16, "--rounds", 1, "--seed", 3, "--output", picture]
    text = run(EXAMPLES / "sweep.py", *arguments, folder=tmp_path)

    runs = int(re.search(r"^(\d+) runs at once:", text, re.MULTILINE)[1])
    assert runs > 64
    assert f"rates that differ from peak · curve(step):  0 of {40 * runs}\n" in text
    assert number_after("largest difference between their losses", text) < 1e-4
    plain = number_after("held-out loss without a plateau", text)
    best = re.search(r"^the best, a plateau at \d+ % for \d+ %: +([\d.]+)$", text, re.MULTILINE)
    assert float(best[1]) < plain < np.log(10)
    assert number_after("one after another", text) > 0
    assert number_after("times as fast at once", text) > 0
    assert_is_a_picture(picture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "total_steps = 0"),
        (["--peak", "nan"], "--peak nan"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--output", "sweep.xyz"], "--output sweep.xyz"),
    ],
)
def test_sweep_names_a_bad_argument(arguments, message, tmp_path):
    status, output, errors = Program(EXAMPLES / "sweep.py", *arguments, folder=tmp_path).finish()
    assert status == 2
    assert output == ""
    assert message in errors.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def branched(tmp_path_factory):
    """The folder, the rows that are printed, and the rest, of a short run."""
    folder = tmp_path_factory.mktemp("branched")
    arguments = ["--warmup", 20, "--stable", 120, "--cooldowns", 10, 30, 60, "--every", 5]
    text = run(EXAMPLES / "branch_cooldowns.py", *arguments, "--output", "new/runs.png", folder=folder)
    _, *lines, last, _ = text.splitlines()
    rows = [re.fullmatch(r"(.+?) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+)", line) for line in lines]
    return folder, {row[1]: [float(number) for number in row.groups()[1:]] for row in rows}, last


def test_branch_cooldowns_gives_equal_rates_in_every_run(branched):
    _, rows, last = branched
    updates = {name: (begin, end) for name, (begin, end, *_) in rows.items()}
    (held,) = re.findall(r"\d+$", last)
    assert 4 * 5 < int(held) < 4 * 120
    assert updates == {
        "stable phase": (0, 120),
        "cooldown of 10": (120, 130),
        "cooldown of 30": (120, 150),
        "cooldown of 60": (120, 180),
        "held until flat": (0, 20 + int(held) + 60),
    }
    for _, _, differing, in_jax, in_torch in rows.values():
        assert differing == 0
        assert in_jax == pytest.approx(in_torch, abs=1e-2)


def test_branch_cooldowns_lowers_the_loss_and_draws_it(branched):
    folder, rows, _ = branched
    losses = {name: in_jax for name, (*_, in_jax, _) in rows.items()}
    assert losses["cooldown of 60"] < losses["stable phase"] - 0.05
    assert_is_a_picture(folder / "new" / "runs.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--warmup", "2000"], "steps = -1000 must be at least 0"),
        (["--cooldowns", "5", "0", "5"], "steps = 0 must be at least 1"),
        (["--every", "0"], "every = 0 must"),
        (["--peak", "nan"], "--peak nan"),
        (["--seed", "-1"], "--seed -1"),
        (["--output", "runs.xyz"], "--output runs.xyz"),
    ],
)
def test_branch_cooldowns_names_a_bad_argument(arguments, message, tmp_path):
    status, output, errors = Program(EXAMPLES / "branch_cooldowns.py", *arguments, folder=tmp_path).finish()
    assert status == 2
    assert output == ""
    assert message in errors.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_benchmark_prints_every_table(tmp_path):
    text = run(EXAMPLES / "benchmark.py", "--quick", folder=tmp_path)
    titles = (
        "JAX inside a fori_loop",
        "JAX vectorised",
        "JAX, an eager call",
        "JAX, tracing and compiling",
        "JAX by shapes",
        "JAX, scale_by_curve in a fori_loop",
        "PyTorch, scheduler.step() with 1 parameter group\n",
        "PyTorch, scheduler.step() with 10 parameter groups\n",
        "NumPy, curve(steps)",
        "Python, peak * curve(step) in a loop",
        "Construction, the curve and its table",
        "Construction, most memory in use",
    )
    tables = dict(zip(titles, text.split("\n\n")[1:], strict=True))
    for title, table in tables.items():
        assert table.startswith(title)
        figures = [line.split()[-1] for line in table.splitlines()[2:]]
        assert figures
        assert all(float(figure) > 0 for figure in figures)


def test_plot_readme_draws_a_small_picture_beside_itself(tmp_path):
    copy = tmp_path / "plot_readme.py"
    copy.write_bytes((EXAMPLES / "plot_readme.py").read_bytes())
    run(copy, folder=tmp_path)
    assert_is_a_picture(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size < 100_000
