"""Checks of the runs and of the fitted law: what cannot be fitted, and what to log instead."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.tools.forecasts.loss_groups import (
    AFTER_WARMUP,
    falls_to_half,
    fit_alone,
    group_losses,
    group_run,
    lacks_lrs,
    relative_sd,
    second_differences,
)
from plateau_jax.tools.forecasts.loss_law import (
    Law,
    LoggedLosses,
    fit_law,
    penalized_error,
)
from plateau_jax.tools.forecasts.loss_run import LossRun, last_step_of

_Floats = NDArray[np.float64]

_MIN_LOSSES = 20
_MAX_NOISE = 0.01
_MAX_RISE = 0.01
_MAX_MISFIT_OF_ONE = 0.005
_MAX_MISFIT_OF_SEVERAL = 0.008

# The limits below were chosen on published runs from eight sources. `_lags` raises one false alarm
# in 472 fits of raw losses. It detects a fraction of 0.87 to 0.96 of EMAs, with factors of 0.9 and
# 0.99, and of running means. `_BEGINNING_FACTOR` rejects none of 221 fits of raw losses, and 0.8 of
# 438 fits to runs without their beginning.
_MIN_LOSSES_FOR_LAGS = 120
_LAGS = 60
_MAX_NOISE_FACTOR = 2.0
_MAX_AUTOCORRELATION = 0.55
_MIN_LAW_ERROR = 1e-4
"""A law with a smaller relative error does not miss the losses."""

_ERROR_FACTOR = 2.0
_NOISE_OF_FORMULA = 1e-7
"""Losses with less noise were computed from a formula, not measured."""

_BEGINNING = 0.05
"""A log must begin before this fraction of the run for its losses to tell how the run began."""

_MIN_GROUPS_FOR_BEGINNING = 10

_EARLIER_PROGRESS = 0.1, 0.25, 0.5, 1.0
"""The values of S at step 0 that are tried, as fractions of the S of the run."""

_BEGINNING_FACTOR = 1.5
_MIN_ERROR = 1e-12

_LAG = (
    "the losses seem to lag, like an EMA or a running mean: log a validation loss, or means since "
    "the last logged loss"
)
_USE_LONGER_RUN = "use a longer run: the loss of this one may still be in its initial fast fall"
_LATE = (
    "the log seems to begin at a checkpoint. If it does, count steps from the first update of the "
    f"run, and give the run's curve. If not, {_USE_LONGER_RUN}"
)


def check_runs(runs: Sequence[LossRun], names: Sequence[str]) -> list[str]:
    """Reject runs that cannot be fitted; return what to warn of if the law fits.

    The warnings are about spikes, and about losses that seem to lag. A message about a run begins
    with its name.
    """
    if not any(falls_to_half(run.curve, last_step_of(run)) for run in runs):
        raise ValueError(
            "there is no run whose learning rate falls to half its peak: log a run with a decay"
        )
    advice: list[str] = []
    for run, name in zip(runs, names, strict=True):
        problem = _problem_of_run(run)
        if problem is not None:
            raise ValueError(f"{name}{problem}")
        spikes = group_run(run, AFTER_WARMUP).spikes
        if spikes.size:
            advice.append(f"{name}the loss spikes at step {_format_steps(spikes)}: left out")
        if _seems_to_lag(run):
            advice.append(f"{name}{_LAG}")
    return advice


def _format_steps(steps: NDArray[np.int64]) -> str:
    more = ", …" if len(steps) > 5 else ""
    return ", ".join(map(str, steps[:5])) + more


def _problem_of_run(run: LossRun) -> str | None:
    """Return why the losses of a run cannot be fitted, or None."""
    return (
        _problem_of_count(run)
        or _problem_of_noise(run)
        or _problem_of_rise(run)
        or _problem_of_beginning(run)
    )


def _problem_of_count(run: LossRun) -> str | None:
    groups = group_run(run, AFTER_WARMUP)
    count = len(groups.losses) + len(groups.spikes)
    if count >= _MIN_LOSSES:
        return None
    if lacks_lrs(run):
        return _missing_lrs(run)
    return (
        f"only {count} of {len(run.steps)} logged losses come after the warmup and 3 % of the run; "
        f"a fit needs at least {_MIN_LOSSES}: log the loss more often"
    )


def _problem_of_noise(run: LossRun) -> str | None:
    noise = _noise_of_groups(run)
    if noise > _MAX_NOISE:
        problem = f"the losses have a noise of {noise:.1%}, more than {_MAX_NOISE:.0%}"
        return f"{problem}: log a validation loss"
    return None


def _noise_of_groups(run: LossRun) -> float:
    return relative_sd(second_differences(group_run(run, AFTER_WARMUP).losses))


def _problem_of_rise(run: LossRun) -> str | None:
    """Return which loss exceeds the lowest earlier one, though the learning rate does not rise."""
    groups = group_run(run, AFTER_WARMUP)
    losses = groups.losses
    learning_rates = run.curve(groups.steps - 1)
    max_rise = _MAX_RISE + 4 * _noise_of_groups(run)
    for index in range(1, len(losses)):
        lowest = int(np.argmin(losses[:index]))
        if losses[index] - losses[lowest] <= max_rise * losses[lowest]:
            continue
        if np.all(learning_rates[lowest + 1 : index + 1] <= learning_rates[lowest]):
            before = f"{losses[lowest]:.4g} at step {groups.steps[lowest]}"
            after = f"{losses[index]:.4g} at step {groups.steps[index]}"
            cause = "while the learning rate does not: the run diverged or overfits"
            return f"the loss rises from {before} to {after}, {cause}"
    return None


def _problem_of_beginning(run: LossRun) -> str | None:
    if run.lrs_from is not None and run.lrs_from > _BEGINNING * last_step_of(run):
        return _missing_lrs(run)
    if _begins_late(run):
        return _LATE
    return None


def _missing_lrs(run: LossRun) -> str:
    return f"the learning rates before step {run.lrs_from} are missing: give the run's curve"


def _seems_to_lag(run: LossRun) -> bool:
    """Return True if the losses look like averages over earlier ones, and the law misses them."""
    logged = group_losses([run], AFTER_WARMUP)
    errors = fit_alone(run).losses(logged.progress, logged.noise) / logged.losses - 1
    losses = group_run(run, AFTER_WARMUP).raw_losses
    least = _MIN_LAW_ERROR
    if len(losses) < _MIN_LOSSES_FOR_LAGS:
        # So few losses differ so much from one to the next that their second differences are
        # correlated even without a lag.
        least = max(least, _ERROR_FACTOR * relative_sd(second_differences(logged.losses)))
    return bool(logged.weights @ errors**2 > least**2) and _lags(losses)


def _lags(losses: _Floats) -> bool:
    """Return True if each loss seems to be an average over more than one interval of logging.

    Let b(k) be the relative second differences of the n losses at lag k. The losses lag if the
    noise in b(n/60) is more than twice that in b(1), or if the autocorrelation of b(1) is above
    0.55; for independent noise it is -2/3. Losses that were computed from a formula are not
    tested: their eighth differences show that they have no noise.
    """
    binomials = math.comb(16, 8)  # the sum of the squares of 1, 8, 28, …
    if np.median(np.abs(np.diff(losses, 8) / losses[4:-4])) < _NOISE_OF_FORMULA * binomials**0.5:
        return False
    bends = second_differences(losses)
    if len(losses) >= _MIN_LOSSES_FOR_LAGS:
        distant = second_differences(losses, len(losses) // _LAGS)
        if relative_sd(distant) > _MAX_NOISE_FACTOR * relative_sd(bends):
            return True
    centered = bends - np.median(bends)
    return bool(centered[1:] @ centered[:-1] > _MAX_AUTOCORRELATION * (centered @ centered))


# These fits take longer than that of all runs, and a run is often fitted both alone and with
# others.
@lru_cache(256)
def _begins_late(run: LossRun) -> bool:
    """Return True if the losses of a run suggest that S was above 0 at step 0 already.

    The law is refitted with S + x·S_last for several x. Its least error is compared with that for
    x = 0. Return False for losses that lag: their fit says nothing about the beginning.
    """
    if run.steps[0] > _BEGINNING * last_step_of(run):
        return False
    later_run = _without_beginning(run)
    if len(group_run(later_run, AFTER_WARMUP).losses) < _MIN_GROUPS_FOR_BEGINNING:
        return False
    if _seems_to_lag(later_run):
        return False
    logged = group_losses([later_run], AFTER_WARMUP)
    error = penalized_error(logged, fit_alone(later_run))
    for fraction in _EARLIER_PROGRESS:
        later = replace(logged, progress=logged.progress + fraction * logged.progress_unit)
        least_error = penalized_error(later, fit_law(later))
        if error > _BEGINNING_FACTOR * least_error + _MIN_ERROR:
            return True
    return False


def _without_beginning(run: LossRun) -> LossRun:
    """Return a run without its first 5 %.

    So the result does not depend on how many early rows were logged.
    """
    is_later = run.steps > _BEGINNING * last_step_of(run)
    with suppress_warnings():
        return LossRun(run.curve, run.peak_value, run.steps[is_later], run.losses[is_later])


def problem_of_law(law: Law, relative_errors: _Floats, logged: LoggedLosses) -> str | None:
    """Return why a law does not describe the logged losses, or None.

    Noise is not autocorrelated, so autocorrelated errors are a misfit. Its size is the root of the
    mean product of neighboring errors.
    """
    if law.scale <= 0:
        return "the losses do not fall as the law says (its scale is 0): log a longer run"
    is_neighbor = logged.runs[1:] == logged.runs[:-1]
    products = (relative_errors[1:] * relative_errors[:-1])[is_neighbor]
    misfit = float(np.sqrt(max(0.0, products.mean())))
    if logged.runs[-1] == 0:
        most = _MAX_MISFIT_OF_ONE
        advice = _USE_LONGER_RUN
    else:
        most = _MAX_MISFIT_OF_SEVERAL
        advice = "fit runs of one model and one data set"
    if misfit <= most:
        return None
    return f"the law misses these losses by {misfit:.2%}. {advice.capitalize()}"
