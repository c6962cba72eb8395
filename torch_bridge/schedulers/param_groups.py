"""What a curve needs to know of an optimizer's parameter groups."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.core import Curve, checks


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups.

    Raises:
        TypeError: `optimizer` is not a torch optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer = {optimizer!r} must be a torch.optim.Optimizer")
    return optimizer.param_groups


def all_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The parameter groups of several optimizers, one after the other."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def all_parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """The parameters of several optimizers, in the order of their groups."""
    return [parameter for group in all_groups(optimizers) for parameter in group["params"]]


def curves_of(optimizer: Optimizer, curve: Curve | Sequence[Curve]) -> list[Curve]:
    """One curve per group: the one given for all, or those given, one each.

    Raises:
        TypeError: Something that is not a `Curve`.
        ValueError: Another number of curves than of groups.
    """
    count = len(groups_of(optimizer))
    if isinstance(curve, Curve):
        return [curve] * count
    if not isinstance(curve, Sequence) or not all(isinstance(item, Curve) for item in curve):
        raise TypeError(f"curve = {curve!r} must be a Curve, or one for each parameter group")
    if len(curve) != count:
        raise ValueError(f"curve has {len(curve)} curves; the optimizer has {count} parameter groups")
    return list(curve)


def peaks_of(optimizer: Optimizer) -> list[float]:
    """Each group's peak rate, rounded to float32: its `initial_lr` where it has one, else its `lr`.

    Raises:
        TypeError, ValueError: As `base_of`.
    """
    rates = [group.get("initial_lr", group["lr"]) for group in groups_of(optimizer)]
    return [base_of(f"learning rate of param_groups[{index}]", rate) for index, rate in enumerate(rates)]


def base_of(name: str, value: Any) -> float:
    """What multipliers are multiplied by: a setting's value, rounded to float32.

    Raises:
        TypeError: No number, or a tensor of integers, which could not hold the products.
        ValueError: One that is negative, not finite, or positive and below 2⁻¹²⁶.
    """
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise TypeError(f"{name} = {value!r} must be a floating-point tensor")
    return float(checks.peak(name, number_of(value)))


def set_peaks(optimizer: Optimizer, peaks: Sequence[float], curves: Sequence[Curve]) -> None:
    """Make these the groups' peaks, each with a rate that is its own."""
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["initial_lr"] = peak
    separate(optimizer, Setting("lr"), peaks, curves)


class Setting(NamedTuple):
    """A number in a parameter group: `group[name]`, or an item of the tuple or list there."""

    name: str
    item: int | None = None

    def __str__(self) -> str:
        return self.name if self.item is None else f"{self.name}[{self.item}]"

    def of(self, group: dict[str, Any]) -> Any:
        return group[self.name] if self.item is None else group[self.name][self.item]

    def replace(self, group: dict[str, Any], value: Any) -> None:
        """Put another value, or another tensor, there."""
        if self.item is not None:
            items = list(group[self.name])
            items[self.item] = value
            value = type(group[self.name])(items)
        group[self.name] = value

    def set(self, group: dict[str, Any], value: float) -> None:
        """Set the value; one that is a tensor stays the same tensor and is filled."""
        present = self.of(group)
        if isinstance(present, Tensor):
            present.fill_(value)
        else:
            self.replace(group, value)


def separate(optimizer: Optimizer, setting: Setting, bases: Sequence[float], curves: Sequence[Curve]) -> None:
    """Give a tensor of its own to each group that shares one, and differs in base or curve.

    Torch gives groups without a setting of their own one and the same tensor.
    """
    holders: dict[int, tuple[float, Curve]] = {}
    for group, base, curve in zip(optimizer.param_groups, bases, curves, strict=True):
        value = setting.of(group)
        if isinstance(value, Tensor) and holders.setdefault(id(value), (base, curve)) != (base, curve):
            setting.replace(group, value.clone())


def number_of(value: Any) -> Any:
    """The number in what may be a tensor: by `item`, which takes bfloat16 and autograd's too."""
    return value.item() if isinstance(value, Tensor) else value
