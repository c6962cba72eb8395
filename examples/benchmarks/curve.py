"""Compare the cost of a curve with common schedules: in JAX, in PyTorch, in NumPy, and to build.

In each table the contenders take turns, round by round. Printed are medians over the rounds; a
ratio compares two such medians. Takes under three minutes on two cores.

    python examples/benchmarks/curve.py
"""

import argparse
import math
import os
import platform
import time
import tracemalloc
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

from plateau_jax import (
    BatchPlan,
    Curve,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    compare,
    multiplier as jax_multiplier,
    optax_schedule,
    scale_by_curve,
    stack,
)
from plateau_jax.table.evaluation import Table
from torch_bridge import lambda_lr, multiplier, tensors

TOTAL = 1_000_000
WARMUP = TOTAL // 10


def curve_with(plateaus: int, total_steps: int = TOTAL) -> PlateauCurve:
    """Build a curve with evenly spread plateaus, together 30 % of the steps after the warmup."""
    share = 100 / (plateaus + 1)
    return PlateauCurve(
        total_steps,
        warmup_steps=total_steps // 10,
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


def of_other_kinds() -> dict[str, Curve]:
    """Return curves by a name of their shapes. All but the nested one have a linear warmup."""
    half = TOTAL // 2
    warmup = WARMUP, 1.0
    cosine = StagedCurve([warmup, (TOTAL - WARMUP, 0.1, "cosine")])
    return {
        "cosine": cosine,
        "linear": StagedCurve([warmup, (TOTAL - WARMUP, 0.1)]),
        "1-sqrt": StagedCurve([warmup, (TOTAL - WARMUP, 0.1, "1-sqrt")]),
        "exponential": StagedCurve([warmup, (TOTAL - WARMUP, 0.1, "exponential")]),
        **{
            shape: StagedCurve([warmup, (TOTAL - WARMUP, 0.1, shape)])
            for shape in ("1-x^0.4", "(1-x)^2", "t^-0.5")
        },
        "all four shapes": StagedCurve(
            [
                warmup,
                (half, 0.5, "cosine"),
                (half // 4, 0.2, "exponential"),
                (half // 4, 0.1, "1-sqrt"),
            ]
        ),
        "nested: a cooldown, then all of it again": cosine.cooldown(half, half // 2).then(
            cosine, scale=0.5
        ),
    }


def in_jax_by_kind(curves: dict[str, Curve], rounds: int) -> None:
    table = []
    columns = []
    for measured in (in_a_loop, vectorised):
        timed = {
            name: measured(partial(optax_schedule, curve, 1.0)) for name, curve in curves.items()
        }
        seconds = medians(rounds, {name: call for name, (call, _) in timed.items()})
        columns.append({name: seconds[name] / timed[name][1] * 1e9 for name in curves})
    for name in curves:
        row: list[object] = [name]
        for column in columns:
            row += [column[name], column[name] / column["cosine"]]
        table.append(row)
    header = ["curve", "in a loop", "ratio to cosine", "vectorised", "ratio to cosine"]
    show("JAX by shapes: ns a value", header, table)


def of_tables(counts: list[int], rounds: int) -> None:
    """Time curves whose tables are arguments of the compiled function, and 64 curves at once."""

    def run(table: Table, first: object) -> object:
        def add(i, total):
            return total + jax_multiplier(table, first + 37 * i)

        return jax.lax.fori_loop(0, 20_000, add, 0.0)

    in_loop = jax.jit(run)
    at_all = jax.jit(jax.vmap(jax_multiplier, (0, None)))
    rows = []
    steps = jnp.arange(0, TOTAL, TOTAL // 1000)
    for count in counts:
        curve = curve_with(count)
        table = jax.tree.map(jnp.asarray, curve.table)
        several = [curve_with(count, TOTAL - 100 * i) for i in range(64)]
        stacked = jax.tree.map(jnp.asarray, stack(several))
        seconds = medians(
            rounds,
            {
                "loop": lambda table=table: jax.block_until_ready(in_loop(table, 0)),
                "stack": lambda stacked=stacked: jax.block_until_ready(at_all(stacked, steps)),
            },
        )
        of_stack = seconds["stack"] / (64 * len(steps))
        size = sum(column.nbytes for column in curve.table)
        rows.append([count, seconds["loop"] / 20_000 * 1e9, of_stack * 1e9, size])
    header = ["plateaus", "in a loop", "64 curves stacked", "bytes of a table"]
    show("JAX, tables as arguments: ns a value", header, rows)


def of_parts(shapes: list[str], rounds: int) -> None:
    """Compare the curves with their parts from halfway through the warmup.

    A part has as many segments as its curve. The ratios are near 1, so times are those of the CPU,
    with one thread in PyTorch.
    """
    steps = np.arange(0, TOTAL // 2, 32)

    def in_numpy(curve: Curve) -> Timed:
        return partial(curve, steps), len(steps)

    def in_torch(curve: Curve, evaluate: Callable[..., object] = multiplier) -> Timed:
        return partial(evaluate, tensors(curve.table), torch.from_numpy(steps)), len(steps)

    def compiled(curve: Curve) -> Timed:
        evaluate, count = in_torch(curve, torch.compile(multiplier, fullgraph=True, dynamic=False))
        evaluate()
        return evaluate, count

    ways: dict[str, Callable[[Curve], Timed]] = {
        "JAX in a fori_loop": lambda curve: in_a_loop(partial(optax_schedule, curve, 1.0)),
        "JAX vectorised": lambda curve: vectorised(partial(optax_schedule, curve, 1.0)),
        "NumPy": in_numpy,
        "PyTorch, eager": in_torch,
        "PyTorch, compiled": compiled,
    }
    kinds = of_other_kinds()
    table = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for kind in shapes:
        curve = kinds[kind]
        torch.compiler.reset()
        for name, way in ways.items():
            timed = {"curve": way(curve), "part": way(curve.part(WARMUP // 2))}
            calls = {contender: call for contender, (call, _) in timed.items()}
            seconds = medians(20 * rounds, calls, clock=time.process_time)
            ns = {
                contender: seconds[contender] / values * 1e9
                for contender, (_, values) in timed.items()
            }
            table.append([kind, name, *ns.values(), ns["part"] / ns["curve"]])
    torch.set_num_threads(threads)
    show(
        "Parts of curves: ns of CPU time a value",
        ["curve", "in", "the curve", "its part", "ratio"],
        table,
    )


def in_jax_with_holds(rounds: int) -> None:
    values = 20_000
    curve = curve_with(2)
    holds = {
        "none": None,
        "HoldUntilFlat": HoldUntilFlat(10, every=100, limit=100_000),
        "HoldBelow": HoldBelow(0.5, 100, every=100),
    }

    def updates(hold: object) -> Callable[[], object]:
        transformation = scale_by_curve(curve, 0.1, clock=hold)

        def update(i, state):
            return transformation.update((), state, value=jnp.float32(1) / (i + 1))[1]

        run = jax.jit(lambda state: jax.lax.fori_loop(0, values, update, state))
        return lambda: jax.block_until_ready(run(transformation.init(())))

    seconds = medians(rounds, {name: updates(hold) for name, hold in holds.items()})
    rows = [[name, time / values * 1e9, time / seconds["none"]] for name, time in seconds.items()]
    show("JAX, scale_by_curve in a fori_loop: ns an update", ["rule", "ns", "ratio to none"], rows)


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

        run(200)  # after these updates, `lambda_lr` has no hook any more
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


def in_numpy(counts: list[int], rounds: int) -> None:
    sizes = (1024, 4096, 1 << 20)
    table = []
    for count in counts:
        curve = curve_with(count)
        seconds = medians(rounds, {size: partial(curve, np.arange(size)) for size in sizes})
        table.append([count, *(seconds[size] / size * 1e9 for size in sizes)])
    header = ["plateaus", *(f"{size} at once" for size in sizes)]
    show("NumPy, curve(steps): ns a step", header, table)


def on_comparisons(rounds: int) -> None:
    """Compare `compare` with the computation of the learning rates that it needs."""
    table = []
    for total in (10**4, 10**6):
        curve = curve_with(2, total)
        steps = np.arange(total)
        seconds = medians(
            rounds, {"compare": partial(compare, curve), "curve": partial(curve, steps)}
        )
        table.append(
            [
                total,
                *(part * 1e3 for part in seconds.values()),
                seconds["compare"] / seconds["curve"],
            ]
        )
    show("NumPy, compare(curve): ms", ["steps", "compare", "curve(steps)", "ratio"], table)


def on_tensors(shapes: list[str], sizes: list[int], rounds: int) -> None:
    """Compare the pure function in torch with a call in NumPy."""
    calls = 20
    table = []
    kinds = of_other_kinds()
    for kind in shapes:
        curve = kinds[kind]
        of_tensors = tensors(curve.table)
        torch.compiler.reset()
        compiled = torch.compile(multiplier, fullgraph=True, dynamic=False)
        for size in sizes:
            array = np.arange(WARMUP, WARMUP + size)
            steps = torch.from_numpy(array)
            times = calls if size < 1 << 20 else 1
            contenders = {
                "NumPy": partial(repeat, times, curve, array),
                "eager": partial(repeat, times, multiplier, of_tensors, steps),
                "compiled": partial(repeat, times, compiled, of_tensors, steps),
            }
            contenders["compiled"]()  # compiles, before the rounds
            times_us = {
                name: part / times * 1e6 for name, part in medians(rounds, contenders).items()
            }
            ratios = times_us["eager"] / times_us["NumPy"], times_us["compiled"] / times_us["NumPy"]
            table.append([kind, size, *times_us.values(), *ratios])
    header = ["curve", "steps", "curve(steps)", "eager", "compiled"]
    header += ["eager to NumPy", "compiled to NumPy"]
    show("PyTorch on the CPU, multiplier(table, steps): µs a call", header, table)


def one_step(counts: list[int], rounds: int) -> None:
    """Compare `group["lr"] = peak * curve(step)` with other expressions for the factor."""
    calls = 1000
    peak, group = 0.1, {"lr": 0.1}

    def write(factor: Callable[[int], float]) -> None:
        for step in range(WARMUP, WARMUP + calls):
            group["lr"] = peak * factor(step)

    def cosine(step: int) -> float:
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))

    table = []
    for count in counts:
        curve = curve_with(count)
        factors = {
            "array": lambda step, curve=curve: curve(np.array(step)),
            "ours": curve,
            "formula": cosine,
        }
        seconds = medians(
            rounds, {name: partial(write, factor) for name, factor in factors.items()}
        )
        ours, array, formula = (
            seconds[name] / calls * 1e6 for name in ("ours", "array", "formula")
        )
        table.append([count, ours, array, formula, ours / array, ours / formula])
    header = [
        "plateaus",
        "curve(int)",
        "curve(array)",
        "math.cos",
        "ratio to array",
        "ratio to math.cos",
    ]
    show("Python, peak * curve(step) in a loop: µs a step", header, table)


def construction(counts: list[int], rounds: int) -> None:
    totals = (10**4, 10**6, 10**8, 2 * 10**9)
    times, with_table, memory = [], [], []

    def build_table(count: int, total: int) -> None:
        curve_with(count, total)(0)  # a table is built when the curve is first evaluated

    for count in counts:
        builds = {total: partial(curve_with, count, total) for total in totals}
        tables = {total: partial(build_table, count, total) for total in totals}
        seconds = medians(5 * rounds, builds)
        last_to_first = seconds[totals[-1]] / seconds[totals[0]]
        times.append([count, *(seconds[total] * 1e3 for total in totals), last_to_first])
        seconds = medians(5 * rounds, tables)
        last_to_first = seconds[totals[-1]] / seconds[totals[0]]
        with_table.append([count, *(seconds[total] * 1e3 for total in totals), last_to_first])
        memory.append([count, *(peak_memory(tables[total]) / 1024 for total in totals)])
    scaled = medians(5 * rounds, {"scaled": partial(DOUBLINGS.scale, COSINE, 1, reference=1)})[
        "scaled"
    ]
    show("Construction, a curve scaled for 12 doublings: ms", ["ms"], [[scaled * 1e3]])
    header = ["plateaus", *(f"{total:.0e} steps" for total in totals)]
    show("Construction, the curve: ms", [*header, "last to first"], times)
    show("Construction, the curve and its table: ms", [*header, "last to first"], with_table)
    show("Construction, most memory in use: KiB", header, memory)


COSINE = PlateauCurve(TOTAL)
DOUBLINGS = BatchPlan.seesaw(COSINE, 1, unit=1, largest=2**12)


def peak_memory(call: Callable[[], object]) -> int:
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


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
    counts = [0, 2] if quick else [0, 2, 10, 100]
    in_jax(counts if quick else [*counts, 300], rounds)
    kinds = of_other_kinds()
    if quick:  # compiling takes a second per shape, and each shape has its own tests
        kinds = {name: kinds[name] for name in ("cosine", "all four shapes")}
    in_jax_by_kind(kinds, rounds)
    of_tables(counts, rounds)
    of_parts(["cosine"] if quick else ["cosine", "linear", "all four shapes"], rounds)
    in_jax_with_holds(rounds)
    in_torch(rounds)
    in_numpy(counts, rounds)
    on_comparisons(rounds)
    if quick:
        on_tensors(["cosine"], [1024], rounds)
    else:
        on_tensors(["cosine", "all four shapes"], [1, 1024, 1 << 20], rounds)
    one_step(counts, rounds)
    construction(counts, rounds)


if __name__ == "__main__":
    main()
