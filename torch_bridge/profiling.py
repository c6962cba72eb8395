"""Where the time of an update goes."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

_WARM_UPS = 8
_UPDATES = 5
_WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
)


def profile(step: Callable[[Any], Any], batches: Iterable[Any], directory: str | os.PathLike[str]) -> str:
    """Trace a few steady updates with `torch.profiler`.

    Eight updates come first, untraced, in which compilation and capture take place. The trace is
    written to `directory/trace.json`, for Perfetto or chrome://tracing.

    Args:
        step: A `TrainStep`, or anything that is called with a batch.
        batches: At least 13 batches; all are used for training.
        directory: Where the trace goes; made if need be.

    Returns:
        A short table, per update: wall time; the host's time in the step; the device's busy time; copies
        from, to and on the device; waits of the host for the device; waiting for data. On a CPU
        there is no device apart from the host, and its time, copies and waits are zero.

    Raises:
        ValueError: Fewer than 13 batches.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    iterator = iter(batches)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    try:
        for _ in range(_WARM_UPS):
            step(next(iterator))
        with torch.profiler.profile(activities=activities) as profiler, record_function("all updates"):
            for _ in range(_UPDATES):
                with record_function("waiting for data"):
                    batch = next(iterator)
                with record_function("update"):
                    step(batch)
            if torch.cuda.is_available():
                with record_function("the end"):
                    torch.cuda.synchronize()
    except StopIteration:
        raise ValueError(f"batches ended early; profile needs {_WARM_UPS + _UPDATES} of them") from None
    profiler.export_chrome_trace(str(directory / "trace.json"))
    return _table(profiler.key_averages())


def _table(events: Iterable[Any]) -> str:
    """Average times in milliseconds and counts, of one update."""
    on_host = {event.key: event for event in events if event.device_type == torch.autograd.DeviceType.CPU}
    on_device = [event for event in events if event.device_type != torch.autograd.DeviceType.CPU]
    copies = [event for event in on_device if event.key.startswith("Memcpy")]
    waits = [on_host[key] for key in _WAITS if key in on_host]
    rows = [
        ("wall time", None, on_host["all updates"].cpu_time_total),
        ("host time in the step", None, on_host["update"].cpu_time_total),
        ("device time", None, sum(event.self_device_time_total for event in on_device)),
        (
            "copies",
            sum(event.count for event in copies),
            sum(event.self_device_time_total for event in copies),
        ),
        (
            "waits for the device",
            sum(event.count for event in waits),
            sum(event.cpu_time_total for event in waits),
        ),
        ("waiting for data", None, on_host["waiting for data"].cpu_time_total),
    ]
    lines = [f"{'per update':22}{'count':>8}{'ms':>10}"]
    for name, count, microseconds in rows:
        shown = "" if count is None else f"{count / _UPDATES:.1f}"
        lines.append(f"{name:22}{shown:>8}{microseconds / _UPDATES / 1e3:10.3f}")
    return "\n".join(lines)
