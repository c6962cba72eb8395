"""The state of a training step: its entries, copies in host memory, random-number states."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import host_copier
from torch_bridge.training.clock.clock import Clock


class TrainStepState(TypedDict):
    """The state that `TrainStep.state_dict` returns: tensors in host memory and plain values.

    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import TrainStep
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> def loss_fn(model, batch):
    ...     return model(batch).mean()
    >>> step = TrainStep(model, optimizer, loss_fn, PlateauCurve(100))
    >>> state: TrainStepState = step.state_dict()
    >>> state["applied"], state["precision"], list(state["model"])
    (0, 'fp32', ['weight', 'bias'])
    """

    model: dict[str, Any]
    """The state of the model, under the names of the unwrapped model."""
    optimizer: Any
    """The state of the optimizer, or a list of the states of several."""
    optimizer_type: str | list[str]
    """The name of the optimizer's class, or a list of names."""
    parameters: list[list[str]]
    """The names of each parameter group's parameters, without the parts that wrappers add."""
    precision: str
    """`"fp32"`, `"bf16"` or `"fp16"`."""
    records: list[dict[str, Any]]
    """The record of each parameter group, as `plateau_jax.resume_record` returns it."""
    applied: int
    """Number of updates applied."""
    skipped: int
    """Number of updates skipped."""
    curve_step: int
    """The step of the curve that gives the next update its learning rates."""
    consumed: int
    """Number of samples or tokens consumed; without a `DataClock`, equal to `applied`."""
    peak_was_set: bool
    """True if `set_peak` has set the peaks, so that they may differ from those of the program."""
    hold: list[dict[str, int | float]]
    """The states of the rules that may hold the curve."""
    loss_scale: Sequence[Tensor] | None
    """With `precision="fp16"` the loss scale, a float32 scalar, and its growth counter; then the
    divisor of sums, if the ranks have agreed on one. None if there is neither."""
    carry: list[Tensor] | None
    """The leaves of the recurrent state, with its shapes and dtypes; None if the step has none."""
    random: dict[str, Tensor]
    """The states of torch's generators, uint8 of shape (bytes,): `"cpu"` and, on a GPU,
    `"cuda"`."""


def one_or_list(items: list[Any]) -> Any:
    """Return a single item itself, and several as a list, as a state holds optimizers."""
    if len(items) == 1:
        return items[0]
    return items


def as_list(saved: Any, optimizers: Sequence[Optimizer]) -> Any:
    """Undo `one_or_list` for the states of these optimizers."""
    if len(optimizers) == 1:
        return [saved]
    return saved


def optimizer_states(
    optimizers: Sequence[Optimizer], clock: Clock, step: int
) -> list[dict[str, Any]]:
    """Return the optimizers' states, with the clock's peaks and its learning rates at `step`."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    groups = chain.from_iterable(state["param_groups"] for state in states)
    lrs = clock.lrs_at(step)
    # Not strict: a group added after the step was built has no learning rate; the next update
    # rejects it.
    for group, peak, lr in zip(groups, clock.peaks, lrs, strict=False):
        if isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(lr, dtype=torch.float32, device="cpu")
        else:
            group["lr"] = lr
        group["initial_lr"] = peak
    return states


def copy_to_host(state: TrainStepState) -> TrainStepState:
    """Return the state with each tensor copied to host memory; tied tensors stay tied."""
    copied = pytree.tree_map_only(Tensor, host_copier(), state)
    # tree_map drops this attribute, in which torch keeps the versions of the modules.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = cast("Any", state["model"])._metadata
    return copied


def get_random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators: the CPU's and, for a CUDA device, that device's."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
