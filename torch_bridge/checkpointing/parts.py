"""The parts that a checkpoint holds: objects that have a state; dictionaries and lists, which are a state."""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torch_bridge.checkpointing import encoding
from torch_bridge.checkpointing.stateful import Stateful
from torch_bridge.distributed.dtensors import memory_of
from torch_bridge.distributed.plain_names import plain_state, set_plain_state
from torch_bridge.training.step import TrainStep

Part = Stateful | dict[str, Any] | list[Any]


def check(parts: Mapping[str, Any]) -> None:
    """Raises ValueError where there are no parts or a name is none, TypeError where an object is no part."""
    if not parts:
        raise ValueError("there are no parts: pass them by name, such as step=step, loader=loader")
    for name, part in parts.items():
        if not name.isidentifier():
            raise ValueError(f"{name!r} must be a valid variable name")
        if isinstance(part, type) or not isinstance(part, Stateful | dict | list):
            raise TypeError(
                f"{name} = {part!r} must have state_dict and load_state_dict, or be a dictionary or a list"
            )


def check_flag(name: str, value: Any) -> None:
    """Raises TypeError where a part stands in the place of a flag: without a name, it would not be saved."""
    if isinstance(value, Stateful | dict | list):
        raise TypeError(f"{name} = {value!r} must be True or False: pass parts by name, such as step=step")


def kind(part: Part) -> str:
    """Which of the three kinds of part it is."""
    if isinstance(part, Stateful):
        return "state"
    return "dict" if isinstance(part, dict) else "list"


def check_model(part: Any, argument: str, model: Any) -> None:
    """Raises TypeError where an argument is no module, ValueError where it has no memory to load into.

    Args:
        part: The name of the part that it is loaded from, which must be one.
        argument: The argument's name.
        model: The argument.
    """
    if not isinstance(part, str) or not part.isidentifier():
        raise ValueError(f"part = {part!r} must be a valid variable name")
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"{argument} = {reprlib.repr(model)} must be a module: a whole part is loaded by load({part}=...)"
        )
    if any(each.is_meta for each in (*model.parameters(), *model.buffers())):
        raise ValueError(
            f"{argument} is on the meta device, without memory: call {argument}.to_empty(device=...) first"
        )


def state_of(part: Part) -> Any:
    if isinstance(part, nn.Module):
        return plain_state(part)
    if isinstance(part, Stateful):
        return part.state_dict()
    return dict(part) if isinstance(part, dict) else list(part)


def set_state(part: Part, state: Any) -> None:
    if isinstance(part, nn.Module):
        set_plain_state(part, state)
    elif isinstance(part, Stateful):
        part.load_state_dict(state)
    elif isinstance(part, dict):
        part.clear()
        part.update(state)
    else:
        part[:] = state


@dataclass(frozen=True)
class Snapshot:
    """The state of a part at one moment, which no later change of the part reaches."""

    encoded: Any
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, name: str, part: Part) -> "Snapshot":
        """Raises TypeError where the state holds something that a checkpoint does not hold."""
        # The state of a training step is a copy already.
        kept = Tensor.detach if isinstance(part, TrainStep) else _copies_on_host()
        state, tensors = encoding.encode(name, state_of(part), kept)
        return cls({"of": kind(part), "state": state}, tensors)

    def state(self) -> Any:
        def tensor_of(key: str, *_: Any) -> Tensor:
            return self.tensors[key]

        return encoding.decode(self.encoded["state"], tensor_of)


def _copies_on_host() -> Callable[[Tensor], Tensor]:
    """Copies each tensor to the host; tied ones, which are one tensor, only once."""
    copies: dict[object, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        memory = memory_of(tensor)
        if memory not in copies:
            copies[memory] = tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg()
        return copies[memory]

    return copied
