"""Verify a checkpoint, and read from it what this rank needs: of DTensors, its shards."""

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.checkpointing import file_format, parts
from torch_bridge.checkpointing.checkpoint_dirs import CheckpointDir, read_checkpoint
from torch_bridge.checkpointing.parts import Part
from torch_bridge.checkpointing.states import (
    fill_structure,
    map_leaves,
    meta_of,
    read_structure,
)
from torch_bridge.checkpointing.stored_values import (
    StoredShard,
    StoredSubclass,
    StoredTensor,
    class_in_safe_globals,
    map_tensors,
    walk,
)
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import (
    empty_dtensor,
    local_shard,
    mesh_coordinates,
    mesh_of,
    placements_of,
)
from torch_bridge.distributed.plain_names import plain_state, to_plain_names
from torch_bridge.groups.optimizers import all_parameters
from torch_bridge.optimizer_traits import is_of_torch
from torch_bridge.random_states import (
    RANDOM_STATES_FORMAT,
    RandomStates,
    check_states_of_process,
)
from torch_bridge.training.step import TrainStep
from torch_bridge.training.step_state import PER_RANK_ENTRIES, TRAIN_STEP

Value = TypeVar("Value")


class SavedCheckpoint:
    """A checkpoint to read from. Its files may be damaged: see `read_verified`."""

    def __init__(self, checkpoint: CheckpointDir) -> None:
        self.path = checkpoint.path
        self.step = checkpoint.step
        self.manifest = checkpoint.undamaged_manifest
        self._reader = file_format.TensorReader(checkpoint.path)

    def values_of_ranks(self, first: int, names: Collection[str]) -> list[str]:
        """Return the values of these parts that ranks from `first` on saved separately.

        They differ from rank 0's. Each is named by up to two components, such as `step.random`.
        """
        values: set[str] = set()
        for rank in range(first, self.manifest["world_size"]):
            prefix = file_format.name_of_rank("", rank)
            for stored_name in self._reader.shapes:
                if not stored_name.startswith(prefix):
                    continue
                path = stored_name.removeprefix(prefix).partition("/")[0]
                components = path.split(".")
                if components[0] in names:
                    values.add(".".join(components[:2]))
        return sorted(values)

    def read_structure(self, part: str, rank: int) -> Any:
        """Return a part's state as a rank saved it, with a `Stored` value for each tensor."""
        name = self._stored_name(file_format.structure_name(part), rank)
        content = torch.empty(self._reader.shapes[name], dtype=torch.uint8, device="cpu")
        self.fill_tensors({name: content})

        def with_stored_name(stored: StoredTensor) -> StoredTensor:
            return replace(stored, name=self._stored_name(stored.name, rank))

        structure = read_structure(part, content)
        return map_leaves(part, structure, lambda _, leaf: map_tensors(leaf, with_stored_name))

    def fill_tensors(self, targets: Mapping[str, Tensor]) -> None:
        """Read the tensors of these names in place; of a DTensor, this rank's shard."""
        self._reader.fill_tensors(targets)

    def _stored_name(self, name: str, rank: int) -> str:
        """Return the name that a rank's tensor is stored under: rank 0's, unless it differs."""
        name_of_rank = file_format.name_of_rank(name, rank)
        if name_of_rank in self._reader.shapes:
            return name_of_rank
        return name


def read_part(saved: SavedCheckpoint, name: str, part: Part) -> Any:
    """Return the state that a part gets on this rank.

    Raises:
        ValueError: The part was of a different form.
    """
    form = parts.form_of(part)
    saved_form = saved.manifest["parts"][name]
    if saved_form != form:
        raise ValueError(f"{name} was saved as a {saved_form}, and here it is a {form}")

    rank = processes.rank()
    structure = saved.read_structure(name, rank)
    state = read_tensors(saved, structure, Targets(name, part))
    if isinstance(part, TrainStep) and rank >= saved.manifest["world_size"]:
        current: Any = part._state.read()
        for entry in PER_RANK_ENTRIES:
            state[entry] = current[entry]
    return state


def read_random_states(saved: SavedCheckpoint) -> RandomStates | None:
    """Return the random states that this rank gets: None if the checkpoint has none for it.

    Raises:
        ValueError: A different version saved them; or a generator rejects them, such as NumPy's if
            the program has replaced it by one of a different kind.
    """
    rank = processes.rank()
    if rank >= saved.manifest["world_size"]:
        return None
    name = parts.RANDOM_STATES_PART
    states = read_tensors(saved, saved.read_structure(name, rank), Targets(name, {}))
    random_states = RANDOM_STATES_FORMAT.read(name, states)
    check_states_of_process(random_states)
    return random_states


def read_model(saved: SavedCheckpoint, part: str, model: nn.Module) -> Mapping[str, Any]:
    """Return the state that a module gets: that of rank 0, under the module's plain names.

    Raises:
        ValueError: See `model_structure`.
    """
    structure = model_structure(saved, part, model)
    return read_tensors(saved, structure, Targets(part, model))


def model_structure(saved: SavedCheckpoint, part: str, model: nn.Module) -> Mapping[str, Any]:
    """Return the structure of a saved module, or of a training step's, under plain names.

    That of an `AveragedModel` also fits the module that it averages.

    Raises:
        ValueError: It is not that of a module with these names and shapes.
    """
    structure: Any = saved.read_structure(part, 0)
    if not isinstance(structure, dict) or saved.manifest["parts"][part] != "state":
        raise ValueError(f"{part} is neither a TrainStep nor a module")
    structure = cast("dict[str, Any]", structure)
    if TRAIN_STEP.is_of(structure):
        TRAIN_STEP.check_version(part, structure)
        structure = structure["model"]

    current = plain_state(model)
    if "n_averaged" in structure and "n_averaged" not in current:
        structure = _without_count(structure)
    named = to_plain_names(structure, current)
    differences = _differences(named, current)
    if differences:
        owner = f"{part} of checkpoint {saved.step}"
        raise ValueError(f"{owner} was saved with a different model: {'; '.join(differences[:5])}")
    return named


def _without_count(structure: dict[str, Any]) -> dict[str, Any]:
    """Return the structure of an `AveragedModel` of torch without its number of averaged models."""
    others = copy(structure)  # keeps torch's `_metadata`
    del others["n_averaged"]
    if all(str(name).startswith("module.") for name in others):
        return others
    return structure


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the differences between two states in names and shapes, as text."""
    differences: list[str] = []
    for name in {**current, **stored}:
        stored_shape = _shape_in(stored, name)
        shape = _shape_in(current, name)
        if stored_shape != shape:
            differences.append(f"{name}: {stored_shape} in the checkpoint, {shape} here")
    return differences


def _shape_in(state: Mapping[str, Any], name: str) -> str:
    if name not in state:
        return "missing"
    tensor = meta_of(state[name])
    if tensor is None:
        return "no tensor"
    return str(tuple(tensor.shape))


def read_tensors(saved: SavedCheckpoint, structure: Any, targets: "Targets") -> Any:
    """Return a structure with its tensors read."""
    structure = map_leaves(targets.name, structure, targets.place)
    tensors: dict[str, Tensor] = {}

    def allocate(path: str, leaf: Any) -> None:
        for stored in walk(leaf):
            if not isinstance(stored, StoredTensor) or stored.name in tensors:
                continue
            if stored is leaf:
                tensors[stored.name] = targets.allocate(path, stored)
            else:  # an inner tensor, never a DTensor
                tensors[stored.name] = _empty(stored)

    map_leaves(targets.name, structure, allocate)
    saved.fill_tensors(tensors)
    return fill_structure(structure, tensors)


class _Owner(NamedTuple):
    """The parameter that a moment belongs to."""

    parameter: Tensor
    is_of_torch: bool
    """True if one of torch's own optimizers trains it."""


class Targets:
    """Allocates the tensors of a part to read into, sharded as the part needs them.

    A tensor is sharded like the tensor that the part has now. An optimizer that has not stepped yet
    has none, and whole moments would take many times the memory of a shard. So they are

        plain                           if their parameter is plain
        sharded like their parameter    if they have its shape
        sharded as they were saved      if they have a different shape, or if the optimizer is not
                                        torch's, so that it may shard its state differently
    """

    def __init__(self, name: str, part: Part) -> None:
        self.name = name
        self._part = part

    @cached_property
    def _current(self) -> dict[str, Any]:
        """The leaves of the part's state, by path.

        Empty without a process group, since only DTensors matter.
        """
        leaves: dict[str, Any] = {}
        if processes.has_group():
            with suppress(Exception):  # the part may have no state yet
                map_leaves(self.name, _current_state(self._part), leaves.setdefault)
        return leaves

    @cached_property
    def _owners(self) -> dict[str, _Owner]:
        if not processes.has_group():
            return {}
        return _parameters_by_path(self.name, self._part)

    def place(self, path: str, leaf: Any) -> Any:
        """Return a leaf; a stored shard with the DTensor whose mesh and placements it takes.

        Raises:
            ValueError: The class of the leaf is not in torch's list of safe globals; or a whole
                tensor of it, or a shard, does not fit the sharding of this run.
        """
        if not isinstance(leaf, StoredShard | StoredSubclass):
            return leaf
        for stored in walk(leaf):
            if isinstance(stored, StoredSubclass):
                _check_class(path, stored.class_name)
        like = self._current.get(path)
        owner = self._owner_of(path)
        if like is None and owner is not None and owner.parameter.shape == leaf.meta.shape:
            like = owner.parameter
        if isinstance(leaf, StoredSubclass):
            if isinstance(like, Tensor) and mesh_of(like) is not None:
                raise ValueError(
                    f"{path} is of {leaf.class_name}, was saved whole, and is sharded here: load "
                    "it under DDP or on one process, or leave out the optimizer"
                )
            return leaf
        if not _fits_shard(like, leaf):
            raise ValueError(
                f"{path} was saved in shards that only the same ranks can use, as "
                f"{leaf.coordinates}: load it with the same number of processes and the same "
                "sharding, or leave out the optimizer"
            )
        return replace(leaf, like=like)

    def allocate(self, path: str, stored: StoredTensor) -> Tensor:
        """Return an uninitialized tensor for a path of the part's state."""
        shape = stored.meta.shape
        dtype = stored.meta.dtype
        like = self._current.get(path)
        if isinstance(like, Tensor) and type(local_shard(like)) not in (Tensor, nn.Parameter):
            like = None  # its class may not implement `empty_like`
        owner = self._owner_of(path)
        if like is None and owner is not None and mesh_of(owner.parameter) is not None:
            has_shape = owner.parameter.shape == shape
            if has_shape and (owner.is_of_torch or stored.placements is None):
                like = owner.parameter
            elif stored.placements is not None:
                return empty_dtensor(owner.parameter, shape, dtype, stored.placements)
        if isinstance(like, Tensor) and mesh_of(like) is not None and like.shape == shape:
            return torch.empty_like(like.detach(), dtype=dtype, device="cpu")
        return _empty(stored)

    def _owner_of(self, path: str) -> _Owner | None:
        """Return the parameter whose state a path belongs to."""
        while path:
            path = path.rpartition(".")[0]
            if path in self._owners:
                return self._owners[path]
        return None


def _check_class(path: str, class_name: str) -> None:
    if class_in_safe_globals(class_name) is None:
        raise ValueError(
            f"{path} is of {class_name}, which is not in torch's list of safe globals here: import "
            "the library that defines it, or, if you trust the class, call "
            f"torch.serialization.add_safe_globals([{class_name.rpartition('.')[2]}])"
        )


def _empty(stored: StoredTensor) -> Tensor:
    meta = stored.meta
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu")


def _fits_shard(like: Any, stored: StoredShard) -> bool:
    """Return True if a DTensor is placed as the saved one was, with a shard of the same shape."""
    if not isinstance(like, Tensor) or mesh_coordinates(like) != stored.coordinates:
        return False
    if like.shape != stored.meta.shape or placements_of(like) != stored.placements:
        return False
    local = meta_of(stored.local)
    return local is not None and local_shard(like).shape == local.shape


def _current_state(part: Part) -> Any:
    """Return the part's current state, which may share memory with it."""
    if isinstance(part, TrainStep):
        return part._state.read()
    return parts.get_state(part)


def _parameters_by_path(name: str, part: Part) -> dict[str, _Owner]:
    """Return the parameters of an optimizer or a training step, by the path of their state.

    The first sharded one is also returned for the path of all states, for values that belong to no
    single parameter.
    """
    by_path: dict[str, _Owner] = {}
    for path, optimizer in _optimizers_by_path(name, part).items():
        for index, parameter in enumerate(all_parameters([optimizer])):
            owner = _Owner(parameter, is_of_torch(optimizer))
            by_path[f"{path}.state.{index}"] = owner
            if mesh_of(parameter) is not None:
                by_path.setdefault(f"{path}.state", owner)
    return by_path


def _optimizers_by_path(name: str, part: Part) -> dict[str, Optimizer]:
    """Return the optimizers of a part, by the path of their state."""
    if isinstance(part, Optimizer):
        return {name: part}
    if not isinstance(part, TrainStep):
        return {}
    path = f"{name}.optimizer"
    if len(part.optimizers) == 1:
        return {path: part.optimizers[0]}
    return {f"{path}.{index}": optimizer for index, optimizer in enumerate(part.optimizers)}


def read_verified(
    checkpoints: Sequence[CheckpointDir],
    read: Callable[[list[SavedCheckpoint]], Value],
    *,
    schedule_entries: Callable[[Value], dict[str, str]] | None = None,
    verify: bool = True,
) -> tuple[Value | None, str]:
    """Read from checkpoints, and meanwhile verify all their files. A collective.

    With `verify`, the SHA-256 of each file is compared. Otherwise, each file must only be there.
    The files are divided among the ranks. If the number of ranks is unchanged, each rank verifies
    the file that it wrote.

    Args:
        checkpoints: The checkpoints.
        read: Reads the value of this rank.
        schedule_entries: Returns the `parts.schedule_entries` in the value, which must be equal on
            all ranks.
        verify: See above.

    Returns:
        The value that `read` returns, and ""; or None, and a description of the damage.

    Raises:
        ValueError: A different version saved a checkpoint.
        Exception: An error of `read`, if nothing is damaged.
    """
    for checkpoint in checkpoints:
        if checkpoint.is_of_different_version:
            raise ValueError(f"{checkpoint.path}: {checkpoint.damage}")
        if checkpoint.damage:
            return None, f"{checkpoint.step}: {checkpoint.damage}"

    value: Value | None = None
    entries: dict[str, str] = {}
    error: Exception | None = None
    damages: list[str] = []
    try:
        value = _read_while_verifying(checkpoints, read, damages, verify=verify)
        if schedule_entries is not None:
            entries = schedule_entries(value)
    except Exception as caught:  # of a damaged file, there may be any error
        error = caught
    damage = "; ".join(filter(None, damages))

    try:
        gathered = processes.gather((damage, processes.describe_error(error), entries))
        for damage_of_rank, _, _ in gathered:
            if damage_of_rank:
                return None, damage_of_rank
        processes.raise_error_of_any_rank(error, [description for _, description, _ in gathered])
        parts.check_same_schedules([entries_of_rank for _, _, entries_of_rank in gathered])
    finally:
        del error  # its traceback refers to this frame, a cycle that would keep what was read alive
    return value, ""


def _read_while_verifying(
    checkpoints: Sequence[CheckpointDir],
    read: Callable[[list[SavedCheckpoint]], Value],
    damages: list[str],
    *,
    verify: bool,
) -> Value:
    """Read, and add what is damaged to `damages`, even if reading raises an error."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pending: list[Future[str]] = []
        for checkpoint, name in files_to_verify(checkpoints):
            pending.append(pool.submit(_find_damage, checkpoint, name, verify=verify))
        try:
            return read([SavedCheckpoint(checkpoint) for checkpoint in checkpoints])
        finally:
            damages += [verified.result() for verified in pending]
            damages += [_find_change(checkpoint) for checkpoint in checkpoints]


def _find_change(checkpoint: CheckpointDir) -> str:
    """Return a message if a save in another process has replaced or removed the checkpoint, or "".

    The files are opened at different times by their paths, so they could be those of two
    checkpoints.
    """
    if read_checkpoint(checkpoint.path, checkpoint.step) == checkpoint:
        return ""
    return f"{checkpoint.step}: it was replaced or removed while it was read"


def files_to_verify(checkpoints: Sequence[CheckpointDir]) -> list[tuple[CheckpointDir, str]]:
    """Return this rank's share of the files, each as its checkpoint and its name."""
    files: list[tuple[CheckpointDir, str]] = []
    for checkpoint in checkpoints:
        # Also a file that does not belong to it: `SavedCheckpoint` would read it too.
        present = file_format.list_files(checkpoint.path)
        all_names = sorted({*present, *checkpoint.undamaged_manifest["files"]})
        files.extend(
            (checkpoint, name) for name in all_names[processes.rank() :: processes.world_size()]
        )
    return files


def _find_damage(checkpoint: CheckpointDir, name: str, *, verify: bool) -> str:
    """Return what is wrong with a file, or an empty string."""
    files = checkpoint.undamaged_manifest["files"]
    if name not in files:
        return f"{checkpoint.step}: {name} does not belong to it"
    try:
        with (checkpoint.path / name).open("rb") as file:
            if not verify:
                return ""
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{checkpoint.step}: {name} is missing"
    except OSError as error:
        return f"{checkpoint.step}: {name} can't be read: {error}"
    if digest != files[name]:
        return f"{checkpoint.step}: {name} is damaged: its SHA-256 differs"
    return ""
