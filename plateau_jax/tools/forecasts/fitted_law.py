"""The law fitted to runs with the same peak, and its forecasts of other curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.drawing.axes import LossLine, RunToDraw
from plateau_jax.tools.forecasts.forecast_reasons import check_length, list_reasons
from plateau_jax.tools.forecasts.logged_losses import AFTER_WARMUP, group_losses, law_applies_after
from plateau_jax.tools.forecasts.loss_checks import check_runs, problem_of_law
from plateau_jax.tools.forecasts.loss_forecast import LossDifference, LossForecast
from plateau_jax.tools.forecasts.loss_interval import ForecastTerms, RefittedLaws, refit_laws
from plateau_jax.tools.forecasts.loss_law import Law, fit_law, schedule_sums
from plateau_jax.tools.forecasts.loss_run import (
    LossRun,
    common_peak_value,
    group_by_peak,
    largest_lr_of,
    last_step_of,
    octaves_to_runs,
)
from plateau_jax.tools.logged_lrs.compare_log import check_counts_updates
from plateau_jax.tools.theory.curve_parts import largest_multiplier

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

_MAX_PEAK_FACTOR = 1.5
_DRAWN_STEPS = 100


def fit_unnamed_runs(runs: Sequence[LossRun]) -> "FittedLaw":
    """Fit one run, or several with the same peak; messages name a run by its index."""
    peaks = group_by_peak(runs)
    if len(peaks) > 1:
        listed = ", ".join(f"{peak:g}" for peak in peaks)
        raise ValueError(f"the runs have several peaks, {listed}: fit the runs of each peak alone")
    names = [""]
    if len(runs) > 1:
        names = [f"runs[{index}]: " for index in range(len(runs))]
    return fit_named_runs(runs, names)


def fit_named_runs(runs: Sequence[LossRun], names: Sequence[str]) -> "FittedLaw":
    """Fit runs with the same peak; messages about a run begin with its name."""
    advice = check_runs(runs, names)
    logged = group_losses(runs, AFTER_WARMUP)
    law = fit_law(logged)
    errors = law.losses(logged.progress, logged.noise) - logged.losses
    problem = problem_of_law(law, errors / logged.losses, logged)
    if problem is not None:
        raise ValueError("; ".join([problem, *advice]))
    for message in advice:
        warn(message)
    residual_sd = float(np.sqrt(logged.weights @ errors**2))
    return FittedLaw(law, residual_sd, tuple(runs))


class Prediction(NamedTuple):
    """A forecast of a curve, and the values from which the difference to another one is computed.

    Attributes:
        forecast: The forecast.
        terms: Its terms.
        curve: The curve.
        peak_value: Its peak.
    """

    forecast: LossForecast
    terms: ForecastTerms
    curve: Curve
    peak_value: float


@dataclass(frozen=True, eq=False)
class FittedLaw:
    """The law fitted to runs, with the forecasts of `LossFit` for curves that are built already.

    Attributes:
        law: The law.
        residual_sd, runs: As in `LossFit`.
    """

    law: Law
    residual_sd: float
    runs: tuple[LossRun, ...]

    @cached_property
    def refits(self) -> RefittedLaws:
        """The refits for the intervals, which take longer than the fit."""
        return refit_laws(self.law, group_losses(self.runs, AFTER_WARMUP), self.runs)

    def predict(self, curve: Curve, peak_value: float | None) -> Prediction:
        """Return the forecast for the last step of a curve, with the terms for differences."""
        peak = self._check_peak(curve, peak_value)
        terms = self._terms(curve, peak, np.array(curve.total_steps))
        loss = float(terms.loss)
        half = float(terms.half_width(self.residual_sd))
        largest_lr = peak * largest_multiplier(curve, curve.total_steps)
        reasons = list_reasons(curve, largest_lr, self.runs)
        forecast = LossForecast(loss, loss - half, loss + half, reasons)
        return Prediction(forecast, terms, curve, peak)

    def difference(self, prediction: Prediction, first: Prediction) -> LossDifference:
        """Return the difference of a forecast to the first one."""
        steps = first.curve.total_steps
        is_as_long = prediction.curve.total_steps == steps
        has_same_peak = prediction.peak_value == first.peak_value
        if is_as_long and has_same_peak and prediction.curve.same_until(first.curve, steps):
            return LossDifference(0.0, 0.0, 0.0)
        difference, half = prediction.terms.minus(first.terms, self.residual_sd)
        return LossDifference(difference, difference - half, difference + half)

    def losses(self, curve: Curve, steps: ArrayLike, peak_value: float | None) -> _Floats:
        """Evaluate the law at steps of a curve."""
        peak = self._check_peak(curve, peak_value)
        progress, noise = schedule_sums(curve, peak, _check_steps(steps, curve))
        with np.errstate(divide="ignore"):
            return np.asarray(self.law.losses(progress, noise))

    def line(self, curve: Curve, peak_value: float | None, name: str = "") -> LossLine:
        """Return a forecast over the steps of a curve, to be drawn."""
        peak = self._check_peak(curve, peak_value)
        steps = _steps_to_draw(curve, curve.total_steps)
        terms = self._terms(curve, peak, steps)
        return LossLine(name, steps, terms.loss, terms.half_width(self.residual_sd))

    def run_to_draw(self, run: LossRun) -> RunToDraw:
        """Return the logged losses of a run and the law, from where it applies."""
        steps = _steps_to_draw(run.curve, last_step_of(run))
        is_drawn = run.steps >= steps[0]
        progress, noise = schedule_sums(run.curve, run.peak_value, steps)
        fitted = self.law.losses(progress, noise)
        return RunToDraw(run.steps[is_drawn], run.losses[is_drawn], steps, fitted)

    def _check_peak(self, curve: Curve, peak_value: float | None) -> float:
        """Check a curve to forecast and its peak, by default that of the runs."""
        check_counts_updates(curve)
        check_length(curve, self.runs)
        if peak_value is None:
            peak = common_peak_value(self.runs)
        else:
            peak = float(checks.number("peak_value", peak_value))
        largest_lr = peak * largest_multiplier(curve, curve.total_steps)
        if not largest_lr > 0:
            raise ValueError(
                f"curve = {checks.short_repr(curve)} has no positive learning rate with peak_value "
                f"= {peak:g}"
            )
        if abs(octaves_to_runs(largest_lr, self.runs)) > math.log2(_MAX_PEAK_FACTOR) + 1e-9:
            peak_of_runs = max(largest_lr_of(run) for run in self.runs)
            raise ValueError(
                f"the curve's largest learning rate, {largest_lr:g}, is more than a factor of "
                f"{_MAX_PEAK_FACTOR:g} from that of the runs, {peak_of_runs:g}: log a run with a "
                "nearer peak"
            )
        return peak

    def _terms(self, curve: Curve, peak: float, steps: _Steps) -> ForecastTerms:
        progress, noise = schedule_sums(curve, peak, steps)
        largest_lr = peak * largest_multiplier(curve, curve.total_steps)
        return self.refits.terms(progress, noise, octaves_to_runs(largest_lr, self.runs))


def _check_steps(steps: ArrayLike, curve: Curve) -> _Steps:
    array = np.asarray(steps)
    if array.dtype.kind not in "iu":
        raise TypeError(f"steps = {checks.short_repr(steps)} must be integers")
    if array.size and not 1 <= array.min() <= array.max() <= curve.total_steps:
        raise ValueError(
            f"steps = {checks.short_repr(steps)} must lie in 1 … total_steps = {curve.total_steps}"
        )
    return array.astype(np.int64)


def _steps_to_draw(curve: Curve, last_step: int) -> _Steps:
    """Return steps for a smooth line, from the first to which the law applies."""
    first = min(int(law_applies_after(curve, last_step)) + 1, last_step)
    return np.unique(np.linspace(first, last_step, _DRAWN_STEPS).astype(np.int64))
