"""Compare a saved state with the training step that is to load it, before anything changes."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.plain_names import to_plain_names
from torch_bridge.schedulers.param_groups import all_parameters
from torch_bridge.schedulers.resume import refuse_path
from torch_bridge.training.state.snapshot import TrainStepState, as_list

_LATER_KEYS = {"clock", "hold", "consumed", "unit"}  # states of the first release lack them

# What torch's own optimizers keep for a parameter has its shape and dtype, except under these names:
_SCALARS = ("step", "eta", "mu", "mu_product")
_FACTORS = ("row_var", "col_var")  # of Adafactor; torch fails if their shapes are wrong

_MOST_STEPS = 2**53  # a double holds every count up to here


@contextmanager
def naming_entry(entry: str) -> Generator[None]:
    """Turn any error that a damaged entry of a state leads to into a ValueError that names the entry."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        message = f"state_dict has a damaged entry {entry!r}: {type(error).__name__}: {error}"
        raise ValueError(message) from error


def check_saved_state(own: TrainStepState, saved: Any, optimizers: Sequence[Optimizer]) -> None:
    """Refuse a state with other keys, shapes or dtypes than this step's, and shards of another rank.

    Args:
        own: The present state of the step.
        saved: The state to be loaded.
        optimizers: The optimizers of the step.

    Raises:
        ValueError: It names the entry.
    """
    refuse_path(saved)
    if not isinstance(saved, Mapping) or own.keys() - _LATER_KEYS != saved.keys() - _LATER_KEYS:
        raise ValueError(f"state_dict is not a state of a TrainStep, which has the keys {list(own)}")
    saved = cast("Mapping[str, Any]", saved)
    for name in ("precision", "optimizer_type"):
        if own[name] != saved[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {saved[name]}, and this step has {own[name]}"
            )
    with naming_entry("model"):
        model = to_plain_names(saved["model"], own["model"])
        _check_kinds("another model", _kinds(own["model"]), _kinds(model))
    with naming_entry("carry"):
        _check_kinds("another carry", _kinds(own["carry"]), _kinds(saved["carry"]))
    with naming_entry("loss_scale"):
        scale, saved_scale = ([*(state["loss_scale"] or ())] for state in (own, saved))
        count = 2 if own["precision"] == "fp16" else 0
        # After the scale and its counter comes the divisor of sums, once it was agreed on.
        like = scale[:count] + [torch.ones((), dtype=torch.float32)] * (len(saved_scale) > count)
        _check_kinds("another loss_scale", _kinds(like), _kinds(saved_scale))
        # With other values than these every update would be skipped.
        if not all(0 < value < float("inf") for value in [*saved_scale[:1], *saved_scale[count:]]):
            raise ValueError(f"state_dict has loss_scale = {saved_scale}; it must be finite and positive")
    with naming_entry("random"):  # a state that was saved on a GPU loads on a CPU, and the other way round
        cpu_states = [{"cpu": state["random"]["cpu"]} for state in (own, saved)]
        _check_kinds("other random numbers", *map(_kinds, cpu_states))
    with naming_entry("optimizer"):
        _check_shards(own, saved)
        own_states, states = (as_list(state["optimizer"], optimizers) for state in (own, saved))
        if len(states) != len(optimizers):
            raise ValueError(f"state_dict has {len(states)} optimizers, and this step has {len(optimizers)}")
        for optimizer, own_state, state in zip(optimizers, own_states, states, strict=True):
            _check_optimizer(optimizer, own_state, state)


def _kinds(values: Any) -> dict[str, str]:
    """The kind of each entry of a dictionary, or of each item of a list, by its name."""
    named = cast(
        "Mapping[Any, Any]", values if isinstance(values, Mapping) else dict(enumerate(values or ()))
    )
    # The extra state of a module may change its kind.
    return {name: "" if "_extra_state" in str(name) else _kind(value) for name, value in named.items()}


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    kind = f"{value.dtype} of {tuple(value.shape)}"
    if value.layout != torch.strided:
        kind = f"{value.layout} {kind}"
    return f"{kind} without memory" if value.is_meta else kind


def _check_kinds(source: str, own: dict[Any, str], saved: dict[Any, str]) -> None:
    different = [
        f"{name}: {saved.get(name, 'missing')} in the state, {own.get(name, 'missing')} here"
        for name in own | saved
        if own.get(name) != saved.get(name)
    ]
    if different:
        raise ValueError(f"state_dict was saved with {source}: " + "; ".join(different[:5]))


def _check_shards(own: TrainStepState, saved: Mapping[str, Any]) -> None:
    """Refuse shards of another rank, or of another number of ranks. Whole tensors fit everywhere."""
    own_places = {_place(value) for value in own["model"].values()} | {None}
    for value in pytree.tree_leaves([dict(saved["model"]), saved["optimizer"]]):
        if (place := _place(value)) not in own_places:
            raise ValueError(
                f"state_dict has shards of tensors, placed as {value.placements} over {place}, but the "
                "model's are placed differently: each rank must load its own state; save and load through "
                "Checkpoints to resume with another number of ranks"
            )


def _place(value: Any) -> str | None:
    """The place of this rank in the mesh of a DTensor. Placements over one mesh torch converts itself."""
    mesh = mesh_of(value)
    return None if mesh is None else f"{tuple(mesh.shape)} ranks at {mesh.get_coordinate()}"


def _check_optimizer(optimizer: Optimizer, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    forms = [[(group["params"], group.keys()) for group in state["param_groups"]] for state in (own, saved)]
    if forms[0] != forms[1]:
        raise ValueError("state_dict was saved with another optimizer, or with other parameter groups")
    numbers = chain.from_iterable(group["params"] for group in own["param_groups"])
    parameters = dict(zip(numbers, all_parameters([optimizer]), strict=True))
    of_torch = is_of_torch(optimizer)
    for number, values in saved["state"].items():
        if number not in parameters:
            if of_torch or not isinstance(number, str):  # MADGRAD, say, keeps a value under a name
                raise ValueError(f"state_dict has an optimizer's state for an unknown parameter, {number}")
            continue
        if of_torch:
            expected = _expected_kinds(parameters[number], values)
        else:  # what it keeps is known if it has a state already
            expected = _kinds(own["state"].get(number) if values else None)
        kinds = {name: kind for name, kind in _kinds(values).items() if name in expected}
        _check_kinds(f"another optimizer; its state differs for parameter {number}", expected, kinds)


def _expected_kinds(parameter: Tensor, values: Mapping[str, Any]) -> dict[str, str]:
    """The kinds of the tensors that one of torch's own optimizers keeps, after a check of its scalars."""
    for name in values.keys() & _SCALARS:
        if not 0 <= values[name] < _MOST_STEPS:
            raise ValueError(f"state_dict has {name} = {values[name]} in an optimizer's state")
    return {name: _kind(parameter) for name in values if name not in _SCALARS + _FACTORS}


def is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")
