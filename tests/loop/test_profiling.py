"""The profile: a trace in the given folder, and a short table."""

import json
from types import SimpleNamespace

import pytest
from support.training.models import batches
from support.training.steps import make_step
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from torch_bridge import profile
from torch_bridge.training.loop.profiling import _table


def seconds(lines, name):
    """Return the number at the end of the line that begins with the name."""
    (line,) = [line for line in lines if line.startswith(name)]
    return float(line.split()[-1])


def test_profile_writes_trace_and_returns_table(tmp_path):
    step = make_step()
    directory = tmp_path / "new" / "folder"
    table = profile(step, iter(batches(20)), directory)
    lines = table.splitlines()
    assert len(lines) < 12
    for line in lines:
        assert len(line) < 80
    for name in ("device time", "host time", "copies", "waits"):
        assert name in table
    assert seconds(lines, "wall time") >= seconds(lines, "host time") > 0

    (trace,) = directory.iterdir()
    events = json.loads(trace.read_text())["traceEvents"]
    names = [str(event.get("name")) for event in events]
    assert names.count("update") == 5
    assert any("adam" in name for name in names)

    assert step.state_dict()["applied"] == 13, "all of them were updates of the training run"
    again = profile(step, batches(13), str(directory))
    assert len(again.splitlines()) == len(lines)


@pytest.mark.parametrize("count", [0, 5, 12])
def test_too_few_batches_are_rejected(count, tmp_path):
    with pytest.raises(ValueError, match="needs 13"):
        profile(make_step(), batches(count), tmp_path)
    assert list(tmp_path.iterdir()) == []


def event(name, start, end, device=DeviceType.CPU, *, is_range=False):
    """An event of these microseconds; a range is one that the program has named."""
    return FunctionEvent(
        id=start,
        name=name,
        thread=1,
        start_us=start,
        end_us=end,
        device_type=device,
        use_device="cuda",
        is_user_annotation=is_range,
        stack=[],
    )


def device_event(name, start, end, **options):
    return event(name, start, end, DeviceType.CUDA, **options)


def test_table_counts_device_work_and_waits_in_updates():
    """Named ranges, which appear on the device too, and the profiler's last wait do not count."""
    recorded = [event("all updates", 0, 5000, is_range=True)]
    for start in range(0, 5000, 1000):
        recorded += [
            event("waiting for data", start, start + 10, is_range=True),
            event("update", start + 10, start + 210, is_range=True),
            device_event("update", start + 100, start + 900, is_range=True),
            device_event("sgemm", start + 100, start + 800),
            device_event("Memcpy HtoD", start + 800, start + 900),
        ]
    recorded += [
        event("cudaStreamSynchronize", 1020, 1060),
        event("cudaStreamSynchronize", 2500, 2900),
        event("cudaDeviceSynchronize", 4300, 5000),
        device_event("all updates", 100, 4900, is_range=True),
    ]
    _, *lines = _table(SimpleNamespace(events=lambda: recorded)).splitlines()
    cells = {line[:22].strip(): line[22:].split() for line in lines}
    assert cells == {
        "wall time": ["1.000"],
        "host time in the step": ["0.200"],
        "device time": ["0.800"],
        "copies": ["1.0", "0.100"],
        "waits for the device": ["0.2", "0.008"],
        "waiting for data": ["0.010"],
    }
