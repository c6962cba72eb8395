"""What a curve needs to know of an optimizer's parameter groups."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.core import PlateauCurve, checks


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups.

    Raises:
        TypeError: `optimizer` is not a torch optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer = {optimizer!r} must be a torch.optim.Optimizer")
    return optimizer.param_groups


def curves_of(optimizer: Optimizer, curve: PlateauCurve | Sequence[PlateauCurve]) -> list[PlateauCurve]:
    """One curve per group: the one given for all, or those given, one each.

    Raises:
        TypeError: Something that is not a `PlateauCurve`.
        ValueError: Another number of curves than of groups.
    """
    count = len(groups_of(optimizer))
    if isinstance(curve, PlateauCurve):
        return [curve] * count
    if not isinstance(curve, Sequence) or not all(isinstance(item, PlateauCurve) for item in curve):
        raise TypeError(f"curve = {curve!r} must be a PlateauCurve, or one for each parameter group")
    if len(curve) != count:
        raise ValueError(f"curve has {len(curve)} curves; the optimizer has {count} parameter groups")
    return list(curve)


def peaks_of(optimizer: Optimizer) -> list[float]:
    """Each group's peak rate, rounded to float32: its `initial_lr` where it has one, else its `lr`.

    Raises:
        ValueError: A rate that is negative, not finite, or positive and below 2⁻¹²⁶.
    """
    rates = [group.get("initial_lr", group["lr"]) for group in groups_of(optimizer)]
    return [
        float(checks.peak(f"learning rate of param_groups[{index}]", number_of(rate)))
        for index, rate in enumerate(rates)
    ]


def set_peaks(optimizer: Optimizer, peaks: list[float], curves: list[PlateauCurve]) -> None:
    """Make these the groups' peaks, each with a rate that is its own."""
    # torch gives groups without a rate of their own one and the same tensor. Groups that differ in
    # peak or curve must not share it.
    holders: dict[int, tuple[float, PlateauCurve]] = {}
    for group, peak, curve in zip(optimizer.param_groups, peaks, curves, strict=True):
        group["initial_lr"] = peak
        rate = group["lr"]
        if isinstance(rate, Tensor) and holders.setdefault(id(rate), (peak, curve)) != (peak, curve):
            group["lr"] = rate.clone()


def number_of(rate: Any) -> Any:
    """The number in a rate that may be a tensor: by `item`, which takes bfloat16 and autograd's too."""
    return rate.item() if isinstance(rate, Tensor) else rate
