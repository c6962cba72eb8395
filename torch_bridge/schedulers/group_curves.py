"""Curves for one option of an optimizer's parameter groups, the common base of `CurveLR` and `Follower`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.curve_api import CHUNK, Curve, Rule, checks
from torch_bridge.schedulers.param_groups import GroupOption, curves_of, unshare_tensors
from torch_bridge.schedulers.resume import check_same_past, how_to_override, read_bases, read_curves
from torch_bridge.schedulers.unit_clocks import Position, UnitClock, read_position, unit_clock

NEAR = 50
"""Evaluating one step alone takes about as long as this many steps of a window."""

_Value = TypeVar("_Value")


def map_curves(curves: Sequence[Curve], value_of: Callable[[Curve], _Value]) -> list[_Value]:
    """`value_of(curve)` for each group's curve, computed once for groups that share a curve."""
    # By identity, since a curve of a derived class may have no hash.
    values = {id(curve): value_of(curve) for curve in {id(curve): curve for curve in curves}.values()}
    return [values[id(curve)] for curve in curves]


class Multipliers(dict[int, tuple[float, ...]]):
    """The multiplier of each curve by step, computed a window of `CHUNK` steps at a time.

        Multipliers(curves)[step] == tuple(curve(step) for curve in curves)

    A step that is missing replaces the window by one that begins there. If it lies more than `NEAR` steps
    past the window, it alone is computed: a clock of samples may leap, and would use few steps of a window.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        super().__init__()
        self.curves = curves
        self._end = 0
        """One past the last computed step."""

    def __missing__(self, step: int) -> tuple[float, ...]:
        self.clear()
        leaps = step - self._end > NEAR
        self._end = step + (1 if leaps else CHUNK)
        # Python floats: NumPy's would get into `param_groups`, and from there into checkpoints.
        if leaps:
            self[step] = tuple(map_curves(self.curves, lambda curve: float(curve(step))))
        else:
            # Past the last step the value stays the same; from 2⁶³ on NumPy has no ranges.
            first = min(step, checks.MAX_STEP)
            array = np.arange(first, first + CHUNK)
            columns = map_curves(self.curves, lambda curve: curve(array).tolist())
            self.update(zip(range(step, self._end), zip(*columns, strict=True), strict=True))
        return self[step]

    def __reduce__(self) -> tuple[Any, ...]:
        return Multipliers, (self.curves,)  # without the window


class GroupCurves:
    """One option of each parameter group, driven by a curve: value = float32(base) · curve(clock).

    A derived class says where the bases come from, and writes the values.
    """

    optimizer: Optimizer
    last_epoch: int
    """The number of updates so far."""
    _builder = "lambda_lr"
    """The function that messages advise to call with other arguments."""

    def _set_curves(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: Curve | Sequence[Curve],
        *,
        strict: bool,
        unit: int | None,
        count: Callable[[], int] | None,
    ) -> None:
        self._units: UnitClock | None = unit_clock(unit, count)
        self.optimizer = optimizer
        self.curves: list[Curve] = curves_of(optimizer, curve)
        self.strict = strict
        self._for_all = curve if isinstance(curve, Curve) else None
        self._option = option
        self._multipliers = Multipliers(self.curves)
        self._bases: list[float] = []
        """Each group's value at multiplier 1, in float32."""

    @property
    def clock(self) -> int:
        """The step of the curve.

        It is `last_epoch`, unless a rule has held the clock; with `unit` it is `consumed // unit`.
        """
        return self.last_epoch if self._units is None else self._units.clock

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without `unit` the number of updates."""
        return max(self.last_epoch, 0) if self._units is None else self._units.consumed

    @property
    def unit(self) -> int | None:
        """The number of samples or tokens in one step of the curve; None if a step is an update."""
        return None if self._units is None else self._units.unit

    def _new_base(self, index: int, group: dict[str, Any]) -> float:
        """The base of a group that has none yet."""
        raise NotImplementedError

    def _all_bases(self) -> list[float]:
        """The bases of all groups, including groups added since the last step.

        A new group joins the one curve for all groups. Its base is its own value; or, if it shares its tensor
        with an older group, that group's base.
        """
        groups, bases = self.optimizer.param_groups, list(self._bases)
        if len(groups) < len(bases) or (self._for_all is None and len(groups) > len(bases)):
            raise ValueError(
                f"the optimizer has {len(groups)} parameter groups; it had {len(bases)} when it got its "
                "curve. A new group follows a curve that was given for all groups; with a curve a group, "
                "build a new scheduler"
            )
        for index in range(len(bases), len(groups)):
            value = self._option.of(groups[index])
            older = zip(bases, groups[:index], strict=True)
            shared = (base for base, group in older if self._option.of(group) is value)
            base = next(shared, None) if isinstance(value, Tensor) else None
            bases.append(self._new_base(index, groups[index]) if base is None else base)
        return bases

    def _admit_new_groups(self) -> None:
        if len(self.optimizer.param_groups) != len(self._bases):
            self._set_bases(self._all_bases())

    def _set_bases(self, bases: Sequence[float]) -> None:
        """Take these bases, one for each group, without writing values."""
        if self._for_all is not None and len(bases) != len(self.curves):
            self.curves = [self._for_all] * len(bases)
            self._multipliers = Multipliers(self.curves)
        self._bases = list(bases)
        unshare_tensors(self.optimizer, self._option, self._bases, self.curves)

    def _read(
        self, state_dict: Mapping[str, Any], name: str, strict: bool, rules: Sequence[Rule] = ()
    ) -> tuple[Position, list[float]]:
        """The position and the bases of a saved state, after a check of its curves; it changes nothing."""
        count = len(self._all_bases())
        position = read_position(state_dict, self._units, not rules, strict, self._builder)
        bases = read_bases(name, state_dict[name], count)
        if strict:
            if "curves" not in state_dict:  # a LambdaLR of torch's
                raise ValueError(
                    f"state_dict has no curve; to load it anyway, {how_to_override(self._builder)}"
                )
            curves = self.curves if self._for_all is None else [self._for_all] * count
            check_same_past(read_curves(state_dict["curves"], curves), curves, position.clock, self._builder)
        return position, bases
