"""The example programs run, say what they promise, and draw what they say."""

import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]

# A process started in the background inherits an ignored SIGINT; a terminal's does not.
AT_A_TERMINAL = (
    "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
)


def run(script, *arguments):
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def number_after(label, text):
    return float(re.search(rf"^{re.escape(label)}:\s+([\d.e+-]+)", text, re.MULTILINE)[1])


def assert_is_a_picture(path):
    pixels = matplotlib.image.imread(path)
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 20


def test_train_digits_gives_equal_rates_and_losses_that_agree(tmp_path):
    picture = tmp_path / "new" / "digits.png"
    plateaus = "--plateau", 10, 20, "--plateau", 70, 30
    text = run("examples/train_digits.py", "--steps", 60, *plateaus, "--seed", 3, "--output", picture)

    assert "steps at which the two learning rates differ: 0 of 60\n" in text
    assert number_after("largest difference between the two losses", text) < 1e-5
    for framework in ("JAX", "PyTorch"):
        assert number_after(f"test accuracy in {framework}", text) > 70
    assert_is_a_picture(picture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plateau", "50", "60"], "past total_steps"),
        (["--warmup", "1000"], "warmup_steps = 1000"),
        (["--peak", "-1"], "peak_value = -1.0"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--seed", "-1"], "--seed -1"),
    ],
)
def test_train_digits_names_a_bad_argument(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_digits.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "examples/train_digits.py"), run_name="__main__")
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_train_digits_ends_quietly_when_interrupted(tmp_path):
    path = tmp_path / "digits.png"
    arguments = ["examples/train_digits.py", "--steps", "20000", "--output", str(path)]
    command = [sys.executable, "-c", AT_A_TERMINAL, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            if re.match(r"\s*0  0\.0", line):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130, rest
    assert rest.endswith("stopped\n")
    assert "Traceback" not in rest


def test_benchmark_prints_every_table():
    text = run("examples/benchmark.py", "--quick")
    titles = (
        "JAX inside a fori_loop",
        "JAX vectorised",
        "JAX, an eager call",
        "JAX, tracing and compiling",
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
    copy.write_bytes((ROOT / "examples/plot_readme.py").read_bytes())
    run(copy)
    assert_is_a_picture(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size < 100_000
