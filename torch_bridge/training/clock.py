"""A clock on the device: how many updates took place, the step of the curve, the rates there."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torch_bridge.core import Curve, Rule
from torch_bridge.schedulers.group_curves import Multipliers
from torch_bridge.schedulers.hold_state import States

INTERVAL = 1024
"""Updates between two times that the host learns where the clock stands."""

_FIRST_LOOKS = frozenset({16, 32, 64, 128, 256, 512})
"""So many updates after a start the host learns it too, so that the end of a short curve is noticed."""


class Counts(NamedTuple):
    """Where a training stands."""

    applied: int
    """Updates that took place."""
    skipped: int
    """Updates that were skipped."""
    clock: int
    """The step of the curve of the next update."""
    consumed: int
    """What the updates that took place consumed: samples or tokens, or without a unit the updates."""


class Clock(ABC):
    """Counts updates on the device and finds their rates there, without synchronizing with it.

    All tensors stay the same as long as the clock lives, so that a captured graph can use them.

    Every `INTERVAL` updates, and more often after a start, the host starts a copy of the clock to itself. It
    does not wait for the copy. Before each update it asks whether the copy has arrived, and tells `seen` when
    it has. By the end of the interval it has long arrived.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak of each group.
        device: Where the counts and the rates are.
        seen: Is told where the clock stood, whenever the host learns it.
        rules: Those that may hold the clock.
        unit: How many samples or tokens make one step of the curve; None where an update is one.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        peaks: Sequence[float],
        device: torch.device,
        seen: Callable[[int], None],
        rules: Sequence[Rule] = (),
        unit: int | None = None,
    ) -> None:
        self.curves = list(curves)
        self.peaks = list(peaks)
        self.rules, self.unit = rules, unit
        # In one tensor, for one operator that moves them and one that copies them:
        #
        #     index       0       1         2         3      4
        #     _numbers  [ now  | applied | skipped | used | the kind of clock says what ]
        #
        # `used` is the step of the curve that `rates` are of.
        self._numbers = torch.zeros(5, dtype=torch.int64, device=device)
        self.now = self._numbers[0]
        """The step of the curve where the clock stands, a scalar."""
        self.counts = self._numbers[1:4]
        """Updates applied, updates skipped, and the step of the curve that the rates are of; what was
        consumed, where that is counted."""
        self._used = self._numbers[3]
        self.rates = torch.zeros(len(self.curves), dtype=torch.float32, device=device)
        """The rate of each parameter group at the present step: float32, of shape (groups,)."""
        self.group_rates = self.rates.unbind()
        """The same memory, as one scalar for each group."""
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._seen_numbers = self._host_buffer(self._numbers)
        self._seen = self._seen_numbers.numpy()
        self._tell = seen
        self._multipliers = Multipliers(self.curves)
        self._updates = 0
        self._looks = _FIRST_LOOKS
        self._is_under_way = False
        """A copy of which `seen` was not told."""
        self._interval = INTERVAL

    def _host_buffer(self, like: Tensor) -> Tensor:
        # Page-locked, so that no copy from or to the device has to be waited for. The device is named, since
        # the user may have set another default device.
        return torch.zeros(like.shape, dtype=like.dtype, device="cpu", pin_memory=self._copied is not None)

    def set(self, counts: Counts, peaks: Sequence[float], states: States = ()) -> None:
        """Start from these counts, these peaks, and what the rules remember, where there are any."""
        applied, skipped, clock, consumed = counts
        self._wait_for_copy()
        self._seen[:] = clock, applied, skipped, clock, consumed
        self._numbers.copy_(self._seen_numbers)
        self.set_peaks(peaks)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Take other peaks from the next update on, in the same tensors."""
        self.peaks = list(peaks)
        self._refresh()
        self._updates = 0
        self._looks = _FIRST_LOOKS

    def read_counts(self) -> Counts:
        """Synchronizes with the device."""
        now, applied, skipped, _, last = cast("list[int]", self._numbers.tolist())
        self._tell(now)
        return Counts(applied, skipped, now, applied if self.unit is None else last)

    def read_states(self) -> States:
        """What the rules remember. Synchronizes with the device."""
        return ()

    def rates_at(self, step: int) -> list[float]:
        """The rate of each parameter group at a step of the curve, computed on the host."""
        return list(map(operator.mul, self.peaks, self._multipliers[step]))

    def prepare(self) -> None:
        """Called before each update, outside any captured graph."""
        if self._updates == self._interval:
            self._refresh()
            self._updates = 0  # last, so that what was interrupted is done again
            self._looks = frozenset()
        elif self._updates in self._looks:
            self._start_copy()
        if self._is_under_way and (self._copied is None or self._copied.query()):
            self._is_under_way = False
            self._tell(int(self._seen[0]))
        self._updates += 1

    @abstractmethod
    def fill_rates(self) -> None:
        """Write the rates of where the clock stands into `rates`."""

    @abstractmethod
    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any) -> None:
        """Count an update as applied, or as skipped where `skip`, a bool scalar, is True; move the clock.

        `consumed`, an int64 scalar, is what the update consumed, where that is counted.
        """

    def _refresh(self) -> None:
        """Start a copy. A kind of clock may first do what it does once in `INTERVAL` updates."""
        self._wait_for_copy()
        self._start_copy()

    def _wait_for_copy(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # begun INTERVAL/2 updates ago or more: it has long arrived

    def _start_copy(self) -> None:
        self._seen_numbers.copy_(self._numbers, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._numbers.device))
        self._is_under_way = True
