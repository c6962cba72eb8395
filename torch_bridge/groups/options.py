"""Options of parameter groups: how a group keeps a value, its base, and how both are changed."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor
from torch.optim import Optimizer

from plateau_jax.arguments import checks
from torch_bridge.groups.optimizers import unwrap

_Value = TypeVar("_Value")


def as_number(value: Any) -> Any:
    """Return the value itself, or the number in a tensor; waits for its device."""
    # `float(tensor)` would warn for a leaf of autograd, and NumPy has no bfloat16.
    if isinstance(value, Tensor):
        return value.item()
    return value


def is_same(a: float, b: float) -> bool:
    """Return True if two numbers are equal, whether or not they were rounded to float32."""
    return math.isclose(a, b, rel_tol=1e-6)


def one_if_equal(values: Sequence[_Value]) -> _Value | Sequence[_Value]:
    """Return the value that all parameter groups have, or the values if they differ."""
    if values and values.count(values[0]) == len(values):
        return values[0]
    return values


def check_length(
    name: str, values: Sequence[Any], group_count: int, groups: str = "parameter groups"
) -> None:
    """Raise a ValueError unless there is a value for each of the groups."""
    if len(values) != group_count:
        raise ValueError(
            f"{name} has length {len(values)}; the number of {groups} is {group_count}"
        )


def base_value(name: str, value: Any) -> float:
    """Return an option's value, rounded to float32, as the base that multipliers are applied to."""
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise TypeError(checks.must(name, value, "be a floating-point tensor"))
    return float(checks.peak(name, as_number(value)))


def bases_per_group(name: str, base: Any, group_count: int) -> list[float]:
    """Return the argument `name`, one value or a sequence, as a float32 value for each group."""
    if not checks.is_ordered(base):
        return [base_value(name, base)] * group_count
    bases = list(base)
    check_length(name, bases, group_count)
    return [base_value(f"{name}[{index}]", value) for index, value in enumerate(bases)]


class GroupOption(NamedTuple):
    """A number in a parameter group: `group[name]`, or an item of the tuple or list there."""

    name: str
    item: int | None = None

    def __str__(self) -> str:
        name = checks.short_text(self.name)
        if self.item is None:
            return name
        return f"{name}[{self.item}]"

    @property
    def base_key(self) -> str:
        """The key under which a group keeps its base, such as `initial_weight_decay`."""
        return f"initial_{self}"

    def read(self, group: dict[str, Any]) -> Any:
        if self.item is None:
            return group[self.name]
        return group[self.name][self.item]

    def number_in(self, group: dict[str, Any]) -> Any:
        """Return the value as a number; waits for the device of a tensor."""
        return as_number(self.read(group))

    def has_value(self, group: dict[str, Any], value: Any) -> bool:
        """Return True if the group has this value, up to rounding; waits for a device."""
        return is_same(self.number_in(group), as_number(value))

    def has_base(self, group: dict[str, Any], base: float) -> bool:
        """Return True if the group has no other base than this one, up to rounding."""
        return is_same(as_number(group.get(self.base_key, base)), base)

    def is_in(self, group: dict[str, Any]) -> bool:
        """Return True if the group has this option."""
        try:
            self.read(group)
        except (IndexError, KeyError, TypeError):
            return False
        return True

    def base_of(self, index: int, group: dict[str, Any]) -> float:
        """Return a group's base, in float32: `group[base_key]` if it has one, else its value."""
        name, value = f"{self} of param_groups[{index}]", self.read(group)
        if isinstance(value, list | tuple):
            count = len(cast("Sequence[Any]", value))
            items = " or ".join(f'("{self}", {item})' for item in range(count))
            raise TypeError(checks.must(name, value, f"be a number: for one in it, write {items}"))
        return base_value(name, group.get(self.base_key, value))

    def replace(self, group: dict[str, Any], value: Any) -> None:
        """Replace the value in the group, even if it is a tensor."""
        if self.item is None:
            group[self.name] = value
        else:
            items = list(group[self.name])
            items[self.item] = value
            group[self.name] = type(group[self.name])(items)

    def separate_tensor(self, group: dict[str, Any]) -> None:
        """Give the group its own tensor, if its value is one.

        Other groups, other optimizers, and the optimizer's defaults may have the same tensor.
        """
        value = self.read(group)
        if isinstance(value, Tensor):
            self.replace(group, value.detach().clone())

    def write(self, groups: Sequence[dict[str, Any]], values: list[Any]) -> None:
        """Set the value of each group.

        If it is a tensor, fill that tensor, which a compiled or captured optimizer reads, and put a
        copy of it into the list of values.
        """
        name, item = self
        for place, group in enumerate(groups):
            current = group[name] if item is None else group[name][item]
            # The first comparison is much faster.
            if type(current) is not float and isinstance(current, Tensor):
                values[place] = current.fill_(values[place]).clone()
            elif item is None:
                group[name] = values[place]
            else:
                self.replace(group, values[place])


LEARNING_RATE = GroupOption("lr")


def written_values(optimizer: Optimizer) -> dict[GroupOption, list[Any]]:
    """Return what schedulers of this library wrote last into each option of an optimizer's groups.

    It is kept outside of the groups, so that no state of the optimizer contains it, and at the
    innermost optimizer, so that wrappers of one share it.
    """
    *_, innermost = unwrap(optimizer)
    attributes = cast("dict[str, Any]", vars(innermost))
    return attributes.setdefault("_values_of_curves", {})
