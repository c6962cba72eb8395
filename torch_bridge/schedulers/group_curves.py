"""The common base of `CurveLR` and `Follower`: curves for one option of an optimizer's parameter groups."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch.optim import Optimizer

from torch_bridge.curve_api import CHUNK, Curve, Rule, checks
from torch_bridge.saved_states import check_same_past, how_to_override, read_bases, read_curves
from torch_bridge.schedulers.host_clock import Counts, HostClock
from torch_bridge.schedulers.param_groups import (
    GroupOption,
    as_number,
    base_value,
    curves_of,
    is_same,
    unshare_tensors,
)

MAX_GAP = 50
"""Evaluating a single step takes about as long as this many steps of a window."""

Value = TypeVar("Value")


def map_curves(curves: Sequence[Curve], function: Callable[[Curve], Value]) -> list[Value]:
    """Return `function(curve)` for each group's curve, computed once for groups that share a curve."""
    # By identity, because the hash of a curve of many stages takes longer.
    values = {id(curve): function(curve) for curve in {id(curve): curve for curve in curves}.values()}
    return [values[id(curve)] for curve in curves]


class WindowOfValues(dict[int, tuple[float, ...]]):
    """The values of all groups by step, computed for a window of `CHUNK` steps at a time.

        window[step][group] = float32(float32(base) · curve(step))

    A missing step replaces the window by one that begins there. If it lies more than `MAX_GAP` steps past the
    window, only that step is computed: a clock of samples may leap, and would use few steps of a window.
    """

    # A dict, so that a step within the window costs one look-up and no Python call (`__missing__`).

    def __init__(self, curves: Sequence[Curve], bases: Sequence[float]) -> None:
        super().__init__()
        self.curves, self.bases = curves, list(bases)
        self._end = 0
        """One past the last computed step."""

    def __missing__(self, step: int) -> tuple[float, ...]:
        self.clear()
        if step - self._end > MAX_GAP:
            self._end = step + 1
            multipliers = map_curves(self.curves, lambda curve: np.array([curve(step)], np.float32))
        else:
            self._end = step + CHUNK
            # Past MAX_STEP every curve is constant, and NumPy has no ranges from 2⁶³ on.
            first = min(step, checks.MAX_STEP)
            steps = np.arange(first, first + CHUNK)
            multipliers = map_curves(self.curves, lambda curve: curve(steps))
        # Python floats, since NumPy scalars would get into `param_groups`, and from there into checkpoints.
        keys = [(base, id(column)) for base, column in zip(self.bases, multipliers, strict=True)]
        columns = dict(zip(keys, multipliers, strict=True))  # one for all groups of a base and a curve
        values = {key: (np.float32(key[0]) * column).tolist() for key, column in columns.items()}
        rows = zip(*map(values.__getitem__, keys), strict=True)
        self.update(zip(range(step, self._end), rows, strict=True))
        return self[step]

    def __reduce__(self) -> tuple[Any, ...]:
        return WindowOfValues, (self.curves, self.bases)  # without the values


class GroupCurves:
    """A curve that drives one option of each parameter group.

        value = float32(float32(base) · curve(clock))

    Derived classes read the bases of groups and write the values.
    """

    optimizer: Optimizer
    last_epoch: int
    """The number of updates so far."""
    _builder = "lambda_lr"
    """The function that messages tell the user to call with other arguments."""

    def _set_curves(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: Curve | Sequence[Curve],
        *,
        strict: bool,
        unit: int | None,
        count: Callable[[], int] | None,
        hold: Rule | Sequence[Rule] | None = None,
    ) -> None:
        self.curves: list[Curve] = curves_of(optimizer, curve)
        self._clock = HostClock(self.curves, self._builder, unit, count, hold)
        self.optimizer = optimizer
        self.strict = strict
        self._common_curve = curve if isinstance(curve, Curve) else None
        self._option = option
        self._bases: list[float] = []
        """Each group's value at multiplier 1, in float32."""
        self._window = WindowOfValues(self.curves, self._bases)

    def __repr__(self) -> str:
        curve = self._common_curve or self.curves
        values = [as_number(self._option.read(group)) for group in self.optimizer.param_groups]
        value = values[0] if len(set(values)) == 1 else values
        unit = "" if self.unit is None else f", unit={self.unit}"
        return f"{type(self).__name__}({curve!r}, clock={self.clock}{unit}, {self._option}={value!r})"

    @property
    def clock(self) -> int:
        """The step of the curve: `last_epoch` minus the updates held by a rule, or `consumed // unit`."""
        return self._clock.step_after(self.last_epoch)

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without `unit`, the number of updates."""
        return max(self.last_epoch, 0) if self.unit is None else self._clock.counts[1]

    @property
    def unit(self) -> int | None:
        """The number of samples or tokens in one step of the curve; None if a step is an update."""
        return self._clock.unit

    def is_in_charge(self) -> bool:
        """Return True if the groups hold the values that were written here last. May wait for the device."""
        pairs = zip(self.optimizer.param_groups, self._values_written(), strict=False)
        return all(is_same(as_number(self._option.read(group)), as_number(value)) for group, value in pairs)

    def _values_at_clock(self) -> tuple[float, ...]:
        """Return each group's value at `clock`."""
        if self._window.bases != self._bases:  # also if the user has written into `base_lrs`
            for index, base in enumerate(self._bases):
                base_value(f"base_lrs[{index}]", base)
            self._window = WindowOfValues(self.curves, self._bases)
        return self._window[self._clock.step_after(self.last_epoch)]

    def _values_written(self) -> Sequence[Any]:
        """Return the value that each group got last."""
        raise NotImplementedError

    def _new_base(self, index: int, group: dict[str, Any]) -> float:
        """Return the base of a group that was added to the optimizer."""
        raise NotImplementedError

    def _all_bases(self) -> list[float]:
        """Return the bases of all groups, including groups added since the last step.

        A new group follows the curve that was given for all groups. Its base is its own value.
        """
        groups, bases = self.optimizer.param_groups, list(self._bases)
        if len(groups) < len(bases) or (self._common_curve is None and len(groups) > len(bases)):
            raise ValueError(
                f"the optimizer has {len(groups)} parameter groups; it had {len(bases)} when it got its "
                "curve. A new group follows a curve that was given for all groups; with one curve per group, "
                "build a new scheduler"
            )
        for index in range(len(bases), len(groups)):
            bases.append(self._new_base(index, groups[index]))
        return bases

    def _admit_new_groups(self) -> None:
        if len(self.optimizer.param_groups) != len(self._bases):
            self._set_bases(self._all_bases())

    def _set_bases(self, bases: Sequence[float]) -> None:
        """Set the base of each group, without writing values into the groups."""
        if self._common_curve is not None and len(bases) != len(self.curves):
            self.curves = [self._common_curve] * len(bases)
        self._bases = list(bases)
        unshare_tensors(self.optimizer, self._option, self._bases, self.curves)

    def _read_counts_and_bases(
        self, state_dict: Mapping[str, Any], updates: int, name: str, strict: bool
    ) -> tuple[Counts, list[float]]:
        """Read a state that was saved after `updates` updates. Nothing is changed.

        `name` is the entry that has the bases. With `strict`, the curves must have the same history.
        """
        group_count = len(self._all_bases())
        counts = self._clock.read_counts(state_dict, updates)
        bases = read_bases(name, state_dict[name], group_count)
        if strict:
            if "curves" not in state_dict:  # torch's own LambdaLR saved it
                raise ValueError(
                    "state_dict was saved by another scheduler, which had no curve; to keep its step, "
                    f"{how_to_override(self._builder)}"
                )
            curves = self.curves if self._common_curve is None else [self._common_curve] * group_count
            saved_curves = read_curves(state_dict["curves"], curves)
            held, consumed, _ = counts
            clock, used = (updates - held, held) if self.unit is None else divmod(consumed, self.unit)
            check_same_past(saved_curves, curves, clock, used > 0, self._builder)
        return counts, bases
