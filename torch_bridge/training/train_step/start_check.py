"""The warnings before the first update: the curve was not resumed, or it overwrites a value."""

from collections.abc import Sequence

from torch.optim import Optimizer

from plateau_jax.arguments.curve_warning import warn
from torch_bridge.advice.position_warnings import describe_updates, start_message
from torch_bridge.advice.value_advice import message_at_build
from torch_bridge.groups.options import LEARNING_RATE
from torch_bridge.optimizer_traits import updates_made
from torch_bridge.training.device_clocks.device_clock import Clock


class StartCheck:
    """Warns before the first update if the optimizers have made updates, but the curve starts at 0.

    Not when the step is built: a state may be loaded after that, the optimizer's or the step's.

    Args:
        optimizers: The torch optimizers.
        clock: Has the peaks, and what a step of the curve is.
        is_known: True if the user said where on the curve the run starts.
        advise: False to turn the warnings off.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], clock: Clock, *, is_known: bool, advise: bool
    ) -> None:
        self._optimizers = optimizers
        self._clock = clock
        self._is_known = is_known
        self._value_message = ""
        if advise:
            self._value_message = self._describe_values()
        self.is_due = advise
        """True until the first update or load."""
        self._updates_made: int | None = 0
        """Updates before the first one of the step; None if their number is unknown."""

    @property
    def needs_counts(self) -> bool:
        """True if the check will ask how many updates the optimizers have made."""
        return self.is_due and not self._is_known

    def set_known(self) -> None:
        """Accept the start: a state was loaded, which has the position on the curve."""
        self.is_due = False

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
            last = first + len(optimizer.param_groups)
            message = message_at_build(
                optimizer,
                LEARNING_RATE,
                clock.start.curve_step,
                optimizer.param_groups,
                clock.curves[first:last],
                clock.peaks[first:last],
            )
            if message:
                return message
            first = last
        return ""

    def read_updates_made(self) -> None:
        """Read how many updates the optimizers have made. May wait for the device."""
        most = 0
        all_are_known = True
        for optimizer in self._optimizers:
            made = updates_made(optimizer)
            if made is None:
                all_are_known = False
            else:
                most = max(most, made)
        self._updates_made = most
        if most == 0 and not all_are_known:
            self._updates_made = None

    def check(self) -> None:
        """Warn, once, if a warning is due."""
        self.is_due = False
        made = self._updates_made
        if made == 0 or self._is_known:
            if self._value_message:
                warn(self._value_message)
            return
        seen = "the optimizer has made updates"
        number = "n"
        if made is not None:
            seen = describe_updates(made)
            number = str(made)
        advice = "load the TrainStep's state, train_step.load_state_dict(state)"
        if self._clock.checked.counts_are_known:
            advice += f"; or build it with initial_updates={number}"
        peaks = [f"{peak:.6g}" for peak in dict.fromkeys(self._clock.peaks)]
        advice += (
            f"; or, if the curve is meant to start there with the peak {', '.join(peaks)}, build "
            "it with initial_updates=0"
        )
        warn(start_message(seen, advice))
