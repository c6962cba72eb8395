"""What this package takes from `plateau_jax`: everything passes through here."""

from plateau_jax import Curve, PlateauCurve, checks
from plateau_jax.curve import CHUNK

__all__ = ["CHUNK", "Curve", "PlateauCurve", "checks"]
