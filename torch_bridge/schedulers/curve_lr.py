"""A curve as a `torch.optim.lr_scheduler.LambdaLR`, whose state contains the step and the curve."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, SupportsIndex

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_bridge.advice.step_warnings import Event, WatchedScheduler
from torch_bridge.curve_api import (
    AnyClock,
    AnyCurve,
    Curve,
    HoldClock,
    UpdateClock,
    as_curves,
    check_peaks,
    checks,
    compare_with_saved,
    dump_hold_states,
    dump_records,
    new_clock,
    position_after,
    position_on,
    read_saved_run,
    reading_state_of,
    schedules_of,
    shortest_decimals,
    state_policy,
    warn,
)
from torch_bridge.groups.curves_and_peaks import check_peaks_are_known, curves_of
from torch_bridge.groups.group_curves import GroupCurves
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import LEARNING_RATE, as_number, bases_per_group
from torch_bridge.optimizer_traits import has_two_steps
from torch_bridge.schedulers.scheduler_state import (
    SCHEDULER,
    read_bases,
    read_flag,
    read_last_lrs,
    read_scheduler_state,
)
from torch_bridge.schedulers.update_hook import hook_of


# Named like a function, as `torch.no_grad` is, because programs call it like one.
class lambda_lr(LambdaLR):
    """A PyTorch scheduler that follows a curve.

    After n calls of `step()` each group has the learning rate

        lr = float32(float32(peak) · curve(n))

    `plateau_jax.optax_schedule` and `Curve.learning_rate` return the same learning rate for the
    same peak. Save `state_dict()` with each checkpoint: it contains the curve, so `load_state_dict`
    can reject a curve that differs at a step so far.

    The peak of a group is its `initial_lr` if it has one, else its `lr`, as in torch. If
    `group["lr"]` is a tensor, the scheduler writes into that tensor.

    As in a `LambdaLR`, programs may write into `base_lrs`, `last_epoch` and `optimizer`, with the
    same effect. With a `DataClock`, the next step rejects a changed `last_epoch`. A scheduler
    writes into a group when it is built or stepped, when you set its peak or load its state, and
    before the first update of an added group. It does not write when the optimizer loads a state.

    The optimizer's groups may change. A group keeps its curve and peak if other groups are removed
    or reordered. If all groups follow one curve, an added group follows it too, from the next
    `optimizer.step()` on (if that is compiled or wrapped, from the next `scheduler.step()` on).
    With one curve per group, that call raises an error.

    By default, each call of `step()` moves to the next step of the curve. With a hold rule as
    `clock`, call `step(metric)`: the rule may hold the curve at its step while updates continue.
    With a `DataClock`, call `step(count=n)`: the step is then `consumed // unit`, with consumed the
    sum of the counts of all updates. If a trainer or another scheduler calls `step()`, set
    `scheduler.count = n` before each call.

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence with one for each. A mapping that
            `Curve.from_dict` reads stands for a curve.
        last_epoch: Index of the last finished update. To begin at step n, pass n - 1, as in torch;
            the attribute is then n.
        strict: The default of `strict` in `load_state_dict`, for trainers that call it themselves.
        clock: A `DataClock`; or, with one curve for all groups, a hold rule such as
            `HoldUntilFlat`, or a list of hold rules. By default a step of the curve is an update
            or, for a curve from `BatchPlan.scale`, its unit of samples or tokens. A scheduler that
            steps other schedulers without a metric, such as `SequentialLR`, can't step one with a
            hold rule.
        advise: False to turn off the warnings during training that are listed under `Warns`.

    Attributes:
        curves: The curve of each group.
        curve_step: The step of the curve that gives the learning rates of the next update;
            `last_epoch` counts the calls of `step`.
        consumed: With a `DataClock`, the sum of the counts of all updates.
        count: The samples or tokens that the next `step()` counts if you call it without `count`.
            That step resets it to None. Set it on this scheduler, not on one that wraps it.

    Raises:
        TypeError: `optimizer`, `curve` or `clock` has the wrong type.
        ValueError: One of these:

            - The numbers of curves and groups differ.
            - A learning rate is negative, not finite, or positive and below 2⁻¹²⁶.
            - The optimizer updates no parameter itself, like transformers' layer-wise ones.
            - `last_epoch` is given, but the peak is unknown, because the optimizer was stepped and
              has no `initial_lr`.
            - `last_epoch` is given, but the `DataClock` has no `count`.
            - There is a hold rule, but several curves; or a `HoldUntilFlat`, but a curve without a
              plateau.
            - The clock is not the one that a curve from `BatchPlan.scale` needs.

    Warns:
        CurveWarning: When you build the scheduler, if a group has a factor of its learning rate
            that only other schedulers read, such as timm's `lr_scale`. During training, once each,
            if:

            - a group had an earlier scheduler, and its `lr` was neither the peak nor what that
              scheduler wrote;
            - `step()` is called much more rarely or much more often than the optimizer's;
            - training continues far past the end of the curve;
            - the unit is so large that the curve stays at 0;
            - the optimizer was loaded, but this scheduler starts at step 0 without its state.
        UserWarning: As in torch: the scheduler is stepped before the optimizer.

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

    The same curve, counted in tokens, 4096 per step:

    >>> from plateau_jax import DataClock
    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters(), lr=3e-4)
    >>> curve = PlateauCurve(1000, warmup_steps=100)
    >>> scheduler = lambda_lr(optimizer, curve, clock=DataClock(4096))
    >>> for tokens in (150_000, 54_800):
    ...     optimizer.step()
    ...     scheduler.step(count=tokens)
    >>> scheduler.consumed, scheduler.curve_step, round(optimizer.param_groups[0]["lr"], 9)
    (204800, 50, 0.00015)
    """

    # Why not a plain LambdaLR with the curves as its functions? Its state has the step but no
    # curve, so a run could resume under a different curve unnoticed, and it rounds neither the peak
    # nor the product to float32.

    # Not in `__dict__`, which programs save and write back as a scheduler's state, as torch does.
    __slots__ = ("_group_curves", "_hook", "_watched")

    _get_lr_called_within_step = True
    """Keeps torch from warning about a derived class whose `get_lr` follows torch's own pattern."""

    def __init__(
        self,
        optimizer: Optimizer,
        curve: AnyCurve | Sequence[AnyCurve],
        last_epoch: int = -1,
        *,
        strict: bool = True,
        clock: AnyClock | None = None,
        advise: bool = True,
    ) -> None:
        last_epoch = checks.at_least("last_epoch", last_epoch, -1)
        curve = as_curves("curve", curve)
        curves = curves_of(groups_of(optimizer), curve)
        # A single curve sets the clock, even before there is a group.
        self._clock = new_clock(clock, [curve] if isinstance(curve, Curve) else curves)
        if last_epoch >= 0:
            alternative = "; or leave out last_epoch, and call scheduler.load_state_dict(state)"
            argument = f"last_epoch = {last_epoch}"
            check_peaks_are_known(optimizer, argument, alternative)
            updates = last_epoch + 1
            position = position_after(self._clock.checked, updates, argument, alternative)
            self._clock = self._clock.resumed(position)
        self._is_plain = type(self._clock) is UpdateClock and type(self).get_lr is lambda_lr.get_lr
        """True if a step is an update, and no derived class has replaced `get_lr`."""
        self.count: int | Tensor | None = None
        self._hook = hook_of(optimizer)
        self._group_curves = GroupCurves(optimizer, LEARNING_RATE, curve)
        self._hook.register(self._group_curves)
        self.strict = strict
        self._is_peak_set = False
        """True if `set_peak` has set the peak, in this run or before. The saved peaks may then
        differ from the program's without a warning."""
        self._watched: WatchedScheduler | None = None
        """What the warnings know of this scheduler; None for a copy, and with `advise=False`."""
        if advise:
            self._watch()
        functions: list[Any] = curves
        if _has_plain_step(optimizer):
            super().__init__(optimizer, functions, last_epoch)
        else:  # torch would mistake the function for a method of the class
            self.last_epoch = last_epoch
            self._initial_step()
        self._tell("built")

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose groups follow the curve."""
        return self._group_curves.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if optimizer is self.optimizer:
            return
        groups_of(optimizer)  # checks it before anything changes
        self._hook.unregister(self._group_curves)
        self._retarget(optimizer)

    def _retarget(self, optimizer: Optimizer) -> None:
        self._hook = hook_of(optimizer)
        self._group_curves.retarget(optimizer)
        self._hook.register(self._group_curves)
        if self._watched is not None:
            self._watch()
            self._tell("moved")

    def _watch(self) -> None:
        """Have the warnings of this optimizer look at this scheduler."""
        self._watched = WatchedScheduler(self._hook.advice, self._group_curves, self._clock)

    def _tell(self, event: Event) -> None:
        """Tell the warnings what has happened. Nothing comes back from them."""
        if self._watched is not None:
            self._watched.note(event, self.last_epoch, self._clock)

    def _sync(self) -> None:
        """Match the optimizer's groups, and adopt what the program wrote into the lists."""
        is_rebuilt = self._hook.is_registered and hook_of(self.optimizer) is not self._hook
        if is_rebuilt:  # by its constructor, which the program has called again
            self._retarget(self.optimizer)
        self._group_curves.sync()
        self._tell("matched")

    def _read_groups(self) -> None:
        """Match the optimizer's groups, and leave the lists as they are."""
        if not self._group_curves.is_synced():
            self._group_curves.sync_groups()
            self._tell("matched")

    @property
    def curves(self) -> list[Curve]:
        """The curve of each group."""
        return self._group_curves.lists.curves

    @property
    def lr_lambdas(self) -> list[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The same list as `curves`, under torch's name."""
        return self._group_curves.lists.curves

    # Torch and programs set attributes of these names.

    @lr_lambdas.setter
    def lr_lambdas(self, curves: Sequence[Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._group_curves.lists.curves = list(curves)

    @property
    def base_lrs(self) -> list[float]:
        """Each group's peak, in float32."""
        return self._group_curves.lists.bases

    @base_lrs.setter
    def base_lrs(self, peaks: Sequence[float]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._group_curves.lists.bases = list(peaks)

    @property
    def _last_lr(self) -> list[float | Tensor]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [*self._group_curves.written]

    @_last_lr.setter
    def _last_lr(self, lrs: Sequence[float | Tensor] | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._group_curves.note_written(list(lrs or ()))

    @property
    def curve_step(self) -> int:
        """The step of the curve: `last_epoch` minus held updates, or `consumed // unit`."""
        return self._clock.step(self.last_epoch)

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without a `DataClock`, the number of updates."""
        return self._clock.consumed(self.last_epoch)

    @property
    def unit(self) -> int | None:
        """The number of samples or tokens in one step of the curve; None if a step is an update."""
        return self._clock.checked.unit

    def __repr__(self) -> str:
        curve, values = self._group_curves.describe()
        unit = "" if self.unit is None else f", unit={self.unit}"
        return f"{type(self).__name__}({curve}, curve_step={self.curve_step}{unit}, {values})"

    def step(
        self,
        epoch: int | float | Tensor | None = None,
        *,
        count: int | Tensor | None = None,
        metric: float | Tensor | None = None,
    ) -> None:
        """Write the learning rates of the next step, or of step `epoch`, into the groups.

        Args:
            epoch: The step to go to, as in torch; by default the next one. Values below -1 count as
                -1. With a hold rule, a first argument is the metric, as in torch's
                `ReduceLROnPlateau`.
            count: With a `DataClock`, the samples or tokens that the update consumed on all ranks,
                an integer of at least 0. By default `scheduler.count`, or the `count` of the clock.
            metric: With a hold rule, the loss of the update, or another metric: a float, or a
                scalar tensor of a floating-point dtype, the same on all ranks.

        Warns:
            UserWarning: As in torch: `epoch` is given, or the optimizer has not been stepped yet.

        Raises:
            TypeError, ValueError: One of these; nothing was changed:

                - An argument is wrong or missing, or belongs to a different clock: `count` to a
                  `DataClock`, `metric` to a hold rule, `epoch` to neither.
                - The total consumed would be above 2⁶².
                - A group was added although each group has its own curve, or with the `initial_lr`
                  of another group but a different `lr`.
                - The program has written something invalid into `base_lrs`, `lr_lambdas`, `curves`
                  or `optimizer`; or, with a `DataClock`, anything into `last_epoch`.
        """
        if epoch is None and count is None and metric is None and self._step_as_usual():
            return
        clock = self._clock
        before = self.last_epoch
        updates = before + 1
        step_count = self._step_count
        if count is None:
            count = self.count
        if epoch is not None and isinstance(clock, HoldClock):
            metric = _metric_in_place_of_epoch(epoch, metric)
            epoch = None
        if epoch is not None:
            updates = self._checked_epoch(epoch)
        # Torch's constructors step a scheduler before the first update: its clock must not move.
        is_initial = step_count == 0 or before < 0
        if not is_initial or count is not None or metric is not None:
            clock = clock.after(before, count, metric)
        if step_count == 1:
            self._warn_of_order()
        if epoch is not None:
            warn(
                "The epoch parameter in `scheduler.step()` is deprecated: call it without",
                UserWarning,
            )
        self._move_to(updates, clock)
        self.count = None
        self._step_count = step_count + 1
        if updates != before + 1:
            self._tell("moved")
        elif is_initial:
            # `SequentialLR` takes back the first steps of its schedulers in their `last_epoch`, and
            # makes that of the first one again.
            self._tell("started")
        else:
            self._tell("stepped")

    def _step_as_usual(self) -> bool:
        """Make a step without arguments or a clock, in 0.85 of the time of `step`.

        Return False, and change nothing, if there is more to do.
        """
        group_curves = self._group_curves
        step = self.last_epoch + 1
        is_usual = self._is_plain and step > 0 and self._step_count > 1 and self.count is None
        if not is_usual or "get_lr" in self.__dict__ or not group_curves.is_synced():
            return False
        group_curves.write(step, group_curves.ahead.at(step))
        self.last_epoch = step
        self._step_count += 1
        self._tell("stepped")
        return True

    def _checked_epoch(self, epoch: Any) -> int:
        if self.unit is not None:
            raise TypeError(
                f"step({checks.short_repr(epoch)}) with DataClock({self.unit}): write "
                "step(count=n), where n is what the update consumed; to move to another step, call "
                "load_state_dict(state)"
            )
        is_integer = isinstance(epoch, SupportsIndex) and not isinstance(epoch, bool | Tensor)
        if not is_integer:
            raise TypeError(
                checks.must(
                    "epoch",
                    epoch,
                    "be an integer. The curve counts updates, "
                    "not parts of epochs: call step() after each; step() takes a loss only with a "
                    "hold rule, as in lambda_lr(optimizer, curve, clock=rule)",
                )
            )
        return max(checks.integer("epoch", epoch), -1)

    def _warn_of_order(self) -> None:
        """Warn as torch does if the scheduler is stepped before the optimizer."""
        if has_two_steps(self.optimizer):
            return
        # Torch's constructor replaces `optimizer.step`, to notice its first call. A copy of the
        # optimizer has the plain `step`.
        is_watched = hasattr(self.optimizer.step, "_wrapped_by_lr_sched")
        if is_watched and not getattr(self.optimizer, "_opt_called", False):
            warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
                "the opposite order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise "
                "the first value of the learning rate schedule is skipped",
                UserWarning,
            )

    def _update_lr(self, epoch: int | None = None) -> None:
        # Torch's `SequentialLR` calls this instead of `step` when this scheduler's turn comes.
        if epoch is None:
            epoch = self.last_epoch + 1
        self._move_to(epoch, self._clock.restarted())
        self.count = None  # another scheduler's turn consumed it
        self._tell("moved")

    def _move_to(self, updates: int, clock: UpdateClock) -> None:
        """Write the learning rates after this number of updates into the groups."""
        group_curves = self._group_curves
        if not group_curves.is_synced():
            self._sync()
        step = clock.step(updates)
        if self._has_default_get_lr():
            lrs = group_curves.ahead.at(step)  # as `get_lr` does, after matching the groups
        else:
            lrs = self._lrs_of_custom_get_lr(updates, clock)
        group_curves.write(step, lrs)
        self.last_epoch = updates
        self._clock = clock

    def _has_default_get_lr(self) -> bool:
        """Return False if a derived class, or the program, has replaced `get_lr`."""
        return type(self).get_lr is lambda_lr.get_lr and "get_lr" not in self.__dict__

    def _lrs_of_custom_get_lr(self, updates: int, clock: UpdateClock) -> list[Any]:
        """Return what `get_lr` of a derived class, or the program's, returns at these updates."""
        before = self.last_epoch, self._clock
        self.last_epoch = updates
        self._clock = clock
        try:
            lrs = self.get_lr()
        finally:
            self.last_epoch, self._clock = before
        group_count = len(self._group_curves.groups)
        if len(lrs) != group_count:
            raise ValueError(
                f"get_lr() returned {len(lrs)} learning rates for {group_count} parameter groups"
            )
        return lrs

    def get_lr(self) -> list[float | Tensor]:
        """Return each group's learning rate at `curve_step`, a float32 number as a Python float."""
        self._read_groups()
        return [*self._group_curves.ahead.at(self._clock.step(self.last_epoch))]

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the learning rates written last, in the order of the optimizer's groups."""
        self._read_groups()
        return self._last_lr

    def set_peak(self, peak: float | Sequence[float]) -> None:
        """Change the peak from the next update on. The new peak is part of the state.

        Every learning rate is a fraction of its group's peak, including the final one. If you call
        this before the second update, there is no warning about an optimizer that was loaded
        without its scheduler.

        Args:
            peak: The learning rate at multiplier 1: one number for all groups, or one for each, in
                the order of the optimizer's groups.

        Raises:
            TypeError: A peak is not a number.
            ValueError: The numbers of peaks and groups differ; a peak is negative, not finite, or
                positive and below 2⁻¹²⁶; a group was added although each group has its own curve.
                Nothing was changed.

        >>> import torch
        >>> from plateau_jax import PlateauCurve
        >>> from torch_bridge import lambda_lr
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
        >>> scheduler = lambda_lr(optimizer, PlateauCurve(100, plateaus=[(0, 50)]))
        >>> scheduler.set_peak(0.25)
        >>> scheduler.get_last_lr()
        [0.25]
        """
        group_curves = self._group_curves
        self._sync()
        peaks = bases_per_group("peak", peak, len(group_curves.groups))
        self._is_peak_set = True
        group_curves.set_bases(peaks)
        if self.last_epoch >= 0:  # not while it waits for its turn in a SequentialLR
            self._move_to(self.last_epoch, self._clock)
        self._tell("peak set")

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and dictionaries, which `torch.load(weights_only=True)` accepts.

        The entries are:

        - `kind` and `format`;
        - `last_epoch`, `curve_step` and `consumed`;
        - `hold`: the states of the hold rules;
        - `base_lrs`: the peak of each group;
        - `peak_was_set`: True if `set_peak` has set the peaks;
        - `base_lrs_are_new`, only if the program has written peaks into `base_lrs` that the next
          step will use;
        - `_last_lr`: the learning rates that this scheduler wrote last;
        - `in_charge`: True if the groups have these learning rates;
        - `records`: for each group, what `plateau_jax.resume_record` returns, which
          `load_state_dict` compares.
        """
        group_curves = self._group_curves
        # What raises an error, such as an added group without a curve, is left out: the next step
        # raises it too.
        with suppress(TypeError, ValueError):
            self._read_groups()
        checked = self._clock.checked
        peaks = group_curves.bases
        state = SCHEDULER.write(
            last_epoch=self.last_epoch,
            curve_step=self.curve_step,
            consumed=self.consumed,
            hold=dump_hold_states(checked.rules, self._clock.hold_states),
            records=dump_records(group_curves.curves, peaks, checked),
            base_lrs=list(peaks),
            peak_was_set=self._is_peak_set,
            _last_lr=[float(as_number(lr)) for lr in self._last_lr],
            in_charge=self.last_epoch >= 0 and group_curves.is_in_charge(),
            _step_count=self._step_count,
            base_lrs_are_new=group_curves.has_new_bases,
        )
        # With this entry, torch's own `LambdaLR` keeps its functions when it loads this state;
        # without it, the load fails. It must fail with a unit or rules: `LambdaLR` would resume at
        # `last_epoch`, which then is not the step of the curve.
        if not checked.can_stand_still:
            state["lr_lambdas"] = [None] * len(peaks)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume from the saved step, and write the learning rates into the groups.

        You may load the optimizer's own state before or after. If you load it after, it must come
        from the same update, because the next update then uses the `lr` that it restores. If a
        different scheduler had written the groups' learning rates when this one was saved, the
        groups keep those of the optimizer's state. If the state has fewer groups than the
        optimizer, it is loaded into the first ones. Torch's own `LambdaLR` can also load the state
        of a scheduler without a clock.

        A different curve is accepted if it has the same values at every step before the saved one
        (`Curve.same_until`). If updates have been made at the saved step, because a unit is partly
        consumed or a hold rule has held the curve, it must have the same value there too, unless
        the saved curve ends there. A `DataClock` may have a different `count`. The state of a
        scheduler without a curve, torch's or transformers', is accepted with a warning: the run
        continues at the saved step of this curve, with the saved peaks.

        Args:
            state_dict: A state that `state_dict` returned.
            strict: If True, reject a state whose curve has a different history, or whose clock
                differs. If False, the run resumes under this scheduler's curve and clock, at the
                saved step of the curve and with the saved peaks; a different clock starts there. A
                warning names the first step that differs, or both clocks. By default, the value
                that the scheduler was built with.

        Raises:
            ValueError: The saved curve has a different history, or the clock differs (unless
                `strict` is False); the state has more groups than the optimizer, contradicts itself
                or was saved by a newer version; the scheduler that saved it has no peak, such as
                `OneCycleLR`; or `state_dict` is not the state of a scheduler. Nothing was changed.

        Warns:
            CurveWarning: As above. Or the saved peaks, with which the run continues, differ from
                those that the scheduler was built with, and `set_peak` did not set them.
        """
        if strict is None:
            strict = self.strict
        group_curves = self._group_curves
        group_curves.sync_groups()
        optimizer_has_loaded = group_curves.are_reloaded
        self._sync()

        # Everything is read and checked before anything is written, so that a rejected state
        # changes nothing.
        with reading_state_of("a scheduler", state_dict):
            state = read_scheduler_state(state_dict)
            updates = checks.at_least("last_epoch", state["last_epoch"], -1)
            peaks = read_bases("base_lrs", state["base_lrs"], len(group_curves.groups))
            last_lrs = read_last_lrs(state, len(peaks))
            step_count = checks.integer("_step_count", state["_step_count"])
            is_peak_set = read_flag(state, "peak_was_set")
            is_in_charge = read_flag(state, "in_charge")
            has_new_bases = read_flag(state, "base_lrs_are_new")
            saved = read_saved_run(state, updates, shortest_decimals(peaks))
            check_peaks("base_lrs", saved, "scheduler.set_peak")
            is_new = self.last_epoch <= 0
            is_rollback = self._is_peak_set and not is_new  # to before `set_peak`, on purpose
            compared_peaks = None
            if not is_peak_set and not is_rollback:
                compared_peaks = self.base_lrs[: len(peaks)]
            checked = self._clock.checked
            now = schedules_of(self.curves[: len(peaks)], compared_peaks, checked)
            policy = state_policy("lambda_lr", "scheduler.set_peak")
            outcome = compare_with_saved(saved, now, policy, strict=strict)
            position = position_on(checked, saved, is_new_clock=outcome.is_new_clock)
        clock = self._clock.resumed(position)

        for message in outcome.warnings:
            warn(message)

        bases = [*peaks, *group_curves.bases[len(peaks) :]]
        group_curves.set_bases(bases)
        self._is_peak_set = is_peak_set
        # A different scheduler may have been in charge when the state was saved: for example in a
        # `SequentialLR`, before or after the turn of this one. Then the state of the optimizer has
        # its learning rates, and is loaded before this state or after it.
        writes = is_in_charge or (is_new and not optimizer_has_loaded)
        if position.updates >= 0 and writes:
            self._move_to(position.updates, clock)
            if has_new_bases:
                group_curves.write(self.curve_step, [*last_lrs, *self._last_lr[len(last_lrs) :]])
                group_curves.has_new_bases = True
        else:
            self.last_epoch = position.updates
            self._clock = clock
            group_curves.note_written(last_lrs)
        group_curves.has_yielded = not writes
        group_curves.show(len(peaks))
        self._step_count = step_count
        self.count = None
        self._tell("moved")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_group_curves": copy(self._group_curves)}

    def __setstate__(self, state: Any) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._watched = None
        self._hook = hook_of(self.optimizer)  # a copied optimizer has no hook
        self._hook.register(self._group_curves)


def _metric_in_place_of_epoch(epoch: Any, metric: Any) -> Any:
    """Return the metric that was passed as the first argument of `step`."""
    if metric is not None:
        raise TypeError("with a hold rule, step() takes one metric, as in step(loss)")
    if type(epoch) is int:  # DeepSpeed passes its batch size if step() has raised a TypeError
        raise TypeError(
            checks.must(
                "metric",
                epoch,
                "be a real scalar, a float or a tensor: with a hold rule, call step(loss)",
            )
        )
    return epoch


def _has_plain_step(optimizer: Optimizer) -> bool:
    """Return True if `optimizer.step` is this object's own method, or torch's replacement of it."""
    step = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return True
    return getattr(step, "__self__", None) is optimizer
