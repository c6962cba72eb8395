"""`python -m plateau_jax` in a process: streams, encodings, signals, and examples of its help."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from support.commands import AT_A_TERMINAL

from plateau_jax import PlateauCurve
from plateau_jax.tools.command_line.main import main

COMMAND = [sys.executable, "-m", "plateau_jax"]


def run(*arguments, **environment):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, env={**os.environ, **environment}
    )


def test_warning_is_one_line():
    process = run("100", "--plateau", "0.5", "0.3")
    assert process.returncode == 0
    (line,) = process.stderr.splitlines()
    warning = b"python -m plateau_jax: warning: plateaus = [(0.5, 0.3)] look like fractions"
    assert line.startswith(warning)


def test_link_to_a_file_stays_one(tmp_path):
    target = tmp_path / "target.csv"
    link = tmp_path / "link.csv"
    link.symlink_to(target)
    run("2", "--csv", str(link))
    assert link.is_symlink()
    assert target.read_text() == "step,learning_rate\n0,1.0\n1,0.5\n2,0.0\n"


def test_values_on_standard_output_by_its_name():
    process = run("2", "--csv", "/dev/fd/1")  # as in `--csv >(gzip)`
    printed = process.stdout.decode().replace("\r", "")
    values = "step,learning_rate\n0,1.0\n1,0.5\n2,0.0\n"
    table = PlateauCurve(2).describe()
    assert printed == f"{values}{table}\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_in_any_encoding(encoding):
    arguments = ["1000", "--warmup-steps", "100", "--plateau", "50", "20"]
    process = run(*arguments, PYTHONIOENCODING=encoding)
    curve = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)])
    table = curve.describe().encode(encoding, "replace")
    assert process.returncode == 0
    assert process.stderr == b""
    assert process.stdout == table + b"\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the device is that of Linux")
@pytest.mark.parametrize("options", [[], ["--json"], ["--csv", "-"], ["--export", "-"]])
def test_full_disk_is_one_line(options):
    with open("/dev/full", "w") as full:
        process = subprocess.run([*COMMAND, "9", *options], stdout=full, stderr=subprocess.PIPE)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.endswith(b"error: [Errno 28] No space left on device")


@pytest.mark.parametrize("options", [[], ["--csv", "-"], ["--csv", "new.csv"]])
def test_closed_standard_output_is_one_line(options, tmp_path):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"]
    command = [*shell, *COMMAND, "9", *options]
    process = subprocess.run(command, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.endswith(b"error: standard output is closed")
    assert list(tmp_path.iterdir()) == []


def test_closed_pipe_is_not_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([*COMMAND, "100000"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert process.returncode == -signal.SIGPIPE
    assert process.stderr == b""


@pytest.mark.slow
def test_ctrl_c_ends_without_a_traceback(tmp_path):
    path = tmp_path / "huge.csv"
    arguments = [str(2**31 - 1), "--csv", str(path)]
    process = subprocess.Popen([*AT_A_TERMINAL, *arguments], stderr=subprocess.PIPE)
    try:
        while not any(file.stat().st_size for file in tmp_path.iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert errors == b""
    assert not any(tmp_path.iterdir())  # neither the file nor the temporary one


def examples_in_help():
    """Return the commands after `python`."""
    help_text = run("--help", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    after_heading = help_text.partition("examples:")[2]
    return re.findall(r"^  python (-m plateau_jax .*)$", after_heading, re.MULTILINE)


def test_examples_in_help_run(tmp_path, monkeypatch):
    served = []

    def serve(*page, **_):
        served.append(page)

    # The page would be served until Ctrl-C.
    monkeypatch.setattr("plateau_jax.tools.design.server.serve", serve)
    monkeypatch.chdir(tmp_path)
    num_designs = 0
    for example in examples_in_help():
        if "--design" in example:
            assert main(shlex.split(example)[2:]) == 0
            num_designs += 1
        else:
            run_in_a_shell(f"{sys.executable} {example}")
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"curve.png", "curve.json", "schedule.py"}
    assert num_designs
    assert len(served) == num_designs


def run_in_a_shell(command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(command, shell=True, capture_output=True, env=environment)
    assert process.returncode == 0, process.stderr
