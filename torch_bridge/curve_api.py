"""Everything that this package imports from `plateau_jax`."""

from plateau_jax import Curve, stack
from plateau_jax.curves.curve import check_unit
from plateau_jax.curves.saved_curves import describe_difference, read_saved_curve
from plateau_jax.holds.decision import HOST, decide, initial_state
from plateau_jax.holds.rules import Rule, check_rules
from plateau_jax.numerics.arithmetic import Operations, multiply as multiply_levels
from plateau_jax.numerics.fixed_point import CHUNK, evaluate as evaluate_table
from plateau_jax.numerics.segments import Segments, decode_table
from plateau_jax.validation import checks, lazy_names
from plateau_jax.validation.curve_warning import warn

__all__ = [
    "CHUNK",
    "HOST",
    "Curve",
    "Operations",
    "Rule",
    "Segments",
    "check_rules",
    "check_unit",
    "checks",
    "decide",
    "decode_table",
    "describe_difference",
    "evaluate_table",
    "initial_state",
    "lazy_names",
    "multiply_levels",
    "read_saved_curve",
    "stack",
    "warn",
]
