"""The parts of a checkpoint: stateful objects, dictionaries and lists."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.runs.curve_scheduler import CURVE_SCHEDULER_FORMAT
from torch_bridge.schedulers.scheduler_state import FOLLOWER_FORMAT, SCHEDULER_FORMAT
from torch_bridge.training.checkpointing.states import SplitState, map_leaves, split_state
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.dtensors import host_copier
from torch_bridge.training.distributed.plain_names import load_plain_state, plain_state
from torch_bridge.training.train_step.optimizer_states import load_optimizer
from torch_bridge.training.train_step.step_state import TRAIN_STEP_FORMAT


@runtime_checkable
class Stateful(Protocol):
    """An object with a state to save and load: a training step, a loader, a module."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


@runtime_checkable
class TrainStepInterface(Stateful, Protocol):
    """What checkpoints use of a `TrainStep`: its class would bring CUDA graphs into every loop."""

    optimizers: tuple[Optimizer, ...]

    def _live_state(self) -> Any: ...


RANDOM_STATES_PART = "random-states"
"""The name of the random states, which are stored as a part is. No part can have it."""

# An entry of each safetensors file, and arguments of `load`.
_RESERVED_NAMES = ("__metadata__", "verify", "partial")

_SCHEDULES = [
    item.kind
    for item in (SCHEDULER_FORMAT, FOLLOWER_FORMAT, TRAIN_STEP_FORMAT, CURVE_SCHEDULER_FORMAT)
]
"""The kinds of the states of schedules."""

_SAME_ON_ALL_RANKS = (
    "last_epoch",
    "base_lrs",
    "updates",
    "applied",
    "skipped",
    "offset",
    "consumed",
    "hold",
    "records",
)
"""The entries of the state of a schedule that all ranks must share."""

_PARAMETER_NAMES = {"parameters", "param_names"}
"""The entries of the states of a training step and of an optimizer that name its parameters."""

CheckpointPart = Stateful | dict[str, Any] | list[Any]


def check_parts(parts: Mapping[str, Any]) -> None:
    """Check that there are parts, that their names are identifiers, and that each has a state.

    A module on the meta device has none: torch copies nothing from it or to it.
    """
    if not parts:
        raise ValueError(
            "there are no parts: pass them by name, such as step=train_step, loader=loader"
        )
    for name, part in parts.items():
        # The tensors of a part "a.b" could have the names of those of a part "a".
        if not name.isidentifier() or name in _RESERVED_NAMES:
            raise ValueError(
                f"{checks.short_repr(name)} must be a valid variable name, and not one of "
                f"{_RESERVED_NAMES}"
            )
        if not isinstance(part, Stateful | dict | list):
            raise TypeError(
                checks.must(
                    name, part, "have state_dict and load_state_dict, or be a dictionary or a list"
                )
            )
        is_module = isinstance(part, nn.Module)
        if is_module and any(tensor.is_meta for tensor in (*part.parameters(), *part.buffers())):
            raise ValueError(
                f"{name} is on the meta device, without memory: call {name}.to_empty(device=...) "
                "first"
            )


def get_state(part: CheckpointPart) -> Any:
    """Return a part's state, which may share memory with it."""
    if isinstance(part, TrainStepInterface):
        return part._live_state()
    if isinstance(part, nn.Module):
        return plain_state(part)
    if isinstance(part, Stateful):
        return part.state_dict()
    if isinstance(part, dict):
        return dict(part)
    return list(part)


def set_state(part: CheckpointPart, state: Any) -> None:
    """Load a state into a part."""
    if isinstance(part, nn.Module):
        load_plain_state(part, state)
    elif isinstance(part, Optimizer):
        load_optimizer(part, state)
    elif isinstance(part, Stateful):
        part.load_state_dict(state)
    elif isinstance(part, dict):
        part.clear()
        part.update(state)
    else:
        part[:] = state


def copy_state(name: str, part: CheckpointPart) -> SplitState:
    """Return a copy of a part's current state in host memory."""
    if isinstance(part, TrainStepInterface):
        # Its tensors are copies already.
        return split_state(name, part.state_dict(), copy_tensor=lambda tensor: tensor)
    return split_state(name, get_state(part), host_copier())


def shared_entries(states: Mapping[str, SplitState]) -> dict[str, str]:
    """Return the entries of some states that must be equal on all ranks, as text, by path.

    These are the positions, curves and peaks of schedules and, if the state of an optimizer is
    sharded, the order of its parameters, since shards are joined by position. A schedule is a
    scheduler, a follower, a training step or a `CurveScheduler`. Its state may be in another, as in
    that of torch's `SequentialLR`. Empty if there is only one rank.
    """
    entries: dict[str, str] = {}
    if processes.world_size() == 1:
        return entries
    for part, state in states.items():
        leaves: dict[str, Any] = {}
        map_leaves(part, state.structure, leaves.setdefault)
        is_sharded = any(stored.placements is not None for stored in state.stored)
        schedules = [
            path.removesuffix("kind")
            for path, leaf in leaves.items()
            if path.endswith(".kind") and leaf in _SCHEDULES
        ]
        for path, leaf in leaves.items():
            is_order = is_sharded and not _PARAMETER_NAMES.isdisjoint(path.split("."))
            if is_order or _is_shared_by_schedules(path, schedules):
                entries[path] = repr(leaf)  # NaN is not equal to itself
    return entries


def _is_shared_by_schedules(path: str, schedules: Sequence[str]) -> bool:
    """Return True for an entry of a schedule that all ranks must share.

    `schedules` are the paths of the schedules' states, each with a trailing dot.
    """
    for schedule in schedules:
        entry = path.removeprefix(schedule).partition(".")[0]
        if path.startswith(schedule) and entry in _SAME_ON_ALL_RANKS:
            return True
    return False


def check_same_entries(entries_by_rank: Sequence[Mapping[str, str]]) -> None:
    """Reject entries that differ between ranks."""
    first = entries_by_rank[0]
    for rank, entries in enumerate(entries_by_rank):
        for path in {**first, **entries}:
            first_value = first.get(path, "missing")
            value = entries.get(path, "missing")
            if value != first_value:
                raise ValueError(
                    f"{path} = {first_value} on rank 0, and {value} on rank {rank}: "
                    "every rank must name the same checkpoint and parts, and have the same "
                    "curves, peaks, steps and order of parameters (the order of a set differs "
                    "between processes: sort it). With a hold rule, call "
                    "scheduler.step(metric=loss) with the mean of the losses of all ranks; with a "
                    "DataClock, call scheduler.step(count=n) with the sum of their counts. "
                    "torch.distributed.all_reduce gives both"
                )
