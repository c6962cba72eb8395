"""Functions that build a scheduler from a curve and count the updates of a training run."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, PlateauCurve, Rule, checks, suppress_warnings
from torch_bridge.schedulers.curve_lr import CurveLR
from torch_bridge.schedulers.param_groups import peaks_of


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
    """Build a PyTorch scheduler that follows the curve.

    After n calls of `step()` each group has the learning rate

        lr = float32(float32(peak) · curve(n))

    This is the learning rate that `plateau_jax.optax_schedule` returns and `Curve.learning_rate` computes for
    the same peak. The peak is the group's `initial_lr` if it has one, else its `lr`. If `group["lr"]` is a
    tensor, the scheduler writes into that tensor.

    A group that is added to the optimizer later follows the curve if one was given for all groups, from the
    next `step()` on, with its own learning rate as its peak; with one curve for each group it is rejected.

    With `hold` the learning rate is the curve's at a clock, which rules may hold while updates continue.
    After each update call `step(metric)`, with a float or a scalar tensor, the same on all ranks; reading a
    tensor synchronizes with the device. A scheduler that steps others without a metric, such as
    `SequentialLR`, cannot step this one.

    With `unit`, a step of the curve is not an update, but `unit` samples or tokens:

        consumed = Σ counts of all updates so far
        clock    = consumed // unit
        lr       = float32(float32(peak) · curve(clock))

    After each update call `step(count=n)`, with the samples or tokens of that update on all ranks. For
    trainers and torch schedulers that call `step()` without arguments, pass `count`, a function that returns
    n; in a `SequentialLR` it counts from the scheduler's turn on. The learning rate stays the same until a
    unit is full, so choose a unit that is at most what an update consumes.

    Args:
        optimizer: Any torch optimizer.
        curve: One curve for all parameter groups, or a sequence with one for each.
        last_epoch: Index of the last finished update, as in torch: after n scheduler steps, n - 1.
        strict: The default of `strict` in `CurveLR.load_state_dict`. It is for trainers, which call that
            method themselves: with False, the run resumes under this curve, whatever the saved one was.
        hold: A `HoldUntilFlat`, a `HoldBelow`, or a list of them, under one curve for all groups. It excludes
            `unit`.
        unit: The number of samples or tokens in one step of the curve, 1 … 2⁶². By default a step is an
            update.
        count: With `unit`, a function without arguments that returns the samples or tokens of the last
            update, an integer. A `step()` without a count calls it. It is not part of the state, but is
            pickled with the scheduler.

    Returns:
        A `torch.optim.lr_scheduler.LambdaLR`, whose `set_peak(...)` changes the peak. Its state consists of
        plain numbers and lists, and survives `torch.load(weights_only=True)`. Its `clock` is the step of the
        curve that gives the learning rates, and its `last_epoch` counts the calls of `step`.

    Raises:
        TypeError: `optimizer`, `curve` or `hold` has the wrong type; `unit` is not an integer; `count` is not
            a function, or is given without `unit`.
        ValueError: The numbers of curves and groups differ; a learning rate is negative, not finite, or
            positive and below 2⁻¹²⁶; `last_epoch` is below -1, or is at least 0 although a group of an
            optimizer that was stepped has no `initial_lr`, so that its peak is unknown; several curves with
            `hold`, or a curve without a flat part for `HoldUntilFlat`; `unit` is below 1, is not the unit of
            a curve from `BatchPlan.scale`, or is given with `hold` or with a `last_epoch` above -1.

    Warns:
        CurveWarning: At the optimizer's steps, once for each mistake. For 20 updates or more, every learning
            rate is 0 while the clock stands; there is at most one `scheduler.step()` in ten updates, or none
            in 500; there are three in two updates; or two curves take turns on the optimizer. Training
            continues far past the curve's end. The optimizer was loaded and has made updates, but this
            scheduler starts at step 0 without its state; or a learning rate was set that is not the peak.
            Calls without any update, as for a plot, do not warn.

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

    The same curve on a clock of tokens, 4096 per step:

    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters(), lr=3e-4)
    >>> scheduler = lambda_lr(optimizer, PlateauCurve(1000, warmup_steps=100), unit=4096)
    >>> for tokens in (150_000, 54_800):
    ...     optimizer.step()
    ...     scheduler.step(count=tokens)
    >>> scheduler.consumed, scheduler.clock, round(optimizer.param_groups[0]["lr"], 9)
    (204800, 50, 0.00015)
    """
    return CurveLR(optimizer, curve, last_epoch, strict=strict, hold=hold, unit=unit, count=count)


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
    """Build a scheduler from the arguments of transformers' `get_cosine_schedule_with_warmup`, and plateaus.

    With W = `num_warmup_steps`, N = `num_training_steps` - W, r = `min_lr_ratio` and no plateaus, the
    learning rate after n calls of `step()` is

        lr = peak · n/W                                         for n < W
        lr = peak · (r + (1 - r)·(1 + cos(π·(n - W)/N))/2)      after that

    `plateau_jax.PlateauCurve` has the equations with plateaus. After `num_training_steps` the learning rate
    keeps its final value; in transformers it climbs again. For a hold or a clock of tokens, build a
    `PlateauCurve` and call `lambda_lr`.

    Args:
        optimizer: Any torch optimizer.
        num_warmup_steps: Steps of the linear warmup.
        num_training_steps: Steps of the whole curve, warmup included.
        plateaus: Pairs (start, duration) in percent of the steps after the warmup.
        min_lr_ratio: The final learning rate as a fraction of the peak.
        min_lr: The final learning rate itself, the same for every group; it excludes `min_lr_ratio`. In
            transformers each group ends at the same fraction of its peak.
        last_epoch: As in `lambda_lr`.
        strict: As in `lambda_lr`.

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
    with checks.renamed_arguments(total_steps="num_training_steps", warmup_steps="num_warmup_steps"):
        curve = PlateauCurve(
            num_training_steps, warmup_steps=num_warmup_steps, plateaus=plateaus, min_lr_ratio=min_lr_ratio
        )
    if min_lr is None:
        return lambda_lr(optimizer, curve, last_epoch, strict=strict)
    if min_lr_ratio != 0.0:
        raise ValueError(f"min_lr_ratio = {min_lr_ratio!r} and min_lr = {min_lr!r}: give one of them")
    floor = checks.peak("min_lr", min_lr)
    # The peaks are rounded to float32. A min_lr that rounds to the peak stands for the peak, although the
    # number itself may lie a little above it, and then be rejected, or below.
    ratios = [
        checks.ratio_to_peak("min_lr", peak if peak == floor else min_lr, peak)
        for peak in peaks_of(optimizer, last_epoch)
    ]
    with suppress_warnings():  # already warned about plateaus; these ratios are not learning rates
        curves = [replace(curve, min_lr_ratio=ratio) for ratio in ratios]
    return lambda_lr(optimizer, curves, last_epoch, strict=strict)


def count_updates(loader: Sized | int, epochs: int, *, accumulation: int = 1) -> int:
    """Count the updates in a training run, for the `total_steps` of its curve.

        updates = ⌈batches / accumulation⌉ · epochs

    An update takes `accumulation` batches; the last update of an epoch may take fewer. Each rank counts the
    batches of its loader, and all ranks get the same number.

    Args:
        loader: Anything whose length is its number of batches, such as a `DataLoader`; or this rank's number
            of batches in an epoch.
        epochs: The number of passes over the loader.
        accumulation: Batches in an update.

    Returns:
        The number of updates.

    Raises:
        TypeError: `loader` is not an integer and has no length, as over an `IterableDataset`; `epochs` or
            `accumulation` is not an integer.
        ValueError: One of the three numbers is below 1.

    >>> from torch_bridge import count_updates
    >>> count_updates(10, epochs=3, accumulation=4)
    9
    """
    batches = checks.at_least("the number of batches", _length(loader), 1)
    epochs = checks.at_least("epochs", epochs, 1)
    accumulation = checks.at_least("accumulation", accumulation, 1)
    return -(-batches // accumulation) * epochs


def _length(loader: Any) -> int:
    if not isinstance(loader, str | bytes):
        try:
            return len(loader)
        except (NotImplementedError, TypeError):
            pass
    try:
        return checks.integer("loader", loader)
    except TypeError:
        raise TypeError(
            f"loader = {checks.short_repr(loader)} has no length: give the number of batches of an epoch "
            "instead"
        ) from None
