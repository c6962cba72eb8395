"""`optax_schedule` and `multiplier` over several devices."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from support.jax.jax_cases import (
    CURVE,
    MANY,
    NESTED,
    STEPS,
    assert_equal_bits,
    both_searches,
    product,
    x64_both_ways,
)

from plateau_jax import multiplier, optax_schedule

pytestmark = pytest.mark.slow


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
    steps = STEPS.reshape(256, 4)
    mesh = mesh_of(kind)
    sharded = jax.device_put(steps, NamedSharding(mesh, spec))
    curves = NESTED, MANY  # one for each row search
    with jax.enable_x64(x64):
        schedules = [optax_schedule(curve, 0.1) for curve in curves]
        wanted = [product(curve, 0.1, steps, x64) for curve in curves]

        # Compiled together, which is faster than one by one.
        @jax.jit
        def compiled(tables, steps):
            mapped = (jax.shard_map(rates, mesh=mesh, in_specs=spec, out_specs=spec) for rates in schedules)
            return (
                [rates(steps) for rates in schedules],
                [rates(steps) for rates in mapped],
                [multiplier(table, steps) for table in tables],
            )

        eager = [rates(sharded) for rates in schedules]
        plain, mapped, multipliers = compiled([curve.segments for curve in curves], sharded)
        for actual in (eager, plain, mapped):
            for rates, expected in zip(actual, wanted, strict=True):
                assert rates.sharding.is_equivalent_to(sharded.sharding, 2)
                assert_equal_bits(rates, expected)
        for actual, curve in zip(multipliers, curves, strict=True):
            assert_equal_bits(actual, curve(steps))
        with jax.set_mesh(mesh):
            vectorised = jax.jit(lambda steps: [jax.vmap(rates)(steps) for rates in schedules])(sharded)
        for rates, expected in zip(vectorised, wanted, strict=True):
            assert_equal_bits(rates, expected)


@x64_both_ways
@both_searches
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_host_steps_work_with_a_mesh(x64, curve, kind):
    steps = STEPS.reshape(256, 4)
    with jax.enable_x64(x64), jax.set_mesh(mesh_of(kind)):
        assert_equal_bits(optax_schedule(curve, 0.1)(steps), product(curve, 0.1, steps, x64))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_one_step_runs_on_several_devices(kind):
    mesh = mesh_of(kind)
    step = jax.device_put(np.int32(777), NamedSharding(mesh, P()))
    schedule = optax_schedule(CURVE, 0.1)
    for call in (
        schedule,
        jax.jit(schedule),
        jax.shard_map(schedule, mesh=mesh, in_specs=P(), out_specs=P()),
    ):
        assert_equal_bits(call(step), product(CURVE, 0.1, 777, False))


@x64_both_ways
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_may_cover_some_axes_of_mesh(x64, kind):
    steps = STEPS.reshape(256, 4)
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])
    with jax.enable_x64(x64):
        sharded = jax.device_put(steps, NamedSharding(mesh, P("a", "b")))
        calls, wanted = [], []
        for curve in (NESTED, MANY):
            calls += [optax_schedule(curve, 0.1), partial(multiplier, curve.segments)]
            wanted += [product(curve, 0.1, steps, x64), curve(steps)]
        mapped = [
            jax.shard_map(call, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
            for call in calls
        ]
        for actual, expected in zip(
            jax.jit(lambda steps: [call(steps) for call in mapped])(sharded), wanted, strict=True
        ):
            assert_equal_bits(actual, expected)
