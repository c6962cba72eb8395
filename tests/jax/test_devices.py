"""`optax_schedule`, `multiplier` and `scale_by_curve` over several devices."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from support.docs.pages import ROOT, sections, without_losses
from support.jax.jax_cases import MANY, NESTED, STEPS, assert_equal_bits, product
from support.programs import Program, free_port

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
    devices = jax.devices("cpu")[:4]
    return jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=devices)


SCHEDULES = [optax_schedule(curve, 0.1) for curve in CURVES]
TABLES = [curve.table for curve in CURVES]
LEARNING_RATES = [product(curve, 0.1, SHAPED) for curve in CURVES]
MULTIPLIERS = [curve(SHAPED) for curve in CURVES]


def of_schedules(steps):
    return [schedule(steps) for schedule in SCHEDULES]


def of_tables(tables, steps):
    return [multiplier(table, steps) for table in tables]


def by_vmap(steps):
    return [jax.vmap(schedule)(steps) for schedule in SCHEDULES]


def assert_all_equal(actual, expected):
    jax.tree.map(assert_equal_bits, actual, expected)


# Each pair of settings occurs; all combinations would compile twice as much.
@pytest.mark.parametrize(
    ("spec", "kind", "x64"),
    [
        (P("data"), AxisType.Auto, False),
        (P("data"), AxisType.Explicit, True),
        (P(), AxisType.Auto, True),
        (P(), AxisType.Explicit, False),
    ],
    ids=str,
)
def test_steps_may_span_several_devices(spec, kind, x64):
    mesh = mesh_of(kind)
    sharded = jax.device_put(SHAPED, NamedSharding(mesh, spec))
    step = jax.device_put(np.int32(777), NamedSharding(mesh, P()))
    mapped = jax.shard_map(of_schedules, mesh=mesh, in_specs=spec, out_specs=spec)

    # Compiled together, which is faster than one by one.
    @jax.jit
    def compiled(tables, steps):
        return of_schedules(steps), mapped(steps), of_tables(tables, steps)

    with jax.enable_x64(x64):
        lrs_of_step = [product(curve, 0.1, 777) for curve in CURVES]
        assert_all_equal(of_schedules(step), lrs_of_step)
        lrs = of_schedules(sharded)
        compiled_lrs, mapped_lrs, multipliers = compiled(TABLES, sharded)
        for lrs_of_curve in (*lrs, *compiled_lrs, *mapped_lrs):
            assert lrs_of_curve.sharding.is_equivalent_to(sharded.sharding, 2)
        assert_all_equal(lrs, LEARNING_RATES)
        assert_all_equal(compiled_lrs, LEARNING_RATES)
        assert_all_equal(mapped_lrs, LEARNING_RATES)
        assert_all_equal(multipliers, MULTIPLIERS)
        with jax.set_mesh(mesh):
            assert_all_equal(jax.jit(by_vmap)(sharded), LEARNING_RATES)
            assert_all_equal(of_schedules(SHAPED), LEARNING_RATES)


@pytest.mark.parametrize(("x64", "kind"), [(False, AxisType.Auto), (True, AxisType.Explicit)])
def test_shard_map_may_cover_some_axes_of_mesh(x64, kind):
    devices = jax.devices("cpu")[:4]
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind, kind), devices=devices)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    def mapped(steps):
        return of_schedules(steps), of_tables(TABLES, steps)

    with jax.enable_x64(x64):
        sharded = jax.device_put(SHAPED, NamedSharding(mesh, P("a", "b")))
        lrs, multipliers = mapped(sharded)
        assert_all_equal(lrs, LEARNING_RATES)
        assert_all_equal(multipliers, MULTIPLIERS)


@both_kinds
def test_loss_of_all_devices_decides(kind):
    """A run on several devices has the steps of a run on one device."""
    mesh = mesh_of(kind)
    params = jnp.ones((8, 2))
    curve = StagedCurve([(2, 1), (3,), (4, 0.5), (4,), (9, 0)])
    rules = [HoldUntilFlat(2, every=2, limit=9), HoldBelow(0.2, 3)]
    scales = np.random.default_rng(5).random(30, np.float32)
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(curve, 0.3, rules))

    def train(params, loss_of):
        """Return the step of the curve after each update, and its learning rate."""

        def update(state, scale):
            _, state = optimizer.update(params, state, params, value=loss_of(params * scale))
            _, curve_state = state
            return state, (curve_state.curve_step, curve_state.learning_rate)

        _, history = jax.lax.scan(update, optimizer.init(params), scales)
        return history

    @jax.jit
    def of_all_devices(params):
        return train(params, jnp.mean)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
    def of_each_device(params):
        return train(params, lambda losses: jax.lax.pmean(losses.mean(), "data"))

    curve_steps, lrs = of_all_devices(params)
    assert_equal_bits(lrs, product(curve, 0.3, np.append(0, curve_steps[:-1])))
    assert len(set(curve_steps.tolist())) < 25
    sharded = jax.device_put(params, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        _, lrs_of_all_devices = of_all_devices(sharded)
    assert_equal_bits(lrs_of_all_devices, np.asarray(lrs))
    _, lrs_of_each_device = of_each_device(sharded)
    assert_equal_bits(lrs_of_each_device, np.asarray(lrs))


# Several JAX processes: the program of `docs/jax.md`, in two processes on CPUs.

UNIT = 512
CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(0, 60)])
COUNT = "tokens = lengths.sum()  # of all processes"
COUNT_OF_ONE_PROCESS = f"tokens = np.int32({UNIT} + 64 * jax.process_index())"
"""A number from the host, for the count of the global batch."""


def section():
    """Return the section of `docs/jax.md` for several processes."""
    page = sections(ROOT / "docs" / "jax.md")
    (multi_host,) = (section for section in page if "multi-host" in section.heading)
    return multi_host


def run(folder, changes=()):
    """Run the program with some code replaced.

    Returns the lines about updates of each process, and what it has written to standard error.
    """
    (source,) = section().code_in("py")
    on_cpu = ("import jax\n", 'import jax\njax.config.update("jax_platforms", "cpu")\n')
    for old, new in (on_cpu, ("localhost:9911", f"localhost:{free_port()}"), *changes):
        assert old in source, old
        source = source.replace(old, new)
    file = folder / "program.py"
    file.write_text(source, encoding="utf-8")
    processes = [Program(file, rank, folder=folder) for rank in range(2)]
    outputs = []
    for process in processes:
        _, printed, errors = process.finish()
        # The threads of Gloo print too, and mix their lines.
        lines = [line for line in printed.splitlines() if line.startswith("update")]
        outputs.append((lines, errors))
    return outputs


def consumed(updates):
    """Return the tokens of both processes in these updates, drawn as in the program."""
    total = 0
    for update in range(1, updates + 1):
        for rank in range(2):
            random = np.random.default_rng([update, rank])
            random.normal(size=(32, 8))
            lengths = random.integers(1, 16, 32, np.int32)
            total += int(lengths.sum())
    return total


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of the checkpoints, and the lines that both processes print."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (lines, errors), (other_lines, other_errors) = run(folder)
    assert lines == other_lines, (errors, other_errors)
    return folder / "saved_processes", lines


def test_processes_share_the_step_of_their_sum(uninterrupted):
    _, lines = uninterrupted
    for update, line in zip((10, 20, 30, 40), lines, strict=True):
        curve_step = consumed(update) // UNIT
        used_step = consumed(update - 1) // UNIT
        lr = float(np.float32(0.1) * np.float32(CURVE(used_step)))
        assert line.endswith(f"step {curve_step}, lr {lr}")
    (shown,) = section().code_in("text")
    assert without_losses("\n".join([*lines, ""])) == without_losses(shown)


def test_resumed_processes_match_uninterrupted(uninterrupted, tmp_path):
    saved, lines = uninterrupted
    shutil.copytree(saved / "20", tmp_path / "saved_processes" / "20")
    for resumed_lines, errors in run(tmp_path):
        assert resumed_lines == lines[2:], errors


def steps_in(lines):
    return re.findall(r"step (\d+)", "\n".join(lines))


def test_counts_that_differ_are_noticed_before_a_save(tmp_path):
    (lines, errors), (other_lines, other_errors) = run(tmp_path, [(COUNT, COUNT_OF_ONE_PROCESS)])
    assert steps_in(lines) == ["10", "20"]
    assert steps_in(other_lines) == ["11", "22"]
    for printed in (errors, other_errors):
        assert "each process passed a different count=" in printed
    assert not list((tmp_path / "saved_processes").glob("[0-9]*"))
