"""Check a saved state against the training step that will load it, before anything changes."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.plain_names import to_plain_names
from torch_bridge.saved_states import refuse_path
from torch_bridge.schedulers.param_groups import all_parameters
from torch_bridge.training.state.optimizer_states import (
    check_same_parameters,
    is_of_torch,
    naming_entry,
)
from torch_bridge.training.state.snapshot import TrainStepState, as_list

# torch's own optimizers keep tensors of a parameter's shape and dtype, except under these names:
_SCALAR_NAMES = ("step", "eta", "mu", "mu_product")
_FACTOR_NAMES = ("row_var", "col_var")  # of Adafactor; torch fails if their shapes are wrong

_MAX_STEPS = 2**53  # a double holds every integer up to here


def check_saved_state(current: TrainStepState, saved: Any, optimizers: Sequence[Optimizer]) -> None:
    """Refuse a state whose keys, shapes or dtypes differ from this step's, and shards of another rank.

    Args:
        current: The current state of the step.
        saved: The state to be loaded.
        optimizers: The optimizers of the step.

    Raises:
        ValueError: The message names the entry.
    """
    refuse_path(saved)
    if isinstance(saved, Mapping) and "base_lrs" in saved:
        raise ValueError(
            "state_dict is not a state of a TrainStep: it is the state of a scheduler. Load model and "
            "optimizer, then build TrainStep(..., initial_updates=state['last_epoch']); with unit= or hold=, "
            "see docs/training_step.md, From a TrainStep to a scheduler, and back"
        )
    if not isinstance(saved, Mapping) or current.keys() != saved.keys():
        raise ValueError(f"state_dict is not a state of a TrainStep, which has the keys {list(current)}")
    saved = cast("Mapping[str, Any]", saved)
    for name in ("precision", "optimizer_type"):
        if current[name] != saved[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {saved[name]}, and this step has {current[name]}"
            )
    with naming_entry("model"):
        model = to_plain_names(saved["model"], current["model"])
        _check_equal("another model", _describe_entries(current["model"]), _describe_entries(model))
    with naming_entry("carry"):
        _check_equal("another carry", _describe_entries(current["carry"]), _describe_entries(saved["carry"]))
    with naming_entry("loss_scale"):
        scale, saved_scale = ([*(state["loss_scale"] or ())] for state in (current, saved))
        count = 2 if current["precision"] == "fp16" else 0
        # The divisor of sums comes after the scale and its counter, if there is one.
        like = scale[:count] + [torch.ones((), dtype=torch.float32)] * (len(saved_scale) > count)
        _check_equal("another loss_scale", _describe_entries(like), _describe_entries(saved_scale))
        # With any other value every update would be skipped.
        if not all(0 < value < float("inf") for value in [*saved_scale[:1], *saved_scale[count:]]):
            raise ValueError(f"state_dict has loss_scale = {saved_scale}; it must be finite and positive")
    with naming_entry("random"):  # a state saved on a GPU loads on a CPU, and vice versa
        cpu_states = [{"cpu": state["random"]["cpu"]} for state in (current, saved)]
        _check_equal("other random numbers", *map(_describe_entries, cpu_states))
    with naming_entry("optimizer"):
        _check_shards(current, saved)
        current_states, states = (as_list(state["optimizer"], optimizers) for state in (current, saved))
        if len(states) != len(optimizers):
            raise ValueError(f"state_dict has {len(states)} optimizers, and this step has {len(optimizers)}")
        with naming_entry("parameters"):
            check_same_parameters(current["parameters"], saved["parameters"], "parameters")
        for optimizer, current_state, state in zip(optimizers, current_states, states, strict=True):
            _check_optimizer(optimizer, current_state, state)


def _describe_entries(values: Any) -> dict[str, str]:
    """Describe each entry of a dictionary by its name, or each item of a list by its index."""
    named = cast(
        "Mapping[Any, Any]", values if isinstance(values, Mapping) else dict(enumerate(values or ()))
    )
    # A module's extra state may be of any type, and change it.
    return {name: "" if "_extra_state" in str(name) else _describe(value) for name, value in named.items()}


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    kind = f"{value.dtype} of {tuple(value.shape)}"
    if value.layout != torch.strided:
        kind = f"{value.layout} {kind}"
    return f"{kind} without memory" if value.is_meta else kind


def _check_equal(source: str, current: dict[Any, str], saved: dict[Any, str]) -> None:
    different = [
        f"{name}: {saved.get(name, 'missing')} in the state, {current.get(name, 'missing')} here"
        for name in current | saved
        if current.get(name) != saved.get(name)
    ]
    if different:
        raise ValueError(f"state_dict was saved with {source}: " + "; ".join(different[:5]))


def _check_shards(current: TrainStepState, saved: Mapping[str, Any]) -> None:
    """Refuse shards of another rank or of another number of ranks. Whole tensors fit everywhere."""
    current_places = {_mesh_coordinates(value) for value in current["model"].values()} | {None}
    for value in pytree.tree_leaves([dict(saved["model"]), saved["optimizer"]]):
        if (place := _mesh_coordinates(value)) not in current_places:
            raise ValueError(
                f"state_dict has shards of tensors, placed as {value.placements} over {place}, but the "
                "model's are placed differently: each rank must load its own state; save and load through "
                "Checkpoints to resume with another number of ranks"
            )


def _mesh_coordinates(value: Any) -> str | None:
    """Return this rank's coordinates in the mesh of a DTensor; None for a plain tensor."""
    # Only the mesh matters: torch itself converts between placements over one mesh.
    mesh = mesh_of(value)
    return None if mesh is None else f"{tuple(mesh.shape)} ranks at {mesh.get_coordinate()}"


def _check_optimizer(optimizer: Optimizer, current: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    groups, saved_groups = current["param_groups"], saved["param_groups"]
    if [group["params"] for group in groups] != [group["params"] for group in saved_groups]:
        raise ValueError("state_dict was saved with another optimizer, or with other parameter groups")
    of_torch = is_of_torch(optimizer)
    if of_torch:  # others may add options to their groups in the first step
        for index, pair in enumerate(zip(groups, saved_groups, strict=True)):
            options = (dict.fromkeys(group.keys() - {"param_names"}, "an option") for group in pair)
            _check_equal(f"other options in param_groups[{index}]", *options)
    numbers = chain.from_iterable(group["params"] for group in current["param_groups"])
    parameters = dict(zip(numbers, all_parameters([optimizer]), strict=True))
    for number, values in saved["state"].items():
        if number not in parameters:
            if of_torch or not isinstance(number, str):  # MADGRAD, for instance, keeps a value under a name
                raise ValueError(f"state_dict has an optimizer's state for an unknown parameter, {number}")
            continue
        if of_torch:
            expected = _expected_entries(parameters[number], values)
        else:  # known only after an update, and others may come later
            kinds = _describe_entries(current["state"].get(number))
            expected = {name: kind for name, kind in kinds.items() if name in values}
        kinds = {name: kind for name, kind in _describe_entries(values).items() if name in expected}
        _check_equal(f"another optimizer; its state differs for parameter {number}", expected, kinds)


def _expected_entries(parameter: Tensor, values: Mapping[str, Any]) -> dict[str, str]:
    """Check the scalars of one of torch's own optimizers, and describe its expected tensors."""
    for name in values.keys() & _SCALAR_NAMES:
        if not 0 <= values[name] < _MAX_STEPS:
            raise ValueError(f"state_dict has {name} = {values[name]} in an optimizer's state")
    return {name: _describe(parameter) for name in values if name not in _SCALAR_NAMES + _FACTOR_NAMES}
