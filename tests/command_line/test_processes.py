"""`python -m plateau_jax` in a process: its streams, encodings, signals, and the examples in its help."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from support.commands import AT_A_TERMINAL

from plateau_jax import PlateauCurve
from plateau_jax.__main__ import main

COMMAND = [sys.executable, "-m", "plateau_jax"]
ERROR = b"python -m plateau_jax: error: "


def _run(*arguments, **environment):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, env={**os.environ, **environment})


def test_error_and_warning_are_one_line():
    done = _run("100", "--warmup-steps", "100")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(ERROR + b"warmup_steps = 100 must lie in")
    (line,) = _run("100", "--plateau", "0.5", "0.3").stderr.splitlines()
    assert line.startswith(b"python -m plateau_jax: warning: plateaus = [(0.5, 0.3)] look like fractions")


def test_messages_do_not_mix_with_values(tmp_path):
    done = _run("2", "--csv", "-", "--plot", str(tmp_path / "curve"))
    assert done.stdout.split() == [b"step,learning_rate", b"0,1.0", b"1,0.5", b"2,0.0"]
    assert done.stderr.decode() == f"wrote {tmp_path / 'curve.png'}\n"
    in_place = _run("2", "--csv", "/dev/stdout").stdout
    assert in_place.replace(b"\r", b"").decode() == (
        f"step,learning_rate\n0,1.0\n1,0.5\n2,0.0\n{PlateauCurve(2).describe()}\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "cp1252"])
def test_output_in_any_encoding(encoding):
    done = _run("1000", "--warmup-steps", "100", "--plateau", "50", "20", PYTHONIOENCODING=encoding)
    described = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)]).describe()
    expected = described.encode(encoding, "replace") + b"\n"
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", expected)
    wrong = _run("0", PYTHONIOENCODING=encoding)
    assert wrong.returncode == 2
    assert "2**31 - 1 = 2147483647" in wrong.stderr.decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_file_name_is_reported_in_any_encoding(tmp_path, encoding):
    done = _run("9", "--csv", str(tmp_path / "Größe\udcff.csv"), PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr.count(b"wrote ")) == (0, 1)


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize("more", ["", "--csv -", "--json"])
def test_closed_stream_is_reported(more):
    line = f'"$PYTHON" -m plateau_jax 2 {more} >&-'
    done = subprocess.run(line, shell=True, capture_output=True, env={**os.environ, "PYTHON": sys.executable})
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, ERROR + b"standard output is closed")


@pytest.mark.parametrize("more", [[], ["--json"], ["--csv", "/dev/stdout"]], ids=str)
def test_closed_pipe_is_not_an_error(more):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "100000", *more], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=str)
def test_full_disk_is_a_one_line_error(more):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "10", *more], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, ERROR + b"No space left on device\n")


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


def test_examples_in_help_run(tmp_path, monkeypatch):
    shown = _run("--help", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    lines = re.findall(r"^  python (-m plateau_jax .*)$", shown.partition("examples:")[2], re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pages: list[object] = []
    monkeypatch.setattr("plateau_jax.design.server.serve", lambda *page, **_: pages.append(page))
    monkeypatch.chdir(tmp_path)
    for line in lines:
        if "--design" in line:  # which would serve until Ctrl-C
            assert main(shlex.split(line)[2:]) == 0
            continue
        command = f"{sys.executable} {line}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"curve.png", "curve.json"}
    assert len(pages) == sum("--design" in line for line in lines) > 0
