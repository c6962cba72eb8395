"""The JAX edge over several devices."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.jax_cases import CURVE, STEPS, assert_equal_bits, both_searches, product, x64_both_ways

from plateau_jax import multiplier, optax_schedule


def mesh_of(kind):
    return jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices("cpu")[:4])


@x64_both_ways
@both_searches
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [P("data"), P(), P(None, "data")], ids=str)
def test_steps_over_several_devices(x64, curve, kind, spec):
    steps = STEPS.reshape(256, 4)
    with jax.enable_x64(x64):
        wanted = product(curve, 0.1, steps, x64)
        mesh = mesh_of(kind)
        sharded = jax.device_put(steps, NamedSharding(mesh, spec))
        schedule = optax_schedule(curve, 0.1)
        mapped = jax.shard_map(schedule, mesh=mesh, in_specs=spec, out_specs=spec)
        for call in (schedule, jax.jit(schedule), jax.jit(mapped)):
            rates = call(sharded)
            assert rates.sharding.is_equivalent_to(sharded.sharding, 2)
            assert_equal_bits(rates, wanted)
        assert_equal_bits(jax.jit(multiplier)(curve.segments, sharded), curve(steps))
        with jax.set_mesh(mesh):
            assert_equal_bits(jax.jit(jax.vmap(schedule))(sharded), wanted)
            assert_equal_bits(schedule(steps), wanted)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_one_step_over_several_devices(kind):
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
@both_searches
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_shard_map_over_some_axes_of_a_mesh(x64, curve, kind):
    steps = STEPS.reshape(256, 4)
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])
    with jax.enable_x64(x64):
        sharded = jax.device_put(steps, NamedSharding(mesh, P("a", "b")))
        for call, wanted in (
            (optax_schedule(curve, 0.1), product(curve, 0.1, steps, x64)),
            (partial(multiplier, curve.segments), curve(steps)),
        ):
            mapped = jax.shard_map(call, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
            assert_equal_bits(jax.jit(mapped)(sharded), wanted)
