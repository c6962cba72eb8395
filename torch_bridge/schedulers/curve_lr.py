"""A curve as a `torch.optim.lr_scheduler.LambdaLR`, whose checkpoints hold the step and the curve."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_bridge.curve_api import Curve, Rule, checks, warn
from torch_bridge.schedulers.group_curves import GroupCurves
from torch_bridge.schedulers.hold_state import HoldState, States, dump_hold_states, load_hold_states
from torch_bridge.schedulers.param_groups import GroupOption, as_number, peak_of, peaks_of, peaks_per_group
from torch_bridge.schedulers.resume import reading_state_of
from torch_bridge.schedulers.step_watch import StepWatch
from torch_bridge.schedulers.unit_clocks import Position, refuse_count


class CurveLRState(TypedDict):
    """What `CurveLR.state_dict` returns: plain numbers, lists and dictionaries.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import CurveLR, CurveLRState
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> state: CurveLRState = CurveLR(optimizer, PlateauCurve(100)).state_dict()
    >>> state["clock"], state["base_lrs"], state["rates"]
    (0, [0.5], [0.5])
    """

    last_epoch: int
    """The number of updates so far, that is of calls of `step`."""
    clock: int
    """The step of the curve that gives the learning rates."""
    consumed: int
    """The samples or tokens of all updates; without a unit the number of updates."""
    unit: int | None
    """The number of samples or tokens in one step of the curve."""
    _step_count: int
    base_lrs: list[float]
    """Each group's peak, in float32."""
    rates: list[float]
    """The learning rates in the groups, which another scheduler may have written."""
    curves: list[Mapping[str, Any]]
    """Each group's curve, as its `to_dict` returns it."""
    hold: list[HoldState] | None
    """The rules that hold the clock, and their states."""
    warned: bool
    """Whether the warning about too few or too many scheduler steps was given; it comes once."""
    _last_lr: list[float]
    """The learning rates that this scheduler wrote last."""
    lr_lambdas: list[None]
    """None for each group: a `LambdaLR` of torch's that loads this state keeps its functions."""


class CurveLR(GroupCurves, LambdaLR):
    """The scheduler that `lambda_lr` builds: a `LambdaLR` whose checkpoints hold the step and the curve.

        lr = float32(peak) · curve(clock)

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence with one for each.
        last_epoch, strict, unit, count: As in `lambda_lr`.

    Attributes:
        curves: The curve of each group.

    Raises:
        TypeError, ValueError: As `lambda_lr`.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import CurveLR
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> scheduler = CurveLR(optimizer, PlateauCurve(100, warmup_steps=10))
    >>> scheduler.clock, scheduler.get_last_lr()
    (0, [0.0])
    """

    _get_lr_called_within_step = True
    """Otherwise torch warns of a derived class whose `get_lr` follows torch's own pattern."""
    _rules: tuple[Rule, ...] = ()
    _states: States = ()

    def __init__(
        self,
        optimizer: Optimizer,
        curve: Curve | Sequence[Curve],
        last_epoch: int = -1,
        *,
        strict: bool = True,
        unit: int | None = None,
        count: Callable[[], int] | None = None,
    ) -> None:
        last_epoch = checks.at_least("last_epoch", last_epoch, -1)
        self._set_curves(optimizer, GroupOption("lr"), curve, strict=strict, unit=unit, count=count)
        if self._units is not None and last_epoch >= 0:
            raise ValueError(
                f"last_epoch = {last_epoch} beside unit = {unit}: a number of updates does not tell what "
                "they consumed. Leave last_epoch out, and call scheduler.load_state_dict(state)"
            )
        self._set_bases(peaks_of(optimizer, last_epoch))
        self._watch = StepWatch()
        self._watch.start(optimizer, self)
        super().__init__(optimizer, list(self.curves), last_epoch)

    @property
    def base_lrs(self) -> list[float]:
        """Each group's peak, in float32."""
        return self._bases

    @base_lrs.setter  # torch sets an attribute of this name
    def base_lrs(self, peaks: list[float]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._bases = peaks

    # `count` is not by keyword alone: Python calls such a function more slowly, 3 % of the whole step.
    def step(self, epoch: int | None = None, count: int | None = None) -> None:
        """Write the learning rates of the next step, or of step `epoch`, into the groups.

        Args:
            epoch: The step to go to, as in torch; by default the next one. Below -1 it is taken as -1.
            count: With `unit`, the samples or tokens of the update that took place. By default the function
                that the scheduler was built with is called.

        Warns:
            CurveWarning: Once, if the calls do not alternate with optimizer steps: three times in a row, or
                at once at learning rate 0. Once, if training continues at learning rate 0 past the curve's
                end. Calls without any optimizer step, as for a plot, do not warn.
            UserWarning: As in torch: the first call came before `optimizer.step()`, or `epoch` is given.

        Raises:
            TypeError: `epoch` or `count` is not an integer; `epoch` is given next to `unit`, or `count`
                without it; with `unit` there is neither a count nor a function. Nothing was changed.
            ValueError: `count` is negative, or above 2⁶² together with what was consumed; the optimizer has
                other groups than it had at first. Nothing was changed.
        """
        if epoch is not None:
            self._step_to(epoch, count)
            return
        if self._units is not None or count is not None:
            self._step_by(count)
            return
        # The same as torch's own `step` in less time, and its warnings point at the user's line.
        self._watch.before_step(self.last_epoch + 1)
        if self._step_count == 1:
            self._watch.check_order()
        self._move()
        self._step_count += 1

    def _step_by(self, count: int | None) -> None:
        units = self._units
        if units is None:
            raise refuse_count(count, "lambda_lr")
        consumed = units.consumed
        if count is not None or self.last_epoch >= 0:  # else it is the first step, which torch makes itself
            consumed = units.after(count)
        self._watch.before_step(consumed // units.unit)
        if self._step_count == 1:
            self._watch.check_order()
        self._admit_new_groups()  # it may refuse them, so it comes before anything changes
        units.consumed = consumed
        self._move()
        self._step_count += 1

    def _step_to(self, epoch: Any, count: int | None) -> None:
        if self._units is not None:
            raise TypeError(
                f"step({epoch!r}) beside unit = {self.unit}: write step(count=n), with what the update "
                "consumed; to go elsewhere, call load_state_dict(state)"
            )
        if count is not None:
            raise refuse_count(count, "lambda_lr")
        try:
            if isinstance(epoch, Tensor):  # a loss, even if it is an integer
                raise TypeError
            epoch = max(checks.integer("epoch", epoch), -1)
        except TypeError:
            raise TypeError(
                f"epoch = {epoch!r} must be an integer: step() takes a loss only with hold=, as "
                "lambda_lr(optimizer, curve, hold=...)"
            ) from None
        if epoch == self.last_epoch + 1:
            self._watch.before_step(epoch)
        else:
            self._watch.restart()
        if self._step_count == 1:
            self._watch.check_order()
        warn(
            "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()` without it",
            UserWarning,
        )
        self._move(epoch)
        self._step_count += 1

    def _update_lr(self, epoch: int | None = None) -> None:
        # Torch's name for it. Its `SequentialLR` calls it, not `step`, when this scheduler's turn comes.
        if self._units is not None:
            self._units.after(None)  # it counts from here on: drop what a function has gathered so far
            self._units.consumed = 0
        self._watch.restart()
        self._move(epoch)

    def _move(self, epoch: int | None = None) -> None:
        """Move on and write the learning rates."""
        # Torch's own does the same in twice the time: it guards `get_lr`, and asks Tensor's metaclass for
        # each group.
        groups = self.optimizer.param_groups
        if len(groups) != len(self._bases):
            self._set_bases(self._all_bases())
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._last_lr: list[float | Tensor] = []
        rates = self.get_lr()
        if len(rates) != len(groups):  # of a derived class
            raise ValueError(f"get_lr() gave {len(rates)} rates for {len(groups)} parameter groups")
        for group, rate in zip(groups, rates):  # noqa: B905 -- the lengths were compared
            present = group["lr"]
            if type(present) is not float and isinstance(present, Tensor):
                rate = present.fill_(rate).clone()
            else:
                group["lr"] = rate
            self._last_lr.append(rate)

    def _new_base(self, index: int, group: dict[str, Any]) -> float:
        return peak_of(index, group)

    def _set_bases(self, bases: Sequence[float]) -> None:
        super()._set_bases(bases)
        self.lr_lambdas = list(self.curves)
        for group, peak in zip(self.optimizer.param_groups, bases, strict=True):
            group["initial_lr"] = peak

    def set_peak(self, peak: float | Sequence[float]) -> None:
        """Give the groups another peak, from the next update on. It is part of the state.

        Every learning rate is a share of its group's peak, the last one too.

        Args:
            peak: The learning rate at multiplier 1: one number for all groups, or one each.

        Raises:
            TypeError: Something is not a number.
            ValueError: Another number of peaks than of groups; one is negative, not finite, or positive and
                below 2⁻¹²⁶; a group was added although each group has its own curve. Nothing was changed.

        >>> import torch
        >>> from plateau_jax import PlateauCurve
        >>> from torch_bridge import lambda_lr
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
        >>> scheduler = lambda_lr(optimizer, PlateauCurve(100, plateaus=[(0, 50)]))
        >>> scheduler.set_peak(0.25)
        >>> scheduler.get_last_lr()
        [0.25]
        """
        self._set_bases(peaks_per_group(peak, len(self._all_bases())))
        if self.last_epoch >= 0:  # else it waits for its turn in a SequentialLR
            self._move(self.last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Each group's learning rate at `clock`, a scalar: a product of float32, exact in a Python float."""
        step = self.last_epoch if self._units is None else self._units.clock
        return list(map(operator.mul, self._bases, self._multipliers[step]))

    # A TypedDict is a dict at run time, which is all that torch asks for.
    def state_dict(self) -> CurveLRState:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Clock, peaks and learning rates; and curves, rules and unit, which `load_state_dict` compares."""
        if self._for_all is not None:
            self._admit_new_groups()
        return {
            "last_epoch": self.last_epoch,
            "clock": self.clock,
            "consumed": self.consumed,
            "unit": self.unit,
            "_step_count": self._step_count,
            "base_lrs": [float(as_number(peak)) for peak in self._bases],
            "rates": [float(as_number(group["lr"])) for group in self.optimizer.param_groups],
            "curves": [curve.to_dict() for curve in self.curves],
            "hold": dump_hold_states(self._rules, self._states),
            "warned": self._watch.warned,
            "_last_lr": [float(as_number(rate)) for rate in self._last_lr],
            "lr_lambdas": [None] * len(self.curves),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume from the saved step, and write the learning rates into the groups.

        The optimizer's own state may be loaded before or after. A `LambdaLR` of torch's, as in a trainer,
        loads the state of a `CurveLR` too.

        The state of another curve is accepted if both curves have the same past: the same values at every
        step before the saved clock (`Curve.same_until`). The learning rates are then those of the new curve,
        and the optimizer's state, which holds the old ones, must be loaded first.

        Args:
            state_dict: What `state_dict` returned.
            strict: Whether to refuse the state of a curve with another past, of another hold or of another
                unit. With False the run resumes under this scheduler's curve from the saved clock and peaks;
                rules that differ from the saved ones start anew; with another unit `consumed` is
                clock · unit, and without one the number of updates is the clock; and the state of a plain
                `LambdaLR` is accepted too. By default the value that the scheduler was built with.

        Raises:
            ValueError: The state is that of a curve with another past, of another hold or of another unit
                (unless `strict` is False), or of another number of groups, or is not a state. Nothing was
                changed.
        """
        strict = self.strict if strict is None else strict
        with reading_state_of("a LambdaLR", state_dict):
            if "_get_lr_called_within_step" in state_dict:
                # Torch's own LambdaLR saved it. Entries that it once loaded from a CurveLR are out of date.
                state_dict = {name: state_dict[name] for name in ("last_epoch", "_step_count", "base_lrs")}
            position, peaks = self._read(state_dict, "base_lrs", strict, self._rules)
            step_count = checks.integer("_step_count", state_dict.get("_step_count", position.last_epoch + 1))
            states = load_hold_states(state_dict.get("hold"), self._rules, strict, "lambda_lr")
            rates = _rates_of_another_scheduler(state_dict, position, len(peaks))
        self._set_bases(peaks)
        self._resume_at(position, states)
        self._step_count = step_count
        self._watch.resume(self.clock, bool(state_dict.get("warned")))
        for group, rate in zip(self.optimizer.param_groups, rates or (), strict=bool(rates)):
            self._option.write(group, rate)

    def _resume_at(self, position: Position, states: States) -> None:
        if self._units is not None:
            self._units.consumed = position.consumed
        self._move(position.last_epoch)


def _rates_of_another_scheduler(
    state_dict: Mapping[str, Any], position: Position, count: int
) -> list[float] | None:
    """The saved learning rates, if another scheduler or the user wrote them; None if this one had."""
    if "curves" not in state_dict:  # a LambdaLR of torch's
        return None
    rates = [float(checks.number(f"rates[{i}]", rate)) for i, rate in enumerate(state_dict["rates"])]
    if len(rates) != count or min(rates, default=0.0) < 0:
        raise ValueError(f"state_dict has the rates {checks.short_repr(rates)} for {count} parameter groups")
    waits = position.last_epoch < 0  # for its turn in a SequentialLR
    # A state of 0.1.0 has no `_last_lr`. Formats other than torch's may turn a list into a tuple.
    return None if not waits and rates == list(state_dict.get("_last_lr", ())) else rates
