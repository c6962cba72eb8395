"""All that this package takes from `plateau_jax`."""

import plateau_jax
from plateau_jax import Curve, PlateauCurve, Segments, StagedCurve, checks, stack
from plateau_jax.arithmetic import Operations
from plateau_jax.arithmetic import multiply as multiply_levels
from plateau_jax.curve_warning import at_this_line, silent, warn
from plateau_jax.decision import HOST, decide, start
from plateau_jax.fixed_point import CHUNK
from plateau_jax.fixed_point import evaluate as evaluate_table
from plateau_jax.holds import Rule, rules_of
from plateau_jax.segments import joined as decode_table

__all__ = [
    "CHUNK",
    "HOST",
    "NAMES_OF_PLATEAU_JAX",
    "Curve",
    "Operations",
    "PlateauCurve",
    "Rule",
    "Segments",
    "StagedCurve",
    "at_this_line",
    "checks",
    "decide",
    "decode_table",
    "evaluate_table",
    "multiply_levels",
    "rules_of",
    "silent",
    "stack",
    "start",
    "warn",
]

NAMES_OF_PLATEAU_JAX = {*plateau_jax.__all__, *plateau_jax._LAZY}
"""Its public names; those that need JAX too, whether JAX is installed or not."""
