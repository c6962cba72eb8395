"""The profile: a trace where it was asked for, and a short table."""

import json
from pathlib import Path

import pytest
from training import batches, step_of

from torch_bridge import profile


def test_a_trace_and_a_table(tmp_path: Path) -> None:
    step = step_of()
    directory = tmp_path / "made" / "if need be"
    table = profile(step, iter(batches(20)), directory)
    lines = table.splitlines()
    assert len(lines) < 12
    assert all(len(line) < 80 for line in lines)
    for name in ("device time", "host time", "copies", "waits"):
        assert any(name in line for line in lines), name
    (trace,) = directory.iterdir()
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("update") == 5
    assert any("adam" in str(name) for name in names)
    wall = next(float(line.split()[-1]) for line in lines if line.startswith("wall time"))
    host = next(float(line.split()[-1]) for line in lines if line.startswith("host time"))
    assert wall >= host > 0
    assert step.state_dict()["applied"] == 13, "all of them were updates of the training"
    assert profile(step, batches(13), str(directory)).count("\n") == table.count("\n")


def test_too_few_batches(tmp_path: Path) -> None:
    for count in (0, 5, 12):
        with pytest.raises(ValueError, match="needs 13"):
            profile(step_of(), batches(count), tmp_path)
    assert list(tmp_path.iterdir()) == []
