"""On a Ctrl-C during imports or output, or if a package is missing, an example ends with one line."""

import re
import subprocess
import sys

import pytest
from support.programs import EXAMPLES

pytestmark = pytest.mark.slow

SCRIPTS = sorted(file.name for file in EXAMPLES.glob("*.py") if "import program" in file.read_text("utf-8"))
INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
PRINTING = """
import io, os, signal, sys

class Pipe(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        os.kill(os.getpid(), signal.SIGINT)
        return len(data)

sys.stdout = io.TextIOWrapper(io.BufferedWriter(Pipe()))
print("a row", flush=True)
"""
MISSING = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"


def run_with(folder, script, first_import):
    """Run an example with this program in place of the first library that it imports."""
    for name in ("numpy", "torch", "jax", "matplotlib"):
        (folder / f"{name}.py").write_text(first_import, encoding="utf-8")
    command = [sys.executable, EXAMPLES / script]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )


def cost_pattern(script):
    """Return a pattern for the expected cost, which each example prints first."""
    return rf"{script}: [\d.]+ min and [\d.]+ GB of memory on one CPU core, with its defaults\n"


def test_scripts_are_found():
    assert len(SCRIPTS) >= 7


@pytest.mark.parametrize("first_import", [INTERRUPTED, PRINTING])
@pytest.mark.parametrize("script", SCRIPTS)
def test_ctrl_c_ends_with_one_line(script, first_import, tmp_path):
    ended = run_with(tmp_path, script, first_import)
    assert (ended.returncode, ended.stdout) == (130, "\nstopped\n")
    assert re.fullmatch(cost_pattern(script), ended.stderr)


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_package_message_names_install_command(script, tmp_path):
    ended = run_with(tmp_path, script, MISSING)
    assert (ended.returncode, ended.stdout) == (1, "")
    message = f"{script}: needs numpy; pip install -e '.[examples]'\n"
    assert re.fullmatch(cost_pattern(script) + re.escape(message), ended.stderr)
