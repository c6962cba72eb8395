"""The PyTorch edge: a curve as a `torch.optim.lr_scheduler.LambdaLR`."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_bridge.core import Curve, PlateauCurve, checks
from torch_bridge.groups import Setting, curves_of, number_of, peaks_of, set_peaks
from torch_bridge.multipliers import Multipliers
from torch_bridge.resume import check_past, curves_in


class CurveLRState(TypedDict):
    """What `CurveLR.state_dict` returns: plain numbers and lists."""

    last_epoch: int
    _step_count: int
    base_lrs: list[float]
    rates: list[float]
    """The rates in the groups. Not always this curve's: another scheduler may be in charge."""
    curves: list[Mapping[str, Any]]


class CurveLR(LambdaLR):
    """The scheduler that `lambda_lr` builds: a `LambdaLR` whose checkpoints hold the step and the curve."""

    def __init__(
        self,
        optimizer: Optimizer,
        curves: Sequence[Curve],
        last_epoch: int = -1,
        *,
        strict: bool = True,
    ) -> None:
        last_epoch = checks.at_least("last_epoch", last_epoch, -1)
        self.curves = list(curves)
        self.strict = strict
        self._factors = Multipliers(self.curves)
        set_peaks(optimizer, peaks_of(optimizer), self.curves)
        super().__init__(optimizer, list(curves), last_epoch)

    def step(self, epoch: int | None = None) -> None:
        """The rates of the next step, or of step `epoch` (from before -1: of -1).

        Raises:
            TypeError: An epoch that is not an integer. Nothing was changed.
        """
        if epoch is None:
            LambdaLR.step(self)  # not by super(), which would cost 5 % of a step
            return
        before = self.last_epoch, self._step_count
        try:
            super().step(epoch)
        except BaseException:  # a warning that is an error too
            self.last_epoch, self._step_count = before
            raise

    def get_lr(self) -> list[float | Tensor]:
        """Each group's rate at `last_epoch`: the product of two float32, exact in a Python float."""
        return list(map(operator.mul, self.base_lrs, self._factors[self.last_epoch]))

    def _get_closed_form_lr(self) -> list[float | Tensor]:
        # What torch asks in place of get_lr when step() is given an epoch.
        self.last_epoch = max(checks.integer("epoch", self.last_epoch), -1)
        return self.get_lr()

    # A TypedDict is a dict at run time, which is all that torch asks for.
    def state_dict(self) -> CurveLRState:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Plain numbers and lists: the step, the peaks, the rates in the groups, and the curves to check."""
        return {
            "last_epoch": self.last_epoch,
            "_step_count": self._step_count,
            "base_lrs": [float(number_of(peak)) for peak in self.base_lrs],
            "rates": [float(number_of(group["lr"])) for group in self.optimizer.param_groups],
            "curves": [curve.to_dict() for curve in self.curves],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Go on where the state was saved, and write the rates of that moment into the groups.

        So the optimizer's own state may be loaded before or after.

        The state of another curve is taken where the past is the same: both curves have the same values
        at every step before the saved one (`Curve.same_until`). The rates are then the new curve's at that
        step, so load the optimizer's state first.

        Args:
            state_dict: What `state_dict` returned.
            strict: Whether the state of a curve with another past is refused. With False the run goes on
                under this scheduler's curve, from the saved step and peaks, whatever came before; the
                state of a plain `LambdaLR` is then taken too. By default as the scheduler was built.

        Raises:
            ValueError: The state is of a curve with another past (unless `strict` is False), or not a
                state, or has another number of groups. Nothing was changed.
        """
        strict = self.strict if strict is None else strict
        try:
            last_epoch = checks.at_least("last_epoch", state_dict["last_epoch"], -1)
            step_count = checks.integer("_step_count", state_dict.get("_step_count", last_epoch + 1))
            peaks = [float(checks.peak(f"base_lrs[{i}]", p)) for i, p in enumerate(state_dict["base_lrs"])]
            if len(peaks) != len(self.base_lrs):
                raise ValueError(
                    f"state_dict has {len(peaks)} parameter groups; the optimizer has {len(self.base_lrs)}"
                )
            rates = self._saved_rates(state_dict, last_epoch, peaks, strict)
        except KeyError as error:
            raise ValueError(f"state_dict is not the state of a LambdaLR: it has no {error}") from None
        except (OverflowError, TypeError) as error:
            raise ValueError(f"state_dict is not the state of a LambdaLR: {error}") from None
        set_peaks(self.optimizer, peaks, self.curves)
        self.base_lrs = list(peaks)
        # A first step writes the rates and warns of nothing.
        self._step_count = 0
        self.last_epoch = last_epoch - 1
        self.step()
        self._step_count = step_count
        for group, rate in zip(self.optimizer.param_groups, rates or (), strict=bool(rates)):
            Setting("lr").set(group, rate)

    def _saved_rates(
        self, state_dict: Mapping[str, Any], clock: int, peaks: Sequence[float], strict: bool
    ) -> list[float] | None:
        """The rates in a state that are to be written; None where this scheduler's curve gives them.

        They stay where the curve is the same one, or where another scheduler was in charge of them.
        """
        count = len(self.base_lrs)
        try:
            if (saved := state_dict.get("curves")) is None:
                raise ValueError(f"state_dict names no curve; to load it all the same {_WAY_OUT}")
            curves = curves_in(saved, count)
            saved = state_dict["rates"]
            rates = [float(checks.number(f"rates[{i}]", rate)) for i, rate in enumerate(saved)]
            if len(rates) != count:
                raise ValueError(f"state_dict has {len(rates)} rates for {count} parameter groups")
        except (KeyError, OverflowError, TypeError, ValueError):
            if strict:
                raise
            return None
        if strict:
            check_past(curves, self.curves, clock, _WAY_OUT)
        # By their arguments: a curve of a subclass equals none of the class itself.
        if [curve.to_dict() for curve in curves] == [curve.to_dict() for curve in self.curves]:
            return rates
        own = [peak * curve(clock) for peak, curve in zip(peaks, curves, strict=True)]
        # As near as the narrowest tensors of rates keep them, bfloat16's.
        in_charge = all(math.isclose(*pair, rel_tol=2**-8) for pair in zip(rates, own, strict=True))
        return None if in_charge else rates


_WAY_OUT = "pass strict=False, to load_state_dict or, where a trainer loads, to lambda_lr"


def lambda_lr(
    optimizer: Optimizer,
    curve: Curve | Sequence[Curve],
    last_epoch: int = -1,
    *,
    strict: bool = True,
) -> CurveLR:
    """The curve as a PyTorch scheduler: after n calls of `step()`, lr = peak · curve(n) in each group.

    The peak is the group's `initial_lr` where it has one, else its `lr`, **rounded to float32**: then
    the product with a float32 multiplier is exact in a Python float, and its float32 value is the
    learning rate that `plateau_jax.optax_schedule` gives for the same peak.

    A rate that is a tensor stays the same tensor and is filled.

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence of one each.
        last_epoch: Index of the last finished update, as in torch: after n scheduler steps, n - 1.
        strict: Whether `load_state_dict(state)` refuses the state of a curve with another past, or goes
            on under this one. For trainers, which call it themselves; its own argument `strict` comes first.

    Returns:
        A `torch.optim.lr_scheduler.LambdaLR`. Its `state_dict` holds plain numbers and lists, and
        survives `torch.load(weights_only=True)`.

    Raises:
        TypeError: `optimizer` or `curve` is something else.
        ValueError: Another number of curves than of groups; a rate that is negative, not finite, or
            positive and below 2⁻¹²⁶; `last_epoch` below -1.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import lambda_lr
    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters(), lr=3e-4)
    >>> scheduler = lambda_lr(optimizer, PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)]))
    >>> for _ in range(50):
    ...     optimizer.step()
    ...     scheduler.step()
    >>> round(optimizer.param_groups[0]["lr"], 9)
    0.00015
    """
    return CurveLR(optimizer, curves_of(optimizer, curve), last_epoch, strict=strict)


def get_cosine_plateau_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    plateaus: Sequence[tuple[float, float]] = (),
    min_lr_ratio: float = 0.0,
    min_lr: float | None = None,
    last_epoch: int = -1,
    *,
    strict: bool = True,
) -> CurveLR:
    """A scheduler in the convention of transformers' `get_cosine_schedule_with_warmup`.

    Args:
        optimizer: Any torch optimizer.
        num_warmup_steps: Steps of the linear warmup.
        num_training_steps: Steps of the whole curve, warmup included.
        plateaus: Pairs (start, duration) in percent of the steps after the warmup.
        min_lr_ratio: The final rate as a share of the peak.
        min_lr: The final rate itself, the same for every group. Not beside `min_lr_ratio`.
        last_epoch: As in `lambda_lr`.
        strict: As in `lambda_lr`.

    Returns:
        The scheduler that `lambda_lr` builds.

    Raises:
        TypeError, ValueError: As `PlateauCurve` and `lambda_lr`; both `min_lr_ratio` and `min_lr`
            given; a `min_lr` above a group's peak, negative, or positive and below 2⁻¹²⁶.

    >>> import torch
    >>> from torch_bridge import get_cosine_plateau_schedule_with_warmup
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> scheduler = get_cosine_plateau_schedule_with_warmup(optimizer, 10, 100, plateaus=[(0, 80)])
    >>> scheduler.get_last_lr()
    [0.0]
    """
    curve = PlateauCurve(
        num_training_steps, warmup_steps=num_warmup_steps, plateaus=plateaus, min_lr_ratio=min_lr_ratio
    )
    if min_lr is None:
        return lambda_lr(optimizer, curve, last_epoch, strict=strict)
    if min_lr_ratio != 0.0:
        raise ValueError(f"min_lr_ratio = {min_lr_ratio!r} and min_lr = {min_lr!r}: give one of them")
    floor = checks.peak("min_lr", min_lr)
    # The number that a peak was rounded from is the peak, not a little more or less.
    ratios = [
        checks.ratio_to_peak("min_lr", peak if peak == floor else min_lr, peak)
        for peak in peaks_of(optimizer)
    ]
    curves = [replace(curve, min_lr_ratio=ratio) for ratio in ratios]
    return lambda_lr(optimizer, curves, last_epoch, strict=strict)
