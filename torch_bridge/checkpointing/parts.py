"""What a checkpoint is of: things that have a state, and dictionaries and lists that are one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.checkpointing import structure
from torch_bridge.checkpointing.together import together
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.training.state_checks import add_new_states
from torch_bridge.training.step import TrainStep


@runtime_checkable
class Stateful(Protocol):
    """A training step, a loader, a log; a module, an optimizer, a scheduler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


_ALONE = ("random", "carry")
Part = Stateful | dict[str, Any] | list[Any]


@dataclass(frozen=True)
class Snapshot:
    """A part's state, which no later change of the part reaches."""

    structure: Any
    tensors: dict[str, Tensor]

    def state(self) -> Any:
        def kept(key: str, *_: Any) -> Tensor:
            return self.tensors[key]

        return structure.decode(self.structure["state"], kept)


def check(parts: Mapping[str, Any]) -> None:
    """Raises ValueError where there are none, TypeError where one is no part."""
    if not parts:
        raise ValueError("there are no parts: pass them by name, such as step=step, loader=loader")
    for name, part in parts.items():
        if not name.isidentifier():
            raise ValueError(f"{name!r} must be a name such as those of variables")
        if isinstance(part, type) or not isinstance(part, Stateful | dict | list):
            raise TypeError(
                f"{name} = {part!r} must have state_dict and load_state_dict, or be a dictionary or a list"
            )


def snapshot(name: str, part: Part) -> Snapshot:
    """Raises TypeError where something in the state is nothing that a checkpoint holds."""
    kept = _as_it_is if isinstance(part, TrainStep) else _on_host
    state, tensors = structure.encode(name, _state(part), kept)
    return Snapshot({"of": kind(part), "state": state}, tensors)


def snapshot_if_any(name: str, part: Part) -> Snapshot | None:
    """None where the part has no state to tell, as a training step that broke off in an update."""
    try:
        return snapshot(name, part)
    except Exception:
        return None


def template(name: str, part: Part, now: Snapshot | None) -> dict[str, Tensor]:
    """Tensors as the part wants them, by the keys that a snapshot has: those that are sharded matter.

    An optimizer's state is made in its first update, and has to come sharded before it. A training step
    tells what its optimizers will make by `_state_to_load()`.
    """
    if isinstance(part, Optimizer) and any(
        mesh_of(parameter) for group in part.param_groups for parameter in group["params"]
    ):
        state = part.state_dict()
        add_new_states(part, state)
        return structure.encode(name, state)[1]
    to_load: Callable[[], Any] | None = getattr(part, "_state_to_load", None)
    tensors = {} if now is None else now.tensors
    if to_load is None or not (now is None or any(map(mesh_of, tensors.values()))):
        return tensors
    return structure.encode(name, to_load())[1]


def kind(part: Part) -> str:
    """Which of the three it is."""
    if isinstance(part, Stateful):
        return "state"
    return "dict" if isinstance(part, dict) else "list"


def unpacked(name: str, part: Part, saved: Any) -> Any:
    """Raises ValueError where the part was of another kind."""
    if saved["of"] != kind(part):
        raise ValueError(f"{name} was saved as a {saved['of']}, and here it is a {kind(part)}")
    return saved["state"]


def alone(parts: Mapping[str, Part], states: Mapping[str, Any]) -> list[str]:
    """What belongs to one process of a training step, and is not for one that had none."""
    return [
        f"{name}[{key!r}]"
        for name, part in parts.items()
        if isinstance(part, TrainStep) and isinstance(states[name], dict)
        for key in _ALONE
        if states[name].get(key) is not None
    ]


def start_anew(part: Part, state: Any, now: Snapshot | None) -> None:
    """In place of what is another process's, what the part has."""
    if isinstance(part, TrainStep) and isinstance(state, dict) and now is not None:
        own = now.state()
        state.update({key: own[key] for key in _ALONE})


def load(parts: Mapping[str, Part], states: Mapping[str, Any], before: Mapping[str, Snapshot | None]) -> None:
    """Load every part in every process, or none in any: those that were loaded are put back."""
    touched: list[str] = []
    held = {name: _state(part) for name, part in parts.items() if not isinstance(part, Stateful)}
    try:
        for name, part in parts.items():
            touched.append(name)
            together(lambda part=part, name=name: _set(part, states[name]))
    except BaseException as error:
        for name in reversed(touched):
            try:
                if name in held:
                    _set(parts[name], held[name])
                elif (snapshot := before[name]) is not None:
                    _set(parts[name], snapshot.state())
                else:
                    error.add_note(f"{name} could not be put back: it had no state to keep")
            except Exception as second:
                error.add_note(f"{name} could not be put back: {type(second).__name__}: {second}")
        raise


def _state(part: Part) -> Any:
    if isinstance(part, Stateful):
        return part.state_dict()
    return dict(part) if isinstance(part, dict) else list(part)


def _set(part: Part, state: Any) -> None:
    if isinstance(part, Stateful):
        part.load_state_dict(state)
    elif isinstance(part, dict):
        part.clear()
        part.update(state)
    else:
        part[:] = state


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg()
