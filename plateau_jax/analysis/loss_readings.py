"""The readings that a fit uses, and the refusals: what readings cannot be fitted, and what to log instead."""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from plateau_jax.analysis.loss_law import Law, Readings
from plateau_jax.analysis.loss_run import LossRun
from plateau_jax.analysis.lr_sums import schedule_sums, steps_at_borders
from plateau_jax.curves.curve import Curve
from plateau_jax.numerics.exact_segments import end_of_rise

_Floats = NDArray[np.float64]

AFTER_WARMUP = 0.03
"""Share of a run after its warmup in which the loss still falls too fast for the law."""

MOST_GROUPS = 60
LAST_SHARE = 0.95

AFTER_FIRST_FIFTH = 0.2
_LEAST_LATE_GROUPS = 8

LEAST_READINGS = 20
MAX_NOISE = 0.01
MAX_RISE = 0.01
MAX_MISFIT_OF_ONE = 0.005
MAX_MISFIT_OF_SEVERAL = 0.008


class _Groups(NamedTuple):
    """Means of consecutive readings of a run, with S and N at their steps."""

    steps: NDArray[np.int64]
    losses: _Floats
    weights: _Floats
    progress: _Floats
    noise: _Floats


def first_used_step(curve: Curve, last_step: int, fraction: float = AFTER_WARMUP) -> float:
    """Return the step after which readings count: some time after the learning rate first stops rising."""
    return end_of_rise(curve.rows) + fraction * last_step


def group_readings(runs: Sequence[LossRun]) -> Readings:
    """Cut, group and weigh the readings of all runs.

    Raises:
        ValueError: Too few readings, no decay, too much noise, or losses that rise.
    """
    if not any(falls_to_half(run.curve, run._last_step) for run in runs):
        raise ValueError(
            "no run's learning rate falls to half its peak by its last reading, so the losses cannot tell "
            "what a decay brings: log a run with a decay, or a cooldown of one of these runs"
        )
    groups = [_group(run, AFTER_WARMUP) for run in runs]
    for index, (run, group) in enumerate(zip(runs, groups, strict=True)):
        try:
            _check_losses(run, group)
        except ValueError as error:
            raise error if len(runs) == 1 else ValueError(f"runs[{index}]: {error}") from None
    return _join(runs, groups)


def late_readings(runs: Sequence[LossRun]) -> Readings | None:
    """Group the readings after the first fifth again, or return None if a run has too few of them."""
    groups = [_group(run, AFTER_FIRST_FIFTH) for run in runs]
    if any(len(group.steps) < _LEAST_LATE_GROUPS for group in groups):
        return None
    return _join(runs, groups)


def _join(runs: Sequence[LossRun], groups: Sequence[_Groups]) -> Readings:
    progress = np.concatenate([group.progress for group in groups])
    return Readings(
        progress,
        np.concatenate([group.noise for group in groups]),
        np.concatenate([group.losses for group in groups]),
        np.concatenate(
            [weight * group.weights for weight, group in zip(_weights(runs), groups, strict=True)]
        ),
        np.repeat(np.arange(len(runs)), [len(group.steps) for group in groups]),
        progress_unit=float(progress.max()),
        noise_unit=max(run._largest_learning_rate() for run in runs),
    )


def check_misfit(law: Law, relative_errors: _Floats, readings: Readings) -> None:
    """Refuse a law that does not describe the readings.

    Errors that are alike from one reading to the next are a misfit: noise has no memory. Their size is the
    root of the mean product of neighbours.
    """
    if law.scale <= 0:
        raise ValueError(
            "the losses do not fall with training as the law says (its scale is 0): log a longer run, or a "
            "validation loss"
        )
    is_neighbor = readings.runs[1:] == readings.runs[:-1]
    products = (relative_errors[1:] * relative_errors[:-1])[is_neighbor]
    misfit = float(np.sqrt(max(0.0, products.mean())))
    is_one = readings.runs[-1] == 0
    if misfit > (MAX_MISFIT_OF_ONE if is_one else MAX_MISFIT_OF_SEVERAL):
        raise ValueError(
            f"the law misses these losses by {misfit:.2%}, which is more than noise: "
            + (
                "it fails in the first fast phase of a small model and if data repeat; log a longer run"
                if is_one
                else "fit runs of one model and one data set, or one run alone"
            )
        )


def _weights(runs: Sequence[LossRun]) -> _Floats:
    """Return the weight of each run: a short run describes the phase in which the law bends."""
    lengths = np.array([run._last_step for run in runs], np.float64)
    weights = (lengths / lengths.max()) ** 2
    return weights / weights.sum()


# The sums take most of the time of a fit, and a run is often fitted both alone and with another.
_groups_by_run: WeakKeyDictionary[LossRun, dict[float, _Groups]] = WeakKeyDictionary()


def _group(run: LossRun, fraction: float) -> _Groups:
    """Average the logged losses that come later than the warmup plus this fraction of the run."""
    groups = _groups_by_run.setdefault(run, {})
    if fraction not in groups:
        groups[fraction] = _average(run, fraction)
    return groups[fraction]


def _average(run: LossRun, fraction: float) -> _Groups:
    used = run.steps > first_used_step(run.curve, run._last_step, fraction)
    steps, losses = run.steps[used].astype(np.float64), run.losses[used]
    if len(steps) > MOST_GROUPS:
        steps, losses = (
            np.array([group.mean() for group in np.array_split(values, MOST_GROUPS)])
            for values in (steps, losses)
        )
    is_last = steps > LAST_SHARE * run._last_step
    # One half for the end of the run, which a forecast is about, however many readings it has.
    weights = np.where(is_last, 0.5 / max(1, is_last.sum()), 0.5 / max(1, (~is_last).sum()))
    steps = np.rint(steps).astype(np.int64)
    sums = schedule_sums(run.curve, run.peak_value, steps)
    return _Groups(steps, losses, weights / weights.sum(), *sums)


def _check_losses(run: LossRun, groups: _Groups) -> None:
    losses = groups.losses
    if len(losses) < LEAST_READINGS:
        raise ValueError(
            f"{len(losses)} of {len(run.steps)} readings come after the warmup, which ends at step "
            f"{end_of_rise(run.curve.rows)}, and another {AFTER_WARMUP:.0%} of the run; a fit needs at least "
            f"{LEAST_READINGS}: log the loss more often"
        )
    # Second differences have no trend left; those of independent noise have 6 times its variance.
    bends = (losses[2:] - 2 * losses[1:-1] + losses[:-2]) / losses[1:-1]
    noise = 1.4826 * float(np.median(np.abs(bends))) / 6**0.5
    if noise > MAX_NOISE:
        raise ValueError(
            f"the losses have a noise of {noise:.1%}, more than {MAX_NOISE:.0%}: log a "
            "validation loss, or training losses averaged over more updates"
        )
    learning_rates = run.curve(groups.steps - 1)
    for index in range(1, len(losses)):
        lowest = int(np.argmin(losses[:index]))
        rise = losses[index] - losses[lowest]
        if rise > (MAX_RISE + 4 * noise) * losses[lowest] and np.all(
            learning_rates[lowest + 1 : index + 1] <= learning_rates[lowest]
        ):
            raise ValueError(
                f"the loss rises from {losses[lowest]:.4g} at step {groups.steps[lowest]} to "
                f"{losses[index]:.4g} at step {groups.steps[index]}, while the learning rate does not: the "
                "run diverged or overfits, and the law does not hold; fit a run whose data do not repeat"
            )


def falls_to_half(curve: Curve, updates: int) -> bool:
    """Return True if the learning rate of the first updates falls to half its peak."""
    multipliers = curve(steps_at_borders(curve, updates))
    after_peak = multipliers[np.argmax(multipliers) :]
    return bool(after_peak.min() <= after_peak[0] / 2)
