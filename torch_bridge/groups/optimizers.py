"""The optimizers that a program passes: their groups, and the updates that their states show."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from plateau_jax.arguments import checks


def groups_of(optimizers: Any) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer or a wrapper; of a list of these, all groups."""
    if not isinstance(optimizers, (list, tuple)):  # each step reads this: faster than a union
        return optimizers.param_groups
    groups: list[dict[str, Any]] = []
    for optimizer in cast("Sequence[Any]", optimizers):
        groups += optimizer.param_groups
    return groups


def parameters_of(optimizers: Any) -> list[nn.Parameter]:
    """Return the parameters of `groups_of`, in the order of the groups."""
    parameters: list[nn.Parameter] = []
    for group in groups_of(optimizers):
        parameters += group["params"]
    return parameters


def unwrap(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer, and then those that it wraps, from the outermost to the innermost."""
    while True:
        yield optimizer
        base = getattr(optimizer, "_base_optimizer", None)  # of timm's wrappers
        optimizer = getattr(optimizer, "optimizer", base)
        if not isinstance(optimizer, Optimizer):
            return


def check_optimizer(optimizer: Any) -> None:
    """Reject what is not an optimizer, or updates no parameter.

    Raises:
        TypeError: It is not an optimizer.
        ValueError: It updates no parameter itself, like transformers' layer-wise optimizers.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(checks.must("optimizer", optimizer, "be a torch.optim.Optimizer"))
    # Transformers' layer-wise optimizers have this attribute, and as their only parameter a tensor
    # that needs no gradient.
    is_layer_wise = hasattr(optimizer, "optimizer_dict")
    if is_layer_wise and not any(item.requires_grad for item in parameters_of(optimizer)):
        raise ValueError(
            f"{type(optimizer).__name__} updates no parameter: the optimizers in its "
            "optimizer_dict do so during the backward pass. Build a scheduler for each of them"
        )


def needs_two_backward_passes(optimizer: object) -> bool:
    """Return True for SAM and its relatives, which need two backward passes per update.

    Programs call `first_step` and `second_step` instead of `step`, which needs a closure.
    """
    optimizer_class = type(optimizer)
    names = ("first_step", "second_step")
    return all(callable(getattr(optimizer_class, name, None)) for name in names)


# The state of a parameter, and what it shows of earlier updates.

STEP_COUNT = "step"
"""The entry with the number of updates, a number or a tensor of one element."""

MOMENTUM = "momentum_buffer"
"""The entry with the momentum of SGD, which counts no updates."""


def updates_made(optimizer: Optimizer) -> int | None:
    """Return the number of updates that an optimizer's state shows, the most of any parameter.

    None if the state shows that there were updates, but not how many, as for SGD with momentum. If
    it shows one, this may be torch's own: `get_optimizer_state_dict` makes it to create the states.
    Steps on a device are read, which synchronizes with it: call this when something is built or
    loaded, not per update.
    """
    states = [
        cast("dict[str, Any]", entry)
        for entry in getattr(optimizer, "state", {}).values()
        if isinstance(entry, dict)
    ]
    most = 0
    for state in states:
        most = max(most, _steps_in(state))
    # Values other than momentum prove nothing: some optimizers create theirs when they are built.
    if most == 0 and any(_is_nonzero(state.get(MOMENTUM)) for state in states):
        return None
    return most


def _steps_in(state: dict[str, Any]) -> int:
    """Return the number of updates in a parameter's state; 0 if it has none."""
    step = state.get(STEP_COUNT)
    if isinstance(step, Tensor) and step.numel() == 1 and not step.is_meta:
        step = step.item()
    if isinstance(step, int | float):
        return max(int(step), 0)
    return 0


def _is_nonzero(moment: Any) -> bool:
    """Return False for None and for zeros, with which a `TrainStep` starts fused SGD."""
    if not isinstance(moment, Tensor) or moment.is_meta:
        return moment is not None
    # For a DTensor, this rank's shard: a sum over ranks would be a collective.
    shard = getattr(moment, "_local_tensor", moment)
    return bool(shard.abs().sum())  # `any` rejects sparse momentum
