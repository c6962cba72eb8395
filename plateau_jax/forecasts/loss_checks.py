"""Checks of the runs and of the fitted law: what cannot be fitted, and what to log instead."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plateau_jax.forecasts.logged_losses import (
    AFTER_WARMUP,
    Groups,
    falls_to_half,
    group_losses,
    group_run,
    noise_of,
    second_differences,
)
from plateau_jax.forecasts.loss_law import Law, LoggedLosses, fit_law, penalized_error
from plateau_jax.forecasts.loss_run import LossRun

_Floats = NDArray[np.float64]

_FEWEST_LOSSES = 20
_MAX_NOISE = 0.01
_MAX_RISE = 0.01
_MAX_MISFIT_OF_ONE = 0.005
_MAX_MISFIT_OF_SEVERAL = 0.008

# The limits below were chosen on published runs of eight sources. `_lags` has one false alarm in 472 fits of
# raw losses, and catches 0.87 to 0.96 of EMAs with the factors 0.9 and 0.99 and of running means.
# `_START_FACTOR` rejects none of 776 fits of raw losses, and 0.9 of those without the beginning of the run.
_FEWEST_TO_COMPARE_LAGS = 120
_LAGS = 60
_MAX_NOISE_FACTOR = 2.0
_MAX_AUTOCORRELATION = 0.55
_NOISELESS = 1e-4
_ERROR_FACTOR = 2.0
_FORMULA = 1e-7

_EARLIER_UPDATES = 0.1, 0.25, 0.5, 1.0
"""Fractions of S of a run that a checkpoint at step 0 may have had already."""

_START_FACTOR = 1.5
_LATE_START_FACTOR = 5.0
"""For learning rates that a log has from a later step on, as the fit says. With the first 20 % left out, ten
of thirteen published runs had 9 or more; with 5 %, eight had less than 3."""

_LEAST_ERROR = 1e-12

_LAG = (
    "the losses seem to lag, like an EMA or a running mean: log a validation loss, or means since the last "
    "logged loss"
)
_LATE = "the log seems to begin at a checkpoint: step 0 must be the first update of the run"


def check_runs(runs: Sequence[LossRun], names: Sequence[str]) -> list[str]:
    """Reject runs that cannot be fitted; return warnings, for when the law fits.

    They are about spikes, and losses that seem to lag. Messages about a run begin with its name.
    """
    if not any(falls_to_half(run.curve, run._last_step) for run in runs):
        raise ValueError("no run's learning rate falls to half its peak: log a run with a decay")
    advice: list[str] = []
    for run, name in zip(runs, names, strict=True):
        groups = group_run(run, AFTER_WARMUP)
        lags, begins_late = False, False
        problem = _problem_of(run, groups)
        if problem is None:
            lags, begins_late = _history(run)
        if begins_late:
            problem = _LATE
            if run._lrs_from:
                problem = f"the learning rates before step {run._lrs_from} are missing: give the run's curve"
        if problem is not None:
            raise ValueError(f"{name}{problem}")
        if groups.spikes.size:
            advice.append(f"{name}the loss spikes at step {_listed(groups.spikes)}: left out")
        if lags:
            advice.append(f"{name}{_LAG}")
    return advice


def _listed(steps: NDArray[np.int64]) -> str:
    more = ", …" if len(steps) > 5 else ""
    return ", ".join(map(str, steps[:5])) + more


def _problem_of(run: LossRun, groups: Groups) -> str | None:
    """Return why the losses of a run cannot be fitted, or None."""
    losses = groups.losses
    if len(losses) + len(groups.spikes) < _FEWEST_LOSSES:
        counted = f"{len(losses)} of {len(run.steps)} logged losses come after the warmup"
        return f"{counted} and {AFTER_WARMUP:.0%} of the run, not at least {_FEWEST_LOSSES}: log more often"
    noise = noise_of(second_differences(losses))
    if noise > _MAX_NOISE:
        return f"the losses have a noise of {noise:.1%}, more than {_MAX_NOISE:.0%}: log a validation loss"
    learning_rates = run.curve(groups.steps - 1)
    for index in range(1, len(losses)):
        lowest = int(np.argmin(losses[:index]))
        rise = losses[index] - losses[lowest]
        if rise <= (_MAX_RISE + 4 * noise) * losses[lowest]:
            continue
        if np.all(learning_rates[lowest + 1 : index + 1] <= learning_rates[lowest]):
            before = f"{losses[lowest]:.4g} at step {groups.steps[lowest]}"
            after = f"{losses[index]:.4g} at step {groups.steps[index]}"
            cause = "while the learning rate does not: the run diverged or overfits"
            return f"the loss rises from {before} to {after}, {cause}"
    return None


# The five fits take longer than that of all runs, and a run is often fitted both alone and with another.
@lru_cache(256)
def _history(run: LossRun) -> tuple[bool, bool]:
    """Return whether the losses of a run lag, and if not, whether there were updates before its first one.

    An average that lags is large at first, as that of a log with earlier updates is small.
    """
    logged = group_losses([run])
    law = fit_law(logged)
    errors = law.losses(logged.progress, logged.noise) / logged.losses - 1
    losses = group_run(run, AFTER_WARMUP).logged
    least = _NOISELESS
    if len(losses) < _FEWEST_TO_COMPARE_LAGS:
        # They fall so much from one to the next that this alone correlates their second differences.
        least = max(least, _ERROR_FACTOR * noise_of(second_differences(logged.losses)))
    lags = bool(logged.weights @ errors**2 > least**2) and _lags(losses)
    factor = _LATE_START_FACTOR if run._lrs_from else _START_FACTOR
    return lags, not lags and _begins_late(logged, penalized_error(logged, law), factor)


def _lags(losses: _Floats) -> bool:
    """Return True if logged losses seem to be averages over more than the interval since the last one.

    With b(k) the relative second differences at distance k, and n losses, this is so if the noise in b(n/60)
    is more than twice that in b(1), or if the autocorrelation of b(1) is above 0.55: independent noise has
    -2/3. Losses of a formula have no noise at all, which their eighth differences show.
    """
    binomials = math.comb(16, 8)  # the sum of the squares of 1, 8, 28, …
    if np.median(np.abs(np.diff(losses, 8) / losses[4:-4])) < _FORMULA * binomials**0.5:
        return False
    bends = second_differences(losses)
    if len(losses) >= _FEWEST_TO_COMPARE_LAGS:
        distant = second_differences(losses, len(losses) // _LAGS)
        if noise_of(distant) > _MAX_NOISE_FACTOR * noise_of(bends):
            return True
    centered = bends - np.median(bends)
    return bool(centered[1:] @ centered[:-1] > _MAX_AUTOCORRELATION * (centered @ centered))


def _begins_late(logged: LoggedLosses, error: float, factor: float) -> bool:
    """Return True if the losses of a run suggest a larger S at step 0 than 0.

    The law is fitted again with S + x·S_last for some x, and its least error compared with that of x = 0.
    """
    for fraction in _EARLIER_UPDATES:
        later = replace(logged, progress=logged.progress + fraction * logged.progress_unit)
        if error > factor * penalized_error(later, fit_law(later)) + _LEAST_ERROR:
            return True
    return False


def problem_of_law(law: Law, relative_errors: _Floats, logged: LoggedLosses) -> str | None:
    """Return why a law does not describe the logged losses, or None.

    Autocorrelated errors are a misfit: noise has no memory. Their size is the root of the mean product of
    neighbors.
    """
    if law.scale <= 0:
        return "the losses do not fall as the law says (its scale is 0): log a longer run"
    is_neighbor = logged.runs[1:] == logged.runs[:-1]
    products = (relative_errors[1:] * relative_errors[:-1])[is_neighbor]
    misfit = float(np.sqrt(max(0.0, products.mean())))
    is_one = logged.runs[-1] == 0
    if misfit <= (_MAX_MISFIT_OF_ONE if is_one else _MAX_MISFIT_OF_SEVERAL):
        return None
    advice = "fit runs of one model and one data set"
    if is_one:
        advice = "log a longer run, past the first fast phase"
    return f"the law misses these losses by {misfit:.2%}: {advice}"
