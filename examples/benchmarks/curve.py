"""Compare the cost of a curve with that of common schedules, in JAX and in PyTorch.

In each table the contenders take turns, round by round. In JAX, medians over the rounds are
printed, in PyTorch the least times; a ratio compares two of them. Takes under a minute on two
cores.

    python examples/benchmarks/curve.py
"""

import argparse
import math
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from side_by_side import medians, repeat, show
from torch.optim import lr_scheduler

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import lambda_lr

TOTAL = 1_000_000


def curve_with(plateaus: int) -> PlateauCurve:
    """Build a curve with evenly spread plateaus, together 30 % of the steps after the warmup."""
    share = 100 / (plateaus + 1)
    return PlateauCurve(
        TOTAL,
        warmup_steps=TOTAL // 10,
        plateaus=tuple((share * (i + 0.5), 0.3 * share) for i in range(plateaus)),
        min_lr_ratio=0.1,
    )


def joined(curve: PlateauCurve) -> optax.Schedule:
    """Build the same curve from optax's schedules."""
    # warmup, decay, plateau, decay, plateau, decay, …, end
    begins = [segment.first_step for segment in curve.segments]
    levels = [curve(begin) for begin in begins]
    warmup, *decays_and_plateaus = [after - begin for begin, after in pairwise(begins)]
    pieces = [optax.linear_schedule(levels[0], levels[1], warmup)]
    for index, length in enumerate(decays_and_plateaus, 1):
        if index % 2 == 0:
            pieces.append(optax.constant_schedule(levels[index]))
        else:
            alpha = levels[index + 1] / levels[index]
            pieces.append(optax.cosine_decay_schedule(levels[index], length, alpha=alpha))
    pieces.append(optax.constant_schedule(levels[-1]))
    return optax.join_schedules(pieces, begins[1:])


# Each of these takes a function that builds a schedule; it returns the call to time and its number
# of values.
Timed = tuple[Callable[[], object], int]


def looped(schedule: optax.Schedule, values: int) -> Callable[[int], jax.Array]:
    def run(first):
        return jax.lax.fori_loop(0, values, lambda i, total: total + schedule(first + 37 * i), 0.0)

    return jax.jit(run)


def in_a_loop(build: Callable[[], optax.Schedule]) -> Timed:
    values = 20_000
    run = looped(build(), values)
    return lambda: run(0).block_until_ready(), values


def vectorised(build: Callable[[], optax.Schedule]) -> Timed:
    values = 1 << 16
    schedule = build()
    run = jax.jit(lambda first: schedule(first + 13 * jnp.arange(values)))
    return lambda: run(0).block_until_ready(), values


def compilation(build: Callable[[], optax.Schedule]) -> Timed:
    # A new schedule each time, because JAX caches what it has traced.
    return lambda: looped(build(), 20_000).lower(0).compile(), 1


def eager(build: Callable[[], optax.Schedule]) -> Timed:
    calls = 5
    schedule = build()
    return partial(repeat, calls, lambda: jax.block_until_ready(schedule(5))), calls


def in_jax(counts: list[int], rounds: int) -> None:
    for title, measured, unit, rounds_here in (
        ("JAX inside a fori_loop: ns a value", in_a_loop, 1e9, rounds),
        ("JAX vectorised, 65536 values at once: ns a value", vectorised, 1e9, rounds),
        ("JAX, an eager call with a Python int: µs", eager, 1e6, rounds),
        ("JAX, tracing and compiling the loop: ms", compilation, 1e3, (rounds + 1) // 2),
    ):
        table = []
        for count in counts:
            curve = curve_with(count)
            ours, values = measured(partial(optax_schedule, curve, 1.0))
            theirs, _ = measured(partial(joined, curve))
            seconds = medians(rounds_here, {"ours": ours, "theirs": theirs})
            ours, theirs = (seconds[who] / values * unit for who in ("ours", "theirs"))
            table.append([count, ours, theirs, ours / theirs])
        header = ["plateaus", "optax_schedule", "join_schedules", "ratio"]
        if measured is compilation:
            header += ["ours to its k = 0", "theirs to its k = 0"]
            table = [[*row, row[1] / table[0][1], row[2] / table[0][2]] for row in table]
        show(title, header, table)


class Nothing(torch.optim.Optimizer):
    """An optimizer whose updates do nothing."""

    def __init__(self, groups: int) -> None:
        super().__init__([{"params": torch.zeros(1)} for _ in range(groups)], {"lr": 1e-3})

    def step(self, closure: object = None) -> None: ...


def in_torch(rounds: int) -> None:
    """Time what a scheduler adds to an update, its hooks included: the least of short rounds."""
    updates = 50
    builders: dict[str, Callable[[Nothing], lr_scheduler.LRScheduler]] = {
        "lambda_lr": lambda optimizer: lambda_lr(optimizer, curve_with(2)),
        "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5),
        "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, TOTAL),
        "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(
            optimizer, 1e-3, total_steps=TOTAL, cycle_momentum=False
        ),
    }

    def loop(groups: int, build: Callable[[Nothing], object] | None) -> Callable[[int], None]:
        optimizer = Nothing(groups)
        scheduler: object = None if build is None else build(optimizer)

        def run(count: int) -> None:
            if scheduler is None:
                for _ in range(count):
                    optimizer.step()
            else:
                for _ in range(count):
                    optimizer.step()
                    scheduler.step()

        run(200)  # after these updates, `lambda_lr` counts no updates any more
        return run

    for groups in (1, 10):
        loops = {name: loop(groups, build) for name, build in builders.items()}
        loops["none"] = loop(groups, None)
        least = dict.fromkeys(loops, math.inf)
        for _ in range(100 * rounds):
            for name, run in loops.items():
                begin = time.perf_counter()
                run(updates)
                least[name] = min(least[name], (time.perf_counter() - begin) / updates)
        cost = {name: least[name] - least["none"] for name in builders}
        show(
            f"PyTorch, a scheduler in an update with {groups} parameter group{'s'[: groups - 1]}",
            ["scheduler", "µs", "ratio to LambdaLR with a constant lambda"],
            [[name, time * 1e6, time / cost["LambdaLR"]] for name, time in cost.items()],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one round, few plateaus: does it run?"
    )
    quick = parser.parse_args().quick
    device = jax.devices()[0].device_kind
    print(f"Python {platform.python_version()} on {os.cpu_count()} cores, JAX on {device}")
    print(
        *(f"{library.__name__} {library.__version__}" for library in (jax, optax, torch, np)),
        sep=", ",
    )
    rounds = 1 if quick else 9
    in_jax([0, 2] if quick else [0, 2, 10, 100], rounds)
    in_torch(rounds)


if __name__ == "__main__":
    main()
