"""Parts while a checkpoint is loaded: all get their saved state, or all keep the state that they had."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.checkpointing import encoding, parts
from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.parts import Part, Snapshot, Stateful
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import empty_dtensor, local_region, local_shard, mesh_of
from torch_bridge.distributed.plain_names import plain_state, to_plain_names
from torch_bridge.schedulers.param_groups import all_parameters
from torch_bridge.training.state.state_checks import is_of_torch
from torch_bridge.training.step import TrainStep

_OF_ONE_RANK = ("random", "carry")  # in a training step's state; no other rank can use them


class LoadingPart:
    """One part, the state that it had before, and the state that it gets."""

    is_of_each_rank = True
    """Whether each rank gets what it has saved itself, if that differs from rank 0's."""

    def __init__(self, name: str, part: Part) -> None:
        self.name, self._part = name, part
        self._state: Any = None
        self._before: Snapshot | None = None
        self._keep()
        # A dictionary or a list gets back the very objects that it held, whatever they are.
        self._items = None if isinstance(part, Stateful) else parts.state_of(part)

    def _keep(self) -> None:
        """Keep the state that the part has, to restore it after an error."""
        try:
            self._before = Snapshot.of(self.name, self._part)
        except Exception:  # a training step whose update was interrupted has no state
            self._before = None

    def read(self, saved: SavedCheckpoint) -> None:
        """Read the state for `load`.

        Raises:
            ValueError: The part was of another kind.
        """
        rank = processes.rank() if self.is_of_each_rank else 0
        structure = saved.part(self.name, rank)
        if structure["of"] != (kind := parts.kind(self._part)):
            raise ValueError(f"{self.name} was saved as a {structure['of']}, and here it is a {kind}")
        self._state = encoding.decode(self.name, structure["state"], self.reader(saved, rank))
        if rank >= saved.ranks and self._before is not None and self._has_values_of_one_rank():
            before = self._before.state()
            self._state.update({key: before[key] for key in _OF_ONE_RANK})

    def values_of_one_rank(self) -> list[str]:
        """Return the keys of values that a rank which did not save keeps as they are."""
        if not self._has_values_of_one_rank():
            return []
        return [f"{self.name}.{key}" for key in _OF_ONE_RANK if self._state.get(key) is not None]

    def load(self) -> None:
        parts.set_state(self._part, self._state)

    def restore(self) -> None:
        """Give the part the state that it had before.

        Raises:
            RuntimeError: It had none.
        """
        if self._items is not None:
            parts.set_state(self._part, self._items)
        elif self._before is not None:
            parts.set_state(self._part, self._before.state())
        else:
            raise RuntimeError("it had no state to keep")

    def reader(self, saved: SavedCheckpoint, rank: int) -> encoding.MakeTensor:
        """Return a function that reads a tensor: of a DTensor this rank's shard, anything else whole."""
        placed_like = self._placements()

        def read(path: str, reference: Reference) -> Tensor:
            if (target := placed_like(path, reference)) is not None:
                saved.check(reference, rank)
                local = local_shard(target)
                if local.numel():
                    local.copy_(saved.read(reference, rank, *local_region(target)))
                return target
            tensor = saved.read(reference, rank)
            if reference.stride is None:
                return tensor
            strided = torch.empty_strided(
                reference.shape, reference.stride, dtype=reference.dtype, device="cpu"
            )
            return strided.copy_(tensor)

        return read

    def _placements(self) -> Callable[[str, Reference], Tensor | None]:
        """Return a function that makes an empty DTensor for a saved tensor, or None for a plain tensor.

        A tensor is placed as the one that the part has now. An optimizer that was not stepped yet has none.
        There a tensor of a parameter's shape is placed as the parameter, and any other one as it was saved.
        An optimizer of another library may place tensors otherwise than the parameter: as they were saved.
        """
        present, parameters = self._tensors(), self._sharded_parameters()

        def place(path: str, reference: Reference) -> Tensor | None:
            like, saved_as = present.get(path), reference.placements
            if like is None and (found := _owner(path, parameters)) is not None:
                parameter, is_of_torch = found
                if list(parameter.shape) == reference.shape and (is_of_torch or saved_as is None):
                    like = parameter
                elif saved_as is not None:
                    return empty_dtensor(parameter, reference.shape, reference.dtype, saved_as)
            if like is None or not mesh_of(like) or list(like.shape) != reference.shape:
                return None
            return torch.empty_like(like.detach(), dtype=reference.dtype, device="cpu")

        return place

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the part's present state by their paths."""
        if self._before is None:
            if not isinstance(self._part, TrainStep):
                return {}
            own = plain_state(self._part.model)
            return {f"{self.name}.model.{key}": value for key, value in own.items()}
        found: dict[str, Tensor] = {}
        tensors = self._before.tensors

        def note(path: str, reference: Reference) -> Tensor:
            return found.setdefault(path, tensors[reference.key])

        encoding.decode(self.name, self._before.encoded["state"], note)
        return found

    def _sharded_parameters(self) -> dict[str, tuple[Tensor, bool]]:
        """Return the sharded parameters of an optimizer or a training step.

        Each has the path of its state, and a flag for optimizers of torch. The first one has the path of all
        states too, for what an optimizer keeps for no single parameter.
        """
        part, paths = self._part, [self.name]
        optimizers: Sequence[Optimizer] = [part] if isinstance(part, Optimizer) else []
        if isinstance(part, TrainStep):
            optimizers, path = part.optimizers, f"{self.name}.optimizer"
            several = [f"{path}.{index}" for index in range(len(optimizers))]
            paths = [path] if len(optimizers) == 1 else several
        found: dict[str, tuple[Tensor, bool]] = {}
        for path, optimizer in zip(paths, optimizers, strict=False):
            for number, parameter in enumerate(all_parameters([optimizer])):
                if mesh_of(parameter):
                    owner = parameter, is_of_torch(optimizer)
                    found.setdefault(f"{path}.state", owner)
                    found[f"{path}.state.{number}"] = owner
        return found

    def _has_values_of_one_rank(self) -> bool:
        return isinstance(self._part, TrainStep) and isinstance(self._state, dict)


class LoadingModel(LoadingPart):
    """A module that gets its state alone, out of a training step's or of a module's.

    On all ranks it is the state of rank 0. The module's present state is copied only when all is read, so
    that the copy and what reading takes are not in memory together.
    """

    is_of_each_rank = False
    _is_changed = False

    def _keep(self) -> None:
        """Left to `load`."""

    def own(self) -> dict[str, Any]:
        """Return the module's state under plain names: its own tensors, not copies."""
        return parts.state_of(self._part)

    def read(self, saved: SavedCheckpoint) -> None:
        self.take(self.state_in(saved, self.reader(saved, 0)))

    def state_in(self, saved: SavedCheckpoint, make: encoding.MakeTensor) -> Mapping[str, Any]:
        """Return the saved state under the names that the module has here, without those of wrappers.

        Args:
            saved: The checkpoint.
            make: Makes a tensor of the state from its path, as if the part was the module itself.

        Raises:
            ValueError: It is the state of something else, or of a module with other names or shapes.
        """
        part = saved.part(self.name, 0)
        state = part["state"]
        if isinstance(state, dict) and {"model", "optimizer", "applied"} <= state.keys():
            state = cast("dict[str, Any]", state)["model"]
        state, own = encoding.decode(self.name, state, make), self.own()
        if part["of"] != "state" or not isinstance(state, Mapping):
            raise ValueError(f"{self.name} is neither a TrainStep nor a module")
        found = to_plain_names(cast("Mapping[str, Any]", state), own)
        different = [
            f"{name}: {_shape(found, name)} in the checkpoint, {_shape(own, name)} here"
            for name in own | dict(found)
            if _shape(found, name) != _shape(own, name)
        ]
        if different:
            raise ValueError(f"{self.name} was saved with another model: {'; '.join(different[:5])}")
        return found

    def take(self, state: Mapping[str, Any]) -> None:
        """Keep a state for `load`."""
        self._state = state

    def load(self) -> None:
        # Without memory for a copy nothing is loaded: it could not be undone.
        self._before = Snapshot.of(self.name, self._part)
        self._is_changed = True
        super().load()

    def restore(self) -> None:
        if self._is_changed:
            super().restore()

    def _tensors(self) -> dict[str, Tensor]:
        return {f"{self.name}.{key}": value for key, value in self.own().items() if isinstance(value, Tensor)}


def _owner(path: str, parameters: Mapping[str, tuple[Tensor, bool]]) -> tuple[Tensor, bool] | None:
    """Return the sharded parameter to whose state a path belongs."""
    while path:
        path = path.rpartition(".")[0]
        if path in parameters:
            return parameters[path]
    return None


def _shape(state: Mapping[str, Any], name: str) -> str:
    if name not in state:
        return "missing"
    return str(tuple(state[name].shape)) if isinstance(state[name], Tensor) else "no tensor"


def load_all_or_none(loading: Sequence[LoadingPart]) -> None:
    """Load every part on every rank. After an error on any rank, restore what was loaded.

    A collective: every rank calls it.
    """
    touched: list[LoadingPart] = []
    try:
        for part in loading:
            touched.append(part)
            processes.collective_call(part.load)
    except BaseException as error:
        for part in reversed(touched):
            try:
                part.restore()
            except Exception as second:
                error.add_note(f"{part.name} could not be restored: {type(second).__name__}: {second}")
        raise
