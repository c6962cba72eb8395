"""What this package takes from `plateau_jax`: everything passes through here."""

from plateau_jax import PlateauCurve, checks
from plateau_jax.curve import CHUNK, CurveArguments

__all__ = ["CHUNK", "CurveArguments", "PlateauCurve", "checks"]
