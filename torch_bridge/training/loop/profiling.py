"""`profile`: how long the parts of an update take."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

_WARM_UPS = 8
_UPDATES = 5
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def profile(
    step: Callable[[Any], Any], batches: Iterable[Any], directory: str | os.PathLike[str]
) -> str:
    """Trace a few steady updates with `torch.profiler`.

    The first eight updates are not traced, since they include compilation and capture. The trace of
    the next five is written to `directory/trace.json`, for Perfetto or chrome://tracing.

    Args:
        step: A `TrainStep`, or another function of a batch.
        batches: At least 13 batches. The step is called with the first 13.
        directory: The directory for the trace, which is created if necessary.

    Returns:
        A short table of averages per update: wall time; the host's time in the step; the time
        during which the device works; copies from, to and on the device; the times that the host
        waits for the device and for data. Without a GPU, the rows of the device are zero.

    Raises:
        TypeError: `step` can't be called, `batches` can't be iterated, or `directory` is not a
            path.
        ValueError: There are fewer than 13 batches.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from torch_bridge import profile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     table = profile(torch.sum, [torch.ones(2)] * 13, directory)
    ...     sorted(path.name for path in Path(directory).iterdir())
    ['trace.json']
    >>> print(table.splitlines()[0])
    per update               count        ms
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
        # Without acc_events torch 2.10 to 2.12 warn that a schedule clears events, although none is
        # used.
        with (
            torch.profiler.profile(activities=activities, acc_events=True) as profiler,
            record_function("all updates"),
        ):
            for _ in range(_UPDATES):
                with record_function("waiting for data"):
                    batch = next(iterator)
                with record_function("update"):
                    step(batch)
            if torch.cuda.is_available():
                with record_function("the end"):
                    torch.cuda.synchronize()
    except StopIteration:
        raise ValueError(
            f"batches ended early; profile needs {_WARM_UPS + _UPDATES} of them"
        ) from None
    profiler.export_chrome_trace(str(directory / "trace.json"))
    return _table(profiler)


def _table(profiler: Any) -> str:
    """Return a table of counts and times in milliseconds, averaged over the traced updates."""
    cpu = torch.autograd.DeviceType.CPU
    on_host = [event for event in profiler.events() if event.device_type == cpu]
    # A range that `record_function` names appears on the device too, around the work inside it.
    on_device = [
        event
        for event in profiler.events()
        if event.device_type != cpu and not event.is_user_annotation
    ]
    ranges: dict[str, list[Any]] = {"all updates": [], "update": [], "waiting for data": []}
    for event in on_host:
        if event.name in ranges:
            ranges[event.name].append(event)
    copies = [event for event in on_device if event.name.startswith("Memcpy")]
    updates = [event.time_range for event in ranges["update"]]
    waits: list[Any] = []
    for event in on_host:
        start = event.time_range.start
        # The profiler itself waits after the updates.
        if event.name in _WAITS and any(update.start <= start < update.end for update in updates):
            waits.append(event)
    rows = [
        ("wall time", "", ranges["all updates"]),
        ("host time in the step", "", ranges["update"]),
        ("device time", "", on_device),
        ("copies", f"{len(copies) / _UPDATES:.1f}", copies),
        ("waits for the device", f"{len(waits) / _UPDATES:.1f}", waits),
        ("waiting for data", "", ranges["waiting for data"]),
    ]
    lines = [f"{'per update':22}{'count':>8}{'ms':>10}"]
    for name, count, events in rows:
        microseconds = sum(event.time_range.elapsed_us() for event in events)
        lines.append(f"{name:22}{count:>8}{microseconds / _UPDATES / 1e3:10.3f}")
    return "\n".join(lines)
