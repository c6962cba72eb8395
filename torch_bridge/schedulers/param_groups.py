"""The parameter groups of optimizers: their curves, their peaks, and the options in them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, checks


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer = {checks.short_repr(optimizer)} must be a torch.optim.Optimizer")
    return optimizer.param_groups


def all_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The parameter groups of several optimizers, one after the other."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def all_parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """The parameters of several optimizers, in the order of their groups."""
    return [parameter for group in all_groups(optimizers) for parameter in group["params"]]


def curves_of(optimizer: Optimizer, curve: Curve | Sequence[Curve]) -> list[Curve]:
    """A curve for each group: the given one for all, or the given ones in their order."""
    count = len(groups_of(optimizer))
    if isinstance(curve, Curve):
        return [curve] * count
    if not isinstance(curve, Sequence) or not all(isinstance(item, Curve) for item in curve):
        raise TypeError(
            f"curve = {checks.short_repr(curve)} must be a Curve, or one for each parameter group"
        )
    if len(curve) != count:
        raise ValueError(f"curve has {len(curve)} curves; the optimizer has {count} parameter groups")
    return list(curve)


def as_number(value: Any) -> Any:
    """The value itself, or the number in a tensor: `item` also reads bfloat16 and leaves of autograd."""
    return value.item() if isinstance(value, Tensor) else value


def base_value(name: str, value: Any) -> float:
    """An option's value, rounded to float32, as the base of products with multipliers."""
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise TypeError(f"{name} = {value!r} must be a floating-point tensor")
    return float(checks.peak(name, as_number(value)))


def peak_of(index: int, group: dict[str, Any]) -> float:
    """A group's peak learning rate, rounded to float32: its `initial_lr` if it has one, else its `lr`."""
    return base_value(f"learning rate of param_groups[{index}]", group.get("initial_lr", group["lr"]))


def peaks_of(optimizer: Optimizer, last_epoch: int = -1) -> list[float]:
    """Each group's peak learning rate, as `peak_of` reads it."""
    groups = groups_of(optimizer)
    if last_epoch >= 0:
        instead = "; or leave out last_epoch, and call scheduler.load_state_dict(state)"
        check_peaks_are_known(optimizer, f"last_epoch = {last_epoch}", instead)
    return [peak_of(index, group) for index, group in enumerate(groups)]


def check_peaks_are_known(optimizer: Optimizer, given: str, instead: str = "") -> None:
    """Refuse to resume a curve in mid-run if a decayed learning rate could be mistaken for the peak.

    For the message: `given` is the argument that resumes the curve, `instead` what else the user may write.
    """
    for index, group in enumerate(optimizer.param_groups):
        if "initial_lr" not in group and _was_stepped(optimizer):
            raise ValueError(
                f"{given}, but param_groups[{index}] of an optimizer that was stepped, or loaded, has no "
                f"initial_lr: its lr = {as_number(group['lr'])!r} may be decayed. First set "
                f'optimizer.param_groups[{index}]["initial_lr"] = peak{instead}'
            )


def _was_stepped(optimizer: Optimizer) -> bool:
    # An optimizer without a state, such as plain SGD, shows nothing. Some, such as Adagrad, make their state
    # when they are built, with a count of 0.
    for state in getattr(optimizer, "state", {}).values():
        if isinstance(state, dict) and state and as_number(cast("dict[str, Any]", state).get("step", 1)):
            return True
    return False


def peaks_per_group(peak: Any, count: int) -> list[float]:
    """The peaks that a user gives, one for all groups or one each, rounded to float32."""
    if isinstance(peak, Tensor) and peak.dim() > 0:
        peak = cast("list[float]", peak.tolist())
    if not checks.is_ordered(peak):
        return [base_value("peak", peak)] * count
    peaks = list(cast("Sequence[Any]", peak))
    if len(peaks) != count:
        raise ValueError(f"peak has {len(peaks)} numbers; there are {count} parameter groups")
    return [base_value(f"peak[{index}]", value) for index, value in enumerate(peaks)]


class GroupOption(NamedTuple):
    """A number in a parameter group: `group[name]`, or an item of the tuple or list there."""

    name: str
    item: int | None = None

    def __str__(self) -> str:
        return self.name if self.item is None else f"{self.name}[{self.item}]"

    def of(self, group: dict[str, Any]) -> Any:
        return group[self.name] if self.item is None else group[self.name][self.item]

    def replace(self, group: dict[str, Any], value: Any) -> None:
        """Put another value, or another tensor, in its place."""
        if self.item is not None:
            items = list(group[self.name])
            items[self.item] = value
            value = type(group[self.name])(items)
        group[self.name] = value

    def write(self, group: dict[str, Any], value: float) -> None:
        """Set the value; if it is a tensor, fill that tensor."""
        present = self.of(group)
        if isinstance(present, Tensor):
            present.fill_(value)
        else:
            self.replace(group, value)


def unshare_tensors(
    optimizer: Optimizer, option: GroupOption, bases: Sequence[float], curves: Sequence[Curve]
) -> None:
    """Give groups that share a tensor, but differ in base or curve, a separate tensor each.

    Groups share one if torch gave them all the same default value.
    """
    holders: dict[int, tuple[float, Curve]] = {}
    for group, base, curve in zip(optimizer.param_groups, bases, curves, strict=True):
        value = option.of(group)
        if isinstance(value, Tensor) and holders.setdefault(id(value), (base, curve)) != (base, curve):
            option.replace(group, value.clone())
