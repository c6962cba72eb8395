"""Where a saved training stands, for a clock of this unit."""

from collections.abc import Mapping
from typing import Any

from torch_bridge.core import checks
from torch_bridge.schedulers.resume import clock_in, way_out
from torch_bridge.training.clock import MOST_CONSUMED, Counts


def counts_in(state: Mapping[str, Any], unit: int | None, strict: bool = True) -> Counts:
    """The counts in a state of a `TrainStep`.

    With `strict=False` a clock of another unit goes on at the saved step of the curve: what was consumed is
    then that step times the unit, or as many updates.

    Raises:
        TypeError, ValueError: They are no counts, or, with `strict`, of a clock of another unit.
    """
    applied, skipped, saved = state["applied"], state["skipped"], state.get("unit")
    if saved is None:
        clock, consumed = clock_in(state, applied), applied
    else:
        consumed = checks.at_least("consumed", state["consumed"], 0)
        clock = consumed // checks.at_least("unit", saved, 1)
        if consumed > MOST_CONSUMED or state["clock"] != clock:
            raise ValueError(
                f"state_dict has clock = {state['clock']!r} with consumed = {consumed} and unit = {saved}"
            )
    if saved == unit:
        return Counts(applied, skipped, clock, consumed)
    if strict:
        raise ValueError(
            f"state_dict was saved with unit = {saved}, and this step has unit = {unit}: build it with "
            f"unit={saved}, or {way_out('TrainStep')}, to go on at the saved step of the curve"
        )
    if clock * (unit or 1) > MOST_CONSUMED:
        raise ValueError(f"state_dict has clock = {clock}, too far for unit = {unit}")
    return Counts(clock if unit is None else applied, skipped, clock, clock * (unit or 1))
