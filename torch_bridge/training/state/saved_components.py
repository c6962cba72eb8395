"""Save and restore the components that make up the state of a training step."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.curve_api import checks
from torch_bridge.distributed.plain_names import load_plain_state, names_of_parameters, plain_state
from torch_bridge.saved_states import (
    States,
    check_same_past,
    dump_hold_states,
    read_curves,
    read_saved_clock,
    reading_state_of,
)
from torch_bridge.schedulers.param_groups import all_groups
from torch_bridge.training.clock.clock import Clock, Counters, checked_updates
from torch_bridge.training.state import snapshot
from torch_bridge.training.state.optimizer_states import copy_optimizer_state, load_optimizer
from torch_bridge.training.state.snapshot import TrainStepState
from torch_bridge.training.state.state_checks import check_saved_state
from torch_bridge.training.update.carry import Carry
from torch_bridge.training.update.loss_normalizer import LossNormalizer


class Position(NamedTuple):
    """The position of a training run on its curves."""

    counters: Counters
    peaks: Sequence[float]
    hold_states: States


class SavedComponents(NamedTuple):
    """The components of a training step that have a saved state."""

    module: nn.Module
    """The model, unwrapped."""
    optimizers: Sequence[Optimizer]
    clock: Clock
    precision: str
    normalizer: LossNormalizer
    carry: Carry | None
    device: torch.device
    """The device of the parameters."""

    def read_position(self) -> Position:
        """Return the current position. Synchronizes with the device."""
        clock = self.clock
        return Position(clock.read_counters(), clock.peaks, clock.read_hold_states())

    def read_state(self) -> TrainStepState:
        """Return the current state, which shares memory with the components. Synchronizes with the device."""
        counters, _, hold_states = self.read_position()
        states = snapshot.optimizer_states(self.optimizers, self.clock, counters.clock)
        return {
            "model": plain_state(self.module),
            "optimizer": snapshot.one_or_list(states),
            "optimizer_type": snapshot.one_or_list([type(item).__name__ for item in self.optimizers]),
            "parameters": names_of_parameters(
                self.module, (group["params"] for group in all_groups(self.optimizers))
            ),
            "precision": self.precision,
            "curves": [curve.to_dict() for curve in self.clock.curves],
            "applied": counters.applied,
            "skipped": counters.skipped,
            "clock": counters.clock,
            "consumed": counters.consumed,
            "unit": self.clock.unit,
            "hold": dump_hold_states(self.clock.rules, hold_states),
            "loss_scale": self.normalizer.state_tensors(),
            "carry": None if self.carry is None else self.carry.buffers,
            "random": snapshot.get_random_states(self.device),
        }

    def check_state(self, saved: Any, strict: bool) -> Position:
        """Return the position in a saved state, after a check of what torch does not notice.

        Raises:
            ValueError: See `TrainStep.load_state_dict`. Nothing has changed.
        """
        current = self.read_state()
        with reading_state_of("a TrainStep", saved):
            check_saved_state(current, saved, self.optimizers)
            applied = checked_updates("applied", saved["applied"])
            skipped = checked_updates("skipped", saved["skipped"])
            unit, rules = self.clock.unit, self.clock.rules
            clock, consumed, hold_states = read_saved_clock(saved, applied, unit, rules, "TrainStep")
            counters = Counters(applied, skipped, clock, applied if unit is None else consumed)
            peaks = self._peaks_in(saved)
            if strict:
                curves = read_curves(saved["curves"], self.clock.curves)
                is_clock_used = counters.consumed > clock * (unit or 1)
                check_same_past(curves, self.clock.curves, clock, is_clock_used, "TrainStep")
        return Position(counters, peaks, hold_states)

    def write_state(self, state: Mapping[str, Any], position: Position) -> None:
        """Load a copy of a state.

        Args:
            state: The state.
            position: The position to continue from.

        Raises:
            Exception: An entry can't be loaded. Some components then have the new state and others the old
                one.
        """
        load_plain_state(self.module, state["model"])
        states = snapshot.as_list(state["optimizer"], self.optimizers)
        for optimizer, saved in zip(self.optimizers, states, strict=True):
            load_optimizer(optimizer, copy_optimizer_state(optimizer, saved))
        self.clock.resume(*position)
        self.normalizer.write_state(state["loss_scale"] or ())
        if self.carry is not None:
            self.carry.write(state["carry"])
        snapshot.set_random_states(state["random"], self.device)

    def _peaks_in(self, state: Mapping[str, Any]) -> list[float]:
        states = snapshot.as_list(state["optimizer"], self.optimizers)
        groups = chain.from_iterable(saved["param_groups"] for saved in states)
        return [float(checks.peak("initial_lr", group["initial_lr"])) for group in groups]
