"""The parts of a training step that its state is made of."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.core import checks
from torch_bridge.distributed.plain_names import plain_state, set_plain_state, with_plain_names
from torch_bridge.schedulers.hold_state import from_plain, to_plain
from torch_bridge.training import snapshot
from torch_bridge.training.carry import Carry
from torch_bridge.training.clock import Clock
from torch_bridge.training.precision import Precision
from torch_bridge.training.saved_counts import counts_in
from torch_bridge.training.snapshot import TrainStepState
from torch_bridge.training.state_checks import add_new_states, check


class SavedParts(NamedTuple):
    """They give their state, and take one that was saved."""

    module: nn.Module
    """The model inside its wrapper."""
    optimizers: Sequence[Optimizer]
    clock: Clock
    precision: Precision
    carry: Carry | None
    device: torch.device
    """Where the parameters are."""

    def read_state(self) -> TrainStepState:
        """The present state, whose tensors are the parts' own. Synchronizes with the device."""
        counts = self.clock.read_counts()
        scale = self.precision.scale
        return {
            "model": plain_state(self.module),
            "optimizer": snapshot.one_or_list(snapshot.states_of(self.optimizers, self.clock, counts.clock)),
            "optimizer_type": snapshot.one_or_list([type(each).__name__ for each in self.optimizers]),
            "precision": self.precision.name,
            "curves": [curve.to_dict() for curve in self.clock.curves],
            "applied": counts.applied,
            "skipped": counts.skipped,
            "clock": counts.clock,
            "consumed": counts.consumed,
            "unit": self.clock.unit,
            "hold": to_plain(self.clock.rules, self.clock.read_states()),
            "loss_scale": None if scale is None else scale.state(),
            "carry": None if self.carry is None else self.carry.buffers,
            "random": snapshot.random_states(self.device),
        }

    def read_state_to_load(self) -> TrainStepState:
        """The same, with what the optimizers will make in their first update: the form of a saved state."""
        state = self.read_state()
        states = snapshot.as_list(state["optimizer"], self.optimizers)
        for optimizer, own in zip(self.optimizers, states, strict=True):
            add_new_states(optimizer, own)
        return state

    def load(self, state: TrainStepState | Mapping[str, Any], strict: bool) -> None:
        """Take a copy of a state.

        Raises:
            ValueError: It doesn't fit, as `TrainStep.load_state_dict` says. Nothing was changed.
        """
        clock, own = self.clock, plain_state(self.module)
        if isinstance(state, Mapping) and isinstance(model := state.get("model"), Mapping):
            state = {**state, "model": with_plain_names(cast("Mapping[str, Any]", model), own)}
        check(self.read_state(), state, self.optimizers, self.device, clock.curves if strict else None)
        counts = counts_in(state, clock.unit, strict)
        held = from_plain(state.get("hold"), clock.rules, strict, "TrainStep")
        pairs = list(zip(self.optimizers, snapshot.as_list(state["optimizer"], self.optimizers), strict=True))
        groups = chain.from_iterable(saved["param_groups"] for _, saved in pairs)
        peaks = [float(checks.peak("initial_lr", group["initial_lr"])) for group in groups]
        copies = [(optimizer, snapshot.copied_for(optimizer, saved)) for optimizer, saved in pairs]

        set_plain_state(self.module, snapshot.placed(own, state["model"]))
        for optimizer, copied in copies:
            optimizer.load_state_dict(copied)
            snapshot.restore_dtypes(optimizer, copied)
        clock.set(counts, peaks, held)
        if self.precision.scale is not None:
            self.precision.scale.set(state["loss_scale"] or [])
        if self.carry is not None:
            self.carry.set(state["carry"] or [])
        snapshot.set_random_states(state["random"], self.device)
