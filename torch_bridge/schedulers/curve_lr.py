"""A curve as a `torch.optim.lr_scheduler.LambdaLR`, whose checkpoints hold the step and the curve."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_bridge.core import Curve, Rule, checks
from torch_bridge.schedulers.curve_lr_state import CurveLRState, Loaded, read
from torch_bridge.schedulers.hold_state import States, to_plain
from torch_bridge.schedulers.multipliers import Multipliers
from torch_bridge.schedulers.param_groups import (
    Setting,
    curves_of,
    given_peaks,
    number_of,
    peak_of,
    peaks_of,
    set_peaks,
    with_new_groups,
)
from torch_bridge.schedulers.past_the_end import end_of, warn_past_the_end
from torch_bridge.schedulers.step_watch import Watch, stands_still
from torch_bridge.schedulers.torch_warnings import warn_of_epoch, warn_of_order
from torch_bridge.schedulers.unit_clocks import Clocked, refuse_count, unit_clock


class CurveLR(Clocked, LambdaLR):
    """The scheduler that `lambda_lr` builds: a `LambdaLR` whose checkpoints hold the step and the curve.

        lr = float32(peak) · curve(clock)

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence of one each.
        last_epoch, strict, unit, count: As in `lambda_lr`.

    Attributes:
        curves: The curve of each group.

    Raises:
        TypeError: `optimizer` or `curve` is something else; `last_epoch` or `unit` is not an integer;
            `count` is no function, or is given without `unit`.
        ValueError: Another number of curves than of groups; `last_epoch` below -1, or above it beside `unit`;
            a `unit` below 1; a rate that is negative, not finite, or positive and below 2⁻¹²⁶.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import CurveLR
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> scheduler = CurveLR(optimizer, PlateauCurve(100, warmup_steps=10))
    >>> scheduler.clock, scheduler.get_last_lr()
    (0, [0.0])
    """

    _get_lr_called_within_step = True
    """Or torch warns of a `get_lr` that a derived class has, after torch's own pattern."""
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
        self._units = unit_clock(unit, count)
        if self._units is not None and last_epoch >= 0:
            raise ValueError(
                f"last_epoch = {last_epoch} beside unit = {unit}: a number of updates does not tell what "
                "they consumed. Leave last_epoch out, and call scheduler.load_state_dict(state)"
            )
        self.curves = curves_of(optimizer, curve)
        self._for_all = curve if isinstance(curve, Curve) else None
        self.strict = strict
        self._factors = Multipliers(self.curves)
        set_peaks(optimizer, peaks_of(optimizer, last_epoch), self.curves)
        self._end = end_of(self.curves)
        self._watch = Watch()
        self._watch.start(optimizer, self)
        super().__init__(optimizer, list(self.curves), last_epoch)

    # `count` is not by keyword alone: Python calls such a function more slowly, 3 % of the whole step.
    def step(self, epoch: int | None = None, count: int | None = None) -> None:
        """Write the rates of the next step, or of step `epoch`, into the groups.

        Args:
            epoch: The step to go to, as in torch; by default the next one. Below -1 it is taken as -1.
            count: With `unit`, the samples or tokens of the update that took place. By default the function
                that the scheduler was built with is asked.

        Warns:
            CurveWarning: Once, if calls and optimizer steps don't alternate: three times in a row a call came
                after ten or more optimizer steps, or two or more calls came after one. (accelerate steps a
                prepared scheduler once for each process.) Once, if every rate was 0 and a call came after ten
                or more optimizer steps, or no call came in twenty. Once, if the training continues at rate 0
                after the curve's end, for more than ten steps and more than a hundredth of the curve's steps.
                Without optimizer steps, as when you draw a picture, there is no warning.
            UserWarning: As in torch: the first call came before `optimizer.step()`, or `epoch` is given.

        Raises:
            TypeError: `epoch` or `count` is not an integer; `epoch` is given beside `unit`, or `count`
                without it; with `unit` there is neither a count nor a function to ask. Nothing was changed.
            ValueError: `count` is negative, or above 2⁶² together with what was consumed: nothing was
                changed. The optimizer has other groups than it had at first: no rate was changed.
        """
        if epoch is not None:
            self._step_to(epoch, count)
            return
        if self._units is not None or count is not None:
            self._step_by(count)
            return
        if self.last_epoch >= self._end:
            self._past_end(self.last_epoch + 1)
        self._watch.before_step()
        # What follows is torch's own `step`, whose warnings would point at this line.
        if self._step_count == 1:
            warn_of_order(self.optimizer)
        self._move()
        self._step_count += 1

    def _step_by(self, count: int | None) -> None:
        units = self._units
        if units is None:
            raise refuse_count(count, "lambda_lr")
        before = consumed = units.consumed
        if count is not None or self.last_epoch >= 0:  # else it is the first step, which torch makes itself
            consumed = units.after(count)
        if (clock := consumed // units.unit) > self._end:
            self._past_end(clock)
        self._watch.before_step()
        if self._step_count == 1:
            warn_of_order(self.optimizer)
        units.consumed = consumed
        try:
            self._move()
        except BaseException:
            units.consumed = before
            raise
        self._step_count += 1

    def _step_to(self, epoch: Any, count: int | None) -> None:
        if self._units is None and count is not None:
            raise refuse_count(count, "lambda_lr")
        if self._units is not None:
            raise TypeError(
                f"step({epoch!r}) beside unit = {self.unit}: write step(count=n), with what the update "
                "consumed; to go elsewhere, call load_state_dict(state)"
            )
        try:
            if isinstance(epoch, Tensor):  # of integers, too
                raise TypeError
            epoch = max(checks.integer("epoch", epoch), -1)
        except TypeError:
            raise TypeError(
                f"epoch = {epoch!r} must be an integer: step() takes a loss only with hold=, as "
                "lambda_lr(optimizer, curve, hold=...)"
            ) from None
        if epoch == self.last_epoch + 1:
            if self.last_epoch >= self._end:
                self._past_end(epoch)
            self._watch.before_step()
        else:
            self._watch.restart()
        if self._step_count == 1:
            warn_of_order(self.optimizer)
        warn_of_epoch()
        self._move(epoch)
        self._step_count += 1

    def _past_end(self, step: int) -> None:
        """Say once that the curve has ended, where the training goes on and no weight moves."""
        if self._watch.has_trained and stands_still(self):
            self._end = math.inf
            warn_past_the_end(self.curves, step, self.unit)

    def _update_lr(self, epoch: int | None = None) -> None:
        # torch's name for it. Its `SequentialLR` calls it, not `step`, where this scheduler's turn comes.
        if self._units is not None:
            self._units.after(None)  # it counts from here on: what a function has gathered so far is dropped
            self._units.consumed = 0
        self._watch.restart()
        self._move(epoch)

    def _move(self, epoch: int | None = None) -> None:
        """Move on and write the rates."""
        # torch's own does the same in twice the time: it guards `get_lr`, and asks Tensor's metaclass for
        # each group.
        groups = self.optimizer.param_groups
        if len(groups) != len(self.base_lrs):
            self._set_peaks(self._peaks())
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

    def _peaks(self) -> list[float]:
        """The peaks of all groups, those included that came since the last step."""
        peaks = cast("list[float]", self.base_lrs)
        return with_new_groups(self.optimizer, Setting("lr"), self._for_all, peaks, peak_of)

    def _set_peaks(self, peaks: list[float]) -> None:
        if self._for_all is not None and len(peaks) != len(self.curves):
            self.curves = [self._for_all] * len(peaks)
            self.lr_lambdas = list(self.curves)
            self._factors = Multipliers(self.curves)
        self.base_lrs = list(peaks)
        set_peaks(self.optimizer, peaks, self.curves)

    def set_peak(self, peak: float | Sequence[float]) -> None:
        """Give the groups another peak, from the next update on. It is part of the state.

        Every rate is a share of its group's peak, the last one too.

        Args:
            peak: The rate at multiplier 1: one number for all groups, or one each.

        Raises:
            TypeError: Something is no number.
            ValueError: Another number of peaks than of groups; one is negative, not finite, or positive and
                below 2⁻¹²⁶; a group came later under a curve a group. Nothing was changed.

        >>> import torch
        >>> from plateau_jax import PlateauCurve
        >>> from torch_bridge import lambda_lr
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
        >>> scheduler = lambda_lr(optimizer, PlateauCurve(100, plateaus=[(0, 50)]))
        >>> scheduler.set_peak(0.25)
        >>> scheduler.get_last_lr()
        [0.25]
        """
        self._set_peaks(given_peaks(peak, len(self._peaks())))
        if self.last_epoch >= 0:  # else it waits for its turn in a SequentialLR
            self._move(self.last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Each group's rate at `clock`, a scalar: a product of two float32, exact in a Python float."""
        step = self.last_epoch if self._units is None else self._units.clock
        return list(map(operator.mul, self.base_lrs, self._factors[step]))

    # A TypedDict is a dict at run time, which is all that torch asks for.
    def state_dict(self) -> CurveLRState:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Clock, peaks and rates; and curves, rules and unit, which `load_state_dict` compares."""
        if self._for_all is not None and len(self.optimizer.param_groups) > len(self.base_lrs):
            self._set_peaks(self._peaks())
        rates = [float(number_of(group["lr"])) for group in self.optimizer.param_groups]
        return {
            "last_epoch": self.last_epoch,
            "clock": self.clock,
            "consumed": self.consumed,
            "unit": self.unit,
            "_step_count": self._step_count,
            "base_lrs": [float(number_of(peak)) for peak in self.base_lrs],
            "rates": rates,
            "curves": [curve.to_dict() for curve in self.curves],
            "hold": to_plain(self._rules, self._states),
            "warned": self._watch.warned,
            "_last_lr": list(rates),
            "lr_lambdas": [None] * len(rates),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Continue from the saved step, and write the saved rates into the groups.

        The optimizer's own state may be loaded before or after. The other way round, torch's own `LambdaLR`,
        as in a trainer, loads the state of this one.

        The state of another curve is accepted if both curves have the same past: the same values at every
        step before the saved clock (`Curve.same_until`). The rates are then those of the new curve, and the
        optimizer's state, which holds the old ones, must be loaded first.

        Args:
            state_dict: What `state_dict` returned.
            strict: Whether to refuse the state of a curve with another past, of another hold or of another
                unit. With False the run goes on under this scheduler's curve from the saved clock and
                peaks; rules that differ from the saved ones start anew; with another unit `consumed` is
                clock · unit, and without one the number of updates is the clock; and the state of a plain
                `LambdaLR` is accepted too. By default the value that the scheduler was built with.

        Raises:
            ValueError: The state is that of a curve with another past, of another hold or of another unit
                (unless `strict` is False), or of another number of groups, or is no state. Nothing was
                changed.
        """
        count = len(self._peaks())
        curves = self.curves if self._for_all is None else [self._for_all] * count
        strict = self.strict if strict is None else strict
        found = read(state_dict, curves, self._rules, self._units, strict)
        self._set_peaks(found.peaks)
        self._go_to(found)
        self._step_count = found.step_count
        self._end = end_of(self.curves)
        if self.clock > self._end:  # it was said in the saved run
            self._end = math.inf
        self._watch.restart()
        self._watch.warned = found.warned
        for group, rate in zip(self.optimizer.param_groups, found.rates or (), strict=bool(found.rates)):
            Setting("lr").set(group, rate)

    def _go_to(self, found: Loaded) -> None:
        if self._units is not None:
            self._units.consumed = found.place.consumed
        self._move(found.place.last_epoch)
