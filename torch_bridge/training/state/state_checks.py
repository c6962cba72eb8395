"""Check a saved state for what torch's own `load_state_dict` does not notice, and read its position."""

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
    if isinstance(saved, Mapping) and "base_lrs" in saved:
        raise ValueError(
            "state_dict is not the state of a TrainStep: it is the state of a scheduler. Load "
            "model and optimizer, then build TrainStep(..., initial_updates=state['last_epoch']); "
            "with clock=, see docs/training_step.md, From a TrainStep to a scheduler, and back"
        )
    if isinstance(saved, Mapping) and "curves" in saved:
        raise ValueError(
            "state_dict was saved by an earlier version, whose states are not read: load its "
            "'model' and 'optimizer', then build TrainStep(..., initial_updates=state['clock'])"
        )
    if not isinstance(saved, Mapping) or current.keys() != saved.keys():
        raise ValueError(
            f"state_dict is not the state of a TrainStep, which has the keys {list(current)}"
        )
    saved = cast("Mapping[str, Any]", saved)
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
    _check_tensors(current["model"], to_plain_names(saved["model"], current["model"]))
    carry, saved_carry = (
        {
            index: f"{leaf.dtype} of {tuple(leaf.shape)}"
            for index, leaf in enumerate(state["carry"] or ())
        }
        for state in (current, saved)
    )
    _check_equal("a different carry", carry, saved_carry)
    # The scale, its counter of good updates, and the divisor of sums if there is one.
    scale, is_fp16 = saved["loss_scale"] or (), current["precision"] == "fp16"
    factors = [value for index, value in enumerate(scale) if not (is_fp16 and index == 1)]
    if len(scale) - 2 * is_fp16 not in (0, 1) or not all(
        0 < factor < float("inf") for factor in factors
    ):
        raise ValueError(
            f"state_dict has loss_scale = {scale}, with which every update would be skipped"
        )


class SavedRun(NamedTuple):
    """The position at which a saved run continues."""

    counters: Counters
    peaks: list[float]
    hold_states: States
    messages: list[str]
    """Warnings that are due, because the clocks or the curves differ."""


def read_saved_run(
    saved: Mapping[str, Any], clock: Clock, optimizers: Sequence[Optimizer], strict: bool
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
    consumed = applied if clock.checked.unit is None else position.consumed
    states = as_list(saved["optimizer"], optimizers)
    groups = chain.from_iterable(state["param_groups"] for state in states)
    peaks = [float(checks.peak("initial_lr", group["initial_lr"])) for group in groups]
    if len(peaks) != len(clock.peaks):
        raise ValueError(
            f"state_dict has {len(peaks)} parameter groups; this step has {len(clock.peaks)}"
        )
    counters = Counters(applied, skipped, position.curve_step, consumed)
    return SavedRun(counters, peaks, position.hold_states, position.messages)


def _check_equal(source: str, current: dict[Any, str], saved: dict[Any, str]) -> None:
    different = [
        f"{name}: {saved.get(name, 'missing')} in the state, {current.get(name, 'missing')} here"
        for name in current | saved
        if current.get(name) != saved.get(name)
    ]
    if different:
        raise ValueError(f"state_dict was saved with {source}: " + "; ".join(different[:5]))


def _check_shards(current: TrainStepState, saved: Mapping[str, Any]) -> None:
    """Reject shards of a different rank or of a different number of ranks. Whole tensors fit everywhere."""
    current_places = {_mesh_coordinates(value) for value in current["model"].values()} | {None}
    for value in pytree.tree_leaves([dict(saved["model"]), saved["optimizer"]]):
        if (place := _mesh_coordinates(value)) not in current_places:
            raise ValueError(
                f"state_dict has shards of tensors, placed as {value.placements} over {place}, but "
                "the model's are placed differently: each rank must load its own state; save and "
                "load through Checkpoints to resume with a different number of ranks"
            )


def _mesh_coordinates(value: Any) -> str | None:
    """Return this rank's coordinates in the mesh of a DTensor; None for a plain tensor."""
    # Only the mesh matters: torch itself converts between placements over one mesh.
    mesh = mesh_of(value)
    return None if mesh is None else f"{tuple(mesh.shape)} ranks at {mesh.get_coordinate()}"


def _check_tensors(current: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Reject a model with different dtypes or shapes: torch casts the former, and loads (1,) into ()."""
    kinds, saved_kinds = (
        {
            name: f"{state[name].dtype} of {tuple(state[name].shape)}"
            for name in current
            # A module's extra state may be of any type, and change it.
            if "_extra_state" not in name
            and all(isinstance(values.get(name), Tensor) for values in (current, saved))
        }
        for state in (current, saved)
    )
    _check_equal("a different model", kinds, saved_kinds)
