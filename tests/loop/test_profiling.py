"""The profile: a trace in the given folder, and a short table."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.training.models import batches
from support.training.steps import make_step
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from torch_bridge import profile
from torch_bridge.loop.profiling import _table


def test_profile_writes_trace_and_returns_table(tmp_path: Path) -> None:
    step = make_step()
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


def test_too_few_batches_are_rejected(tmp_path: Path) -> None:
    for count in (0, 5, 12):
        with pytest.raises(ValueError, match="needs 13"):
            profile(make_step(), batches(count), tmp_path)
    assert list(tmp_path.iterdir()) == []


def _event(name: str, start: int, end: int, on_device: bool = False, named: bool = False) -> Any:
    return FunctionEvent(
        id=start,
        name=name,
        thread=1,
        start_us=start,
        end_us=end,
        device_type=DeviceType.CUDA if on_device else DeviceType.CPU,
        use_device="cuda",
        is_user_annotation=named,
        stack=[],
    )


def test_table_counts_device_work_and_waits_in_updates() -> None:
    """Named ranges, which appear on the device too, and the profiler's last wait do not count."""
    events = [_event("all updates", 0, 5000, named=True)]
    for start in range(0, 5000, 1000):
        events += [
            _event("waiting for data", start, start + 10, named=True),
            _event("update", start + 10, start + 210, named=True),
            _event("update", start + 100, start + 900, on_device=True, named=True),
            _event("sgemm", start + 100, start + 800, on_device=True),
            _event("Memcpy HtoD", start + 800, start + 900, on_device=True),
        ]
    events += [
        _event("cudaStreamSynchronize", 1020, 1060),
        _event("cudaStreamSynchronize", 2500, 2900),
        _event("cudaDeviceSynchronize", 4300, 5000),
        _event("all updates", 100, 4900, on_device=True, named=True),
    ]
    events = EventList(events, use_device="cuda")
    events._tree_built = True
    table = _table(SimpleNamespace(events=lambda: events, key_averages=events.key_averages))
    rows = {line[:22].strip(): line[22:].split() for line in table.splitlines()[1:]}
    assert rows == {
        "wall time": ["1.000"],
        "host time in the step": ["0.200"],
        "device time": ["0.800"],
        "copies": ["1.0", "0.100"],
        "waits for the device": ["0.2", "0.008"],
        "waiting for data": ["0.010"],
    }
