"""Fit the law of the loss to the logged losses of one run or several."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from plateau_jax.forecasts.logged_losses import group_losses
from plateau_jax.forecasts.loss_checks import check_misfit, check_runs
from plateau_jax.forecasts.loss_fit import LossFit
from plateau_jax.forecasts.loss_law import fit_law
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.forecasts.run_peaks import indices_by_peak
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import warn


def fit_losses(runs: LossRun | Iterable[LossRun]) -> LossFit:
    """Fit the law of the loss to the logged losses of one run, or of several of one model, data set and peak.

    With s_0 … s_{t-1} the learning rates of the t updates before a logged loss, those that are 0 left out,
    and m the largest of them:

        loss(t) = floor + scale·(S(t)/S₀)^-α + noise·(N(t)/p₀)^0.8,   floor, scale, noise >= 0
        S(t) = Σ s^0.9
        N(t) = Σ s²/(2 Σ s) + ½ Σ_{k<t-1} s_k/(Σ_{j>k} s_j + m/10) · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)

    S₀ is the largest S of these losses and p₀ the largest learning rate of the runs: units only. α in
    [0.05, 1.5] minimizes the mean squared relative error plus (0.02·(α - 0.44))², and the other three follow
    by non-negative least squares. Losses count from 3 % of the run after the warmup on, without spikes (one
    or two that exceed both neighbors by 1 % plus six times the noise), and are averaged in at most 60 groups
    per run. The weight of a run grows with the square of its last logged step; the last 5 % of its steps
    weigh one half.

    Log a validation loss, or means of training losses over the interval since the last logged loss, not an
    EMA or a running mean. Warns of spikes, and of losses that seem to lag, as an EMA does. `docs/forecast.md`
    says how they are found, when to trust a forecast, and how well it did on published runs.

    Sources: S^-α as in Tissue et al. 2024, arXiv:2408.11029, and Luo et al. 2025, arXiv:2503.12811. N is the
    noise term of the bound in `compare` (Defazio et al. 2023, arXiv:2310.07831; Schaipp et al. 2025,
    arXiv:2501.18965), but for m/10. The powers 0.9 and 0.8, the center 0.44 and the weights were chosen on
    data.

    Args:
        runs: One `LossRun`, or several of one peak, each log once: their largest learning rates agree within
            10⁻⁶, or 5 % if one was read from a log, which may miss the peak. Step 0 must be the first update
            of a run. The learning rate of at least one must fall to half its peak.

    Returns:
        The fit; it is deterministic.

    Raises:
        TypeError: A run is not a `LossRun`.
        ValueError: The law does not describe these losses, they are too few, the noise of the averaged groups
            is above 1 %, or a log seems to begin at a checkpoint: the message says what to log instead. The
            runs have several peaks.

    >>> import numpy as np
    >>> from plateau_jax import LossRun, PlateauCurve, fit_losses
    >>> curve, steps = PlateauCurve(1000, warmup_steps=50), np.arange(100, 1001, 25)
    >>> run = LossRun(curve, 1e-3, steps, 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps))
    >>> fit = fit_losses(run)
    >>> [round(number, 3) for number in (fit.floor, fit.exponent, fit.residual_sd)]
    [2.374, 0.439, 0.001]
    >>> longer = fit.predict(PlateauCurve(2000, warmup_steps=50))
    >>> print(f"{longer.low:.2f} to {longer.high:.2f}, after {run.losses[-1]:.2f}")
    2.52 to 2.55, after 2.56
    """
    runs = _checked_runs(runs)
    if not runs:
        raise ValueError("there is no run: write fit_losses([run, ...])")
    peaks = indices_by_peak(runs)
    if len(peaks) > 1:
        several = f"the runs have several peaks, {', '.join(f'{peak:g}' for peak in peaks)}"
        raise ValueError(f"{several}: fit the runs of each peak alone")
    names = [""]
    if len(runs) > 1:
        names = [f"runs[{index}]: " for index in range(len(runs))]
    return fit_named_runs(runs, names)


def fit_named_runs(runs: Sequence[LossRun], names: Sequence[str]) -> LossFit:
    """Fit runs of one peak; messages about a run begin with its name."""
    advice = check_runs(runs, names)
    logged = group_losses(runs)
    law = fit_law(logged)
    errors = law.losses(logged.progress, logged.noise) - logged.losses
    try:
        check_misfit(law, errors / logged.losses, logged)
    except ValueError as error:
        raise ValueError("; ".join([str(error), *advice])) from None
    residual_sd = float(np.sqrt(logged.weights @ errors**2))
    for message in advice:
        warn(message)
    return LossFit(law.floor, law.scale, law.alpha, law.noise, residual_sd, tuple(runs))


def _checked_runs(runs: Any) -> tuple[LossRun, ...]:
    """Return one run or several as a tuple."""
    runs = (runs,) if isinstance(runs, LossRun) else tuple(runs) if checks.is_ordered(runs) else (runs,)
    for run in runs:
        if not isinstance(run, LossRun):
            raise TypeError(
                f"{checks.short_repr(run)} must be a LossRun: write LossRun(curve, peak, steps, losses)"
            )
    return runs
