"""The optimizers that a program passes, and their parameter groups."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from plateau_jax.arguments import checks


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer.

    Raises:
        TypeError: It is not an optimizer.
        ValueError: It updates no parameter itself, like transformers' layer-wise optimizers.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(checks.must("optimizer", optimizer, "be a torch.optim.Optimizer"))
    # Transformers' layer-wise optimizers have this attribute, and as their only parameter a tensor
    # that needs no gradient.
    is_layer_wise = hasattr(optimizer, "optimizer_dict")
    if is_layer_wise and not any(item.requires_grad for item in all_parameters([optimizer])):
        raise ValueError(
            f"{type(optimizer).__name__} updates no parameter: the optimizers in its "
            "optimizer_dict do so during the backward pass. Build a scheduler for each of them"
        )
    return optimizer.param_groups


def inner_optimizer(wrapper: object) -> Optimizer | None:
    """Return the optimizer that a wrapper keeps as an attribute, or None."""
    base = getattr(wrapper, "_base_optimizer", None)  # of timm's wrappers
    inner = getattr(wrapper, "optimizer", base)
    if isinstance(inner, Optimizer):
        return inner
    return None


def all_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """Return the parameter groups of several optimizers in one list."""
    groups: list[dict[str, Any]] = []
    for optimizer in optimizers:
        groups += optimizer.param_groups
    return groups


def all_parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """Return the parameters of several optimizers, in the order of their groups."""
    parameters: list[nn.Parameter] = []
    for group in all_groups(optimizers):
        parameters += group["params"]
    return parameters
