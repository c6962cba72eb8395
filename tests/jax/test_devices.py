"""`optax_schedule`, `multiplier` and `scale_by_curve` over several devices."""

import os
import re
import shutil
import socket
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from support.docs.pages import ROOT, sections
from support.jax.jax_cases import MANY, NESTED, STEPS, assert_equal_bits, product, x64_both_ways

from plateau_jax import (
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    multiplier,
    optax_schedule,
    scale_by_curve,
)

pytestmark = pytest.mark.slow

both_kinds = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
CURVES = NESTED, MANY  # one for each row search
SHAPED = STEPS.reshape(256, 4)


def mesh_of(kind):
    return jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices("cpu")[:4])


# Each pair of settings occurs; all combinations would compile twice as much.
@pytest.mark.parametrize(
    ("spec", "kind", "x64"),
    [
        (P("data"), AxisType.Auto, False),
        (P("data"), AxisType.Explicit, True),
        (P(), AxisType.Auto, True),
        (P(), AxisType.Explicit, False),
        (P(None, "data"), AxisType.Auto, False),
        (P(None, "data"), AxisType.Explicit, True),
    ],
    ids=str,
)
def test_steps_may_span_several_devices(spec, kind, x64):
    mesh = mesh_of(kind)
    sharded = jax.device_put(SHAPED, NamedSharding(mesh, spec))
    with jax.enable_x64(x64):
        schedules = [optax_schedule(curve, 0.1) for curve in CURVES]
        wanted = [product(curve, 0.1, SHAPED) for curve in CURVES]

        # Compiled together, which is faster than one by one.
        @jax.jit
        def compiled(tables, steps):
            mapped = (jax.shard_map(rates, mesh=mesh, in_specs=spec, out_specs=spec) for rates in schedules)
            return (
                [rates(steps) for rates in schedules],
                [rates(steps) for rates in mapped],
                [multiplier(table, steps) for table in tables],
            )

        one = jax.device_put(np.int32(777), NamedSharding(mesh, P()))
        for rates, curve in zip(schedules, CURVES, strict=True):
            assert_equal_bits(rates(one), product(curve, 0.1, 777))
        eager = [rates(sharded) for rates in schedules]
        plain, mapped, multipliers = compiled([curve.table for curve in CURVES], sharded)
        for actual in (eager, plain, mapped):
            for rates, expected in zip(actual, wanted, strict=True):
                assert rates.sharding.is_equivalent_to(sharded.sharding, 2)
                assert_equal_bits(rates, expected)
        for actual, curve in zip(multipliers, CURVES, strict=True):
            assert_equal_bits(actual, curve(SHAPED))
        with jax.set_mesh(mesh):
            vectorised = jax.jit(lambda steps: [jax.vmap(rates)(steps) for rates in schedules])(sharded)
            on_host = [rates(SHAPED) for rates in schedules]
        for rates, expected in zip([*vectorised, *on_host], wanted * 2, strict=True):
            assert_equal_bits(rates, expected)


@x64_both_ways
@both_kinds
def test_shard_map_may_cover_some_axes_of_mesh(x64, kind):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])
    with jax.enable_x64(x64):
        sharded = jax.device_put(SHAPED, NamedSharding(mesh, P("a", "b")))
        calls, wanted = [], []
        for curve in CURVES:
            calls += [optax_schedule(curve, 0.1), partial(multiplier, curve.table)]
            wanted += [product(curve, 0.1, SHAPED), curve(SHAPED)]
        mapped = [
            jax.shard_map(call, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
            for call in calls
        ]
        values = jax.jit(lambda steps: [call(steps) for call in mapped])(sharded)
        for actual, expected in zip(values, wanted, strict=True):
            assert_equal_bits(actual, expected)


@both_kinds
def test_loss_of_all_devices_decides(kind):
    """A run on several devices has the steps of a run on one device."""
    mesh, params = mesh_of(kind), jnp.ones((8, 2))
    curve = StagedCurve([(2, 1), (3,), (4, 0.5), (4,), (9, 0)])
    rules = [HoldUntilFlat(2, every=2, limit=9), HoldBelow(0.2, 3)]
    scales = np.random.default_rng(5).random(30, np.float32)
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(curve, 0.3, rules))

    def rates(params, loss_of=jnp.mean):
        def update(state, scale):
            _, state = optimizer.update(params, state, params, value=loss_of(params * scale))
            return state, (state[1].curve_step, state[1].learning_rate)

        return jax.lax.scan(update, optimizer.init(params), scales)[1]

    curve_steps, wanted = jax.jit(rates)(params)
    assert_equal_bits(wanted, product(curve, 0.3, np.append(0, curve_steps[:-1])))
    assert len(set(curve_steps.tolist())) < 25
    sharded = jax.device_put(params, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        _, actual = jax.jit(rates)(sharded)
    assert_equal_bits(actual, np.asarray(wanted))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
    def mapped(part):
        return rates(part, lambda part: jax.lax.pmean(part.mean(), "data"))[1]

    assert_equal_bits(mapped(sharded), np.asarray(wanted))


# Several JAX processes: the program of `docs/jax.md`, in two processes on CPUs.

UNIT, CURVE = 512, PlateauCurve(40, warmup_steps=4, plateaus=[(0, 60)])
COUNT = "tokens = lengths.sum()  # of all processes"
OF_THIS_PROCESS = f"tokens = np.int32({UNIT} + 64 * jax.process_index())"
"""A number from the host, for the count of the global batch."""


def run(folder, changes=()):
    """Run the program with some code replaced; return what both processes printed, and their errors."""
    (blocks,) = (part.blocks for part in sections(ROOT / "docs" / "jax.md") if "multi-host" in part.heading)
    (source,) = (block.code for block in blocks if block.language == "py")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for old, new in (("localhost:9911", f"localhost:{port}"), *changes):
        assert old in source, old
        source = source.replace(old, new)
    (folder / "program.py").write_text(source, encoding="utf-8")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "XLA_FLAGS": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "program.py", str(rank)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()  # JAX catches SIGTERM
    # The threads of Gloo print too, and mix their lines.
    printed = [[line for line in output.splitlines() if line.startswith("update")] for output, _ in outputs]
    return printed, [errors for _, errors in outputs]


def consumed(updates):
    """Return the tokens of both processes in these updates, drawn as in the program."""
    total = 0
    for update in range(1, updates + 1):
        for rank in range(2):
            random = np.random.default_rng([update, rank])
            random.normal(size=(32, 8))
            total += int(random.integers(1, 16, 32, np.int32).sum())
    return total


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (printed, other), errors = run(folder)
    assert printed == other, errors
    return folder, printed


def test_processes_share_the_step_of_their_sum(uninterrupted):
    _, printed = uninterrupted
    assert len(printed) == 5
    for update, line in zip((10, 20, 30, 40), printed, strict=False):
        lr = float(np.float32(0.1) * np.float32(CURVE(consumed(update - 1) // UNIT)))
        assert line.endswith(f"step {consumed(update) // UNIT}, lr {lr}")


def test_resumed_processes_match_uninterrupted(uninterrupted, tmp_path):
    folder, printed = uninterrupted
    shutil.copytree(folder / "saved_processes" / "20", tmp_path / "saved_processes" / "20")
    resumed, errors = run(tmp_path)
    assert [lines[:2] for lines in resumed] == [printed[2:4]] * 2, errors


def test_every_process_rejects_a_different_unit(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0] / "saved_processes", tmp_path / "saved_processes")
    printed, errors = run(tmp_path, [("DataClock(512)", "DataClock(256)")])
    assert printed == [[], []]
    different = "saved with clock=DataClock(unit=512), now DataClock(unit=256)"
    assert all(different in error for error in errors), errors


def test_counts_that_differ_are_noticed_before_a_save(tmp_path):
    printed, errors = run(tmp_path, [(COUNT, OF_THIS_PROCESS)])
    steps = [re.findall(r"step (\d+)", "\n".join(lines)) for lines in printed]
    assert steps == [["10", "20"], ["11", "22"]]
    assert all("each process passed a different count=" in error for error in errors), errors
    assert not list((tmp_path / "saved_processes").glob("[0-9]*"))
