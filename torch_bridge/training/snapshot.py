"""A training state outside the device: what is in it, copies, random numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_bridge.core import CurveArguments


class TrainStepState(TypedDict):
    """What `TrainStep.state_dict` returns: tensors in host memory and plain values."""

    model: dict[str, Any]
    optimizer: Any
    """The optimizer's state, or a list of one for each of several."""
    optimizer_type: str | list[str]
    precision: str
    curves: list[CurveArguments]
    """The arguments of each parameter group's curve."""
    applied: int
    skipped: int
    loss_scale: Sequence[Tensor] | None
    carry: list[Tensor] | None
    random: dict[str, Tensor]


def on_host(state: TrainStepState) -> TrainStepState:
    """The state with a copy in host memory of each tensor."""
    copied = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
    # The versions of the model's modules, which torch keeps as an attribute.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = cast("Any", state["model"])._metadata
    return copied


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators: the CPU's and, for a CUDA device, that device's."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
