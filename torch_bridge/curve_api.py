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
from plateau_jax.curves.curve import AnyCurve, as_curves
from plateau_jax.curves.serialization import CURVE_CLASSES
from plateau_jax.lazy_names import attach
from plateau_jax.runs.comparison import compare_with_saved, one_if_equal, schedules_of
from plateau_jax.runs.host_clock import HoldClock, UpdateClock, new_clock
from plateau_jax.runs.policy import FOLLOWER, state_policy
from plateau_jax.runs.record import dump_records, read_records, shortest_decimal, shortest_decimals
from plateau_jax.runs.saved_run import (
    Position,
    SavedRun,
    States,
    check_length,
    check_peaks,
    dump_hold_states,
    initial_states,
    position_after,
    position_on,
    read_saved_run,
)
from plateau_jax.runs.values_ahead import ValuesAhead
from plateau_jax.saved_states.formats import (
    NEWER,
    Format,
    describe_error,
    is_of_newer_version,
    without_defaults,
)
from plateau_jax.saved_states.state_errors import reading_state_of
from plateau_jax.table.evaluation import (
    Operations,
    Table,
    evaluate as evaluate_table,
    find_rows,
    join_words,
)

__all__ = [
    "FOLLOWER",
    "MAX_CONSUMED",
    "MAX_COUNT",
    "NEWER",
    "VALUE_CLASSES",
    "AnyClock",
    "AnyCurve",
    "CheckedClock",
    "Curve",
    "Format",
    "HoldClock",
    "Operations",
    "Position",
    "Rule",
    "SavedRun",
    "States",
    "Table",
    "UpdateClock",
    "ValuesAhead",
    "as_curves",
    "attach",
    "check_clock",
    "check_length",
    "check_peaks",
    "checks",
    "compare_with_saved",
    "decide",
    "describe_error",
    "dump_hold_states",
    "dump_records",
    "evaluate_table",
    "find_rows",
    "initial_states",
    "is_of_newer_version",
    "join_words",
    "new_clock",
    "one_if_equal",
    "position_after",
    "position_on",
    "read_records",
    "read_saved_run",
    "reading_state_of",
    "schedules_of",
    "shortest_decimal",
    "shortest_decimals",
    "stack",
    "state_policy",
    "warn",
    "without_defaults",
]

VALUE_CLASSES: list[Any] = [*CURVE_CLASSES.values(), BatchPlan, *CLOCKS.values()]
"""The classes of curves, clocks, rules and batch plans, whose pickles contain only plain values."""
