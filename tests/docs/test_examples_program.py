"""An example ends with one line on a Ctrl-C while it still imports, and where a package is missing."""

import subprocess
import sys

import pytest
from support.programs import EXAMPLES

SCRIPTS = sorted(file.name for file in EXAMPLES.glob("*.py") if "import program" in file.read_text("utf-8"))
INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
MISSING = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"


def run_with(folder, script, first_line):
    """Run an example whose first import, in the place of NumPy, torch or JAX, is this line."""
    for name in ("numpy", "torch", "jax", "matplotlib"):
        (folder / f"{name}.py").write_text(first_line, encoding="utf-8")
    command = [sys.executable, EXAMPLES / script]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )


def test_there_are_scripts():
    assert len(SCRIPTS) >= 7


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_ctrl_c_during_imports_ends_with_one_line(script, tmp_path):
    ended = run_with(tmp_path, script, INTERRUPTED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "\nstopped\n", "")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_missing_package_names_the_command_that_installs_it(script, tmp_path):
    ended = run_with(tmp_path, script, MISSING)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"{script}: needs numpy; pip install -e '.[examples]'\n"
