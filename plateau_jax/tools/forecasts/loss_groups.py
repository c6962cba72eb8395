"""The logged losses that a fit uses: without spikes, and averaged in groups."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.table.exact_segments import with_stops
from plateau_jax.tools.forecasts.loss_law import Law, LoggedLosses, fit_law, schedule_sums
from plateau_jax.tools.forecasts.loss_run import LossRun, largest_lr_of, last_step_of
from plateau_jax.tools.theory.step_bins import first_and_last_steps_of

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]

AFTER_WARMUP = 0.03
"""Fraction of a run after its warmup in which the loss still falls too fast for the law."""

_MAX_GROUPS = 60

_LAST_FRACTION = 0.95
"""The groups after this fraction of a run have half of its weight."""

AFTER_FIRST_FIFTH = 0.2
_MIN_LATE_GROUPS = 8

_MAX_SPIKE_LENGTH = 2
_MIN_SPIKE = 0.01
_SPIKE_IN_NOISE = 6.0
_MAX_SPIKES = 0.1


class GroupMeans(NamedTuple):
    """Means over groups of consecutive logged losses of a run, with S and N at their mean steps.

    Attributes:
        steps: The mean step of each group, rounded.
        losses, weights, progress, noise: As in `LoggedLosses`, one for each group.
        raw_losses: The losses that were averaged.
        spikes: The steps of the spikes that were left out.
    """

    steps: NDArray[np.int64]
    losses: _Floats
    weights: _Floats
    progress: _Floats
    noise: _Floats
    raw_losses: _Floats
    spikes: NDArray[np.int64]


def end_of_rise(curve: Curve) -> int:
    """Return the step at which the level first stops rising; a level of 0 counts as rising."""
    for segment, _ in with_stops(curve._exact_segments):
        rises = segment.end > segment.start
        is_zero = segment.start == segment.end == 0
        if not (rises or is_zero):
            return segment.begin
    return curve.total_steps


def law_applies_after(curve: Curve, last_step: int) -> float:
    """Return the step after which the law describes the losses, some time after the warmup."""
    return end_of_rise(curve) + AFTER_WARMUP * last_step


def lacks_lrs(run: LossRun) -> bool:
    """Return True if a log has no learning rates for the first 3 % of the run, or for longer."""
    return run.lrs_from is not None and run.lrs_from > AFTER_WARMUP * last_step_of(run)


def late_losses(runs: Sequence[LossRun]) -> LoggedLosses | None:
    """Group the losses after the first fifth of each run; None if a run has too few groups left."""
    for run in runs:
        if len(group_run(run, AFTER_FIRST_FIFTH).steps) < _MIN_LATE_GROUPS:
            return None
    return group_losses(runs, AFTER_FIRST_FIFTH)


def group_losses(runs: Sequence[LossRun], fraction: float) -> LoggedLosses:
    """Join the groups of all runs, and weigh the runs; `fraction` is that of `group_run`."""
    groups = [group_run(run, fraction) for run in runs]
    progress = np.concatenate([group.progress for group in groups])
    weights: list[_Floats] = []
    for weight, group in zip(_weights_of_runs(runs), groups, strict=True):
        weights.append(weight * group.weights)
    return LoggedLosses(
        progress=progress,
        noise=np.concatenate([group.noise for group in groups]),
        losses=np.concatenate([group.losses for group in groups]),
        weights=np.concatenate(weights),
        runs=np.repeat(np.arange(len(runs)), [len(group.steps) for group in groups]),
        progress_unit=float(progress.max()),
        noise_unit=max(largest_lr_of(run) for run in runs),
    )


def _weights_of_runs(runs: Sequence[LossRun]) -> _Floats:
    # A short run covers mostly the early phase, in which the law is less accurate.
    lengths = np.array([last_step_of(run) for run in runs], np.float64)
    weights = (lengths / lengths.max()) ** 2
    return weights / weights.sum()


@lru_cache(256)
def fit_alone(run: LossRun) -> Law:
    """Fit the law to one run; cached, because several checks and the interval use it."""
    return fit_law(group_losses([run], AFTER_WARMUP))


# The sums take most of the time of a fit, and a run is often fitted both alone and with others.
@lru_cache(256)
def group_run(run: LossRun, fraction: float) -> GroupMeans:
    """Average the losses after the warmup and this fraction of the run, without spikes."""
    warmup_end = end_of_rise(run.curve)
    last_step = last_step_of(run)
    is_spike = _find_spikes(run.losses, run.steps > warmup_end + AFTER_WARMUP * last_step)
    is_late = run.steps > warmup_end + fraction * last_step
    is_used = is_late & ~is_spike
    raw_losses = run.losses[is_used]
    mean_steps = _means(run.steps[is_used].astype(np.float64))
    steps = np.rint(mean_steps).astype(np.int64)
    progress, noise = schedule_sums(run.curve, run.peak_value, steps)
    return GroupMeans(
        steps=steps,
        losses=_means(raw_losses),
        weights=_weights_of_groups(mean_steps, last_step),
        progress=progress,
        noise=noise,
        raw_losses=raw_losses,
        spikes=run.steps[is_spike],
    )


def _means(values: _Floats) -> _Floats:
    if len(values) <= _MAX_GROUPS:
        return values
    return np.array([group.mean() for group in np.array_split(values, _MAX_GROUPS)])


def _weights_of_groups(steps: _Floats, last_step: int) -> _Floats:
    """Give half of the weight to the end of the run: a forecast is about the end of a curve."""
    is_last = steps > _LAST_FRACTION * last_step
    weight_before = 0.5 / max(1, (~is_last).sum())
    weight_last = 0.5 / max(1, is_last.sum())
    weights = np.where(is_last, weight_last, weight_before)
    return weights / weights.sum()


def falls_to_half(curve: Curve, updates: int) -> bool:
    """Return True if the learning rate falls to half its peak within this number of updates."""
    multipliers = curve(first_and_last_steps_of(curve, updates))
    after_peak = multipliers[np.argmax(multipliers) :]
    return bool(after_peak.min() <= after_peak[0] / 2)


def second_differences(losses: _Floats, lag: int = 1) -> _Floats:
    """Return (l[i + lag] - 2 l[i] + l[i - lag]) / l[i], which is almost free of trend."""
    middle = losses[lag:-lag]
    return (losses[2 * lag :] - 2 * middle + losses[: -2 * lag]) / middle


def relative_sd(second_differences: _Floats) -> float:
    """Estimate the relative standard deviation of the losses; outliers hardly change it."""
    # 1.4826·median(abs) estimates the standard deviation of a normal distribution. The second
    # differences of independent noise have 6 times its variance.
    return 1.4826 * float(np.median(np.abs(second_differences))) / 6**0.5


def _find_spikes(losses: _Floats, is_checked: _Mask) -> _Mask:
    """Mark the spikes among the logged losses that are checked.

    A spike is one loss, or two in a row, above both neighbors by more than a margin of 1 % plus six
    times the noise. The later neighbor must be back within this margin of the earlier one, so
    neither the last loss nor a divergence is a spike. If more than a tenth of the checked losses
    would be marked, none is.
    """
    is_spike = np.zeros(len(losses), np.bool_)
    if is_checked.sum() < _MAX_SPIKE_LENGTH + 2:
        return is_spike
    noise = relative_sd(second_differences(losses[is_checked]))
    margin = 1 + _MIN_SPIKE + _SPIKE_IN_NOISE * noise
    for length in range(1, _MAX_SPIKE_LENGTH + 1):
        for begin in _begins_of_bumps(losses, length, margin):
            is_spike[begin : begin + length] = True
    is_spike &= is_checked
    if is_spike.sum() > _MAX_SPIKES * is_checked.sum():
        return np.zeros_like(is_spike)
    return is_spike


def _begins_of_bumps(losses: _Floats, length: int, margin: float) -> list[int]:
    """Return the index at which each bump of `length` losses begins.

    All losses of a bump exceed both neighbors by more than the factor `margin`. The later neighbor
    does not exceed the earlier one by more than that.

    >>> _begins_of_bumps(np.array([3.0, 3.0, 4.0, 3.0, 4.0, 4.0, 3.0]), length=1, margin=1.1)
    [2]
    >>> _begins_of_bumps(np.array([3.0, 3.0, 4.0, 3.0, 4.0, 4.0, 3.0]), length=2, margin=1.1)
    [4]
    """
    windows = np.lib.stride_tricks.sliding_window_view(losses, length + 2)
    before = windows[:, 0]
    after = windows[:, -1]
    is_high = windows[:, 1:-1].min(axis=1) > margin * np.maximum(before, after)
    has_recovered = after <= margin * before
    return (np.flatnonzero(is_high & has_recovered) + 1).tolist()
