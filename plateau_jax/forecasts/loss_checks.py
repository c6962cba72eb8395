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
from plateau_jax.numerics.exact_segments import end_of_rise

_Floats = NDArray[np.float64]

LEAST_READINGS = 20
MAX_NOISE = 0.01
MAX_RISE = 0.01
MAX_MISFIT_OF_ONE = 0.005
MAX_MISFIT_OF_SEVERAL = 0.008

MEANS = "each over the interval since the last logged loss (no EMA, no running mean)"

# The limits below were chosen on published runs of eight sources. `_lags` has one false alarm in 472 fits of
# raw losses, and catches 0.87 to 0.96 of EMAs with the factors 0.9 and 0.99 and of running means.
# `_START_FACTOR` rejects none of 776 fits of raw losses, and 0.9 of those without the beginning of the run.
_LEAST_TO_COMPARE_LAGS = 120
_LAGS = 60
_MAX_NOISE_FACTOR = 2.0
_MAX_AUTOCORRELATION = 0.55
_NOISELESS = 1e-4
_ERROR_FACTOR = 2.0
_FORMULA = 1e-7

_EARLIER_UPDATES = 0.1, 0.25, 0.5, 1.0
"""Fractions of S of a run that a checkpoint at step 0 may have had already."""

_START_FACTOR = 1.5
_LEAST_ERROR = 1e-12


def check_runs(runs: Sequence[LossRun], names: Sequence[str]) -> list[str]:
    """Reject runs that cannot be fitted; return warnings, for when the law fits.

    They are about spikes, and losses that seem to lag. Messages about a run begin with its name.
    """
    if not any(falls_to_half(run.curve, run._last_step) for run in runs):
        raise ValueError(
            "no run's learning rate falls to half its peak by its last logged loss, so the losses cannot "
            "tell what a decay brings: log a run with a decay, or a cooldown of one of these runs"
        )
    advice: list[str] = []
    for run, name in zip(runs, names, strict=True):
        groups = group_run(run, AFTER_WARMUP)
        try:
            _check_losses(run, groups)
            lags, begins_late = _history(run)
            if begins_late:
                raise ValueError(
                    "the log seems to begin at a checkpoint: step 0 must be the first update of the run; if "
                    "it is, log a longer run, because the law fails in the first fast phase of a small model"
                )
        except ValueError as error:
            raise ValueError(f"{name}{error}") from None
        if groups.spikes.size:
            steps = ", ".join([*map(str, groups.spikes[:5]), *["…"][: len(groups.spikes) > 5]])
            advice.append(f"{name}the loss spikes at step {steps}: left out")
        if lags:
            lag = "the losses seem to lag, like an EMA or a running mean, so the forecasts are wrong: "
            advice.append(f"{name}{lag}log a validation loss, or means of training losses, {MEANS}")
    return advice


# The five fits take longer than that of all runs, and a run is often fitted both alone and with another.
@lru_cache(256)
def _history(run: LossRun) -> tuple[bool, bool]:
    """Return whether the losses of a run lag, and if not, whether there were updates before its first one.

    An average that lags is large at first, as that of a log with earlier updates is small.
    """
    logged = group_losses([run])
    law = fit_law(logged)
    errors = law.losses(logged.progress, logged.noise) / logged.losses - 1
    losses, least = group_run(run, AFTER_WARMUP).logged, _NOISELESS
    if len(losses) < _LEAST_TO_COMPARE_LAGS:
        # They fall so much from one to the next that this alone correlates their second differences.
        least = max(least, _ERROR_FACTOR * noise_of(second_differences(logged.losses)))
    lags = bool(logged.weights @ errors**2 > least**2) and _lags(losses)
    return lags, not lags and _begins_late(logged, penalized_error(logged, law))


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
    lag = len(losses) // _LAGS
    is_long = len(losses) >= _LEAST_TO_COMPARE_LAGS
    if is_long and noise_of(second_differences(losses, lag)) > _MAX_NOISE_FACTOR * noise_of(bends):
        return True
    centered = bends - np.median(bends)
    return bool(centered[1:] @ centered[:-1] > _MAX_AUTOCORRELATION * (centered @ centered))


def _begins_late(logged: LoggedLosses, error: float) -> bool:
    """Return True if the losses of a run suggest a larger S at step 0 than 0.

    The law is fitted again with S + x·S_last for some x, and its least error compared with that of x = 0.
    """
    for fraction in _EARLIER_UPDATES:
        later = replace(logged, progress=logged.progress + fraction * logged.progress_unit)
        if error > _START_FACTOR * penalized_error(later, fit_law(later)) + _LEAST_ERROR:
            return True
    return False


def check_misfit(law: Law, relative_errors: _Floats, logged: LoggedLosses) -> None:
    """Reject a law that does not describe the logged losses.

    Autocorrelated errors are a misfit: noise has no memory. Their size is the root of the mean product of
    neighbors.
    """
    if law.scale <= 0:
        raise ValueError(
            "the losses do not fall with training as the law says (its scale is 0): log a longer run, or a "
            "validation loss"
        )
    is_neighbor = logged.runs[1:] == logged.runs[:-1]
    products = (relative_errors[1:] * relative_errors[:-1])[is_neighbor]
    misfit = float(np.sqrt(max(0.0, products.mean())))
    is_one = logged.runs[-1] == 0
    if misfit > (MAX_MISFIT_OF_ONE if is_one else MAX_MISFIT_OF_SEVERAL):
        raise ValueError(
            f"the law misses these losses by {misfit:.2%}, which is more than noise: "
            + (
                "it fails in the first fast phase of a small model and if data repeat; log a longer run"
                if is_one
                else "fit runs of one model and one data set, or one run alone"
            )
        )


def _check_losses(run: LossRun, groups: Groups) -> None:
    losses = groups.losses
    if len(losses) + len(groups.spikes) < LEAST_READINGS:
        raise ValueError(
            f"{len(losses)} of {len(run.steps)} logged losses come after the warmup, which ends at step "
            f"{end_of_rise(run.curve.rows)}, and another {AFTER_WARMUP:.0%} of the run; a fit needs at least "
            f"{LEAST_READINGS}: log the loss more often"
        )
    noise = noise_of(second_differences(losses))
    if noise > MAX_NOISE:
        raise ValueError(
            f"the losses have a noise of {noise:.1%}, more than {MAX_NOISE:.0%}: log a validation loss, or "
            "the mean of more training losses, " + MEANS
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
