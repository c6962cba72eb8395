"""A training run, as tests use it: built, updated, saved, resumed in a new process, and read.

Each part of the product that moves along a curve has an adapter: `scheduler_run` in this folder
(schedulers and followers); in `tests/clocks/`, `step_run` (a `TrainStep`), `numpy_run`, and optax
in `test_definition`. `definition` has the oracle that any of them must equal.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from plateau_jax import Curve, DataClock

Update = tuple[Any, Any]
"""The count of an update, or None for that of the clock; and its metric."""


class Run(ABC):
    """A training run, which can stop and resume in a new process.

    Args:
        curve: One curve for all groups, or one for each.
        peaks: The value of each group at multiplier 1: its learning rate, or another option.
        clock: As in `lambda_lr`.
    """

    skips_nonfinite = False
    """An update whose metric is not finite does not count."""
    keeps_peaks = False
    """It has no `set_peaks`."""
    last_step = 2**62
    """At this step of the curve the clock stops."""

    def __init__(self, curve: Any, peaks: Sequence[float], clock: Any = None) -> None:
        self.curve = curve
        self.peaks: list[float] = list(peaks)
        self.clock = clock
        self.build()

    @property
    def unit(self) -> int | None:
        """The unit of the clock, or of the curve; None if it does not count data."""
        if isinstance(self.clock, DataClock):
            return self.clock.unit
        if isinstance(self.curve, Curve):
            return self.curve.unit
        return None

    @property
    def has_hold_rules(self) -> bool:
        """True if the clock consists of hold rules."""
        return self.clock is not None and not isinstance(self.clock, DataClock)

    @property
    def usual_count(self) -> int | None:
        """The count of the clock, for updates without a count; None if it has none."""
        if isinstance(self.clock, DataClock):
            return self.clock.count
        return None

    def in_group(self, number: float) -> float:
        """Return the number as a group of the optimizer holds it."""
        return number

    @abstractmethod
    def build(self) -> None:
        """Build everything, as a new process does."""

    @abstractmethod
    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        """Make an update; return the values that it used, one for each group."""

    @abstractmethod
    def curve_step(self) -> int:
        """Return the step of the curve for the next update."""

    @abstractmethod
    def consumed(self) -> int:
        """Return how much data all updates have consumed."""

    @abstractmethod
    def save(self) -> Any:
        """Return the state as it comes back from a file."""

    @abstractmethod
    def load(self, state: Any, **options: Any) -> None:
        """Resume from a state."""

    def set_peaks(self, peaks: Any) -> None:
        """Use different peaks from the next update on, one for each group."""
        raise NotImplementedError

    def run(self, updates: Sequence[Update]) -> list[list[float]]:
        """Make these updates; return the values that each used."""
        return [self.update(count, metric) for count, metric in updates]

    def state_dict(self) -> Any:
        """Return all that an error must not change, also as text, where 1 is not 1.0."""
        state = self.save()
        return state, repr(state)

    def restart(self) -> None:
        """Stop, and resume in a new process."""
        state = self.save()
        self.build()
        self.load(state)

    def ways_to_resume(self) -> list[Callable[[], None]]:
        """Return the methods that stop the run and resume it."""
        return [self.restart]

    @abstractmethod
    def check_reads(self, updates: int) -> None:
        """Check all else that a program may read, after this number of applied updates."""
