"""The limits of a curve's length, and why a forecast is less certain: see `LossFit.predict`."""

from collections.abc import Sequence

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.tools.forecasts.loss_groups import falls_to_half, lacks_lrs
from plateau_jax.tools.forecasts.loss_run import (
    LossRun,
    largest_lr_of,
    last_step_of,
    octaves_to_runs,
    peaks_agree,
)
from plateau_jax.tools.theory.step_bins import first_and_last_steps_of, segment_begins

_MAX_HORIZON = 4.0
"""A forecast reaches at most this many times the steps of the longest run."""

_MIN_HORIZON = 0.1
"""A curve has more than this fraction of the steps of the longest run."""

# Ratios to the steps of the longest run. Outside them, the forecast of a curve is less certain.
_SHORT = 0.3
_LONG = 2.0

_LONGER = 1.05
"""Above this ratio, a curve counts as longer than the longest run."""

_PLATEAU_FRACTION = 0.1
"""The least fraction of a run that counts as a plateau."""

_WARMUP_FACTOR = 3
_NEAR_PEAK = 0.95
"""The warmup ends at this fraction of the peak."""

_SHORT_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
_LONG_WARMUP = "no run had so long a warmup: the loss may be lower by tenths of a nat"
_NO_PLATEAU = "from runs without a plateau, longer ones came out up to 2 % worse"

UNCOVERED_REASONS = frozenset([_SHORT_WARMUP, _LONG_WARMUP])
"""The reasons whose effect the interval does not cover."""


def check_length(curve: Curve, runs: Sequence[LossRun]) -> None:
    """Reject a curve much longer than the longest run, or so short that its unit seems wrong."""
    longest = _longest(runs)
    if curve.total_steps > _MAX_HORIZON * longest:
        raise ValueError(
            f"the curve has {curve.total_steps} steps; a forecast reaches at most {_MAX_HORIZON:g} "
            f"times the {longest} steps of the longest run: log a longer run"
        )
    if curve.total_steps <= _MIN_HORIZON * longest:
        percent = 100 * curve.total_steps / longest
        raise ValueError(
            f"this curve has {percent:.2g} % of the run's steps: are they counted in samples or "
            "tokens?"
        )


def list_reasons(curve: Curve, peak: float, runs: Sequence[LossRun]) -> tuple[str, ...]:
    """Return the known reasons why the forecast of a curve is less certain.

    Args:
        curve: The curve to forecast.
        peak: Its largest learning rate.
        runs: The runs of the fit.
    """
    reasons = [
        _reason_of_missing_lrs(runs),
        _reason_of_peak(peak, runs),
        _reason_of_length(curve, runs),
        _reason_of_warmup(curve, runs),
        _reason_of_decay(curve, runs),
    ]
    return tuple(reason for reason in reasons if reason is not None)


def _longest(runs: Sequence[LossRun]) -> int:
    return max(_length_of(run) for run in runs)


def _length_of(run: LossRun) -> int:
    """Return the number of steps that a log covers.

    The last loss of a complete run is usually logged less than one interval of logging before the
    end.
    """
    interval = 0
    if len(run.steps) > 1:
        interval = int(run.steps[-1] - run.steps[-2])
    return min(last_step_of(run) + interval, run.curve.total_steps)


def _reason_of_missing_lrs(runs: Sequence[LossRun]) -> str | None:
    firsts = [run.lrs_from or 0 for run in runs if lacks_lrs(run)]
    if firsts:
        return f"the learning rates of a run are known only from step {max(firsts)} on"
    return None


def _reason_of_peak(peak: float, runs: Sequence[LossRun]) -> str | None:
    if any(peaks_agree(peak, largest_lr_of(run), run) for run in runs):
        return None
    ratio = 2 ** octaves_to_runs(peak, runs)
    return f"its peak is {ratio:.3g} times that of the nearest run"


def _reason_of_length(curve: Curve, runs: Sequence[LossRun]) -> str | None:
    ratio = curve.total_steps / _longest(runs)
    if round(ratio, 1) > _LONG:
        return f"it has {ratio:.2g} times as many steps as the longest run"
    if ratio < _SHORT:
        problem = "curves this short came out too high"
        return f"it has {ratio:.3g} times as many steps as the longest run: {problem}"
    return None


def _reason_of_warmup(curve: Curve, runs: Sequence[LossRun]) -> str | None:
    """Compare the warmup of a curve to those of the runs.

    It counts as shorter or longer if it differs from all of them by more than a factor of 3, both
    in steps and as a fraction of the steps.
    """
    warmup = _warmup_steps(curve, curve.total_steps)
    is_shorter = True
    is_longer = True
    for run in runs:
        least, most = _warmup_bounds(run)
        ratio = curve.total_steps / run.curve.total_steps
        if least * min(ratio, 1) <= _WARMUP_FACTOR * max(warmup, 1):
            is_shorter = False
        if warmup <= _WARMUP_FACTOR * max(most, 1) * max(ratio, 1):
            is_longer = False
    if is_shorter:
        return _SHORT_WARMUP
    if is_longer:
        return _LONG_WARMUP
    return None


def _reason_of_decay(curve: Curve, runs: Sequence[LossRun]) -> str | None:
    is_longer = curve.total_steps / _longest(runs) > _LONGER
    if not (is_longer and falls_to_half(curve, curve.total_steps)):
        return None
    if any(_has_high_plateau(run) for run in runs):
        return None
    return _NO_PLATEAU


def _warmup_bounds(run: LossRun) -> tuple[int, int]:
    """Return the least and the greatest number of steps that the warmup of a run may have.

    They differ if the curve is that of a log: its warmup ends between two logged learning rates.
    """
    end = _warmup_steps(run.curve, last_step_of(run))
    if run.lrs_from is None:
        return end, end
    begins = segment_begins(run.curve)
    least = int(begins[begins < max(end, 1)][-1])
    return least, end


def _warmup_steps(curve: Curve, updates: int) -> int:
    """Return the number of steps before the learning rate is near its peak."""
    steps = first_and_last_steps_of(curve, updates)
    multipliers = curve(steps)
    return int(steps[np.argmax(multipliers >= _NEAR_PEAK * multipliers.max())])


def _has_high_plateau(run: LossRun) -> bool:
    """Return True if a run has a plateau above half its peak for a tenth of its steps."""
    last_step = last_step_of(run)
    steps = first_and_last_steps_of(run.curve, last_step)
    multipliers = run.curve(steps)
    # A segment is monotone, so it is flat between two of these steps with the same learning rate.
    begins = np.flatnonzero(np.diff(multipliers, prepend=np.nan) != 0)
    ends = np.append(begins[1:], len(steps)) - 1
    lengths = steps[ends] - steps[begins] + 1
    is_high = multipliers[begins] > multipliers.max() / 2
    return bool(np.any(is_high & (lengths >= _PLATEAU_FRACTION * last_step)))
