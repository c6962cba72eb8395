"""Several JAX processes: the program of `docs/jax.md`, in two processes on CPUs."""

import os
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
from support.docs.pages import ROOT, sections

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow

UNIT, CURVE = 512, PlateauCurve(40, warmup_steps=4, plateaus=[(0, 60)])
COUNT = "tokens = lengths.sum()  # of all processes"
OF_THIS_PROCESS = f"tokens = np.int32({UNIT} + 64 * jax.process_index())"
"""A number from the host, for the count of the global batch."""


def run(folder, changes=()):
    """Run the program with some code replaced; return what both processes printed, and their errors."""
    (blocks,) = (part.blocks for part in sections(ROOT / "docs" / "jax.md") if "multi-host" in part.heading)
    (source,) = (block.code for block in blocks if block.language == "py")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for old, new in (("localhost:9911", f"localhost:{port}"), *changes):
        assert old in source, old
        source = source.replace(old, new)
    (folder / "program.py").write_text(source, encoding="utf-8")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "XLA_FLAGS": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "program.py", str(rank)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()  # JAX catches SIGTERM
    # The threads of Gloo print too, and mix their lines.
    printed = [[line for line in output.splitlines() if line.startswith("update")] for output, _ in outputs]
    return printed, [errors for _, errors in outputs]


def consumed(updates):
    """Return the tokens of both processes in these updates, drawn as in the program."""
    total = 0
    for update in range(1, updates + 1):
        for rank in range(2):
            random = np.random.default_rng([update, rank])
            random.normal(size=(32, 8))
            total += int(random.integers(1, 16, 32, np.int32).sum())
    return total


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (printed, other), errors = run(folder)
    assert printed == other, errors
    return folder, printed


def test_processes_share_the_step_of_their_sum(uninterrupted):
    _, printed = uninterrupted
    assert len(printed) == 5
    for update, line in zip((10, 20, 30, 40), printed, strict=False):
        lr = float(np.float32(0.1) * np.float32(CURVE(consumed(update - 1) // UNIT)))
        assert line.endswith(f"step {consumed(update) // UNIT}, lr {lr}")


def test_resumed_processes_match_uninterrupted(uninterrupted, tmp_path):
    folder, printed = uninterrupted
    shutil.copytree(folder / "saved_processes" / "20", tmp_path / "saved_processes" / "20")
    resumed, errors = run(tmp_path)
    assert [lines[:2] for lines in resumed] == [printed[2:4]] * 2, errors


def test_every_process_rejects_a_different_unit(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0] / "saved_processes", tmp_path / "saved_processes")
    printed, errors = run(tmp_path, [("DataClock(512)", "DataClock(256)")])
    assert printed == [[], []]
    different = "saved with clock=DataClock(unit=512), now DataClock(unit=256)"
    assert all(different in error for error in errors), errors


def test_counts_that_differ_are_noticed_before_a_save(tmp_path):
    printed, errors = run(tmp_path, [(COUNT, OF_THIS_PROCESS)])
    steps = [re.findall(r"step (\d+)", "\n".join(lines)) for lines in printed]
    assert steps == [["10", "20"], ["11", "22"]]
    assert all("each process passed a different count=" in error for error in errors), errors
    assert not list((tmp_path / "saved_processes").glob("[0-9]*"))
