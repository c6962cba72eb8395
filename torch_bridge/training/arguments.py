"""Checks of the arguments of a training step that concern several of them."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from torch_bridge.curve_api import Curve, Rule, check_unit, checks
from torch_bridge.distributed.activation_checkpointing import is_checkpointed
from torch_bridge.distributed.parallelism import Parallelism
from torch_bridge.schedulers.host_clock import checked_unit

OnNonfinite = Literal["skip", "raise"]
Synchronize = Literal["update", "micro"]
CurvesOfGroups = Curve | Sequence[Curve]


def check_max_norm(max_norm: Any) -> None:
    if max_norm is not None and not checks.number("max_norm", max_norm) > 0:
        raise ValueError(f"max_norm = {max_norm!r} must be positive, or None for no clipping")


def check_graph(model: nn.Module, parallelism: Parallelism, device: torch.device) -> None:
    """Reject what a CUDA graph cannot hold."""
    if parallelism.is_distributed:
        raise ValueError("cuda_graph=True needs a model that is not wrapped for several ranks")
    if is_checkpointed(model):
        raise ValueError("cuda_graph=True needs a model without checkpoint_activations")
    if device.type != "cuda":
        raise ValueError(f"cuda_graph=True needs parameters on a CUDA device; they are on {device}")


def check_clock(
    curves: Sequence[Curve], rules: Sequence[Rule], unit: Any, count: Any, initial_updates: int | None
) -> None:
    """Reject a clock of samples or tokens that cannot count, or whose position is not known."""
    check_unit(curves, unit)
    if unit is None:
        if count is not None:
            raise TypeError("count= needs unit=: the samples or tokens that make one step of the curve")
        return
    unit = checked_unit(unit)
    if not callable(count):
        raise TypeError(
            f"unit = {unit} needs count=, a function of a batch; it is {checks.short_repr(count)}"
        )
    if rules:
        raise ValueError(f"unit = {unit} with hold: a rule can hold only a clock of updates")
    if initial_updates:
        raise ValueError(
            f"unit = {unit} with initial_updates = {initial_updates}, which does not say what these updates "
            "consumed: resume with load_state_dict"
        )
