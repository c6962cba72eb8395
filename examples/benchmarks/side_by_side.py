"""Timing of contenders in interleaved rounds, and tables of the results, for the benchmarks."""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def seconds(
    rounds: int,
    contenders: Mapping[Any, Callable[[], object]],
    *,
    settle: Callable[[], object] = bool,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, list[float]]:
    """Time one call of each contender per round, in seconds, after a warmup call.

    Each round has a different order, because the caches hold what the previous contender used.
    `settle` is called before and after each call, to wait for work in other threads or on the GPU.
    With `time.process_time` as the clock, the seconds are those of the CPU, whatever else the
    machine does.
    """
    for call in contenders.values():
        call()
    times: dict[Any, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    generator = random.Random(0)
    for _ in range(rounds):
        generator.shuffle(order)
        for name, call in order:
            settle()
            begin = clock()
            call()
            settle()
            times[name].append(clock() - begin)
    return times


def medians(
    rounds: int,
    contenders: Mapping[Any, Callable[[], object]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, float]:
    times = seconds(rounds, contenders, clock=clock)
    return {name: statistics.median(values) for name, values in times.items()}


def ratios_to_first(times: Mapping[Any, Sequence[float]], calls: int) -> list[list[object]]:
    """Return a row per contender: its name, its median µs per call, its median ratio to the first.

    Ratios are taken within a round, so that a slow phase of the machine affects both terms.
    """
    first = next(iter(times.values()))
    return [
        [
            name,
            statistics.median(seconds) / calls * 1e6,
            statistics.median(
                time / first_time for time, first_time in zip(seconds, first, strict=True)
            ),
        ]
        for name, seconds in times.items()
    ]


def repeat(calls: int, function: Callable[..., object], *arguments: object) -> None:
    for _ in range(calls):
        function(*arguments)


def show(title: str, header: list[str], rows: Sequence[Sequence[object]]) -> None:
    def cell(value: object) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

    lines = [header, *([cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        print(
            *(text.rjust(width) for text, width in zip(line, widths, strict=True)),
            sep="  ",
            flush=True,
        )


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number
