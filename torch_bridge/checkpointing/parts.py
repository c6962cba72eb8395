"""The parts of a checkpoint: stateful objects, dictionaries and lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.checkpointing import encoding
from torch_bridge.curve_api import checks
from torch_bridge.distributed.dtensors import host_copier
from torch_bridge.distributed.plain_names import load_plain_state, plain_state
from torch_bridge.training.state.optimizer_states import load_optimizer
from torch_bridge.training.step import TrainStep


@runtime_checkable
class Stateful(Protocol):
    """An object that returns its state and loads a saved one: a training step, a loader, a module."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


Part = Stateful | dict[str, Any] | list[Any]


def check_parts(parts: Mapping[str, Any]) -> None:
    """Check that there are parts, that their names are identifiers, and that each has a state."""
    if not parts:
        raise ValueError("there are no parts: pass them by name, such as step=step, loader=loader")
    for name, part in parts.items():
        if not name.isidentifier() or name == "__metadata__":  # safetensors reserves that key
            raise ValueError(f"{checks.short_repr(name)} must be a valid variable name, and not __metadata__")
        if isinstance(part, type) or not isinstance(part, Stateful | dict | list):
            raise TypeError(
                f"{name} = {checks.short_repr(part)} must have state_dict and load_state_dict, or be a "
                "dictionary or a list"
            )


def kind_of(part: Part) -> str:
    """Return the kind of a part: "state", "dict" or "list"."""
    if isinstance(part, Stateful):
        return "state"
    return "dict" if isinstance(part, dict) else "list"


def check_model(part: Any, argument: str, model: Any) -> None:
    """Check that an argument is a module with memory to load into.

    Args:
        part: The name of the part that the module is loaded from.
        argument: The argument's name.
        model: The argument.
    """
    if not isinstance(part, str) or not part.isidentifier():
        raise ValueError(f"part = {checks.short_repr(part)} must be a valid variable name")
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"{argument} = {checks.short_repr(model)} must be a module: a whole part is loaded by "
            f"load({part}=...)"
        )
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError(
            f"{argument} is on the meta device, without memory: call {argument}.to_empty(device=...) first"
        )


def get_state(part: Part) -> Any:
    if isinstance(part, nn.Module):
        return plain_state(part)
    if isinstance(part, Stateful):
        return part.state_dict()
    return dict(part) if isinstance(part, dict) else list(part)


def set_state(part: Part, state: Any) -> None:
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


@dataclass(frozen=True)
class Snapshot:
    """A copy of a part's state in host memory."""

    encoded: Any
    tensors: dict[str, Tensor]

    @classmethod
    def take(cls, name: str, part: Part) -> "Snapshot":
        """Copy the current state of a part.

        Raises:
            TypeError: The state holds something that a checkpoint can't hold.
        """
        state = get_state(part)
        # A training step returns copies already. Any other state may share memory with its part.
        if isinstance(part, TrainStep):
            encoded, tensors = encoding.encode_state(name, state)
        else:
            encoded, tensors = encoding.encode_state(name, state, host_copier())
        return cls({"of": kind_of(part), "state": encoded}, tensors)

    def decode(self) -> Any:
        """Return the state, which shares its tensors with this snapshot."""
        return encoding.decode_state(
            "", self.encoded["state"], lambda _, reference: self.tensors[reference.key]
        )


def restorer(name: str, part: Part) -> Callable[[], None]:
    """Copy the current state of a part, and return a function that restores it."""
    if not isinstance(part, Stateful):  # it gets back the very objects that it held, not copies
        return partial(set_state, part, get_state(part))
    try:
        before = Snapshot.take(name, part)
    except MemoryError:
        raise
    except Exception as error:  # the part may have no state yet
        reason = f"its state could not be copied: {type(error).__name__}: {error}"

        def fail() -> None:
            if isinstance(part, TrainStep):
                part._steppers.is_partial = True  # as before the load: an update was interrupted
            raise RuntimeError(reason)

        return fail
    return lambda: set_state(part, before.decode())


def parameter_names(record: Any) -> Any:
    """Return the names that a saved training step or optimizer has for its parameters; None without any."""
    match record["state"]:
        case {"parameters": names, "optimizer": _}:
            return names
        case {"param_groups": [*groups]}:
            return [group.get("param_names") for group in groups if isinstance(group, dict)]
        case _:
            return None


def check_same_order(name: str, names_by_rank: Sequence[Any]) -> None:
    """Reject a part whose ranks name its parameters differently: shards are joined by position, not by name.

    Args:
        name: The name of the part, which has DTensors.
        names_by_rank: The `parameter_names` of every rank, or their digests.
    """
    for rank, names in enumerate(names_by_rank):
        if names != names_by_rank[0]:
            raise ValueError(
                f"{name} has its parameters in different orders on rank 0 and rank {rank}, so shards of "
                "different parameters would be joined. Build the optimizer's groups in the same order on "
                "every rank. If they are built from a set, sort it: its order differs between processes"
            )
