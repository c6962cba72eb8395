"""The reasons why a forecast is less certain, see `LossFit.predict`, and how long a curve may be."""

from collections.abc import Sequence

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.forecasts.logged_losses import falls_to_half
from plateau_jax.forecasts.loss_interval import ForecastTerms
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.theory.curve_parts import segment_begins, steps_at_borders
from plateau_jax.forecasts.run_peaks import is_one_peak, octaves_to_runs

MAX_HORIZON = 4.0
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
_MANY_SEGMENTS = 20


def check_length(curve: Curve, runs: Sequence[LossRun]) -> None:
    """Reject a curve that is much longer than the longest run, or so short that the units must differ."""
    longest = max(run._length for run in runs)
    if curve.total_steps > MAX_HORIZON * longest:
        raise ValueError(
            f"the curve has {curve.total_steps} steps; a forecast reaches at most {MAX_HORIZON:g} times "
            f"the {longest} steps of the longest run: log a longer run"
        )
    if curve.total_steps <= _MIN_HORIZON * longest:
        percent = f"{100 * curve.total_steps / longest:.2g} %"
        raise ValueError(
            f"this curve has {percent} of the run's steps: are they counted in samples or tokens?"
        )


def list_reasons(curve: Curve, peak: float, terms: ForecastTerms, runs: Sequence[LossRun]) -> tuple[str, ...]:
    """Return the known causes of a worse forecast that apply to a curve with this largest learning rate."""
    length = curve.total_steps / max(run._length for run in runs)
    change_by_start = abs(float(terms.by_start))
    change_by_run = float(np.max(np.abs(terms.by_run), initial=0.0))
    is_longer_decay = length > _LONGER and falls_to_half(curve, curve.total_steps)
    has_shorter_warmup, has_longer_warmup = _compare_warmups(curve, runs)
    peak_ratio = 2 ** octaves_to_runs(peak, runs)
    is_peak_of_runs = any(is_one_peak(peak, run._largest_learning_rate(), run) for run in runs)
    reasons = {
        "a curve follows a batch plan, but the law counts every step as one update of the same batch": (
            any(each.unit is not None for each in (curve, *(run.curve for run in runs)))
        ),
        f"its peak is {peak_ratio:.3g} times that of the nearest run": not is_peak_of_runs,
        f"it has {length:.2g} times as many steps as the longest run": round(length, 1) > _LONG,
        f"it has {length:.3g} times as many steps as the longest run: curves this short came out too high": (
            length < _SHORT
        ),
        "no run had so short a warmup: the loss may be higher by tenths of a nat": has_shorter_warmup,
        "no run had so long a warmup: the loss may be lower by tenths of a nat": has_longer_warmup,
        f"it changes by {change_by_start:.2g} nats if the first fifth is left out": (
            change_by_start > _MAX_CHANGE_BY_START * terms.loss
        ),
        "each run alone forecasts something else": change_by_run > _MAX_CHANGE_BY_RUN * terms.loss,
        "from runs without a stage at constant learning rate, longer ones came out up to 2 % worse": (
            is_longer_decay and not any(map(_holds_learning_rate, runs))
        ),
    }
    return tuple(reason for reason, applies in reasons.items() if applies)


def _compare_warmups(curve: Curve, runs: Sequence[LossRun]) -> tuple[bool, bool]:
    """Return whether the warmup of a curve is shorter, and whether it is longer, than those of all runs.

    Warmups agree within a factor of 3, in steps or as fractions of the steps.
    """
    least, most = _warmup_bounds(curve, curve.total_steps)
    bounds = [
        (curve.total_steps / run.curve.total_steps, *_warmup_bounds(run.curve, run._last_step))
        for run in runs
    ]
    return (
        all(_WARMUP_FACTOR * max(most, 1) < low * min(length, 1) for length, low, _ in bounds),
        all(least > _WARMUP_FACTOR * max(high, 1) * max(length, 1) for length, _, high in bounds),
    )


def _warmup_bounds(curve: Curve, updates: int) -> tuple[int, int]:
    """Return the least and the greatest number of steps that the warmup before the peak may have.

    They differ for the learning rates of a log: its warmup ends between two of them.
    """
    steps = steps_at_borders(curve, updates)
    multipliers = curve(steps)
    end = int(steps[np.argmax(multipliers >= _NEAR_PEAK * multipliers.max())])
    begins = segment_begins(curve)
    is_logged = len(begins) > _MANY_SEGMENTS
    return (int(begins[begins < max(end, 1)][-1]) if is_logged else end), end


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
