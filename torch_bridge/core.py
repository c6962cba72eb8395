"""All that this package takes from `plateau_jax`."""

from plateau_jax import Curve, PlateauCurve, checks
from plateau_jax.curve_warning import silent, warn
from plateau_jax.decision import HOST, decide, start
from plateau_jax.fixed_point import CHUNK
from plateau_jax.holds import Rule, rules_of

__all__ = [
    "CHUNK",
    "HOST",
    "Curve",
    "PlateauCurve",
    "Rule",
    "checks",
    "decide",
    "rules_of",
    "silent",
    "start",
    "warn",
]
