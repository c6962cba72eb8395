"""Verify a checkpoint, and read from it what this rank needs: of DTensors, its shards."""

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.groups.optimizers import parameters_of
from torch_bridge.training.checkpointing import file_format, parts
from torch_bridge.training.checkpointing.checkpoint_dirs import CheckpointDir, read_checkpoint
from torch_bridge.training.checkpointing.parts import CheckpointPart
from torch_bridge.training.checkpointing.states import map_leaves, read_structure
from torch_bridge.training.checkpointing.stored_values import (
    ARRAY,
    BYTES,
    SCALAR,
    StoredValue,
    decode,
)
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.dtensors import empty_dtensor, mesh_of
from torch_bridge.training.distributed.plain_names import plain_state, renamed_state
from torch_bridge.training.random_states import RANDOM_STATES_FORMAT, RandomStates
from torch_bridge.training.train_step.step_state import PER_RANK_ENTRIES, TRAIN_STEP_FORMAT

Value = TypeVar("Value")


class CheckpointReader:
    """A checkpoint to read from. Its files may be damaged: see `read_verified`."""

    def __init__(self, checkpoint: CheckpointDir) -> None:
        self.path = checkpoint.path
        self.step = checkpoint.step
        self.manifest = checkpoint.manifest
        self.reader = file_format.TensorReader(checkpoint.path)

    def read_structure(self, part: str, rank: int) -> Any:
        """Return a part's state as a rank saved it, with a `StoredValue` for each stored one."""

        def stored_name(name: str) -> str:
            # Rank 0's, unless the rank has stored a different value.
            name_of_rank = file_format.name_of_rank(name, rank)
            if name_of_rank in self.reader.shapes:
                return name_of_rank
            return name

        name = stored_name(file_format.structure_name(part))
        content = self.reader.empty_bytes(name)
        self.reader.fill_tensors({name: content})
        return read_structure(part, content, stored_name)


def read_part(saved: CheckpointReader, name: str, part: CheckpointPart) -> Any:
    """Return the state that a part gets on this rank."""
    rank = processes.rank()
    structure = saved.read_structure(name, rank)
    _check_form(name, part, structure)
    state = _read_tensors(saved, structure, name, part)
    if isinstance(part, parts.TrainStepInterface) and rank >= saved.manifest["world_size"]:
        current = part._live_state()
        for entry in PER_RANK_ENTRIES:
            state[entry] = current[entry]
    return state


def _check_form(name: str, part: CheckpointPart, structure: Any) -> None:
    """Reject a list for a dictionary, and the reverse. A stateful object takes any state."""
    if isinstance(part, parts.Stateful):
        return
    form = dict if isinstance(part, dict) else list
    if not isinstance(structure, form):
        saved_form = type(structure).__name__
        raise ValueError(f"{name} was saved as a {saved_form}, and here it is a {form.__name__}")


def read_random_states(saved: CheckpointReader) -> RandomStates | None:
    """Return the random states that this rank gets: None if the checkpoint has none for it."""
    rank = processes.rank()
    if rank >= saved.manifest["world_size"]:
        return None
    name = parts.RANDOM_STATES_PART
    states = _read_tensors(saved, saved.read_structure(name, rank), name, {})
    return RANDOM_STATES_FORMAT.read(name, states)


def read_model(saved: CheckpointReader, part: str, model: nn.Module) -> Mapping[str, Any]:
    """Return the state that a module gets: that of rank 0, under the module's plain names.

    The part is a module or a training step. The state of an `AveragedModel` also fits the module
    that it averages.

    Raises:
        ValueError: It is not that of a module with these names and shapes.
    """
    structure = saved.read_structure(part, 0)
    if not isinstance(structure, dict):
        raise ValueError(f"{part} is neither a TrainStep nor a module")
    structure = cast("dict[str, Any]", structure)
    if TRAIN_STEP_FORMAT.is_of(structure):
        TRAIN_STEP_FORMAT.check_version(part, structure)
        structure = structure["model"]
    current = plain_state(model)
    if "n_averaged" in structure and "n_averaged" not in current:
        structure = _structure_of_averaged(structure)
    # Torch would raise an error too, but only after it has loaded all others.
    saved_shapes = _shapes_in(structure)
    shapes = _shapes_in(current)
    differences: list[str] = []
    for name in {**shapes, **saved_shapes}:
        saved_shape = saved_shapes.get(name, "missing")
        shape = shapes.get(name, "missing")
        if saved_shape != shape:
            differences.append(f"{name}: {saved_shape} in the checkpoint, {shape} here")
    if differences:
        owner = f"{part} of checkpoint {saved.step}"
        raise ValueError(f"{owner} was saved with a different model: {'; '.join(differences[:5])}")
    return _read_tensors(saved, structure, part, model)


def _structure_of_averaged(structure: dict[str, Any]) -> dict[str, Any]:
    """Return the structure of the module in an `AveragedModel` of torch."""
    others = copy(structure)  # keeps torch's `_metadata`
    del others["n_averaged"]
    if not all(name.startswith("module.") for name in others):
        return structure
    return renamed_state(others, lambda name: f"{name}.".removeprefix("module.").removesuffix("."))


def _shapes_in(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the shape of each tensor in a model's state, as text."""
    shapes: dict[str, str] = {}
    for name, leaf in state.items():
        shapes[name] = "no tensor"
        if isinstance(leaf, StoredValue) and leaf.kind not in (ARRAY, SCALAR):
            shapes[name] = str(tuple(leaf.meta.shape))
        elif isinstance(leaf, Tensor):
            shapes[name] = str(tuple(leaf.shape))
    return shapes


def _read_tensors(saved: CheckpointReader, structure: Any, name: str, part: CheckpointPart) -> Any:
    """Return the structure of a part's state with its stored values read."""
    sharded = _sharded_tensors(name, part)
    tensors: dict[str, Tensor] = {}

    def allocate(path: str, leaf: Any) -> None:
        if not isinstance(leaf, StoredValue) or leaf.name in tensors:
            return
        if leaf.kind == BYTES:
            like = _find_sharded(path, sharded)
            if like is not None and like.shape == leaf.meta.shape:
                raise ValueError(
                    f"{path} was saved whole, and is sharded here, but nothing says how to cut a "
                    "tensor of its class: load it under DDP or on one process, or leave out the "
                    "part"
                )
            tensors[leaf.name] = saved.reader.empty_bytes(leaf.name)
        else:
            tensors[leaf.name] = _allocate(path, leaf, sharded)

    def fill(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, StoredValue):
            return leaf
        return decode(leaf, tensors[leaf.name])

    map_leaves(name, structure, allocate)
    saved.reader.fill_tensors(tensors)
    return map_leaves(name, structure, fill)


def _sharded_tensors(name: str, part: CheckpointPart) -> dict[str, Tensor]:
    """Return the DTensors that a part has now, by their paths in its state.

    An optimizer that has not stepped yet has none, and whole moments would take many times the
    memory of a shard. So its parameters are added, by the path of their state.
    """
    leaves: dict[str, Any] = {}
    if processes.has_group():
        with suppress(Exception):  # the part may have no state yet
            map_leaves(name, parts.get_state(part), leaves.setdefault)
        for path, optimizer in _optimizers_by_path(name, part).items():
            for index, parameter in enumerate(parameters_of(optimizer)):
                leaves[f"{path}.state.{index}"] = parameter
    return {path: leaf for path, leaf in leaves.items() if mesh_of(leaf) is not None}


def _optimizers_by_path(name: str, part: CheckpointPart) -> dict[str, Optimizer]:
    """Return the optimizers of a part, by the path of their state."""
    if isinstance(part, Optimizer):
        return {name: part}
    if not isinstance(part, parts.TrainStepInterface):
        return {}
    path = f"{name}.optimizer"
    if len(part.optimizers) == 1:
        return {path: part.optimizers[0]}
    return {f"{path}.{index}": optimizer for index, optimizer in enumerate(part.optimizers)}


def _allocate(path: str, stored: StoredValue, sharded: Mapping[str, Tensor]) -> Tensor:
    """Return an uninitialized tensor for a path of a part's state.

    It is sharded like the DTensor that belongs there. If that has a different shape, it is sharded
    as it was saved.
    """
    meta = stored.meta
    like = _find_sharded(path, sharded)
    if like is not None:
        if like.shape == meta.shape:
            return torch.empty_like(like.detach(), dtype=meta.dtype, device="cpu")
        if stored.placements is not None:
            return empty_dtensor(mesh_of(like), meta.shape, meta.dtype, stored.placements)
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu")


def _find_sharded(path: str, sharded: Mapping[str, Tensor]) -> Tensor | None:
    """Return the DTensor that a part has at a path, or the parameter whose state the path is in."""
    while path and path not in sharded:
        path = path.rpartition(".")[0]
    return sharded.get(path)


def read_verified(
    checkpoint: CheckpointDir,
    read: Callable[[CheckpointReader], Value],
    *,
    verify: bool,
) -> tuple[Value | None, str]:
    """Read from a checkpoint, and meanwhile verify all its files. A collective.

    With `verify`, the SHA-256 of each file is compared. Otherwise, each file must only be there.
    The files are divided among the ranks. If the number of ranks is unchanged, each rank verifies
    the file that it wrote.

    Returns:
        The value that `read` returns, and ""; or None, and a description of the damage.
    """
    if checkpoint.is_of_different_version:
        raise ValueError(f"{checkpoint.path}: {checkpoint.damage}")
    if checkpoint.damage:
        return None, f"{checkpoint.step}: {checkpoint.damage}"

    value: Value | None = None
    error: Exception | None = None
    damages: list[str] = []
    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            pending = [
                pool.submit(_find_damage, checkpoint, name, verify=verify)
                for name in files_to_verify(checkpoint)
            ]
            try:
                value = read(CheckpointReader(checkpoint))
            finally:
                damages += [verified.result() for verified in pending]
                # A save in another process may have put a different checkpoint in its place.
                if read_checkpoint(checkpoint.path, checkpoint.step) != checkpoint:
                    damages.append(f"{checkpoint.step}: it changed while it was read")
    except Exception as caught:  # of a damaged file, there may be any error
        error = caught
    damage = "; ".join(filter(None, damages))

    try:
        gathered = processes.gather((damage, processes.error_as_text(error)))
        for damage_of_rank, _ in gathered:
            if damage_of_rank:
                return None, damage_of_rank
        processes.raise_error_of_any_rank(error, [description for _, description in gathered])
    finally:
        del error  # its traceback refers to this frame, a cycle that would keep what was read alive
    return value, ""


def files_to_verify(checkpoint: CheckpointDir) -> list[str]:
    """Return the names of this rank's share of the files."""
    # Also a file that does not belong to it: `CheckpointReader` would read it too.
    present = file_format.list_files(checkpoint.path)
    names = {*present, *checkpoint.manifest["files"]}
    all_names = sorted(names, key=lambda name: (len(name), name))  # rank 2 before rank 10
    return all_names[processes.rank() :: processes.world_size()]


def _find_damage(checkpoint: CheckpointDir, name: str, *, verify: bool) -> str:
    """Return what is wrong with a file, or an empty string."""
    files = checkpoint.manifest["files"]
    if name not in files:
        return f"{checkpoint.step}: {name} does not belong to it"
    try:
        with (checkpoint.path / name).open("rb") as file:
            if not verify:
                return ""
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{checkpoint.step}: {name} can't be read: {error}"
    if digest != files[name]:
        return f"{checkpoint.step}: {name} is damaged: its SHA-256 differs"
    return ""
