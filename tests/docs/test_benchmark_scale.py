"""The benchmark of training at scale runs, counts correctly and leaves no process behind."""

import re
import runpy
import sys
from unittest.mock import patch

import psutil
import pytest
import torch
from support.programs import EXAMPLES, Program, finish, run
from torch import nn

pytestmark = pytest.mark.slow

SCRIPT = EXAMPLES / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def benchmark():
    with patch.object(sys, "path", [str(EXAMPLES / "benchmarks"), *sys.path]):
        return runpy.run_path(str(SCRIPT))


def test_benchmark_prints_every_table(tmp_path):
    text = run(SCRIPT, "--quick", folder=tmp_path)
    tables = {table.splitlines()[0]: table for table in text.split("\n\n")[1:]}
    updates = [name for name in tables if "micro-batches an update" in name]
    assert len(updates) == 4
    for name in updates:
        rows = tables[name].splitlines()[2:]
        assert len(rows) == (3 + name.startswith("ddp") + 2 * name.endswith("4"))
        for row in rows:
            assert float(row.split()[-1]) > 0
    for title in ("Activations", "A save of", "Two starts", "Encoding", "An ESTIMATE"):
        assert any(name.startswith(title) for name in tables)
    assert list(tmp_path.iterdir()) == []


def test_benchmark_of_checkpoints_prints_its_tables(tmp_path):
    text = run(EXAMPLES / "benchmarks" / "checkpoints.py", "--quick", folder=tmp_path)
    rows = re.findall(r"^ *(Checkpoints|DCP) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$", text, re.MULTILINE)
    assert rows == ["Checkpoints", "DCP"] * 2
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_all_processes(tmp_path):
    program = Program(SCRIPT, "--rounds", 1, folder=tmp_path)
    for line in program.lines():
        if line.startswith("ddp, tiny"):
            break
    processes = psutil.Process(program.pid).children(recursive=True)
    assert len(processes) >= 2
    program.interrupt()
    assert finish(program, status=130)[-1] == "stopped"
    assert not any(process.is_running() for process in processes)


def test_kept_activations_are_counted_once(benchmark):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 2))
    inputs = torch.randn(3, 4)
    # Autograd keeps the inputs and the output of each ReLU; it also keeps weights, but these are parameters.
    assert benchmark["bytes_kept_for_backward"](model, lambda: model(inputs)) == 4 * 3 * (4 + 8 + 8)


def test_estimate_matches_its_formula(benchmark, capsys):
    benchmark["estimate"](1e9, 0.5, 25e9, 0.8)
    lines = capsys.readouterr().out.splitlines()
    rows = {int(cells[0]): cells[1:] for line in lines if (cells := line.split())[:1] and cells[0].isdigit()}
    assert list(rows) == [8, 16, 32, 64, 128, 256, 512, 1024]
    # 7 GB in 0.28 s, of which 0.224 s overlap; 10.5 GB in 0.42 s, of which 0.336 s overlap.
    assert rows[8] == ["7", "0.556", "90%", "16", "10.5", "0.584", "86%", "2"]
    # The collectives that can overlap take longer than the compute, which hides only 0.1 s of them.
    benchmark["estimate"](1e9, 0.1, 25e9, 1)
    (row,) = re.findall(r"^ *8 .*", capsys.readouterr().out, re.MULTILINE)
    assert row.split()[2:4] == ["0.28", "36%"]
