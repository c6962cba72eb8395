"""`python -m plateau_jax`: its output streams and encodings, and the examples in its help."""

import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.rejections import rejected
from support.schedulers.runs import peaks

from plateau_jax import PlateauCurve
from plateau_jax.__main__ import main

COMMAND = [sys.executable, "-m", "plateau_jax"]
CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)
ARGUMENTS = ["1000", "--warmup-steps", "100", "--plateau", "50", "20", "--min-lr-ratio", "0.1"]


def _run(*arguments, **environment):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, env={**os.environ, **environment})


NUMBERS = "warmup-steps warmup-shape init-lr-ratio plateau absolute-plateau decay-shape min-lr-ratio"


@pytest.mark.parametrize(
    "option", [*NUMBERS.split(), "from", "cooldown", "peak", "plot", "csv", "compare", "json"]
)
def test_no_option_is_abbreviated(capsys, option):
    for short in {option[:-1], option[:2], option.rpartition("-")[0]} - {""}:
        assert f"unrecognized arguments: --{short}" in rejected(capsys, ["100", f"--{short}", "5"])


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(descriptions(scaled=True), peaks)
def test_table_with_peak_has_learning_rates(tmp_path, capsys, description, peak):
    curve, file = build(description), tmp_path / "curve.json"
    file.write_text(re.sub("'", '"', repr(curve.to_dict()).replace("None", "null")))
    assert main(["--from", str(file), "--peak", repr(peak)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    bare_head, *bare = curve.describe().splitlines()
    assert bare_head.split() == ["first", "step", "last", "step", "kind", "from", "to"]
    assert head.split() == ["first", "step", "last", "step", "kind", "lr", "from", "lr", "to"]
    assert len(lines) == len(bare)
    for line, its_bare in zip(lines, bare, strict=True):
        assert line.split()[:-2] == its_bare.split()[:-2]
        first = int(line.split()[0])
        assert line.split()[-2] == f"{np.float32(peak) * np.float32(curve(first)):.6g}"
        assert len(line) == len(head)


def test_peak_of_one_also_gives_learning_rates(capsys):
    assert main([*ARGUMENTS, "--peak", "1"]) == 0
    assert "lr from" in capsys.readouterr().out


def test_standard_output_gets_only_the_values(tmp_path):
    file = tmp_path / "rates.csv"
    to_file, to_output = (_run(*ARGUMENTS, "--peak", "3e-4", "--csv", name) for name in (str(file), "-"))
    assert to_output.stdout == file.read_bytes()
    assert to_output.stderr == b""
    assert to_file.stdout.startswith(b"first step")
    assert not os.path.exists("-")


def test_messages_do_not_mix_with_values(tmp_path):
    done = _run("2", "--csv", "-", "--plot", str(tmp_path / "curve"))
    assert done.stdout.split() == [b"step,learning_rate", b"0,1.0", b"1,0.5", b"2,0.0"]
    assert done.stderr.decode() == f"wrote {tmp_path / 'curve.png'}\n"


def test_written_files_are_reported(tmp_path, capsys):
    names = [str(tmp_path / name) for name in ("curve.svg", "rates.csv")]
    assert main(["100", "--plot", names[0], "--csv", names[1]]) == 0
    assert capsys.readouterr().err == "".join(f"wrote {name}\n" for name in names)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp1252"])
def test_table_in_any_encoding(tmp_path, encoding):
    done = _run(*ARGUMENTS, PYTHONIOENCODING=encoding)
    table = CURVE.describe() + "\n"
    if encoding in ("ascii", "latin-1"):
        table = table.replace("…", "?")
    assert (done.returncode, done.stderr, done.stdout.decode(encoding)) == (0, b"", table)
    wrong = _run("0", PYTHONIOENCODING=encoding)
    assert wrong.returncode == 2
    assert "2**31 - 1 = 2147483647" in wrong.stderr.decode(encoding)
    path = tmp_path / "empty.json"
    path.write_text("{}")
    wrong = _run("--from", str(path), PYTHONIOENCODING=encoding)
    assert "missing 1 required positional argument: 'total_steps'" in wrong.stderr.decode(encoding)


def test_table_in_the_c_locale():
    done = _run(*ARGUMENTS, LC_ALL="C", LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stdout.decode()) == (0, CURVE.describe().replace("…", "?") + "\n")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_file_name_is_reported_in_any_encoding(tmp_path, encoding):
    done = _run("9", "--csv", str(tmp_path / "Größe\udcff.csv"), PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr.count(b"wrote ")) == (0, 1)


def test_examples_in_help_run(tmp_path, monkeypatch):
    shown = _run("--help", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    lines = re.findall(r"^  python (-m plateau_jax .*)$", shown.partition("examples:")[2], re.MULTILINE)
    assert len(lines) >= 4
    assert any("--stage 2% 1.0 --stage rest" in line for line in lines)
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
    assert len(pages) == sum("--design" in line for line in lines)


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 >&-", "standard output is closed"),
        ("2 --csv - >&-", "standard output is closed"),
        ("2 --json >&-", "standard output is closed"),
    ],
)
def test_closed_stream_is_reported(line, message):
    done = subprocess.run(
        f'"$PYTHON" -m plateau_jax {line}',
        shell=True,
        capture_output=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert done.stderr.decode().splitlines()[-1] == f"python -m plateau_jax: error: {message}"
    assert done.returncode == 2
