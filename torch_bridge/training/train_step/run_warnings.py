"""The warnings about a `TrainStep` far past the end of its curves, or stuck at their start."""

from plateau_jax.arguments.curve_warning import warn
from torch_bridge.advice.position_warnings import end_message, stuck_message
from torch_bridge.training.device_clocks.device_clock import Clock, Counters

_STUCK_UPDATES = 20
"""After this many updates at learning rate 0, a unit seems too large."""


class RunWarnings:
    """Warns once about training past the end, and once about a unit that is too large.

    Args:
        clock: The clock on the device, whose counters are checked when they reach the host.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.start
        self._has_warned_of_end = False
        self._has_warned_of_unit = False

    def check(self, counters: Counters) -> None:
        """Warn if a warning is due."""
        clock = self._clock
        if clock.start is not self._start:
            self._start = clock.start
            # A saved run has warned if it was past the end.
            self._has_warned_of_end = bool(self._end_message(clock.start))
        if not any(clock.peaks):
            return
        if not self._has_warned_of_end:
            self._warn_if_past_end(counters)
        unit = clock.checked.unit
        if not self._has_warned_of_unit and unit is not None:
            self._warn_if_stuck(counters, unit)

    def _warn_if_past_end(self, counters: Counters) -> None:
        message = self._end_message(counters)
        if message:
            self._has_warned_of_end = True
            warn(message)

    def _warn_if_stuck(self, counters: Counters, unit: int) -> None:
        curve_step = counters.curve_step
        updates = counters.applied - self._start.applied
        has_moved = curve_step != self._start.curve_step
        if has_moved or updates < _STUCK_UPDATES or any(self._clock.lrs_at(curve_step)):
            return
        if curve_step >= max(curve.total_steps for curve in self._clock.curves):
            return
        self._has_warned_of_unit = True
        consumed = counters.consumed - self._start.consumed
        warn(f"after {updates} updates {stuck_message(curve_step, unit, consumed)}")

    def _end_message(self, counters: Counters) -> str:
        clock = self._clock
        unit = clock.checked.unit
        return end_message(
            clock.curves, unit, counters.curve_step, counters.applied, builder="TrainStep"
        )
