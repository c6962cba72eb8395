"""`fit_losses` and `LossFit`: fit the law of the loss, and forecast the loss of other curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.tools.drawing.legend import legend_labels
from plateau_jax.tools.drawing.plots import name_curves
from plateau_jax.tools.forecasts.forecast_reasons import check_length, list_reasons
from plateau_jax.tools.forecasts.loss_checks import check_runs, problem_of_law
from plateau_jax.tools.forecasts.loss_forecast import LossComparison, LossDifference, LossForecast
from plateau_jax.tools.forecasts.loss_groups import AFTER_WARMUP, group_losses, law_applies_after
from plateau_jax.tools.forecasts.loss_interval import ForecastTerms, RefittedLaws, refit_laws
from plateau_jax.tools.forecasts.loss_law import Law, fit_law, schedule_sums
from plateau_jax.tools.forecasts.loss_plot import LossLine, RunToDraw, draw_losses
from plateau_jax.tools.forecasts.loss_run import (
    LossRun,
    common_peak_value,
    group_by_peak,
    largest_lr_of,
    last_step_of,
    octaves_to_runs,
)
from plateau_jax.tools.logged_lrs.compare_log import check_counts_updates
from plateau_jax.tools.theory.step_bins import largest_multiplier

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

_MAX_PEAK_FACTOR = 1.5
_DRAWN_STEPS = 100


def fit_losses(runs: LossRun | Iterable[LossRun]) -> "LossFit":
    """Fit the law of the loss to the logged losses of one run, or of several.

    Several runs must share the model, the data set and the peak learning rate.

    Let s_0, …, s_{t-1} be the learning rates of the t updates before a logged loss, without those
    that are 0, and m the largest of them. Then

        loss(t) = floor + scale·(S(t)/S₀)^-α + noise·(N(t)/p₀)^0.8,   floor, scale, noise >= 0
        S(t) = Σ s^0.9
        N(t) = Σ s²/(2 Σ s) + ½ Σ_{k<t-1} s_k/(Σ_{j>k} s_j + m/10) · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)

    S₀, the largest S of the logged losses, and p₀, the largest learning rate of the runs, only set
    the units. The fit minimizes the weighted mean of the squared relative errors plus
    (0.02·(α - 0.44))², with α in [0.05, 1.5]. For each α, floor, scale and noise follow by
    non-negative least squares.

    The fit uses the losses after the warmup and a further 3 % of the run. It leaves out spikes: one
    or two losses that exceed both neighbors by 1 % plus six times the noise. It averages the losses
    in at most 60 groups per run. The weight of a run is proportional to the square of its last
    logged step, and the losses in the last 5 % of its steps have half of this weight.

    Warns (`CurveWarning`) of spikes, and of losses that seem to lag, like an EMA.
    `docs/forecast.md` says what to log.

    Sources: S^-α as in Tissue et al. 2024, arXiv:2408.11029, and Luo et al. 2025, arXiv:2503.12811.
    N is the term T₂ of the bound in `compare`, with m/10 added to one denominator. The powers and
    weights were chosen on published runs.

    Args:
        runs: One `LossRun`, or several with the same peak: their largest learning rates must agree
            within 10⁻⁶, or within 5 % if those of a run were read from its log, which may miss the
            peak. The learning rate of at least one run must fall to half its peak.

    Returns:
        The fit, which is deterministic.

    Raises:
        TypeError: A run is not a `LossRun`.
        ValueError: The law does not describe these losses, there are too few, they are too noisy,
            or a log seems to begin at a checkpoint: the message says what to log instead. The runs
            have different peaks.

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
    checked = _check_runs(runs)
    return fit_runs(checked, [f"runs[{index}]" for index in range(len(checked))])


def fit_runs(runs: Sequence[LossRun], names: Sequence[str]) -> "LossFit":
    """Fit one run, or several with the same peak; with several, messages begin with a name."""
    peaks = group_by_peak(runs)
    if len(peaks) > 1:
        listed = ", ".join(f"{peak:g}" for peak in peaks)
        raise ValueError(f"the runs have several peaks, {listed}: fit only those of one")
    prefixes = [f"{name}: " if len(runs) > 1 else "" for name in names]
    advice = check_runs(runs, prefixes)
    logged = group_losses(runs, AFTER_WARMUP)
    law = fit_law(logged)
    errors = law.losses(logged.progress, logged.noise) - logged.losses
    problem = problem_of_law(law, errors / logged.losses, logged)
    if problem is not None:
        raise ValueError("; ".join([problem, *advice]))
    for message in advice:
        warn(message)
    residual_sd = float(np.sqrt(logged.weights @ errors**2))
    return LossFit(law.floor, law.scale, law.alpha, law.noise, residual_sd, tuple(runs), law)


def _check_runs(runs: Any) -> list[LossRun]:
    """Return one run, or several, as a list."""
    items: list[Any] = [runs]
    if checks.is_ordered(runs) and not isinstance(runs, LossRun):
        items = list(runs)
    for run in items:
        if not isinstance(run, LossRun):
            raise TypeError(
                f"{checks.short_repr(run)} must be a LossRun: write LossRun(curve, peak, steps, "
                "losses)"
            )
    return items


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
class LossFit:
    """The law of the loss, fitted to the logged losses of one run or several; see `fit_losses`.

    Attributes:
        floor, scale, exponent, noise: The numbers of the law; `exponent` is α, and the others are
            in units of the loss.
        residual_sd: Weighted root mean square of the fit's errors, in units of the loss.
        runs: The runs, a tuple.

    >>> import numpy as np
    >>> from plateau_jax import LossRun, PlateauCurve, fit_losses
    >>> curve, steps = PlateauCurve(1000, warmup_steps=50), np.arange(100, 1001, 25)
    >>> fit = fit_losses(LossRun(curve, 1e-3, steps, 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps)))
    >>> fit.losses(curve, [500, 1000]).round(2)
    array([2.65, 2.56])
    """

    floor: float
    scale: float
    exponent: float
    noise: float
    residual_sd: float
    runs: tuple[LossRun, ...]
    _law: Law = field(repr=False)

    def predict(self, curve: Curve, peak_value: float | None = None) -> LossForecast:
        """Forecast the loss after the last step of a curve.

            loss ± 2 √(sd² + a² + q² + (1.5 c)² + d² + (0.003 loss)² + k²)

        sd is `residual_sd`. a and q are half the difference between the forecasts of two further
        fits: a with the exponents α ± 0.06, q with the powers 0.6 and 1.0 of N instead of 0.8. c is
        the change of the forecast if the fit leaves out the first 20 % of each run after its
        warmup, or 0 if a run then has fewer than 8 averages. d is the largest abs(δ) of the runs
        with a decay: δ is the forecast of a fit to that run alone minus the forecast of the fit to
        all runs. With one run, d is 0. k is 0.01 loss ∣log₂(peak/peak of the nearest run)∣.

        Args:
            curve: Any curve with more than a tenth of the steps of the longest run, and at most
                four times as many.
            peak_value: The peak learning rate of the curve; by default that of the runs. The
                largest learning rate must be within a factor of 1.5 of that of a run.

        Returns:
            A named tuple of `loss`, `low`, `high` and `reasons`: the forecast, the limits of its
            interval, and a tuple of texts, the known reasons why it is less certain. `print` also
            says on which runs the intervals were tested. If the warmup differs too much from that
            of every run, it shows the interval as unknown.

        Raises:
            TypeError: `curve` is not a `Curve`, or `peak_value` not a number.
            ValueError: The curve is too long or too short, or the peak too far from that of the
                runs. `peak_value` is left out, but the runs have different ones.
        """
        return self._predict(check_curve("curve", curve), peak_value).forecast

    def losses(self, curve: Curve, steps: ArrayLike, peak_value: float | None = None) -> _Floats:
        """Evaluate the law at steps of a curve, in about a millisecond per step.

        Args:
            curve: As for `predict`.
            steps: Integers, numbers of updates in 1 … total_steps, of any shape.
            peak_value: As for `predict`.

        Returns:
            Losses, float64, of the shape of `steps`; infinite before the first update with a
            positive learning rate.

        Raises:
            TypeError, ValueError: As `predict`; a step out of range.
        """
        curve = check_curve("curve", curve)
        peak, _ = self._check_peak(curve, peak_value)
        progress, noise = schedule_sums(curve, peak, _check_steps(steps, curve))
        with np.errstate(divide="ignore"):
            return np.asarray(self._law.losses(progress, noise))

    def compare(
        self, curves: Mapping[str, Curve], peak_value: float | None = None
    ) -> LossComparison:
        """Forecast several curves, and their differences to the first.

            difference ± 2 √(sd² + Δa² + Δq² + (1.5 Δc)² + D² + (0.0025 loss of the first)² + Δk²)

        Δ is the difference between a term of `predict` for the curve and for the first curve. D is
        the largest abs(Δδ) of a run.

        Args:
            curves: A mapping from names to curves.
            peak_value: As for `predict`, for all of them.

        Returns:
            Three tuples with an entry per curve: `names`; `forecasts`, as `predict` returns them;
            and `differences`. A difference is a named tuple of `difference`, the loss of this curve
            minus that of the first, and the limits of its interval, `low` and `high`. Its
            `is_distinguishable` is True if the interval excludes 0. If a curve equals the first,
            all three numbers are 0. If the warmup of one of the two curves differs too much from
            that of every run, the interval is unknown: see the `reasons` of both forecasts. `print`
            and notebooks show a table, and say on which runs the intervals were tested.

        Raises:
            TypeError, ValueError: As `predict`; `curves` is not a mapping, or is empty.
        """
        if not isinstance(curves, Mapping):
            raise TypeError(
                "curves must be a mapping from names to curves: write fit.compare({'name': curve})"
            )
        if not curves:
            raise ValueError("there is no curve: write fit.compare({'name': curve, ...})")
        predictions: list[Prediction] = []
        for name, value in curves.items():
            curve = check_curve(f"curves[{checks.short_repr(name)}]", value)
            predictions.append(self._predict(curve, peak_value))
        first = predictions[0]
        return LossComparison(
            names=tuple(map(str, curves)),
            forecasts=tuple(prediction.forecast for prediction in predictions),
            differences=tuple(self._difference(prediction, first) for prediction in predictions),
        )

    def plot(
        self,
        curves: Curve | Iterable[Curve] | Mapping[str, Curve] | None = None,
        *,
        peak_value: float | None = None,
        ax: Any = None,
    ) -> Any:
        """Plot the logged losses, the fitted law, and forecasts with their intervals.

        Needs matplotlib.

        Args:
            curves: One curve, several, or a mapping from names to curves, to forecast. Default:
                none.
            peak_value: As for `predict`, for all of them.
            ax: The matplotlib Axes to draw into; the current ones by default.

        Returns:
            The Axes.

        Raises:
            TypeError, ValueError: As `predict`.
            ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        """
        lines: list[LossLine] = []
        if curves is not None:
            named = name_curves((curves,))
            labels = legend_labels(named)
            for label, (curve, _) in zip(labels, named, strict=True):
                lines.append(self._line(curve, peak_value, label))
        runs = [self._run_to_draw(run) for run in self.runs]
        return draw_losses(runs, lines, ax)

    @cached_property
    def _refits(self) -> RefittedLaws:
        """The refits for the intervals, which take longer than the fit."""
        return refit_laws(self._law, group_losses(self.runs, AFTER_WARMUP), self.runs)

    def _predict(self, curve: Curve, peak_value: float | None) -> Prediction:
        """Return the forecast for the last step of a curve, with the terms for differences."""
        peak, largest_lr = self._check_peak(curve, peak_value)
        terms = self._terms(curve, peak, largest_lr, np.array(curve.total_steps))
        loss = float(terms.loss)
        half = float(terms.half_width(self.residual_sd))
        reasons = list_reasons(curve, largest_lr, self.runs)
        forecast = LossForecast(loss, loss - half, loss + half, reasons)
        return Prediction(forecast, terms, curve, peak)

    def _difference(self, prediction: Prediction, first: Prediction) -> LossDifference:
        """Return the difference of a forecast to the first one."""
        steps = first.curve.total_steps
        is_as_long = prediction.curve.total_steps == steps
        has_same_peak = prediction.peak_value == first.peak_value
        if is_as_long and has_same_peak and prediction.curve.same_until(first.curve, steps):
            return LossDifference(0.0, 0.0, 0.0)
        difference, half = prediction.terms.minus(first.terms, self.residual_sd)
        return LossDifference(difference, difference - half, difference + half)

    def _line(self, curve: Curve, peak_value: float | None, name: str = "") -> LossLine:
        """Return a forecast over the steps of a curve, to be drawn."""
        peak, largest_lr = self._check_peak(curve, peak_value)
        steps = _steps_to_draw(curve, curve.total_steps)
        terms = self._terms(curve, peak, largest_lr, steps)
        return LossLine(name, steps, terms.loss, terms.half_width(self.residual_sd))

    def _run_to_draw(self, run: LossRun) -> RunToDraw:
        """Return the logged losses of a run and the law, from where it applies."""
        steps = _steps_to_draw(run.curve, last_step_of(run))
        is_drawn = run.steps >= steps[0]
        progress, noise = schedule_sums(run.curve, run.peak_value, steps)
        fitted = self._law.losses(progress, noise)
        return RunToDraw(run.steps[is_drawn], run.losses[is_drawn], steps, fitted)

    def _check_peak(self, curve: Curve, peak_value: float | None) -> tuple[float, float]:
        """Check a curve to forecast and its peak, by default that of the runs.

        Returns:
            The peak, and the curve's largest learning rate.
        """
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
        return peak, largest_lr

    def _terms(self, curve: Curve, peak: float, largest_lr: float, steps: _Steps) -> ForecastTerms:
        progress, noise = schedule_sums(curve, peak, steps)
        return self._refits.terms(progress, noise, octaves_to_runs(largest_lr, self.runs))


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
