"""The parameter groups of optimizers: their curves, peaks and options."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, check_length, checks, warn


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer.

    Raises:
        TypeError: It is not an optimizer.
        ValueError: It updates no parameter itself, like transformers' layer-wise optimizers.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer = {checks.short_repr(optimizer)} must be a torch.optim.Optimizer"
        )
    # Transformers' layer-wise optimizers have this attribute, and as their only parameter a tensor
    # that needs no gradient.
    is_layer_wise = hasattr(optimizer, "optimizer_dict")
    if is_layer_wise and not any(item.requires_grad for item in all_parameters([optimizer])):
        raise ValueError(
            f"{type(optimizer).__name__} updates no parameter: the optimizers in its "
            "optimizer_dict do so during the backward pass. Build a scheduler for each of them"
        )
    return optimizer.param_groups


def has_two_steps(optimizer: object) -> bool:
    """Return True for SAM and its relatives, which need two backward passes per update.

    Programs call `first_step` and `second_step` instead of `step`, which needs a closure.
    """
    kind = type(optimizer)
    names = ("first_step", "second_step")
    return all(callable(getattr(kind, name, None)) for name in names)


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


def curves_of(groups: Sequence[dict[str, Any]], curve: Curve | Sequence[Curve]) -> list[Curve]:
    """Return a curve for each group, from one curve for all groups or a sequence of curves."""
    if isinstance(curve, Curve):
        return [curve] * len(groups)
    if not isinstance(curve, Sequence) or not all(isinstance(item, Curve) for item in curve):
        raise TypeError(
            f"curve = {checks.short_repr(curve)} must be a Curve, such as "
            "PlateauCurve(total_steps), or one for each parameter group"
        )
    check_length("curve", curve, len(groups))
    return list(curve)


def as_number(value: Any) -> Any:
    """Return the value itself, or the number in a tensor."""
    # `float(tensor)` would warn for a leaf of autograd, and NumPy has no bfloat16.
    if isinstance(value, Tensor):
        return value.item()
    return value


def is_same(a: float, b: float) -> bool:
    """Return True if two numbers are equal, whether or not they were rounded to float32."""
    return math.isclose(a, b, rel_tol=1e-6)


def base_value(name: str, value: Any) -> float:
    """Return an option's value, rounded to float32, as the base that multipliers are applied to."""
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise TypeError(f"{name} = {checks.short_repr(value)} must be a floating-point tensor")
    return float(checks.peak(name, as_number(value)))


def peaks_of(optimizer: Optimizer) -> list[float]:
    """Return each group's peak learning rate, rounded to float32."""
    groups = groups_of(optimizer)
    peaks = [LEARNING_RATE.base_of(index, group) for index, group in enumerate(groups)]
    LEARNING_RATE.warn_of_scales(groups)
    return peaks


def check_peaks_are_known(optimizer: Optimizer, argument: str, alternative: str = "") -> None:
    """Reject a resumed curve if a decayed learning rate could be mistaken for the peak.

    The message names `argument`, which resumes the curve, and ends with an `alternative` to it.
    """
    groups = groups_of(optimizer)
    # A scheduler writes `initial_lr` into all groups. A group without it was added later, and its
    # learning rate is not decayed.
    if any("initial_lr" in group for group in groups):
        return
    if not groups or updates_made(optimizer) == 0:
        return
    raise ValueError(
        f"{argument}, but param_groups[0] of an optimizer that was stepped, or loaded, has no "
        f"initial_lr: its lr = {as_number(groups[0]['lr'])!r} may be decayed. First set "
        f'optimizer.param_groups[0]["initial_lr"] = peak, and so for each group{alternative}'
    )


def updates_made(optimizer: Optimizer) -> int | None:
    """Return the number of updates that an optimizer's state shows, the most of any parameter.

    None if the state shows that there were updates, but not how many, as for SGD with momentum.
    Steps on a device are read, which synchronizes with it: call this when something is built or
    loaded, not per update.
    """
    states: list[dict[str, Any]] = []
    for entry in getattr(optimizer, "state", {}).values():
        if isinstance(entry, dict):
            states.append(cast("dict[str, Any]", entry))
    most = 0
    for state in states:
        most = max(most, _steps_in(state))
    # Values other than momentum prove nothing: some optimizers create theirs when they are built.
    if most == 0 and any(_is_nonzero(state.get("momentum_buffer")) for state in states):
        return None
    return most


def _steps_in(state: dict[str, Any]) -> int:
    """Return the number of updates in a parameter's state; 0 if it has none."""
    step = state.get("step")
    if isinstance(step, Tensor) and (step.is_meta or step.numel() != 1):
        return 0
    step = as_number(step)
    if not isinstance(step, int | float):
        return 0
    # To create the states, torch's `get_optimizer_state_dict` steps once with gradients of zero.
    if step == 1 and _has_seen_only_zeros(state):
        return 0
    return max(int(step), 0)


_MOMENTS = ("exp_avg", "exp_avg_sq", "square_avg", "row_var", "col_var", "variance", "prev")
"""Entries of torch's optimizers that stay zero until the first gradient that is not."""


def _has_seen_only_zeros(state: dict[str, Any]) -> bool:
    """Return True if a parameter's state has moments, and all are zero."""
    moments: list[Any] = []
    for name in _MOMENTS:
        if name in state:
            moments.append(state[name])
    for moment in moments:
        # Quantized moments, as of torchao, have no sum.
        if type(getattr(moment, "_local_tensor", moment)) is not Tensor or _is_nonzero(moment):
            return False
    return bool(moments)


def _is_nonzero(moment: Any) -> bool:
    """Return False for None and for zeros, with which a `TrainStep` starts fused SGD."""
    if not isinstance(moment, Tensor) or moment.is_meta:
        return moment is not None
    # For a DTensor, this rank's shard: a sum over ranks would be a collective.
    shard = getattr(moment, "_local_tensor", moment)
    return bool(shard.abs().sum())  # `any` rejects sparse momentum


def bases_per_group(
    name: str, base: Any, group_count: int, groups: str = "parameter groups"
) -> list[float]:
    """Return the argument `name`, one value or a sequence, as a float32 value for each group."""
    if isinstance(base, Tensor) and base.dim() > 0:
        base = cast("list[float]", base.tolist())
    if not checks.is_ordered(base):
        return [base_value(name, base)] * group_count
    bases = list(cast("Sequence[Any]", base))
    check_length(name, bases, group_count, groups)
    return [base_value(f"{name}[{index}]", value) for index, value in enumerate(bases)]


# Some libraries keep factors of an option in the groups, which only their schedulers apply.
_SCALES = {
    "lr": ("lr_scale", "lr_mult", "lr_multiplier"),  # of timm, MAE and BEiT; of others; of DINOv2
    "weight_decay": ("wd_multiplier",),  # of DINOv2
}
"""The keys of these factors, for each option."""


class GroupOption(NamedTuple):
    """A number in a parameter group: `group[name]`, or an item of the tuple or list there."""

    name: str
    item: int | None = None

    def __str__(self) -> str:
        name = checks.short_repr(self.name).strip("'")  # on one line, and short enough to show
        if self.item is None:
            return name
        return f"{name}[{self.item}]"

    @property
    def words(self) -> str:
        """The option in a message."""
        return str(self)

    @property
    def base_key(self) -> str:
        """The key under which a group keeps its base, such as `initial_weight_decay`."""
        if self.item is None:
            return f"initial_{self.name}"
        return f"initial_{self.name}[{self.item}]"

    @property
    def base_word(self) -> str:
        """The base in a message."""
        return "base"

    @property
    def bases_name(self) -> str:
        """The attribute of a follower that shows the bases."""
        return "base_values"

    @property
    def curves_name(self) -> str:
        """The attribute of a follower that shows the curves."""
        return "curves"

    def read(self, group: dict[str, Any]) -> Any:
        if self.item is None:
            return group[self.name]
        return group[self.name][self.item]

    def is_in(self, group: dict[str, Any]) -> bool:
        """Return True if the group has this option."""
        try:
            self.read(group)
        except (IndexError, KeyError, TypeError):
            return False
        return True

    def base_of(self, index: int, group: dict[str, Any]) -> float:
        """Return a group's base, in float32: `group[base_key]` if it has one, else its value."""
        value = self.value_of(index, group)
        return base_value(f"{self.words} of param_groups[{index}]", group.get(self.base_key, value))

    def value_of(self, index: int, group: dict[str, Any]) -> Any:
        """Return a group's value, or raise a ValueError that names the group."""
        if not self.is_in(group):
            raise ValueError(f"param_groups[{index}] has no {self}: its curve must be None")
        return self.read(group)

    def warn_of_scales(self, groups: Sequence[dict[str, Any]]) -> None:
        """Warn if a group has a factor for this option, which this library does not apply."""
        for key in _SCALES.get(self.name, ()):
            scaled = [group for group in groups if _is_scale(group.get(key, 1))]
            if scaled:
                warn(
                    f"{len(scaled)} of {len(groups)} parameter groups have a factor {key}, which "
                    "only other schedulers read: under this curve they would train without it. "
                    "Before the scheduler is built, write for each group that has it: "
                    + self.line_that_scales(key)
                )

    def line_that_scales(self, key: str) -> str:
        """Return the line of code that multiplies a group's base by the factor."""
        # Also right for a group that had a scheduler before. Not in place, because several groups
        # may hold the same tensor.
        base = f'group.get("{self.base_key}", group["{self.name}"])'
        return f'group["{self.base_key}"] = {base} * group.pop("{key}")'

    def line_that_sets(self, group: dict[str, Any], number: float) -> str:
        """Return the line of code that sets a group's value to a number."""
        changed = dict(group)
        self.replace(changed, number)
        return f'group["{self.name}"] = {changed[self.name]!r}'

    def is_held_by(self, defaults: dict[str, Any], value: Tensor) -> bool:
        """Return True if this very tensor is the option's value in an optimizer's defaults."""
        # The groups may have options without a default.
        return self.is_in(defaults) and self.read(defaults) is value

    def replace(self, group: dict[str, Any], value: Any) -> None:
        """Replace the value in the group, even if it is a tensor."""
        if self.item is None:
            group[self.name] = value
        else:
            items = list(group[self.name])
            items[self.item] = value
            group[self.name] = type(group[self.name])(items)

    def write(self, group: dict[str, Any], value: float | Tensor) -> float | Tensor:
        """Set the value, and return it; if it is a tensor, fill that tensor, and return a copy."""
        current = self.read(group)
        if isinstance(current, Tensor):  # a compiled or captured optimizer reads this very tensor
            return current.fill_(value).clone()
        self.replace(group, value)
        return value


def _is_scale(value: Any) -> bool:
    try:
        return float(value) != 1
    except (RuntimeError, TypeError, ValueError):
        return False  # here the key means something else


def unshare_tensors(
    optimizer: Optimizer,
    option: GroupOption,
    groups: Sequence[dict[str, Any]],
    bases: Sequence[float],
    curves: Sequence[Curve],
) -> None:
    """Give groups that share a tensor, but differ in base or curve, separate tensors.

    Groups share a tensor if torch gave them all the same default value. The optimizer's defaults
    get a separate tensor, with the base: a group that is added later begins with it.
    """
    defaults: dict[str, Any] = getattr(optimizer, "defaults", {})
    first_uses: dict[int, tuple[float, Curve]] = {}
    """The base and curve of the first group that holds each tensor; that group keeps it."""
    for group, base, curve in zip(groups, bases, curves, strict=True):
        value = option.read(group)
        if not isinstance(value, Tensor):
            continue
        if option.is_held_by(defaults, value):
            # Filled, because an earlier scheduler may have written a learning rate into it.
            option.replace(defaults, value.clone().fill_(base))
        use = base, curve
        if first_uses.setdefault(id(value), use) != use:
            option.replace(group, value.clone())


class LearningRate(GroupOption):
    """The learning rate, whose base is the peak, in `group["initial_lr"]` as in torch."""

    @property
    def words(self) -> str:
        return "learning rate"

    @property
    def base_word(self) -> str:
        return "peak"

    @property
    def bases_name(self) -> str:
        """The attribute of a scheduler that shows the peaks."""
        return "base_lrs"

    @property
    def curves_name(self) -> str:
        """The attribute of a scheduler that shows the curves."""
        return "lr_lambdas"


LEARNING_RATE = LearningRate("lr")
