"""Functions of the step in JAX, and `scale_by_curve`."""

import jax.numpy as jnp
import numpy as np
from support.surface.limits import varied

from plateau_jax import (
    BatchPlan,
    DataClock,
    HoldUntilFlat,
    StagedCurve,
    multiplier,
    optax_schedule,
    scale_by_curve,
    stack,
)

curve = StagedCurve([(10, 1.0), (50,), (40, 0.0)])
plan = BatchPlan([(0, 8), (80, 16)])
scaled_curve = plan.scale(curve, 8, reference=16)

# Functions of the step.
schedule = optax_schedule(curve, 0.1)
every_k = plan.every_k_schedule(4)

multiplier(curve.table, 10)  # float32 jax.Array of shape ()
multiplier(curve.table, jnp.arange(3))  # float32 jax.Array of shape (3,)
multiplier(curve.table, 0.5)  # raises TypeError
multiplier(stack([curve, curve]), 10)  # raises TypeError
optax_schedule(scaled_curve, 0.1)  # raises ValueError
optax_schedule(curve, "0.1")  # raises TypeError
optax_schedule(None, 0.1)  # raises TypeError
schedule(10)  # float32 jax.Array of shape ()
schedule(np.array([10, 20]))  # float32 jax.Array of shape (2,)
schedule(0.5)  # raises TypeError
plan.every_k_schedule(3)  # raises ValueError
every_k(10)  # np.int32
every_k(jnp.int32(10))  # int32 jax.Array of shape ()
every_k(0.5)  # raises TypeError

# The transformation.
updates = jnp.ones(2)
counted = scale_by_curve(curve, 0.1, DataClock(8, count=4))
uncounted = scale_by_curve(curve, 0.1, DataClock(8))
held = scale_by_curve(curve, 0.1, HoldUntilFlat(3, limit=9))
state = counted.init(updates)

scale_by_curve(curve, 0.1)  # GradientTransformationExtraArgs
scale_by_curve(curve, 0.1, "tokens")  # raises TypeError
scale_by_curve(curve, 0.1, DataClock(varied(8)))  # 1 … 1073741824, else ValueError
scale_by_curve(curve, 0.1, DataClock(8, varied(8)))  # 1 … 1073741824, else ValueError
scale_by_curve(scaled_curve, 0.1)  # GradientTransformationExtraArgs
scale_by_curve(scaled_curve, 0.1, DataClock(16))  # raises ValueError
counted.init(updates)  # CountedCurveState
counted.update(updates, state)  # tuple[CountedCurveState | float32 jax.Array]
held.update(updates, state)  # raises ValueError
uncounted.update(updates, state)  # raises TypeError
uncounted.update(updates, state, count=varied(8))  # 0 … 1073741824, else ValueError
