"""What a hold rule is: the class of specs, and what the simulations and strategies of rules share.

The tests read everything about hold rules from their specs. A simulation shares no code with the
product: it keeps all metrics, and computes their means again after each update.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from plateau_jax.clocks.hold_rule import HoldRule


class Simulation(Protocol):
    """A rule in one run, as its docstring says."""

    def holds(self, curve_step: int, metric: Any) -> bool:
        """Return True if the rule holds the curve at this step after an update.

        Every update of the run calls this once, with its metric in float32.
        """
        ...


@dataclass(frozen=True)
class RuleSpec:
    """A hold rule, with all that the tests need to know about it."""

    rule: type[HoldRule]
    simulate: Callable[[Any, set[int]], Simulation]
    """Returns the simulation of a rule in a new run. The set has the first steps of plateaus."""
    strategy: st.SearchStrategy[Any]
    """Draws rules. A threshold is one of `VALUES`, or drawn metrics can come next to it."""
    samples: tuple[Any, ...]
    """Rules that between them take every branch of `_update` and every form of an argument.

    They are compiled, saved and copied. Some metrics between 0.2 and 0.4 make them hold, and others
    do not. Tests that compile only one rule of each class compile the first.
    """


VALUES = (2.0, 1.5, 1.0, 0.7, 0.25, 0.1, 0.0, -0.5, -2.0)
"""Decreasing values; drawn metrics equal one of them or differ from it as little as possible."""

metrics_in_a_reading = st.sampled_from((1, 1, 2, 3, 5))
"""Draws the argument `every`."""


def readings(metrics: Iterable[Any], every: int) -> list[Any]:
    """Return the mean of each `every` finite metrics."""
    finite = [metric for metric in metrics if np.isfinite(metric)]
    ends = range(every, len(finite) + 1, every)
    return [_mean(finite[end - every : end]) for end in ends]


def _mean(group: Sequence[Any]) -> Any:
    if len(group) == 1:
        return group[0]
    with np.errstate(over="ignore"):
        total = group[0]
        for metric in group[1:]:
            total = np.float32(total + metric)
        return np.float32(total * np.float32(1 / len(group)))
