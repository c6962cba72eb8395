"""Parts while a checkpoint is loaded: all get their saved state, or all keep the state that they had."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.checkpointing import encoding, parts
from torch_bridge.checkpointing.parts import Part, Snapshot
from torch_bridge.checkpointing.stateful import Stateful
from torch_bridge.distributed.agreement import on_all_ranks
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.plain_names import with_plain_names
from torch_bridge.schedulers.param_groups import all_parameters
from torch_bridge.training.state_checks import add_new_states
from torch_bridge.training.step import TrainStep

_OF_ONE_RANK = ("random", "carry")  # in a training step's state; no other rank can use them


class LoadingPart:
    """One part, the state that it had before, and the state that it gets."""

    is_of_each_rank = True
    """Whether each rank gets what it has saved itself, where that differs from rank 0's."""

    def __init__(self, name: str, part: Part) -> None:
        self.name, self._part = name, part
        self._state: Any = None
        self._before: Snapshot | None = None
        self._keep()
        # A dictionary or a list gets the very objects back that it held, whatever they are.
        self._items = None if isinstance(part, Stateful) else parts.state_of(part)

    def _keep(self) -> None:
        """Keep the state that the part has, to put it back after an error."""
        try:
            self._before = Snapshot.of(self.name, self._part)
        except Exception:  # a training step that an error broke off in mid-update has no state
            self._before = None

    def template(self) -> dict[str, Tensor]:
        """Tensors by key, placed as the part wants them. Only sharded ones matter.

        The state of a sharded optimizer has to come sharded even before the first update makes it. A
        training step has `_state_to_load()`, which adds what its optimizers will make.
        """
        part, tensors = self._part, {} if self._before is None else self._before.tensors
        if isinstance(part, Optimizer) and any(
            mesh_of(parameter) for group in part.param_groups for parameter in group["params"]
        ):
            state = part.state_dict()
            add_new_states(part, state)
            return encoding.encode(self.name, state)[1]
        to_load: Callable[[], Any] | None = getattr(part, "_state_to_load", None)
        if to_load is None or not (self._before is None or any(map(mesh_of, tensors.values()))):
            return tensors
        return encoding.encode(self.name, to_load())[1]

    def sharded_parameters(self) -> dict[str, Tensor]:
        """The sharded parameters of an optimizer or a training step.

        Each stands under the key that the keys of its state begin with. Under that of all states stands the
        first one, for what an optimizer keeps for no single parameter.
        """
        part, keys = self._part, [self.name]
        optimizers: Sequence[Optimizer] = [part] if isinstance(part, Optimizer) else []
        if isinstance(part, TrainStep):
            optimizers, key = part.optimizers, f"{self.name}['optimizer']"
            keys = [key] if len(optimizers) == 1 else [f"{key}[{index}]" for index in range(len(optimizers))]
        found: dict[str, Tensor] = {}
        for key, optimizer in zip(keys, optimizers, strict=False):
            for number, parameter in enumerate(all_parameters([optimizer])):
                if mesh_of(parameter):
                    found.setdefault(f"{key}['state']", parameter)
                    found[f"{key}['state'][{number}]"] = parameter
        return found

    def structure(self, states: Sequence[Mapping[str, Any]]) -> Any:
        """What to read: the part as JSON.

        Args:
            states: All parts as rank 0 wrote them; then those that this rank wrote, if it did.
        """
        return states[-1].get(self.name, states[0][self.name])

    def receive(self, saved: Mapping[str, Any], is_new_rank: bool) -> None:
        """Keep the saved state for `load`.

        Args:
            saved: The part as it was saved.
            is_new_rank: Whether this rank did not save. The state is then rank 0's, of which a training step
                takes no random numbers and no carry: it keeps its own.

        Raises:
            ValueError: The part was of another kind.
        """
        if saved["of"] != parts.kind(self._part):
            raise ValueError(
                f"{self.name} was saved as a {saved['of']}, and here it is a {parts.kind(self._part)}"
            )
        self._state = saved["state"]
        if is_new_rank and self._before is not None and self._has_values_of_one_rank():
            own = self._before.state()
            self._state.update({key: own[key] for key in _OF_ONE_RANK})

    def values_of_one_rank(self) -> list[str]:
        """The values to load that a rank which did not save keeps instead as they are."""
        if not self._has_values_of_one_rank():
            return []
        return [f"{self.name}[{key!r}]" for key in _OF_ONE_RANK if self._state.get(key) is not None]

    def load(self) -> None:
        parts.set_state(self._part, self._state)

    def put_back(self) -> None:
        """Give the part the state that it had before.

        Raises:
            RuntimeError: It had none to tell.
        """
        if self._items is not None:
            parts.set_state(self._part, self._items)
        elif self._before is not None:
            parts.set_state(self._part, self._before.state())
        else:
            raise RuntimeError("it had no state to keep")

    def _has_values_of_one_rank(self) -> bool:
        return isinstance(self._part, TrainStep) and isinstance(self._state, dict)


class LoadingModel(LoadingPart):
    """A module that gets its state alone, out of a training step's or of a module's.

    On all ranks it is the state of rank 0. What the module has before is copied only when all is read, so
    that this copy and what reading takes are not in memory together.
    """

    is_of_each_rank = False
    _is_changed = False

    def _keep(self) -> None:
        """`load` does it."""

    def own(self) -> dict[str, Any]:
        """The module's state under plain names: its own tensors, not copies."""
        return parts.state_of(self._part)

    def template(self) -> dict[str, Tensor]:
        own = self.own()
        keys = self.name, f"{self.name}['model']"
        return {key: tensor for name in keys for key, tensor in encoding.encode(name, own)[1].items()}

    def structure(self, states: Sequence[Mapping[str, Any]]) -> Any:
        saved = states[0][self.name]
        state = saved["state"]
        if isinstance(state, dict) and {"model", "optimizer", "applied"} <= state.keys():
            state = cast("dict[str, Any]", state)["model"]
        found: dict[str, Any] = {"of": saved["of"], "state": state}
        return found

    def receive(self, saved: Mapping[str, Any], is_new_rank: bool) -> None:
        self.take(self.matched(saved))

    def matched(self, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        """The saved state under the names that the module has here, without those of wrappers.

        Raises:
            ValueError: It is of no module, or of one with other names or shapes.
        """
        state, own = saved["state"], self.own()
        if saved["of"] != "state" or not isinstance(state, Mapping):
            raise ValueError(f"{self.name} is neither of a TrainStep nor of a module")
        found = with_plain_names(cast("Mapping[str, Any]", state), own)
        different = [
            f"{name}: {_shape(found, name)} in the checkpoint, {_shape(own, name)} here"
            for name in own | dict(found)
            if _shape(found, name) != _shape(own, name)
        ]
        if different:
            raise ValueError(f"{self.name} was saved with another model: {'; '.join(different[:5])}")
        return found

    def take(self, state: Mapping[str, Any]) -> None:
        """Keep what `matched` returned for `load`."""
        self._state = state

    def load(self) -> None:
        # Where there is no memory for a copy, nothing is loaded: it could not be put back.
        self._before = Snapshot.of(self.name, self._part)
        self._is_changed = True
        super().load()

    def put_back(self) -> None:
        if self._is_changed:
            super().put_back()


def _shape(state: Mapping[str, Any], name: str) -> str:
    if name not in state:
        return "missing"
    return str(tuple(state[name].shape)) if isinstance(state[name], Tensor) else "no tensor"


def load_all_or_none(loading: Sequence[LoadingPart]) -> None:
    """Load every part on every rank. After an error on any rank, put back what was loaded.

    A collective: every rank calls it.
    """
    touched: list[LoadingPart] = []
    try:
        for each in loading:
            touched.append(each)
            on_all_ranks(each.load)
    except BaseException as error:
        for each in reversed(touched):
            try:
                each.put_back()
            except Exception as second:
                error.add_note(f"{each.name} could not be put back: {type(second).__name__}: {second}")
        raise
