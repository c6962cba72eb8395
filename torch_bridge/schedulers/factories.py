"""The functions that build a scheduler from a curve."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import overload

from torch.optim import Optimizer

from torch_bridge.core import Curve, PlateauCurve, Rule, checks, silent
from torch_bridge.schedulers.curve_lr import CurveLR
from torch_bridge.schedulers.held_curve_lr import HeldCurveLR
from torch_bridge.schedulers.param_groups import peaks_of


@overload
def lambda_lr(
    optimizer: Optimizer,
    curve: Curve | Sequence[Curve],
    last_epoch: int = -1,
    *,
    strict: bool = True,
    hold: None = None,
    unit: int | None = None,
    count: Callable[[], int] | None = None,
) -> CurveLR: ...
@overload
def lambda_lr(
    optimizer: Optimizer,
    curve: Curve | Sequence[Curve],
    last_epoch: int = -1,
    *,
    strict: bool = True,
    hold: Rule | Sequence[Rule],
    unit: None = None,
    count: None = None,
) -> HeldCurveLR: ...
def lambda_lr(
    optimizer: Optimizer,
    curve: Curve | Sequence[Curve],
    last_epoch: int = -1,
    *,
    strict: bool = True,
    hold: Rule | Sequence[Rule] | None = None,
    unit: int | None = None,
    count: Callable[[], int] | None = None,
) -> CurveLR:
    """The curve as a PyTorch scheduler.

    After n calls of `step()` each group has the rate

        lr = float32(peak) · curve(n)

    The peak is the group's `initial_lr` where it has one, else its `lr`, **rounded to float32**: then
    the product with a float32 multiplier is exact in a Python float, and its float32 value is the
    learning rate that `plateau_jax.optax_schedule` gives for the same peak.

    Where `group["lr"]` is a tensor, the scheduler writes the rate into that tensor.

    If one curve was given for all groups, a group that is added to the optimizer later follows it too, from
    the next `step()` of the scheduler on, with its own rate as its peak. If one curve was given for each
    group, an added group is refused. `scheduler.set_peak(...)` gives another peak.

    With `hold` the rate is peak · curve(clock), and rules may hold the clock while updates go on. After each
    update call `step(metric)`, with a float or a scalar tensor; reading the tensor synchronizes with the
    device. The clock then moves one step on, unless a rule holds it. Over several processes pass the same
    metric in each. `hold` does not work inside a scheduler that steps others without a metric, such as
    `SequentialLR`.

    With `unit` a step of the curve is not an update, but so many samples or tokens:

        consumed = Σ counts of all updates so far
        clock    = consumed // unit
        lr       = float32(peak) · curve(clock)

    So the rate depends on what was consumed, however it is cut into updates, and an update has the rate at
    the clock before it. After each update call `step(count=n)`, with the samples or tokens of that update,
    over all processes. Where a trainer calls `step()` bare, or a scheduler of torch's such as `SequentialLR`,
    pass `count`, a function that returns n. A part of a `SequentialLR` counts from its turn on: what the
    function returns where the turn comes is dropped. Let a unit be no more than an update consumes: the rate
    stays the same until a unit is full.

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence of one each.
        last_epoch: Index of the last finished update, as in torch: after n scheduler steps, n - 1.
        strict: Whether `load_state_dict(state)` refuses the state of a curve with another past, that is with
            other values at the steps so far. With False the run goes on under this curve. This argument is
            for trainers, which call `load_state_dict` themselves; your own calls may pass `strict` there.
        hold: A `HoldUntilFlat`, a `HoldBelow`, or a list of them, under one curve for all groups. Not beside
            `unit`.
        unit: How many samples or tokens make one step of the curve, 1 … 2⁶². By default a step is an update.
        count: With `unit`, a function without arguments: the samples or tokens of the update that took place,
            an integer. `step()` asks it where it is called without a count. A state does not hold it; to
            pickle the scheduler itself, pickle must take it, as it takes no lambda.

    Returns:
        A `torch.optim.lr_scheduler.LambdaLR`. Its state consists of plain numbers and lists, and survives
        `torch.load(weights_only=True)`; its `clock` is the step of the curve that gives the rates. Its
        `consumed` is exact, up to 2⁶²; its `last_epoch` counts the calls of `step`.

    Raises:
        TypeError: `optimizer`, `curve` or `hold` is something else; `unit` is not an integer; `count` is no
            function, or is given without `unit`.
        ValueError: Another number of curves than of groups; a rate is negative, not finite, or positive and
            below 2⁻¹²⁶; `last_epoch` is below -1, or at least 0 where an optimizer that was stepped, or
            loaded, has a group without `initial_lr`, whose peak is unknown; several curves with `hold`, or a
            curve without a flat part for `HoldUntilFlat`; `unit` is below 1, or is given beside `hold` or
            beside a `last_epoch` above -1.

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

    The same curve on a clock of tokens, 4096 a step:

    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters(), lr=3e-4)
    >>> scheduler = lambda_lr(optimizer, PlateauCurve(1000, warmup_steps=100), unit=4096)
    >>> for tokens in (150_000, 54_800):
    ...     optimizer.step()
    ...     scheduler.step(count=tokens)
    >>> scheduler.consumed, scheduler.clock, round(optimizer.param_groups[0]["lr"], 9)
    (204800, 50, 0.00015)
    """
    if hold is None:
        return CurveLR(optimizer, curve, last_epoch, strict=strict, unit=unit, count=count)
    if unit is not None or count is not None:
        raise ValueError("hold= and unit= (with its count=) don't go together: give one of them")
    return HeldCurveLR(optimizer, curve, hold, last_epoch, strict=strict)


@overload
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
    hold: None = None,
) -> CurveLR: ...
@overload
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
    hold: Rule | Sequence[Rule],
) -> HeldCurveLR: ...
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
    hold: Rule | Sequence[Rule] | None = None,
) -> CurveLR:
    """A scheduler with the arguments of transformers' `get_cosine_schedule_with_warmup`, and plateaus.

    With W = `num_warmup_steps`, N = `num_training_steps` - W, r = `min_lr_ratio` and no plateaus, the rate
    after n calls of `step()` is

        lr = peak · n/W                                         for n < W
        lr = peak · (r + (1 - r)·(1 + cos(π·(n - W)/N))/2)      after that

    `plateau_jax.PlateauCurve` has the equations with plateaus, and the sources.

    After `num_training_steps` the rate stays at its final value; in transformers it climbs again. `min_lr` is
    the final rate of every group; in transformers each group ends at the same share of its own peak.

    Args:
        optimizer: Any torch optimizer.
        num_warmup_steps: Steps of the linear warmup.
        num_training_steps: Steps of the whole curve, warmup included.
        plateaus: Pairs (start, duration) in percent of the steps after the warmup.
        min_lr_ratio: The final rate as a share of the peak.
        min_lr: The final rate itself, the same for every group. Not beside `min_lr_ratio`.
        last_epoch: As in `lambda_lr`.
        strict: As in `lambda_lr`.
        hold: As in `lambda_lr`. Beside `min_lr`, all groups must have the same peak, and so the same curve.

    Returns:
        The scheduler that `lambda_lr` builds.

    Raises:
        TypeError, ValueError: As `PlateauCurve` and `lambda_lr`; both `min_lr_ratio` and `min_lr` are given;
            `min_lr` is above a group's peak, negative, or positive and below 2⁻¹²⁶.

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
        return lambda_lr(optimizer, curve, last_epoch, strict=strict, hold=hold)
    if min_lr_ratio != 0.0:
        raise ValueError(f"min_lr_ratio = {min_lr_ratio!r} and min_lr = {min_lr!r}: give one of them")
    floor = checks.peak("min_lr", min_lr)
    # A `min_lr` that rounds to the peak is the peak, not a little more or less.
    ratios = [
        checks.ratio_to_peak("min_lr", peak if peak == floor else min_lr, peak)
        for peak in peaks_of(optimizer, last_epoch)
    ]
    with silent():
        curves = [replace(curve, min_lr_ratio=ratio) for ratio in ratios]
    return lambda_lr(optimizer, curves, last_epoch, strict=strict, hold=hold)
