"""`optax_schedule`, `multiplier` and `scale_by_curve` over several devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from support.jax.jax_cases import MANY, NESTED, STEPS, assert_equal_bits, product, x64_both_ways

from plateau_jax import HoldBelow, HoldUntilFlat, StagedCurve, multiplier, optax_schedule, scale_by_curve

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
        wanted = [product(curve, 0.1, SHAPED, x64) for curve in CURVES]

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
            assert_equal_bits(rates(one), product(curve, 0.1, 777, x64))
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
            wanted += [product(curve, 0.1, SHAPED, x64), curve(SHAPED)]
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
    assert_equal_bits(wanted, product(curve, 0.3, np.append(0, curve_steps[:-1]), False))
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
