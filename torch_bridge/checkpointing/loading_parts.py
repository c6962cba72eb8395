"""Load a checkpoint into its parts: all get their saved state, or all keep their current one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torch.optim import Optimizer

from torch_bridge.checkpointing import encoding, parts
from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.parts import Part
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import empty_dtensor, local_region, local_shard, mesh_of
from torch_bridge.distributed.plain_names import to_plain_names
from torch_bridge.param_groups import all_parameters
from torch_bridge.training.state.optimizer_states import is_of_torch
from torch_bridge.training.step import TrainStep

_PER_RANK_KEYS = ("random", "carry")  # of a training step's state: no other rank can use them


class _ShardedParameter(NamedTuple):
    """A sharded parameter, and whether one of torch's own optimizers trains it."""

    parameter: Tensor
    is_of_torch: bool


class LoadingPart:
    """A part and the state that it will get."""

    is_per_rank = True
    """True if each rank gets the values that it saved itself; False if all get those of rank 0."""

    def __init__(self, name: str, part: Part) -> None:
        self.name, self._part = name, part
        self.is_step = isinstance(part, TrainStep)
        self._state: Any = None
        self._restore: Callable[[], None] | None = None

    def read_state(self, saved: SavedCheckpoint) -> None:
        """Read the state that `load_state` will load.

        Raises:
            ValueError: The part was of a different kind.
        """
        rank = processes.rank() if self.is_per_rank else 0
        structure = saved.part_record(self.name, rank)
        if structure["of"] != (kind := parts.kind_of(self._part)):
            raise ValueError(f"{self.name} was saved as a {structure['of']}, and here it is a {kind}")
        self._state = encoding.decode_state(self.name, structure["state"], self.tensor_reader(saved, rank))
        if self.is_step and rank >= saved.world_size:
            current = self._current_state()
            self._state.update({key: current[key] for key in _PER_RANK_KEYS})

    def load_state(self) -> None:
        """Load the state; `restore_state` restores the former one."""
        # Copied only after everything is read. If memory does not suffice, this part stays as it is.
        self._restore = parts.restorer(self.name, self._part)
        parts.set_state(self._part, self._state)

    def restore_state(self) -> None:
        if self._restore is not None:
            self._restore()

    def tensor_reader(self, saved: SavedCheckpoint, rank: int) -> encoding.MakeTensor:
        """Return a function that reads this rank's shard of a DTensor, and any other tensor whole."""
        make_target = self._target_maker()

        def read(path: str, reference: Reference) -> Tensor:
            if (target := make_target(path, reference)) is not None:
                saved.pieces_of(reference, rank)  # a rank without a share also rejects an incomplete tensor
                local = local_shard(target)
                if local.numel():
                    local.copy_(saved.read_tensor(reference, rank, *local_region(target)))
                return target
            tensor = saved.read_tensor(reference, rank)
            if reference.stride is None:
                return tensor
            strided = torch.empty_strided(
                reference.shape, reference.stride, dtype=reference.dtype, device="cpu"
            )
            return strided.copy_(tensor)

        return read

    def _target_maker(self) -> Callable[[str, Reference], Tensor | None]:
        """Return a function that makes an empty DTensor to read into; None means a plain tensor."""
        # A tensor is sharded like the one that the part has now. An optimizer that has not stepped yet has no
        # state, and reading whole moments would take many times the memory of a shard. So its tensors are
        # sharded like their parameter if they have its shape, and otherwise as they were saved. An optimizer
        # of another library may shard even those otherwise than the parameter: as they were saved.
        current, parameters = self._current_tensors(), self._sharded_parameters()

        def make_target(path: str, reference: Reference) -> Tensor | None:
            like, saved_as = current.get(path), reference.placements
            if like is None and (owner := _sharded_parameter_of(path, parameters)) is not None:
                parameter, is_of_torch = owner
                if list(parameter.shape) == reference.shape and (is_of_torch or saved_as is None):
                    like = parameter
                elif saved_as is not None:
                    return empty_dtensor(parameter, reference.shape, reference.dtype, saved_as)
            if like is None or not mesh_of(like) or list(like.shape) != reference.shape:
                return None
            return torch.empty_like(like.detach(), dtype=reference.dtype, device="cpu")

        return make_target

    def _current_state(self) -> Any:
        """Return the part's current state, which may share memory with it."""
        part = self._part
        return part._read_state() if type(part) is TrainStep else parts.get_state(part)

    def _current_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the part's current state by path."""
        if not distributed.is_initialized():
            return {}  # no DTensors
        by_path: dict[str, Tensor] = {}
        with suppress(Exception):  # the part may have no state yet
            encoded, tensors = encoding.encode_state(self.name, self._current_state())

            def collect(path: str, reference: Reference) -> Tensor:
                return by_path.setdefault(path, tensors[reference.key])

            encoding.decode_state(self.name, encoded, collect)
        return by_path

    def _sharded_parameters(self) -> dict[str, _ShardedParameter]:
        """Return the sharded parameters of an optimizer or a training step, by the path of their state.

        The first one is also found under the path of all states, for values that belong to no parameter.
        """
        part, paths = self._part, [self.name]
        optimizers: Sequence[Optimizer] = [part] if isinstance(part, Optimizer) else []
        if isinstance(part, TrainStep):
            optimizers, path = part.optimizers, f"{self.name}.optimizer"
            several = [f"{path}.{index}" for index in range(len(optimizers))]
            paths = [path] if len(optimizers) == 1 else several
        by_path: dict[str, _ShardedParameter] = {}
        for path, optimizer in zip(paths, optimizers, strict=False):
            for number, parameter in enumerate(all_parameters([optimizer])):
                if mesh_of(parameter):
                    owner = _ShardedParameter(parameter, is_of_torch(optimizer))
                    by_path.setdefault(f"{path}.state", owner)
                    by_path[f"{path}.state.{number}"] = owner
        return by_path


class LoadingModel(LoadingPart):
    """A module that gets its state from a training step's or a module's state.

    All ranks get the state of rank 0.
    """

    is_per_rank = False

    def current_state(self) -> dict[str, Any]:
        """Return the module's state under plain names: its tensors, not copies of them."""
        return parts.get_state(self._part)

    def read_state(self, saved: SavedCheckpoint) -> None:
        self.stage(self.decode_state(saved, self.tensor_reader(saved, 0)))

    def decode_state(self, saved: SavedCheckpoint, make: encoding.MakeTensor) -> Mapping[str, Any]:
        """Return the saved state under the names that the module has here without its wrappers.

        Args:
            saved: The checkpoint.
            make: Makes a tensor of the state from its path, as if the part were the module itself.

        Raises:
            ValueError: It is not the state of a module with these names and shapes.
        """
        part = saved.part_record(self.name, 0)
        state = part["state"]
        if isinstance(state, dict) and {"model", "optimizer", "applied"} <= state.keys():
            state = cast("dict[str, Any]", state)["model"]
        state, current = encoding.decode_state(self.name, state, make), self.current_state()
        if part["of"] != "state" or not isinstance(state, Mapping):
            raise ValueError(f"{self.name} is neither a TrainStep nor a module")
        named = to_plain_names(cast("Mapping[str, Any]", state), current)
        different = [
            f"{name}: {_shape_in(named, name)} in the checkpoint, {_shape_in(current, name)} here"
            for name in current | dict(named)
            if _shape_in(named, name) != _shape_in(current, name)
        ]
        if different:
            raise ValueError(f"{self.name} was saved with a different model: {'; '.join(different[:5])}")
        return named

    def stage(self, state: Mapping[str, Any]) -> None:
        """Set the state that `load_state` will load."""
        self._state = state


def _sharded_parameter_of(path: str, parameters: Mapping[str, _ShardedParameter]) -> _ShardedParameter | None:
    """Return the sharded parameter whose state a path belongs to."""
    while path:
        path = path.rpartition(".")[0]
        if path in parameters:
            return parameters[path]
    return None


def _shape_in(state: Mapping[str, Any], name: str) -> str:
    if name not in state:
        return "missing"
    return str(tuple(state[name].shape)) if isinstance(state[name], Tensor) else "no tensor"


def load_all_or_none(loading: Sequence[LoadingPart]) -> None:
    """Load every part on every rank. After an error on any rank, restore what was loaded.

    A collective: every rank calls it.
    """
    # Anything can fail in a part's own load_state_dict, also halfway. So a part counts as touched before it
    # loads, and an error on any rank is raised on all: after each part, all ranks continue or all roll back.
    touched: list[LoadingPart] = []
    try:
        for part in loading:
            touched.append(part)
            processes.collective_call(part.load_state)
    except BaseException as error:
        for part in reversed(touched):
            try:
                part.restore_state()
            except Exception as failure:
                error.add_note(f"{part.name} could not be restored: {type(failure).__name__}: {failure}")
        raise
