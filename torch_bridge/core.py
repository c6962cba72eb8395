"""All that this package takes from `plateau_jax`."""

from plateau_jax import Curve, PlateauCurve, checks
from plateau_jax.curve_warning import at_this_line, silent, warn
from plateau_jax.decision import HOST, decide, start
from plateau_jax.fixed_point import CHUNK
from plateau_jax.holds import Rule, rules_of

__all__ = [
    "CHUNK",
    "HOST",
    "Curve",
    "PlateauCurve",
    "Rule",
    "at_this_line",
    "checks",
    "decide",
    "rules_of",
    "silent",
    "start",
    "warn",
]
