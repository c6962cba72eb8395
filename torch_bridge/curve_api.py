"""Everything that this package imports from `plateau_jax`."""

from typing import Any

from plateau_jax import BatchPlan, Curve, stack
from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import (
    CLOCKS,
    MAX_CONSUMED,
    MAX_COUNT,
    AnyClock,
    CheckedClock,
    check_clock,
)
from plateau_jax.clocks.decision import decide
from plateau_jax.clocks.known_rules import Rule
from plateau_jax.clocks.position import (
    Position,
    advance_on_host,
    dump_position,
    position_after,
    start,
)
from plateau_jax.curves.curve import AnyCurve
from plateau_jax.curves.serialization import CURVE_CLASSES
from plateau_jax.curves.several_curves import as_curves
from plateau_jax.lazy_names import attach
from plateau_jax.runs.comparison import Owner, one_if_equal, schedules_of
from plateau_jax.runs.record import dump_records, shortest_decimal
from plateau_jax.runs.resume import resume
from plateau_jax.runs.values_ahead import ValuesAhead
from plateau_jax.saved_states.formats import (
    Format,
    check_entries,
    is_of_different_version,
    reading_state_of,
)
from plateau_jax.table.evaluation import (
    Operations,
    Table,
    evaluate as evaluate_table,
    find_rows,
    join_words,
)

__all__ = [
    "MAX_CONSUMED",
    "MAX_COUNT",
    "VALUE_CLASSES",
    "AnyClock",
    "AnyCurve",
    "CheckedClock",
    "Curve",
    "Format",
    "Operations",
    "Owner",
    "Position",
    "Rule",
    "Table",
    "ValuesAhead",
    "advance_on_host",
    "as_curves",
    "attach",
    "check_clock",
    "check_entries",
    "checks",
    "decide",
    "dump_position",
    "dump_records",
    "evaluate_table",
    "find_rows",
    "is_of_different_version",
    "join_words",
    "one_if_equal",
    "position_after",
    "reading_state_of",
    "resume",
    "schedules_of",
    "shortest_decimal",
    "stack",
    "start",
    "warn",
]

VALUE_CLASSES: list[Any] = [*CURVE_CLASSES.values(), BatchPlan, *CLOCKS.values()]
"""The classes of curves, clocks, rules and batch plans, whose pickles contain only plain values."""
