"""The reasons why a forecast is less certain, see `LossFit.predict`, and how long a curve may be."""

from collections.abc import Sequence

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.forecasts.logged_losses import falls_to_half, lacks_lrs
from plateau_jax.forecasts.loss_interval import ForecastTerms
from plateau_jax.forecasts.loss_run import LossRun, is_one_peak, octaves_to_runs
from plateau_jax.theory.curve_parts import segment_begins, steps_at_borders

_MAX_HORIZON = 4.0
"""A forecast reaches at most this many times the steps of the longest run."""

_MIN_HORIZON = 0.1
_SHORT = 0.3
_LONG = 2.0
_LONGER = 1.05

_MAX_CHANGE_BY_START = 0.005
_MAX_CHANGE_BY_RUN = 0.006

_STAGE = 0.1

_WARMUP_FACTOR = 3
_NEAR_PEAK = 0.95

_SHORT_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
_LONG_WARMUP = "no run had so long a warmup: the loss may be lower by tenths of a nat"
_NO_STAGE = (
    "from runs without a stage at constant learning rate, longer ones came out up to 2 % worse"
)

UNKNOWN = frozenset([_SHORT_WARMUP, _LONG_WARMUP])
"""The reasons whose effect no interval contains."""


def check_length(curve: Curve, runs: Sequence[LossRun]) -> None:
    """Reject a curve that is much longer than the longest run, or so short that the units must differ."""
    longest = max(run._length for run in runs)
    if curve.total_steps > _MAX_HORIZON * longest:
        raise ValueError(
            f"the curve has {curve.total_steps} steps; a forecast reaches at most {_MAX_HORIZON:g} "
            f"times the {longest} steps of the longest run: log a longer run"
        )
    if curve.total_steps <= _MIN_HORIZON * longest:
        percent = f"{100 * curve.total_steps / longest:.2g} %"
        raise ValueError(
            f"this curve has {percent} of the run's steps: are they counted in samples or tokens?"
        )


def list_reasons(
    curve: Curve, peak: float, terms: ForecastTerms, runs: Sequence[LossRun]
) -> tuple[str, ...]:
    """Return the known causes of a worse forecast that apply to a curve with this largest learning rate."""
    return (
        *_reasons_of_runs(runs),
        *_reasons_of_curve(curve, peak, runs),
        *_reasons_of_fits(terms),
    )


def _reasons_of_runs(runs: Sequence[LossRun]) -> list[str]:
    late = [run._lrs_from or 0 for run in runs if lacks_lrs(run)]
    if late:
        return [f"the learning rates of a run are known only from step {max(late)} on"]
    return []


def _reasons_of_curve(curve: Curve, peak: float, runs: Sequence[LossRun]) -> list[str]:
    length = curve.total_steps / max(run._length for run in runs)
    reasons: list[str] = []
    if any(each.unit is not None for each in (curve, *(run.curve for run in runs))):
        reasons.append(
            "a curve follows a batch plan, but the law counts every step as one update of the same "
            "batch"
        )
    if not any(is_one_peak(peak, run._largest_learning_rate(), run) for run in runs):
        reasons.append(
            f"its peak is {2 ** octaves_to_runs(peak, runs):.3g} times that of the nearest run"
        )
    if round(length, 1) > _LONG:
        reasons.append(f"it has {length:.2g} times as many steps as the longest run")
    if length < _SHORT:
        problem = "curves this short came out too high"
        reasons.append(f"it has {length:.3g} times as many steps as the longest run: {problem}")
    warmup = _warmup_steps(curve, curve.total_steps)
    if all(_has_longer_warmup(run, warmup, curve.total_steps) for run in runs):
        reasons.append(_SHORT_WARMUP)
    if all(_has_shorter_warmup(run, warmup, curve.total_steps) for run in runs):
        reasons.append(_LONG_WARMUP)
    is_longer_decay = length > _LONGER and falls_to_half(curve, curve.total_steps)
    if is_longer_decay and not any(_holds_learning_rate(run) for run in runs):
        reasons.append(_NO_STAGE)
    return reasons


def _reasons_of_fits(terms: ForecastTerms) -> list[str]:
    reasons: list[str] = []
    change_by_start = abs(float(terms.by_start))
    if change_by_start > _MAX_CHANGE_BY_START * terms.loss:
        reasons.append(f"it changes by {change_by_start:.2g} nats if the first fifth is left out")
    if np.max(np.abs(terms.by_run), initial=0.0) > _MAX_CHANGE_BY_RUN * terms.loss:
        reasons.append("each run alone forecasts something else")
    return reasons


# Warmups agree within a factor of 3, in steps or as fractions of the steps.


def _has_longer_warmup(run: LossRun, warmup: int, total_steps: int) -> bool:
    least, _ = _warmup_bounds(run)
    length = total_steps / run.curve.total_steps
    return least * min(length, 1) > _WARMUP_FACTOR * max(warmup, 1)


def _has_shorter_warmup(run: LossRun, warmup: int, total_steps: int) -> bool:
    _, most = _warmup_bounds(run)
    length = total_steps / run.curve.total_steps
    return warmup > _WARMUP_FACTOR * max(most, 1) * max(length, 1)


def _warmup_bounds(run: LossRun) -> tuple[int, int]:
    """Return the least and the greatest number of steps that the warmup of a run may have.

    They differ for the learning rates of a log: its warmup ends between two of them.
    """
    end = _warmup_steps(run.curve, run._last_step)
    if run._lrs_from is None:
        return end, end
    begins = segment_begins(run.curve)
    return int(begins[begins < max(end, 1)][-1]), end


def _warmup_steps(curve: Curve, updates: int) -> int:
    """Return the number of steps before the learning rate is near its peak."""
    steps = steps_at_borders(curve, updates)
    multipliers = curve(steps)
    return int(steps[np.argmax(multipliers >= _NEAR_PEAK * multipliers.max())])


def _holds_learning_rate(run: LossRun) -> bool:
    """Return True if a learning rate above half the peak stays the same for a tenth of the logged steps."""
    steps = steps_at_borders(run.curve, run._last_step)
    multipliers = run.curve(steps)
    # Segments are monotone: between borders with the same learning rate it does not change.
    begins = np.flatnonzero(np.diff(multipliers, prepend=np.nan) != 0)
    ends = np.append(begins[1:], len(steps)) - 1
    lengths = steps[ends] - steps[begins] + 1
    is_high = multipliers[begins] > multipliers.max() / 2
    return bool(np.any(is_high & (lengths >= _STAGE * run._last_step)))
