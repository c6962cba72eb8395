"""What a curve can do, and the numbers that it accepts."""

from contextlib import suppress

import jax.numpy as jnp
import numpy as np
from support.surface.limits import varied

from plateau_jax import StagedCurve, compare, stack

curve = StagedCurve([(10, 1.0), (50,), (40, 0.0)])

curve(10)  # float
curve(np.int64(10))  # float
curve([10, 20])  # float32 array of shape (2,)
curve(np.arange(3))  # float32 array of shape (3,)
curve(np.array(10))  # np.float32
curve(10.0)  # raises TypeError
curve(jnp.int32(10))  # raises TypeError
curve.learning_rate(10, 0.1)  # float
curve.learning_rate([10, 20], 0.1)  # float32 array of shape (2,)
curve.learning_rate(10, 0)  # float
curve.learning_rate(10, "0.1")  # raises TypeError
curve.learning_rate(varied(10), 0.1)  # …
curve.learning_rate(10, varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError
curve.same_until(curve, 10)  # bool
curve.same_until(curve, 0.5)  # raises TypeError
curve.same_until(curve, varied(10))  # 0 …, else ValueError
curve.first_difference(curve)  # None
curve.first_difference(curve.part(0, 50))  # int
curve.first_difference(None)  # raises TypeError
curve.describe()  # str
curve.to_dict()  # dict of staged
curve.to_source()  # str
curve.to_source(0.1)  # str
curve.to_source("0.1")  # raises TypeError
curve.to_source(varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError
curve.table.begin  # int32 array of shape (16,)

# Derived curves.
curve.cooldown(50, 10)  # Curve
curve.cooldown(50, 0.5)  # raises TypeError
curve.cooldown(50, 10, shape="square")  # raises ValueError
curve.cooldown(varied(50), 10)  # 0 … 2147483637, else ValueError
curve.cooldown(50, varied(10))  # 1 … 2147483597, else ValueError
curve.cooldown(50, 10, to=varied(0.5))  # 0.0 … 1.0, else ValueError
curve.then(curve)  # Curve
curve.then({"kind": "plateau", "total_steps": 10})  # Curve
curve.then(10)  # raises TypeError
curve.then(curve, scale=varied(0.5))  # 5e-324 … 1.0, else ValueError
curve.part(10)  # Curve
curve.part(10).to_dict()["stop"]  # 100
curve.part(0.5)  # raises TypeError
curve.part(varied(50))  # 0 … 99, else ValueError
curve.part(50, varied(60))  # 51 … 100, else ValueError

# Parts of parts.
depth = 0
part = curve
with suppress(ValueError):
    while True:
        part = part.part()
        depth += 1

depth  # 64

# Averaging weights.
curve.merge_weights([30, 60, 90])  # float64 array of shape (3,)
curve.merge_weights([0.5, 1.5])  # raises TypeError
curve.merge_weights([60, 90, 120], mean_of=30)  # float64 array of shape (3,)
curve.merge_weights([60, 100], mean_of=[30, 40])  # float64 array of shape (2,)
curve.merge_weights([100], mean_of="70")  # raises TypeError
curve.merge_weights([varied(30), 60])  # 10 … 59, else ValueError
curve.merge_weights([30, varied(60)])  # 31 … 2147483647, else ValueError
curve.merge_weights([varied(120)], mean_of=90)  # 100 … 150, else ValueError
curve.merge_weights([120], mean_of=varied(90))  # 60 … 110, else ValueError

# Several curves.
stack([curve, curve])  # NamedTuple
stack([curve, curve]).begin  # int32 array of shape (2, 16)
stack([])  # raises ValueError
stack(curve)  # raises TypeError
compare(curve, curve.part(0, 50))  # Comparison
compare()  # raises ValueError
compare(10)  # raises TypeError
