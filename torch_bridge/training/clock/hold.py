"""The rules that hold the clock, evaluated on the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import Curve, Rule, decide
from torch_bridge.saved_states import States, initial_states


class Hold:
    """The states of the rules, and their decision to hold the clock, on the device.

    Call `write_states` before the first decision.

    Args:
        rules: At least one rule.
        curve: The curve whose clock they hold.
        device: The device of the states.
    """

    def __init__(self, rules: Sequence[Rule], curve: Curve, device: torch.device) -> None:
        self._rules = rules
        self._flat_starts = torch.tensor(curve.flat_starts, dtype=torch.int64, device=device)
        self._memory: list[tuple[Tensor, Tensor]] = []
        """The integers and the floats of each rule's state, a tensor each: an update writes it at once."""
        self._states: list[Any] = []
        """The same memory, as states of one scalar per field."""
        for state in initial_states(rules):
            count = sum(value.dtype == np.int32 for value in state)
            integers = torch.zeros(count, dtype=torch.int32, device=device)
            floats = torch.zeros(len(state) - count, dtype=torch.float32, device=device)
            self._memory.append((integers, floats))
            self._states.append(type(state)(*integers.unbind(), *floats.unbind()))

    def decide_hold(self, clock: Tensor, metric: Tensor, skip: Tensor) -> Tensor:
        """Record the metric of an update at `clock`, and decide whether to hold the clock: a bool scalar.

        A skipped update changes no state, and its result must be ignored.
        """
        flat = (self._flat_starts == clock).any()
        states, held = decide(torch, self._rules, self._states, flat, metric.float())
        for (integers, floats), state in zip(self._memory, states, strict=True):
            count = len(integers)
            for memory, values in ((integers, state[:count]), (floats, state[count:])):
                memory.copy_(torch.where(skip, memory, torch.stack(values)))
        return held

    def read_states(self) -> States:
        """Read the states. Synchronizes with the device."""
        return tuple(type(state)(*(value.cpu().numpy()[()] for value in state)) for state in self._states)

    def write_states(self, states: States) -> None:
        for device_state, state in zip(self._states, states, strict=True):
            for scalar, value in zip(device_state, state, strict=True):
                scalar.fill_(value.item())
