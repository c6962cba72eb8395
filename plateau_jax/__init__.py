"""A learning-rate curve with warmup, cosine decay and plateaus: the same bits in every framework.

`PlateauCurve` describes the curve and needs only NumPy. Names that need JAX import it on first use;
`from plateau_jax import *` includes them if JAX is installed.
"""

# Each kind of curve registers itself, so that `Curve.from_dict` and `Curve.cooldown` find it.
from plateau_jax.curves import (
    derived_curves as derived_curves,
    plateau_curve as plateau_curve,
    scaled_curve as scaled_curve,
    staged_curve as staged_curve,
)
from plateau_jax.validation import lazy_names

__all__, __getattr__, __dir__ = lazy_names.attach(
    __name__,
    "jax",
    {"plateau_jax.schedules.schedule": "jax", "plateau_jax.schedules.transformation": "optax"},
)
