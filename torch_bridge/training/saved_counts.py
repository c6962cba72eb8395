"""Where a saved training stands, for a clock of this unit."""

from collections.abc import Mapping
from typing import Any

from torch_bridge.schedulers.unit_clocks import consumed_at, saved_clock
from torch_bridge.training.clock import Counts


def counts_in(state: Mapping[str, Any], unit: int | None, strict: bool = True) -> Counts:
    """The counts in a state of a `TrainStep`.

    With `strict=False` a clock of another unit goes on at the saved step of the curve: what was consumed is
    then that step times the unit, or as many updates.

    Raises:
        KeyError, TypeError, ValueError: They are no counts, or, with `strict`, of a clock of another unit.
    """
    applied, skipped = state["applied"], state["skipped"]
    saved, clock, consumed = saved_clock(state, applied, unit, strict, "TrainStep")
    if unit is None:
        if saved is not None:
            applied = clock
        return Counts(applied, skipped, clock, applied)
    return Counts(applied, skipped, clock, consumed if saved == unit else consumed_at(clock, unit))
