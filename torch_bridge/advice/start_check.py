"""The warning before the first update: the optimizer was resumed, and the curve was not."""

from collections.abc import Sequence

from torch.optim import Optimizer

from torch_bridge.advice.position_warnings import describe_updates, start_message
from torch_bridge.clocks.device_clock import Clock
from torch_bridge.curve_api import warn
from torch_bridge.optimizer_traits import updates_made


class StartCheck:
    """Warns before the first update if the optimizers have made updates, but the curve starts at 0.

    Not when the step is built: a state may be loaded after that, the optimizer's or the step's.

    Args:
        optimizers: The torch optimizers.
        clock: Has the peaks, and what a step of the curve is.
        is_known: True if the user said where on the curve the run starts.
    """

    def __init__(self, optimizers: Sequence[Optimizer], clock: Clock, *, is_known: bool) -> None:
        self._optimizers = optimizers
        self._clock = clock
        self.is_known = is_known
        """True from the first update or load on, and if the user said where the run starts."""
        self._updates_made: int | None = 0
        """Updates before the first one of the step; None if their number is unknown."""

    def set_known(self) -> None:
        """Accept the start: a state was loaded, which has the position on the curve."""
        self.is_known = True

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
        """Warn, once, if the optimizers have made updates."""
        self.is_known = True
        made = self._updates_made
        if made == 0:
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
