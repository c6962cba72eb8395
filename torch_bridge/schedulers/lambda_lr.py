"""A curve as a `torch.optim.lr_scheduler.LambdaLR`, whose state contains the step and the curve."""

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import AnyClock
from plateau_jax.clocks.position import start_position
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.comparison import StateOwner
from torch_bridge.groups.optimizers import needs_two_backward_passes
from torch_bridge.groups.options import LEARNING_RATE
from torch_bridge.schedulers.group_scheduler import GroupScheduler
from torch_bridge.schedulers.scheduler_state import SCHEDULER_FORMAT, read_scheduler_state


# Named like a function, as `torch.no_grad` is, because programs call it like one.
class lambda_lr(GroupScheduler, LambdaLR):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A PyTorch scheduler that follows a curve: a class derived from torch's `LambdaLR`.

    After n calls of `step()` each group has the learning rate

        lr = float32(float32(peak) · curve(n))

    Call `step()` once after each `optimizer.step()`, not once per epoch. With gradient
    accumulation, that is once per update, not once per micro-batch. With a hold rule as `clock`,
    call `step(metric=loss)`: the rule may hold the curve at its step while updates continue. With a
    `DataClock`, call `step(count=n)`, with n the samples or tokens of the whole update: the sum
    over its micro-batches and over all ranks. The step is then `consumed // unit`, with consumed
    the sum of the counts of all updates.

    `plateau_jax.optax_schedule` and `Curve.learning_rate` return the same learning rate for the
    same peak. Save `state_dict()` with each checkpoint: it contains the curve, so `load_state_dict`
    can reject a curve that differs at a step so far.

    The peak of a group is its `initial_lr` if it has one, else its `lr`, as in torch. If
    `group["lr"]` is a tensor, the group gets a copy of it when the scheduler is built, since other
    optimizers may have the same tensor, and the scheduler writes into this copy.

    A group is recognized by its dictionary, not by its place in the list: it keeps its curve and
    peak if other groups are added, removed or reordered, and if the optimizer loads a state. A new
    group follows the curve of all groups from the next `step()` on, and until then has the `lr`
    that the program gave it. If each group has its own curve, a new group raises an error there.
    `docs/pytorch.md` lists when the scheduler writes, and what programs may write into it, as into
    a `LambdaLR`.

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence with one for each. A single curve
            may also be given as a mapping that `Curve.from_dict` reads, in trainers that build a
            scheduler from text.
        last_epoch: Index of the last finished update. To begin at step n, pass n - 1, as in torch;
            the attribute is then n. If the optimizer was stepped or loaded, first write the peak
            into `group["initial_lr"]`: its `lr` may be a decayed one.
        strict: The default of `strict` in `load_state_dict`, for trainers that call it themselves.
        clock: A `DataClock`; or, with one curve for all groups, a hold rule such as
            `HoldUntilFlat`, or a list of hold rules. By default a step of the curve is an update
            or, for a curve from `BatchPlan.scale`, its unit of samples or tokens. A scheduler that
            steps other schedulers without a metric, such as `SequentialLR`, can't step one with a
            hold rule.
        advise: False to turn off the warnings under `Warns` that come with an update or a step.

    Attributes:
        count: The samples or tokens that the next `step()` counts if a trainer or another scheduler
            calls it; then None again. Set it on this scheduler, not on one that wraps it.
        strict (bool): The default of `strict` in `load_state_dict`.

    Raises:
        TypeError: `optimizer`, `curve` or `clock` has the wrong type.
        ValueError: The numbers of curves and groups differ; a learning rate is negative, not
            finite, or positive and below 2⁻¹²⁶; the clock does not fit the curves; or `last_epoch`
            is given for an optimizer whose state shows updates, but that has no `initial_lr`, or
            with a `DataClock` that has no `count`.

    Warns:
        CurveWarning: When you build it, if a group has a factor of its learning rate that only
            other schedulers read, such as timm's `lr_scale`, or if `last_epoch` lies past the end
            of every curve. Before an update, if:

            - the `lr` of a group is neither its `initial_lr` nor what a scheduler wrote last;
            - the optimizer was loaded, but this scheduler starts at step 0 without its state;
            - at update 57, `step()` has been called at least 1.5 times as often as
              `optimizer.step()`;
            - at update 168, at most a tenth as often, or not at all while every learning rate is
              0;
            - at update 168, the unit is so large that the curve is still at 0.

            In a step, if training continues far past the end of the curve, or if a new group has an
            `lr` other than its `initial_lr`.
        UserWarning: As in torch: the scheduler is stepped before the optimizer.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import lambda_lr
    >>> model = torch.nn.Linear(2, 1)
    >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.25}]
    >>> optimizer = torch.optim.AdamW(groups, lr=0.5)
    >>> scheduler = lambda_lr(optimizer, PlateauCurve(100, warmup_steps=10))
    >>> for _ in range(5):
    ...     optimizer.step()
    ...     scheduler.step()
    >>> scheduler.get_last_lr()
    [0.25, 0.125]
    """

    _owner = StateOwner(
        override="pass strict=False to load_state_dict, or to lambda_lr if a trainer loads",
        base_setter="scheduler.set_peak",
    )

    def __init__(
        self,
        optimizer: Optimizer,
        curve: Curve | Mapping[str, Any] | Sequence[Curve],
        last_epoch: int = -1,
        *,
        strict: bool = True,
        clock: AnyClock | None = None,
        advise: bool = True,
    ) -> None:
        self.strict = checks.boolean("strict", strict)
        self.count: int | Tensor | None = None
        super().__init__(optimizer, LEARNING_RATE, curve, clock, last_epoch, advise=advise)

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
            count: With a `DataClock`, the samples or tokens of the whole update: the sum over its
                micro-batches and over all ranks, an integer of at least 0. A tensor on a GPU is
                read, which synchronizes. By default `scheduler.count`, or the `count` of the clock.
            metric: With a hold rule, the loss of the update, or another metric: a float, or a
                scalar tensor of a floating-point dtype, the same on all ranks.

        Warns:
            UserWarning: As in torch: `epoch` is given, or the optimizer has not been stepped yet.

        Raises:
            TypeError, ValueError: One of these; nothing was changed:

                - An argument is wrong or missing, or belongs to a different clock: `count` to a
                  `DataClock`, `metric` to a hold rule, `epoch` to neither.
                - A group was added although each group has its own curve.
                - The program has written something invalid into `base_lrs`, or anything into
                  `lr_lambdas`.

        >>> import torch
        >>> from torch_bridge import DataClock, PlateauCurve, lambda_lr
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
        >>> scheduler = lambda_lr(optimizer, PlateauCurve(100), clock=DataClock(64))
        >>> optimizer.step()
        >>> scheduler.step(count=130)
        >>> scheduler.curve_step, scheduler.consumed
        (2, 130)
        """
        if epoch is not None:
            self._check_first_argument(epoch, metric)
            if self._clock.rules:
                metric, epoch = epoch, None
        if count is None:
            count = self.count
        position = self._position_after(count, metric)
        if self._step_count == 1:
            _warn_of_order(self.optimizer)
        if epoch is not None:
            updates = max(checks.integer("epoch", epoch), -1)
            position = start_position(self._clock, updates, max(updates, 0))
            warn(
                "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()`",
                UserWarning,
            )
        self._move_to(position)
        self.count = None
        self._step_count += 1
        if epoch is not None:
            self._count_from_here()

    def _check_first_argument(self, epoch: Any, metric: Any) -> None:
        """Raise a TypeError unless the first argument of `step` is an epoch, or the metric."""
        if self._clock.rules:
            # DeepSpeed passes its batch size, an integer, if step() has raised a TypeError.
            is_valid = metric is None and type(epoch) is not int
        else:
            is_integer = isinstance(epoch, SupportsIndex) and not isinstance(epoch, bool | Tensor)
            is_valid = self.unit is None and is_integer
        if not is_valid:
            raise TypeError(
                f"step({checks.short_repr(epoch)}): call step() after each update; with a "
                "DataClock, step(count=n), where n is what the update consumed; with a hold rule, "
                "lambda_lr(optimizer, curve, clock=rule), step(metric=loss). A step to go to is an "
                "integer, not a part of an epoch"
            )

    def _update_lr(self, epoch: Any = 0) -> None:
        super()._update_lr(epoch)
        self.count = None  # another scheduler's turn consumed it

    def set_peak(self, peak: float | Sequence[float]) -> None:
        """Change the peak of all groups, or with a list that of each, from the next update on.

        The new peak is part of the state. A load keeps the saved peak, so call this after it. Every
        learning rate is a fraction of its group's peak, including the final one. If you call this
        before the second update, there is no warning about an optimizer that was loaded without its
        scheduler.

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
        self._set_bases("peak", peak)

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and dictionaries, which `torch.load(weights_only=True)` accepts.

        Waits for the device if a learning rate is a tensor there. The entries are:

        - `kind` and `format`;
        - `last_epoch`, `_step_count`, `base_lrs` and `_last_lr`, as in the states of torch: the
          peaks are in `base_lrs`, in float32;
        - `offset`: the step of the curve minus `last_epoch`; None with a `DataClock`;
        - `consumed`: with a `DataClock`, the sum of all counts; else None;
        - `hold`: the states of the hold rules;
        - `records`: for each group, what `plateau_jax.resume_record` returns for its curve, which
          `load_state_dict` compares;
        - `peak_was_set`: True if `set_peak` has set the peaks;
        - `in_charge`: for each group, True if it has the learning rate that this scheduler wrote.
        """
        return SCHEDULER_FORMAT.build(**self._state_entries())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume from the saved step, and write the learning rates into the groups.

        You may load the optimizer's own state before or after. If you load it after, it must come
        from the same update, because the next update then uses the `lr` that it restores. If
        different code had written the learning rate of a group when this scheduler was saved, the
        group keeps that of the optimizer's state. The peaks are those in the state's `base_lrs`,
        whatever `initial_lr` the optimizer's state has. If the state has fewer groups than the
        optimizer, it is loaded into the first ones.

        A different curve is accepted if it has the same values at every step before the saved one
        (`Curve.same_until`). With a clock, updates may have been made at that step already. If the
        state shows this, the value there must be the same too, unless the saved curve ends there. A
        `DataClock` may have a different `count`.

        If the state is that of a `ChainedScheduler` or `SequentialLR` with a `lambda_lr`, the state
        of the `lambda_lr` is loaded. The state of a scheduler without a curve, torch's or
        transformers', is accepted with a warning, with `clock=` only if `strict` is False: the run
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
                `strict` is False); the state has more groups than the optimizer, or several
                schedulers with a curve, or was saved by a different version; the scheduler that
                saved it has no peak, such as `OneCycleLR`; or `state_dict` is not the state of a
                scheduler. Nothing was changed.

        Warns:
            CurveWarning: The curve or the clock differs, and `strict` is False. Or the saved peaks,
                with which the run continues, differ from those that the scheduler was built with,
                and `set_peak` did not set them.

        >>> import torch
        >>> from torch_bridge import StagedCurve, lambda_lr
        >>> def build(curve):
        ...     optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
        ...     return lambda_lr(optimizer, curve)
        >>> curve = StagedCurve.wsd(1000, warmup_steps=100, decay_steps=200)
        >>> scheduler = build(curve)
        >>> for _ in range(400):
        ...     scheduler.optimizer.step()
        ...     scheduler.step()
        >>> branch = build(curve.cooldown(400, 100))
        >>> branch.load_state_dict(scheduler.state_dict())
        >>> branch.curve_step
        400
        """
        strict = checks.boolean("strict", self.strict if strict is None else strict)
        self._load("a scheduler", read_scheduler_state, state_dict, strict=strict)
        self.count = None


def _warn_of_order(optimizer: Optimizer) -> None:
    """Warn as torch does if the scheduler is stepped before the optimizer."""
    if needs_two_backward_passes(optimizer):
        return
    # Torch's constructor replaces `optimizer.step`, to notice its first call. A copy of the
    # optimizer has the plain `step`.
    is_watched = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if is_watched and not getattr(optimizer, "_opt_called", False):
        warn(
            "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
            "the opposite order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise "
            "the first value of the learning rate schedule is skipped",
            UserWarning,
        )
