"""The program on `speed.md` that profiles a training step."""

import json
import runpy

import pytest
from support.docs import pages
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile

CODE = pages.program_named("Where the time goes").code


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


def events_on_a_gpu():
    """Return the events of five updates of 1 ms, and of the profiler's own wait after them."""
    recorded = []
    for start in range(0, 5000, 1000):
        recorded += [
            event("ProfilerStep#8", start, start + 210, is_range=True),
            event("data", start, start + 10, is_range=True),
            event("update", start + 10, start + 210, is_range=True),
            device_event("update", start + 100, start + 900, is_range=True),
            device_event("sgemm", start + 100, start + 800),
            device_event("Memcpy HtoD", start + 800, start + 900),
        ]
    return [
        *recorded,
        event("cudaStreamSynchronize", 1020, 1060),
        event("cudaEventSynchronize", 2500, 2900),
        event("cudaDeviceSynchronize", 4300, 5000),
    ]


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(CODE, encoding="utf-8")
    return file


def test_program_shows_averages_of_an_update(program, monkeypatch, capsys):
    monkeypatch.setattr(profile, "events", lambda profiler: events_on_a_gpu())
    runpy.run_path(str(program))
    assert capsys.readouterr().out.splitlines() == [
        "wall time: 1.000 ms",
        "host time in the step: 1.0 times, 0.200 ms",
        "device time: 2.0 times, 0.800 ms",
        "copies: 1.0 times, 0.100 ms",
        "waits for the device: 0.4 times, 0.088 ms",
        "waiting for data: 1.0 times, 0.010 ms",
    ]


def test_trace_has_five_updates(program):
    names = runpy.run_path(str(program))
    events = json.loads(program.with_name("trace.json").read_text())["traceEvents"]
    traced = [str(event.get("name")) for event in events]
    assert traced.count("update") == traced.count("data") == 5
    assert any("adam" in name for name in traced)
    assert names["train_step"].state_dict()["applied"] == 13
