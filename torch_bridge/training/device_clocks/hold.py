"""Rules that may hold the curve: their states, and their decision, on a device."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from plateau_jax.clocks.clock import CheckedClock
from plateau_jax.clocks.decision import decide
from plateau_jax.clocks.position import start_position


class Hold:
    """The states of the rules, and their decision to hold the curve, on the device.

    Args:
        clock: A clock with at least one rule.
        device: The device of the states.
        is_compiled: True to compile the decision.
    """

    def __init__(self, clock: CheckedClock, device: torch.device, *, is_compiled: bool) -> None:
        self._rules = clock.rules
        flat_starts = sorted(clock.flat_starts)
        self._flat_starts = torch.tensor(flat_starts, dtype=torch.int64, device=device)
        self._states = [
            type(state)(*[torch.tensor(value, device=device) for value in state])
            for state in start_position(clock).rule_states
        ]
        self._decide: Callable[..., Tensor] = self._decide_and_write
        if is_compiled:
            # Some fifty operators on scalars become a few kernels.
            self._decide = torch.compile(self._decide_and_write)

    def decide_hold(self, curve_step: Tensor, metric: Tensor, skip: Tensor) -> Tensor:
        """Record the metric of an update, and decide whether to hold the curve at this step.

        Returns:
            A bool scalar, which must be ignored if the update is skipped; the states then stay.
        """
        return self._decide(curve_step, metric.float(), skip, self._states)

    def _decide_and_write(
        self, curve_step: Tensor, metric: Tensor, skip: Tensor, states: Sequence[Any]
    ) -> Tensor:
        starts_plateau = (self._flat_starts == curve_step).any()
        new_states, is_held = decide(torch, self._rules, states, starts_plateau, metric)
        scalars = list(chain.from_iterable(states))
        kept = [
            torch.where(skip, scalar, value)
            for scalar, value in zip(scalars, chain.from_iterable(new_states), strict=True)
        ]
        # Only now, because a new value may be a different scalar of the old state. And not by
        # torch._foreach_copy_: compiled by torch 2.13, it writes before later reads.
        for scalar, value in zip(scalars, kept, strict=True):
            scalar.copy_(value)
        return is_held

    def read_states(self) -> tuple[Any, ...]:
        """Read the states. Synchronizes with the device."""
        states: list[Any] = []
        for state in self._states:
            fields = [value.cpu().numpy()[()] for value in state]
            states.append(type(state)(*fields))
        return tuple(states)

    def write_states(self, states: Sequence[Any]) -> None:
        for scalar, value in zip(
            chain.from_iterable(self._states), chain.from_iterable(states), strict=True
        ):
            scalar.fill_(value.item())
