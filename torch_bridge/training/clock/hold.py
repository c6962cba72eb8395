"""Rules that hold the clock, decided on the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import Curve, Rule, decide
from torch_bridge.schedulers.hold_state import States, initial_states


class Hold:
    """What the rules remember, in tensors that stay the same, and their decision, taken on the device.

    `write_states` comes first.

    Args:
        rules: At least one.
        curve: The curve whose clock they hold.
        device: Where they decide.
    """

    def __init__(self, rules: Sequence[Rule], curve: Curve, device: torch.device) -> None:
        self._rules = rules
        self._flat_starts = torch.tensor(curve.flat_starts, dtype=torch.int64, device=device)
        self._memory: list[tuple[Tensor, Tensor]] = []
        """The integers and the floats of each rule, each in one tensor, which an update writes at once."""
        self._states: list[Any] = []
        """The same memory, as one scalar for each number."""
        for state in initial_states(rules):
            count = sum(value.dtype == np.int32 for value in state)
            integers = torch.zeros(count, dtype=torch.int32, device=device)
            floats = torch.zeros(len(state) - count, dtype=torch.float32, device=device)
            self._memory.append((integers, floats))
            self._states.append(type(state)(*integers.unbind(), *floats.unbind()))

    def decide_hold(self, clock: Tensor, metric: Tensor, skip: Tensor) -> Tensor:
        """Whether the clock is held after an update at `clock` that had this metric: a bool scalar.

        Rules remember nothing of an update that was skipped, and the answer then means nothing.
        """
        flat = (self._flat_starts == clock).any()
        states, held = decide(torch, self._rules, self._states, flat, metric.float())
        for (integers, floats), state in zip(self._memory, states, strict=True):
            count = len(integers)
            for memory, values in ((integers, state[:count]), (floats, state[count:])):
                memory.copy_(torch.where(skip, memory, torch.stack(values)))
        return held

    def read_states(self) -> States:
        """What they remember. Synchronizes with the device."""
        return tuple(type(state)(*(value.item() for value in state)) for state in self._states)

    def write_states(self, states: States) -> None:
        for own, state in zip(self._states, states, strict=True):
            for number, value in zip(own, state, strict=True):
                number.fill_(value.item())
