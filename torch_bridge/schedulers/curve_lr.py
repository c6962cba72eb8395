"""A curve as a `torch.optim.lr_scheduler.LambdaLR`, whose checkpoints hold the step and the curve."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_bridge.curve_api import Curve, Rule, checks, warn
from torch_bridge.saved_states import HoldState, dump_hold_states, read_values, reading_state_of
from torch_bridge.schedulers.group_curves import GroupCurves
from torch_bridge.schedulers.host_clock import Counts
from torch_bridge.schedulers.param_groups import GroupOption, as_number, peak_of, peaks_of, peaks_per_group
from torch_bridge.schedulers.step_audit import EarlierRun, StepWatch


class CurveLRState(TypedDict):
    """The state that `CurveLR.state_dict` returns: plain numbers, lists and dictionaries.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import CurveLR, CurveLRState
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> state: CurveLRState = CurveLR(optimizer, PlateauCurve(100)).state_dict()
    >>> state["clock"], state["base_lrs"], state["rates"]
    (0, [0.5], [0.5])
    """

    last_epoch: int
    """The number of updates so far, that is, of calls of `step`."""
    clock: int
    """The step of the curve that gives the learning rates."""
    consumed: int
    """The samples or tokens of all updates; without a unit, the number of updates."""
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
    """True if the warning about too few or too many scheduler steps was given; it comes once."""
    _last_lr: list[float]
    """The learning rates that this scheduler wrote last."""
    lr_lambdas: NotRequired[list[None]]
    """None for each group, so that torch's own `LambdaLR`, if it loads this state, keeps its functions.

    Missing with a unit or rules: torch would resume at `last_epoch`, which is not the clock, so it raises an
    error.
    """


class CurveLR(GroupCurves, LambdaLR):
    """The scheduler that `lambda_lr` builds: a `LambdaLR` whose state holds the step and the curve.

        lr = float32(float32(peak) · curve(clock))

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence with one for each.
        last_epoch, strict, hold, unit, count: As in `lambda_lr`.

    Attributes:
        curves: The curve of each group.

    Raises:
        TypeError, ValueError: As `lambda_lr`.

    Warns:
        CurveWarning: As `lambda_lr`.

    >>> import torch
    >>> from plateau_jax import HoldBelow, PlateauCurve
    >>> from torch_bridge import CurveLR
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> scheduler = CurveLR(optimizer, PlateauCurve(100), hold=HoldBelow(0.3, 1))
    >>> for loss in (0.4, 0.2, 0.1):
    ...     optimizer.step()
    ...     scheduler.step(loss)
    >>> scheduler.last_epoch, scheduler.clock
    (3, 2)
    """

    # Why not curves as the functions of a plain LambdaLR? Its state holds the step but no curve, so a run
    # could resume under a different one unnoticed, and it rounds neither the peak nor the product to float32.
    # Hence a separate `get_lr`, `state_dict` and `load_state_dict`.

    _get_lr_called_within_step = True
    """Keeps torch from warning about a derived class whose `get_lr` follows torch's own pattern."""

    def __init__(
        self,
        optimizer: Optimizer,
        curve: Curve | Sequence[Curve],
        last_epoch: int = -1,
        *,
        strict: bool = True,
        hold: Rule | Sequence[Rule] | None = None,
        unit: int | None = None,
        count: Callable[[], int] | None = None,
    ) -> None:
        last_epoch = checks.at_least("last_epoch", last_epoch, -1)
        self._set_curves(
            optimizer, GroupOption("lr"), curve, strict=strict, unit=unit, count=count, hold=hold
        )
        if self.unit is not None and last_epoch >= 0:
            raise ValueError(
                f"last_epoch = {last_epoch} with unit = {unit}: the number of updates does not say how much "
                "they consumed. Leave out last_epoch, and call scheduler.load_state_dict(state)"
            )
        peaks = peaks_of(optimizer, last_epoch)
        earlier = None
        if last_epoch < 0:  # before the groups get other values
            earlier = EarlierRun.of(optimizer, self.curves if self._clock.is_plain else ())
        self._set_bases(peaks)
        super().__init__(optimizer, list(self.curves), last_epoch)
        self._watch = StepWatch(self, earlier)

    @property
    def base_lrs(self) -> list[float]:
        """Each group's peak, in float32."""
        return self._bases

    @base_lrs.setter  # torch sets an attribute of this name
    def base_lrs(self, peaks: list[float]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._bases = list(peaks)

    # `count` and `metric` are not keyword-only: that would make the whole step 3 % slower.
    def step(
        self,
        epoch: int | float | Tensor | None = None,
        count: int | None = None,
        metric: float | Tensor | None = None,
    ) -> None:
        """Write the learning rates of the next step, or of step `epoch`, into the groups.

        Args:
            epoch: The step to go to, as in torch; by default the next one. Values below -1 count as -1. With
                `hold`, a first argument is the metric, as in torch's `ReduceLROnPlateau`.
            count: With `unit`, the samples or tokens of the update that took place. By default, the result
                of the `count` function that the scheduler was built with.
            metric: With `hold`, the loss of the update, or another metric: a float, or a scalar tensor of a
                floating-point dtype, the same on all ranks.

        Warns:
            UserWarning: As in torch: `epoch` is given.

        Raises:
            TypeError, ValueError: An argument is wrong or missing, or belongs to another clock: `epoch` with
                `unit`, `count` without it, `metric` without `hold`; the total consumed would be above 2⁶²; or
                the optimizer no longer has the groups that it had at first. Nothing was changed.
        """
        clock, updates = self._clock, self.last_epoch
        if epoch is not None:
            if not clock.rules:
                self._step_to_epoch(epoch, count, metric)
                return
            if metric is not None:
                raise TypeError("with hold, step() takes one metric, as in step(loss)")
            metric = epoch
        # The same as torch's own `step` in less time. A clock of updates has nothing else to count. No clock
        # counts when torch steps a scheduler in a constructor, before the first update.
        counts, has_no_input = clock.counts, count is None and metric is None
        if not (has_no_input and (clock.is_plain or updates < 0 or not self._step_count)):
            counts = clock.counts_after(updates, count, metric)
        self._move_to(updates + 1, counts)
        self._step_count += 1

    def _step_to_epoch(self, epoch: Any, count: Any, metric: Any) -> None:
        if self.unit is not None:
            raise TypeError(
                f"step({checks.short_repr(epoch)}) with unit = {self.unit}: write step(count=n), "
                "where n is what the update consumed; to move to another step, call load_state_dict(state)"
            )
        counts = self._clock.counts_after(self.last_epoch, count, metric)
        try:
            if isinstance(epoch, Tensor):  # certainly a loss, even if it holds an integer
                raise TypeError
            epoch = max(checks.integer("epoch", epoch), -1)
        except TypeError:
            raise TypeError(
                f"epoch = {checks.short_repr(epoch)} must be an integer: step() takes a loss only "
                "with hold=, as in lambda_lr(optimizer, curve, hold=...)"
            ) from None
        warn(
            "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()` without it",
            UserWarning,
        )
        is_next = epoch == self.last_epoch + 1
        self._move_to(epoch, counts)
        self._step_count += 1
        if not is_next:
            self._watch.resume()

    def _update_lr(self, epoch: int | None = None) -> None:
        # This overrides a method of torch's, which `SequentialLR` calls in place of `step` when this
        # scheduler's turn comes. The clock counts from then on, so what the `count` function has gathered
        # until now is discarded.
        counts = self._clock.counts
        if self.unit is not None:
            self._clock.counts_after(self.last_epoch)
            counts = (0, 0, ())
        self._move_to(self.last_epoch + 1 if epoch is None else epoch, counts)
        self._watch.begin()

    def _move_to(self, updates: int, counts: Counts) -> None:
        """Write the learning rates after this number of updates into the groups."""
        # Torch's own method takes twice the time: it guards `get_lr`, and its isinstance(lr, Tensor) goes
        # through Tensor's metaclass for each group. Hence the test for a float first.
        groups = self.optimizer.param_groups
        if len(groups) != len(self._bases):
            self._admit_new_groups()  # before anything changes, since it may reject them
        self.last_epoch, self._clock.counts = updates, counts
        self._last_lr: list[float | Tensor] = []
        lrs = self.get_lr()
        if len(lrs) != len(groups):  # a derived class's get_lr
            raise ValueError(
                f"get_lr() returned {len(lrs)} learning rates for {len(groups)} parameter groups"
            )
        for group, lr in zip(groups, lrs):  # noqa: B905 -- the lengths were compared
            current = group["lr"]
            if type(current) is not float and isinstance(current, Tensor):
                # A compiled or capturable optimizer reads this very tensor, so fill it, whichever it is now:
                # optimizer.load_state_dict replaces it.
                lr = current.fill_(lr).clone()
            else:
                group["lr"] = lr
            self._last_lr.append(lr)

    def _values_written(self) -> list[float | Tensor]:
        return self._last_lr

    def _new_base(self, index: int, group: dict[str, Any]) -> float:
        return peak_of(index, group)

    def _set_bases(self, bases: Sequence[float]) -> None:
        super()._set_bases(bases)
        self.lr_lambdas = list(self.curves)
        for group, peak in zip(self.optimizer.param_groups, bases, strict=True):
            group["initial_lr"] = peak

    def set_peak(self, peak: float | Sequence[float]) -> None:
        """Change the peak from the next update on. The new peak is part of the state.

        Every learning rate is a fraction of its group's peak, including the final one. Called before the
        first `step()`, it also silences the warning about an optimizer that was used before.

        Args:
            peak: The learning rate at multiplier 1: one number for all groups, or one for each.

        Raises:
            TypeError: A peak is not a number.
            ValueError: The numbers of peaks and groups differ; a peak is negative, not finite, or positive
                and below 2⁻¹²⁶; a group was added although each group has its own curve. Nothing was changed.

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
        self._watch.close()
        if self.last_epoch >= 0:  # not while it waits for its turn in a SequentialLR
            self._move_to(self.last_epoch, self._clock.counts)

    def get_lr(self) -> list[float | Tensor]:
        """Return each group's learning rate at `clock`, a scalar: a float32 number as a Python float."""
        return list(self._values_at_clock())

    # A TypedDict is a dict at run time, which is all that torch asks for.
    def state_dict(self) -> CurveLRState:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the clock, peaks and learning rates, and the plan: curves, rules and unit.

        `load_state_dict` compares the saved plan with its own.
        """
        if self._common_curve is not None:
            self._admit_new_groups()
        state: CurveLRState = {
            "last_epoch": self.last_epoch,
            "clock": self.clock,
            "consumed": self.consumed,
            "unit": self.unit,
            "_step_count": self._step_count,
            "base_lrs": [float(as_number(peak)) for peak in self._bases],
            "rates": [float(as_number(group["lr"])) for group in self.optimizer.param_groups],
            "curves": [curve.to_dict() for curve in self.curves],
            "hold": dump_hold_states(self._clock.rules, self._clock.counts[2]),
            "warned": self._watch.warned,
            "_last_lr": [float(as_number(lr)) for lr in self._last_lr],
        }
        if self._clock.is_plain:
            state["lr_lambdas"] = [None] * len(self.curves)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume from the saved step, and write the learning rates into the groups.

        The optimizer's own state may be loaded before or after. Torch's own `LambdaLR`, as some trainers
        build it, loads the state of a `CurveLR` too, unless that has a unit or a hold.

        The state of a different curve is accepted if both curves have the same history: the same values at
        every step before the saved clock (`Curve.same_until`), and at the clock too if a unit is partly
        consumed or a rule has held it, unless the saved curve ends there. The learning rates are then those
        of the new curve, and the optimizer's state, which holds the old ones, must be loaded first.

        Args:
            state_dict: A state that `state_dict` returned.
            strict: If True, reject a state whose curve has a different history, or that a plain `LambdaLR`
                saved. If False, the run resumes under this scheduler's curve from the saved clock and peaks.
                By default, the value that the scheduler was built with.

        Raises:
            ValueError: The saved curve has a different history (unless `strict` is False); the saved hold or
                unit differs; the numbers of groups differ; or it is not a state. Nothing was changed.
        """
        strict = self.strict if strict is None else strict
        # Everything is read and checked before anything is written, so that a rejected state changes nothing.
        with reading_state_of("a LambdaLR", state_dict):
            # LambdaLR saves its whole __dict__, and with it the entries of a CurveLR's state that it once
            # loaded. Those are out of date, so `curves` does not show that a CurveLR saved the state.
            if "_get_lr_called_within_step" in state_dict:
                names = ("last_epoch", "_step_count", "base_lrs")
                state_dict = {name: state_dict[name] for name in names} | {"clock": state_dict["last_epoch"]}
            updates = checks.at_least("last_epoch", state_dict["last_epoch"], -1)
            counts, peaks = self._read_counts_and_bases(state_dict, updates, "base_lrs", strict)
            step_count = checks.integer("_step_count", state_dict.get("_step_count", updates + 1))
            lrs, has_other_lrs = list[float](), False
            if "curves" in state_dict:
                lrs = read_values("rates", state_dict["rates"], len(peaks), len(peaks))
                # In a SequentialLR, before its turn, a scheduler is not in charge even if its values happen
                # to be equal. Formats other than torch's may turn a list into a tuple.
                has_other_lrs = updates < 0 or lrs != list(state_dict["_last_lr"])
            is_warned = bool(state_dict.get("warned"))
        self._set_bases(peaks)
        self._move_to(updates, counts)
        self._step_count = step_count
        self._watch.resume(is_warned)
        # If another scheduler is in charge, as in a SequentialLR, its learning rates come back.
        for group, lr in zip(self.optimizer.param_groups, lrs if has_other_lrs else (), strict=has_other_lrs):
            self._option.write(group, lr)
