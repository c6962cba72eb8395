"""Everything that this package imports from `plateau_jax`."""

from typing import Any

from plateau_jax import BatchPlan, Curve, stack
from plateau_jax.clocks.clock import (
    CLOCKS,
    MAX_CONSUMED,
    MAX_COUNT,
    AnyClock,
    CheckedClock,
    check_clock,
    check_consumed,
)
from plateau_jax.clocks.decision import HOST, decide, initial_state
from plateau_jax.clocks.known_rules import Rule
from plateau_jax.clocks.resume import (
    Record,
    describe_clock_difference,
    describe_curve_difference,
    describe_peak_difference,
    dump_record,
    read_curve,
    read_record,
    shortest_decimal,
)
from plateau_jax.curves.curve import AnyCurve, as_curves
from plateau_jax.curves.serialization import CURVE_CLASSES
from plateau_jax.numerics.arithmetic import Operations, multiply as multiply_levels
from plateau_jax.table.fixed_point import CHUNK, evaluate as evaluate_table
from plateau_jax.table.segments import Segments, decode_table
from plateau_jax.validation import checks, lazy_names
from plateau_jax.validation.curve_warning import warn
from plateau_jax.validation.formats import Format, describe_error, describe_unknown

__all__ = [
    "CHUNK",
    "HOST",
    "MAX_CONSUMED",
    "MAX_COUNT",
    "VALUE_CLASSES",
    "AnyClock",
    "AnyCurve",
    "CheckedClock",
    "Curve",
    "Format",
    "Operations",
    "Record",
    "Rule",
    "Segments",
    "as_curves",
    "check_clock",
    "check_consumed",
    "checks",
    "decide",
    "decode_table",
    "describe_clock_difference",
    "describe_curve_difference",
    "describe_error",
    "describe_peak_difference",
    "describe_unknown",
    "dump_record",
    "evaluate_table",
    "initial_state",
    "lazy_names",
    "multiply_levels",
    "read_curve",
    "read_record",
    "shortest_decimal",
    "stack",
    "warn",
]

VALUE_CLASSES: list[Any] = [*CURVE_CLASSES.values(), BatchPlan, *CLOCKS.values()]
"""The classes of curves, clocks, rules and batch plans, whose pickles hold only plain values."""
