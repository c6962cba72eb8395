"""The parameter groups of optimizers: which curve, which peak and which settings each one has."""

from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.core import Curve, checks


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups.

    Raises:
        TypeError: `optimizer` is not a torch optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer = {checks.shown(optimizer)} must be a torch.optim.Optimizer")
    return optimizer.param_groups


def all_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The parameter groups of several optimizers, one after the other."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def all_parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """The parameters of several optimizers, in the order of their groups."""
    return [parameter for group in all_groups(optimizers) for parameter in group["params"]]


def check_number_of_groups(optimizer: Optimizer, count: int) -> None:
    """Refuse an optimizer that has got, or lost, groups since it had `count` of them.

    Raises:
        ValueError: It has another number.
    """
    if (found := len(optimizer.param_groups)) != count:
        raise ValueError(
            f"the optimizer has {found} parameter groups; it had {count} when it got its curve. A new group "
            "follows a curve that was given for all groups; with a curve a group, build a new scheduler"
        )


def curves_of(optimizer: Optimizer, curve: Curve | Sequence[Curve]) -> list[Curve]:
    """A curve for each group: the given one for all, or the given ones in their order.

    Raises:
        TypeError: `optimizer` is no torch optimizer, or something is not a `Curve`.
        ValueError: Another number of curves than of groups.
    """
    count = len(groups_of(optimizer))
    if isinstance(curve, Curve):
        return [curve] * count
    if not isinstance(curve, Sequence) or not all(isinstance(item, Curve) for item in curve):
        raise TypeError(f"curve = {checks.shown(curve)} must be a Curve, or one for each parameter group")
    if len(curve) != count:
        raise ValueError(f"curve has {len(curve)} curves; the optimizer has {count} parameter groups")
    return list(curve)


def peaks_of(optimizer: Optimizer, last_epoch: int = -1) -> list[float]:
    """Each group's peak rate, rounded to float32: its `initial_lr` where it has one, else its `lr`.

    Raises:
        TypeError, ValueError: As `base_of`; and as `check_peaks_are_known`, where `last_epoch` is not -1.
    """
    groups = groups_of(optimizer)
    if last_epoch >= 0:
        instead = "; or leave out last_epoch, and call scheduler.load_state_dict(state)"
        check_peaks_are_known(optimizer, f"last_epoch = {last_epoch}", instead)
    return [peak_of(index, group) for index, group in enumerate(groups)]


def check_peaks_are_known(optimizer: Optimizer, given: str, instead: str = "") -> None:
    """Refuse a curve that goes on in mid-run, where a decayed rate may be taken for the peak.

    Args:
        optimizer: The optimizer.
        given: The argument by which the curve goes on, and its value.
        instead: What else the user may write.

    Raises:
        ValueError: The optimizer was stepped, or loaded, and a group has no `initial_lr`.
    """
    for index, group in enumerate(optimizer.param_groups):
        if "initial_lr" not in group and _may_have_decayed(optimizer):
            raise ValueError(
                f"{given}, but param_groups[{index}] of an optimizer that was stepped, or loaded, has no "
                f"initial_lr: its lr = {number_of(group['lr'])!r} may be decayed. First set "
                f'optimizer.param_groups[{index}]["initial_lr"] = peak{instead}'
            )


def peak_of(index: int, group: dict[str, Any]) -> float:
    """A group's peak rate, rounded to float32: its `initial_lr` where it has one, else its `lr`.

    Raises:
        TypeError, ValueError: As `base_of`.
    """
    return base_of(f"learning rate of param_groups[{index}]", group.get("initial_lr", group["lr"]))


def _may_have_decayed(optimizer: Optimizer) -> bool:
    """Whether the groups may hold the rates of some update.

    An optimizer without a state, such as plain SGD, keeps nothing of a step. There the sign is one rate in
    all groups that is not the `lr` that the optimizer was built with.
    """
    built = number_of(getattr(optimizer, "defaults", {}).get("lr"))
    by_itself = signature(type(optimizer)).parameters.get("lr")
    was_given = built is not None and by_itself is not None and built != by_itself.default
    rates = {number_of(group.get("lr")) for group in optimizer.param_groups}
    return _was_stepped(optimizer) or (was_given and len(rates) == 1 and rates != {built})


def _was_stepped(optimizer: Optimizer) -> bool:
    """Whether the optimizer keeps something of a step; one without a state, such as plain SGD, never does."""
    for kept in getattr(optimizer, "state", {}).values():
        # Some, such as Adagrad, make their state when they are built, with a count of 0.
        if isinstance(kept, dict) and kept and number_of(cast("dict[str, Any]", kept).get("step", 1)):
            return True
    return False


def given_peaks(peak: Any, count: int) -> list[float]:
    """The peaks that a user gives, one for all groups or one each, rounded to float32.

    Raises:
        TypeError: Something is no number.
        ValueError: Another number of peaks than of groups; one is negative, not finite, or positive and below
            2⁻¹²⁶.
    """
    if isinstance(peak, Tensor) and peak.dim() > 0:
        peak = cast("list[float]", peak.tolist())
    if not checks.ordered(peak):
        return [base_of("peak", peak)] * count
    peaks = list(cast("Sequence[Any]", peak))
    if len(peaks) != count:
        raise ValueError(f"peak has {len(peaks)} numbers; there are {count} parameter groups")
    return [base_of(f"peak[{index}]", each) for index, each in enumerate(peaks)]


def with_new_groups(
    optimizer: Optimizer,
    setting: "Setting",
    curve: Curve | None,
    bases: Sequence[float],
    base: Callable[[int, dict[str, Any]], float],
) -> list[float]:
    """The bases of all groups, those included that came later.

    Under one curve for all, `curve`, a new group joins it. Its base is its own value, as `base` reads it; or,
    where it has the very tensor of an older group, that group's base.

    Raises:
        ValueError: Groups have gone; or one came under a curve a group, where `curve` is None.
        TypeError, ValueError: As `base`.
    """
    groups, found = optimizer.param_groups, list(bases)
    if curve is None or len(groups) < len(found):
        check_number_of_groups(optimizer, len(found))
    for index in range(len(found), len(groups)):
        new = base(index, groups[index])
        value = setting.of(groups[index])
        if isinstance(value, Tensor):
            shared = (old for old, group in zip(found, groups, strict=False) if setting.of(group) is value)
            new = next(shared, new)
        found.append(new)
    return found


def base_of(name: str, value: Any) -> float:
    """A setting's value, rounded to float32, as the base that multipliers are multiplied by.

    Raises:
        TypeError: `value` is no number, or a tensor of integers, which could not hold the products.
        ValueError: It is negative, not finite, or positive and below 2⁻¹²⁶.
    """
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise TypeError(f"{name} = {value!r} must be a floating-point tensor")
    return float(checks.peak(name, number_of(value)))


def set_peaks(optimizer: Optimizer, peaks: Sequence[float], curves: Sequence[Curve]) -> None:
    """Make these the groups' peaks; groups that differ in peak or curve get rates of their own."""
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
        """Put another value, or another tensor, in its place."""
        if self.item is not None:
            items = list(group[self.name])
            items[self.item] = value
            value = type(group[self.name])(items)
        group[self.name] = value

    def set(self, group: dict[str, Any], value: float) -> None:
        """Set the value; where it is a tensor, fill that tensor."""
        present = self.of(group)
        if isinstance(present, Tensor):
            present.fill_(value)
        else:
            self.replace(group, value)


def separate(optimizer: Optimizer, setting: Setting, bases: Sequence[float], curves: Sequence[Curve]) -> None:
    """Give groups that differ in base or curve a tensor each, where they share one.

    They do where torch gave them all the same default value.
    """
    holders: dict[int, tuple[float, Curve]] = {}
    for group, base, curve in zip(optimizer.param_groups, bases, curves, strict=True):
        value = setting.of(group)
        if isinstance(value, Tensor) and holders.setdefault(id(value), (base, curve)) != (base, curve):
            setting.replace(group, value.clone())


def number_of(value: Any) -> Any:
    """The value itself, or the number in a tensor: `item` reads bfloat16, and leaves of autograd, too."""
    return value.item() if isinstance(value, Tensor) else value
