"""The warnings of a `TrainStep`: at its start, far past the end of its curves, or stuck at 0."""

from collections.abc import Sequence

from torch.optim import Optimizer

from plateau_jax.arguments.curve_warning import warn
from plateau_jax.runs.schedules import Schedules
from torch_bridge.advice.position_advice import (
    describe_updates,
    end_message,
    start_message,
)
from torch_bridge.advice.value_advice import value_messages
from torch_bridge.groups.optimizers import groups_of, updates_made
from torch_bridge.groups.options import LEARNING_RATE
from torch_bridge.training.device_clocks.device_clock import Counters, DeviceClock
from torch_bridge.training.train_step.step_state import OWNER

_STUCK_UPDATES = 20
"""After this many updates at learning rate 0, a unit seems too large."""


class StartWarning:
    """Warns before the first update: the curve was not resumed, or it overwrites a value.

    Not when the step is built: a state may be loaded after that, the optimizer's or the step's.

    Args:
        optimizers: The torch optimizers.
        clock: Has the peaks, and what a step of the curve is.
        is_known: True if the user said where on the curve the run starts.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], clock: DeviceClock, *, is_known: bool
    ) -> None:
        self._optimizers = optimizers
        self._clock = clock
        self._is_known = is_known
        self._value_message = self._describe_values()
        self._read_updates_made()

    def accept_values(self) -> None:
        """Accept the learning rates of the groups: the program has set the peaks."""
        self._value_message = ""

    def _describe_values(self) -> str:
        """Return the warning about learning rates that the first update will overwrite, or ""."""
        clock = self._clock
        if self._is_known and clock.start.curve_step == 0:
            return ""  # the program says that the peak is meant, whatever a loaded optimizer has
        first = 0
        for optimizer in self._optimizers:
            last = first + len(groups_of(optimizer))
            messages = value_messages(
                optimizer,
                LEARNING_RATE,
                clock.start.curve_step,
                groups_of(optimizer),
                Schedules(clock.curves[first:last], clock.peaks[first:last]),
                OWNER.base_setter,
                clock.peaks,
            )
            for message in messages:
                return message
            first = last
        return ""

    def _read_updates_made(self) -> None:
        self._groups = [groups_of(optimizer) for optimizer in self._optimizers]
        self._updates_made: list[int | None] = [0]
        if not self._is_known:
            self._updates_made += map(updates_made, self._optimizers)

    def warn_if_due(self) -> None:
        """Warn if a warning is due. May wait for the device."""
        # A load replaces the lists of groups. What other steps have done with the optimizers since
        # this one was built is not a resumed run.
        pairs = zip(self._optimizers, self._groups, strict=True)
        if any(groups_of(optimizer) is not groups for optimizer, groups in pairs):
            self._read_updates_made()
        made = self._updates_made
        known = [number for number in made if number is not None]
        if max(known) > 1:  # a single one may be torch's
            self._warn_of_start(describe_updates(max(known)), str(max(known)))
        elif len(known) < len(made):
            self._warn_of_start("the optimizer has made updates", "n")
        elif self._value_message:
            warn(self._value_message)

    def _warn_of_start(self, seen: str, number: str) -> None:
        advice = "load the TrainStep's state, train_step.load_state_dict(state)"
        clock = self._clock.settings
        if clock.unit is None or clock.count is not None:
            advice += f"; or build it with initial_updates={number}"
        peaks = [f"{peak:.6g}" for peak in dict.fromkeys(self._clock.peaks)]
        advice += (
            f"; or, if the curve is meant to start there with the peak {', '.join(peaks)}, build "
            "it with initial_updates=0"
        )
        warn(start_message(seen, advice))


class RunWarnings:
    """Warns once about training past the end, and once about a unit that is too large.

    Args:
        clock: The clock on the device.
    """

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._has_warned_of_end = False
        self._has_warned_of_unit = False

    def check(self) -> None:
        """Warn if a warning is due. Synchronizes with the device."""
        clock = self._clock
        if not any(clock.peaks):
            return
        counters = clock.read_counters()
        unit = clock.settings.unit
        if not self._has_warned_of_end:
            message = end_message(
                clock.curves, unit, counters.curve_step, counters.applied, builder="TrainStep"
            )
            if message:
                self._has_warned_of_end = True
                warn(message)
        if not self._has_warned_of_unit and unit is not None:
            self._warn_if_stuck(counters, unit)

    def _warn_if_stuck(self, counters: Counters, unit: int) -> None:
        start = self._clock.start
        curve_step = counters.curve_step
        updates = counters.applied - start.applied
        has_moved = curve_step != start.curve_step
        if has_moved or updates < _STUCK_UPDATES or any(self._clock.lrs_at(curve_step)):
            return
        if curve_step >= max(curve.total_steps for curve in self._clock.curves):
            return
        self._has_warned_of_unit = True
        consumed = counters.consumed - start.consumed
        warn(
            f"after {updates} updates the curve stays at step {curve_step}, where every learning "
            f"rate is 0, so no weight changes: the updates consumed {consumed} in all, with unit = "
            f"{unit}. Choose a unit of at most what an update consumes, and check the counts"
        )
