"""The parameter groups of optimizers: their curves, peaks and options."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, checks, warn


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer, after a check that it is one, and trains them."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer = {checks.short_repr(optimizer)} must be a torch.optim.Optimizer"
        )
    # Transformers' layer-wise optimizers have these, and a single tensor that needs no gradient.
    if hasattr(optimizer, "optimizer_dict") and not any(
        parameter.requires_grad for parameter in all_parameters([optimizer])
    ):
        raise ValueError(
            f"{type(optimizer).__name__} updates no parameter: the optimizers in its "
            "optimizer_dict do so during the backward pass. Build a scheduler for each of them"
        )
    return optimizer.param_groups


def all_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """Return the parameter groups of several optimizers in one list."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def all_parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """Return the parameters of several optimizers, in the order of their groups."""
    return [parameter for group in all_groups(optimizers) for parameter in group["params"]]


def curves_of(optimizer: Optimizer, curve: Curve | Sequence[Curve]) -> list[Curve]:
    """Return a curve for each group, from one curve for all groups or a sequence of curves."""
    group_count = len(groups_of(optimizer))
    if isinstance(curve, Curve):
        return [curve] * group_count
    if not isinstance(curve, Sequence) or not all(isinstance(item, Curve) for item in curve):
        example = curve if isinstance(curve, int) and not isinstance(curve, bool) else "total_steps"
        raise TypeError(
            f"curve = {checks.short_repr(curve)} must be a Curve, such as PlateauCurve({example}), "
            "or one for each parameter group"
        )
    if len(curve) != group_count:
        raise ValueError(
            f"curve has {len(curve)} curves; the optimizer has {group_count} parameter groups"
        )
    return list(curve)


def as_number(value: Any) -> Any:
    """Return the value itself, or the number in a tensor."""
    # `float(tensor)` would warn for a leaf of autograd, and NumPy has no bfloat16; `item` reads
    # both.
    return value.item() if isinstance(value, Tensor) else value


def is_same(value: float, other: float) -> bool:
    """Return True if two numbers are equal, whether or not they were rounded to float32."""
    return math.isclose(value, other, rel_tol=1e-6)


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
    """Reject a curve that resumes in mid-run if a decayed learning rate could be mistaken for the peak.

    The message names `argument`, which resumes the curve, and ends with an `alternative` to it.
    """
    groups = groups_of(optimizer)
    # A scheduler writes `initial_lr` into all groups. One without it was added later, and is not
    # decayed.
    if any("initial_lr" in group for group in groups) or updates_made(optimizer) == 0:
        return
    raise ValueError(
        f"{argument}, but param_groups[0] of an optimizer that was stepped, or loaded, has no "
        f"initial_lr: its lr = {as_number(groups[0]['lr'])!r} may be decayed. First set "
        f'optimizer.param_groups[0]["initial_lr"] = peak, and so for each group{alternative}'
    )


def updates_made(optimizer: Optimizer) -> int | None:
    """Return the number of updates that an optimizer's state shows, the most of any parameter; 0 if none.

    None if the state shows that there were updates, but not how many, as for SGD with momentum.
    Steps on a device are read, which synchronizes with it: call this when something is built or
    loaded, not per update.
    """
    entries: list[Any] = [*getattr(optimizer, "state", {}).values()]
    states: list[dict[str, Any]] = [entry for entry in entries if isinstance(entry, dict)]
    most = 0
    for state in states:
        step = state.get("step")
        if isinstance(step, Tensor) and (step.is_meta or step.numel() != 1):
            continue
        step = as_number(step)
        if isinstance(step, int | float):
            most = max(most, int(step))
    # Other entries prove nothing: some optimizers create theirs when they are built.
    is_uncounted = any(_is_nonzero(state.get("momentum_buffer")) for state in states)
    return None if is_uncounted and not most else most


def _is_nonzero(momentum: Any) -> bool:
    """Return False for None and for zeros, with which a `TrainStep` starts fused SGD."""
    if not isinstance(momentum, Tensor) or momentum.is_meta:
        return momentum is not None
    # For a DTensor, this rank's shard: a sum over ranks would be a collective. `any` rejects sparse
    # momentum.
    return bool(getattr(momentum, "_local_tensor", momentum).abs().sum())


def loaded_updates(optimizer: Optimizer) -> int | None:
    """Return the number of updates of the run whose state the optimizer has loaded; None if it is unknown.

    Call it before the first scheduler is built. 0 if the optimizer was not loaded, or nothing shows
    that it was trained.
    """
    keys = list(optimizer.param_groups[0]) if optimizer.param_groups else []
    made = updates_made(optimizer)
    # A scheduler has left its peak there, but none was built in this process.
    if made != 0 and "initial_lr" in keys:
        return made
    # `load_state_dict` writes the saved options into each group and then the parameters, and
    # options that the state lacks. The constructor begins with the parameters.
    defaults = [key for key in getattr(optimizer, "defaults", ()) if key in keys]
    before = keys[: keys.index("params")] if "params" in keys else []
    if len(defaults) < 2 or 2 * len(set(before) & set(defaults)) <= len(defaults):
        return 0
    # A state of plain SGD shows no updates.
    return None if "initial_lr" in before else made


def peaks_per_group(peak: Any, group_count: int) -> list[float]:
    """Return one peak for each group, rounded to float32, from the user's one peak or sequence of peaks."""
    if isinstance(peak, Tensor) and peak.dim() > 0:
        peak = cast("list[float]", peak.tolist())
    if not checks.is_ordered(peak):
        return [base_value("peak", peak)] * group_count
    peaks = list(cast("Sequence[Any]", peak))
    if len(peaks) != group_count:
        raise ValueError(f"peak has {len(peaks)} numbers; there are {group_count} parameter groups")
    return [base_value(f"peak[{index}]", value) for index, value in enumerate(peaks)]


_SCALES = {
    "lr": ("lr_scale", "lr_mult", "lr_multiplier"),  # of timm, MAE and BEiT; of others; of DINOv2
    "weight_decay": ("wd_multiplier",),  # of DINOv2
}
"""The factors of an option that some libraries keep in the groups, and that only their schedulers
read."""


def _is_scale(value: Any) -> bool:
    try:
        return float(value) != 1
    except (RuntimeError, TypeError, ValueError):
        return False  # a key of this name has another meaning


class GroupOption(NamedTuple):
    """A number in a parameter group: `group[name]`, or an item of the tuple or list there."""

    name: str
    item: int | None = None

    def __str__(self) -> str:
        name = checks.short_repr(self.name).strip(
            "'"
        )  # on one line, and not too long for a message
        return name if self.item is None else f"{name}[{self.item}]"

    def read(self, group: dict[str, Any]) -> Any:
        return group[self.name] if self.item is None else group[self.name][self.item]

    def base_of(self, index: int, group: dict[str, Any]) -> float:
        """Return a group's value at multiplier 1, in float32: for a learning rate, its `initial_lr`."""
        try:
            value = self.read(group)
        except (IndexError, KeyError, TypeError):
            raise ValueError(f"param_groups[{index}] has no {self}") from None
        name = str(self)
        if self.name == "lr":
            name, value = "learning rate", group.get("initial_lr", value)
        return base_value(f"{name} of param_groups[{index}]", value)

    def warn_of_scales(self, groups: Sequence[dict[str, Any]]) -> None:
        """Warn if a group has a factor for this option, which nothing here reads."""
        for key in _SCALES.get(self.name, ()):
            scaled = [group for group in groups if _is_scale(group.get(key, 1))]
            if not scaled:
                continue
            name = "initial_lr" if self.name == "lr" and "initial_lr" in scaled[0] else self.name
            line = f'group["{name}"] *= group.pop("{key}")'
            if isinstance(scaled[0][name], Tensor):  # several groups may hold the same one
                line = f'group["{name}"] = group["{name}"] * group.pop("{key}")'
            warn(
                f"{len(scaled)} of {len(groups)} parameter groups have a factor {key}, which only "
                "other schedulers read: under this curve they would train without it. Before the "
                f"scheduler is built, write for each group that has it: {line}"
            )

    def is_held_by(self, defaults: dict[str, Any], value: Tensor) -> bool:
        """Return True if this very tensor is the option's value in an optimizer's defaults."""
        try:
            return self.read(defaults) is value
        except (IndexError, KeyError, TypeError):
            return False  # the groups may have options without a default

    def replace(self, group: dict[str, Any], value: Any) -> None:
        """Replace the value in the group, also if it is a tensor."""
        if self.item is not None:
            items = list(group[self.name])
            items[self.item] = value
            value = type(group[self.name])(items)
        group[self.name] = value

    def write(self, group: dict[str, Any], value: float | Tensor) -> float | Tensor:
        """Set the value, and return it; if it is a tensor, fill that tensor, and return a copy."""
        current = self.read(group)
        if isinstance(current, Tensor):  # a compiled or captured optimizer reads this very tensor
            return current.fill_(value).clone()
        self.replace(group, value)
        return value


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
    # The base and curve of the first group that holds each tensor; that group keeps it.
    holders: dict[int, tuple[float, Curve]] = {}
    for group, base, curve in zip(groups, bases, curves, strict=True):
        value = option.read(group)
        if not isinstance(value, Tensor):
            continue
        if option.is_held_by(defaults, value):
            # Filled, because another scheduler may have written a learning rate into it.
            option.replace(defaults, value.clone().fill_(base))
        if holders.setdefault(id(value), (base, curve)) != (base, curve):
            option.replace(group, value.clone())


LEARNING_RATE = GroupOption("lr")
