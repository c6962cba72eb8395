"""Checks of a saved state that torch's own `load_state_dict` does not make, and its position."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.curve_api import checks
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.plain_names import to_plain_names
from torch_bridge.saved_states import States, read_position
from torch_bridge.training.clock.clock import Clock, Counters, checked_updates
from torch_bridge.training.state.optimizer_states import check_same_parameters
from torch_bridge.training.state.snapshot import TrainStepState, as_list


def check_saved_state(current: TrainStepState, saved: Any) -> None:
    """Reject a state that torch would load, and that a run can't continue from.

    Torch itself rejects different names in a model, and different sizes of parameter groups. It
    casts a model's dtypes, broadcasts a carry, and takes whatever moments an optimizer's state has.

    Args:
        current: The current state of the step.
        saved: The state to be loaded.

    Raises:
        ValueError: The message names the entry.
    """
    _check_keys(current, saved)
    for name in ("precision", "optimizer_type"):
        if current[name] != saved[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {saved[name]}, and this step has "
                f"{current[name]}"
            )
    if "cpu" not in saved["random"]:
        raise ValueError("state_dict has no random state of the CPU")
    check_same_parameters(current["parameters"], saved["parameters"], "parameters")
    _check_shards(current, saved)
    _check_model(current["model"], to_plain_names(saved["model"], current["model"]))
    _check_equal(
        "a different carry", _describe_carry(current["carry"]), _describe_carry(saved["carry"])
    )
    _check_loss_scale(saved["loss_scale"] or (), current["precision"])


def _check_keys(current: TrainStepState, saved: Any) -> None:
    keys: set[str] = set(cast("Any", saved)) if isinstance(saved, Mapping) else set()
    if "base_lrs" in keys:
        raise ValueError(
            "state_dict is not the state of a TrainStep: it is the state of a scheduler. Load "
            "model and optimizer, then build TrainStep(..., initial_updates=state['last_epoch']); "
            "with clock=, see docs/training_step.md, From a TrainStep to a scheduler, and back"
        )
    if "curves" in keys:
        raise ValueError(
            "state_dict was saved by an earlier version, whose states are not read: load its "
            "'model' and 'optimizer', then build TrainStep(..., initial_updates=state['clock'])"
        )
    if keys != current.keys():
        raise ValueError(
            f"state_dict is not the state of a TrainStep, which has the keys {list(current)}"
        )


def _check_shards(current: TrainStepState, saved: Mapping[str, Any]) -> None:
    """Reject shards of a different rank or number of ranks. Whole tensors fit everywhere."""
    places = {_mesh_coordinates(value) for value in current["model"].values()}
    places.add(None)
    for value in pytree.tree_leaves([dict(saved["model"]), saved["optimizer"]]):
        place = _mesh_coordinates(value)
        if place not in places:
            raise ValueError(
                f"state_dict has shards of tensors, placed as {value.placements} over {place}, but "
                "the model's are placed differently: each rank must load its own state; save and "
                "load through Checkpoints to resume with a different number of ranks"
            )


def _mesh_coordinates(value: Any) -> str | None:
    """Return this rank's coordinates in the mesh of a DTensor; None for a plain tensor."""
    # Only the mesh matters: torch itself converts between placements over one mesh.
    mesh = mesh_of(value)
    if mesh is None:
        return None
    return f"{tuple(mesh.shape)} ranks at {mesh.get_coordinate()}"


def _check_model(current: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Reject different dtypes or shapes: torch casts the former, and loads (1,) into ()."""
    kinds: dict[str, str] = {}
    saved_kinds: dict[str, str] = {}
    for name, tensor in current.items():
        saved_tensor = saved.get(name)
        are_tensors = isinstance(tensor, Tensor) and isinstance(saved_tensor, Tensor)
        # A module's extra state may be of any type, and change it.
        if are_tensors and "_extra_state" not in name:
            kinds[name] = _describe_tensor(tensor)
            saved_kinds[name] = _describe_tensor(saved_tensor)
    _check_equal("a different model", kinds, saved_kinds)


def _describe_carry(leaves: Sequence[Tensor] | None) -> dict[int, str]:
    return {index: _describe_tensor(leaf) for index, leaf in enumerate(leaves or ())}


def _describe_tensor(tensor: Tensor) -> str:
    return f"{tensor.dtype} of {tuple(tensor.shape)}"


def _check_equal(source: str, current: dict[Any, str], saved: dict[Any, str]) -> None:
    differences: list[str] = []
    for name in current | saved:
        here = current.get(name, "missing")
        in_state = saved.get(name, "missing")
        if here != in_state:
            differences.append(f"{name}: {in_state} in the state, {here} here")
    if differences:
        raise ValueError(f"state_dict was saved with {source}: " + "; ".join(differences[:5]))


def _check_loss_scale(state: Sequence[Tensor], precision: str) -> None:
    """Reject a scale or a divisor of sums with which every update would be skipped."""
    factors = list(state)
    has_right_length = len(state) <= 1
    if precision == "fp16":
        factors = [*state[:1], *state[2:]]  # without the counter of good updates
        has_right_length = len(state) in (2, 3)
    if not has_right_length or not all(0 < factor < math.inf for factor in factors):
        raise ValueError(
            f"state_dict has loss_scale = {state}, with which every update would be skipped"
        )


class SavedRun(NamedTuple):
    """The position at which a saved run continues."""

    counters: Counters
    peaks: list[float]
    hold_states: States
    messages: list[str]
    """Warnings that are due, because the clocks or the curves differ."""


def read_saved_run(
    saved: Mapping[str, Any], clock: Clock, optimizers: Sequence[Optimizer], *, strict: bool
) -> SavedRun:
    """Return the position of a saved run, and compare its curves and clock.

    Raises:
        ValueError: See `TrainStep.load_state_dict`.
    """
    applied = checked_updates("applied", saved["applied"])
    skipped = checked_updates("skipped", saved["skipped"])
    position = read_position(
        saved, applied, clock.curves, clock.checked, "TrainStep", strict=strict
    )
    consumed = position.consumed
    if clock.checked.unit is None:
        consumed = applied
    counters = Counters(applied, skipped, position.curve_step, consumed)

    states = as_list(saved["optimizer"], optimizers)
    groups = chain.from_iterable(state["param_groups"] for state in states)
    peaks = [float(checks.peak("initial_lr", group["initial_lr"])) for group in groups]
    if len(peaks) != len(clock.peaks):
        raise ValueError(
            f"state_dict has {len(peaks)} parameter groups; this step has {len(clock.peaks)}"
        )
    return SavedRun(counters, peaks, position.hold_states, position.messages)
