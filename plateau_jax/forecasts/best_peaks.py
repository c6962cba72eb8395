"""The best peak of a curve, from runs at several peaks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.drawing.axes import PeaksToDraw, draw_peaks
from plateau_jax.drawing.tables import as_html
from plateau_jax.forecasts.loss_comparison import LossForecast
from plateau_jax.forecasts.loss_fit import LossFit
from plateau_jax.forecasts.loss_fitting import checked_runs, fit_named_runs, run_names
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.forecasts.lr_sums import largest_multiplier
from plateau_jax.forecasts.run_peaks import indices_by_peak

_LEAST_PEAKS = 3

_LEAST_FACTOR, _MOST_FACTOR = 1.2 * (1 - 1e-9), 2.5 * (1 + 1e-9)
"""The factors allowed between neighboring peaks of the parabola, which are rounded."""

_TOLERANCE = 0.003
"""How far above the minimum the losses of the range are, in units of the loss."""

_ROUNDING = 1e-6
"""Forecasts differ by less than this if only the rounding of their fits differs."""

_DRAWN_PEAKS = 100


@dataclass(frozen=True)
class BestPeak:
    """The best peak of a curve; `best_peak` describes the fields.

    >>> from plateau_jax.forecasts.loss_comparison import LossForecast
    >>> losses = 2.95, 2.92, 2.94
    >>> forecasts = tuple(LossForecast(loss, loss - 0.02, loss + 0.02) for loss in losses)
    >>> best = LossForecast(2.919, 2.899, 2.939)
    >>> print(BestPeak(1.1e-3, 7.7e-4, 1.5e-3, best, (5e-4, 1e-3, 2e-3), forecasts))
    1.1e-03 (7.7e-04 to 1.5e-03 are within 0.003): 2.919, between 2.899 and 2.939
    """

    peak: float
    low: float
    high: float
    forecast: LossForecast
    peaks: tuple[float, ...]
    forecasts: tuple[LossForecast, ...]

    def __str__(self) -> str:
        loss, low, high, _ = self.forecast
        return (
            f"{self.peak:.1e} ({self.low:.1e} to {self.high:.1e} are within {_TOLERANCE}): "
            f"{loss:.3f}, between {low:.3f} and {high:.3f}"
        )

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        pairs = zip(self.peaks, self.forecasts, strict=True)
        rows = [
            (f"{peak:.3g}", f"{loss:.3f}", f"{low:.3f} to {high:.3f}") for peak, (loss, low, high, _) in pairs
        ]
        reasons = f" Less certain: {', and '.join(self.forecast.reasons)}." if self.forecast.reasons else ""
        return as_html([("peak", "loss", "interval"), *rows], f"Best peak: {self}.{reasons}")

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the forecast of each peak with its interval, the parabola, and the range. Needs matplotlib.

        Args:
            ax: The matplotlib Axes to draw into; the current ones by default.

        Returns:
            The Axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        """
        losses = [forecast.loss for forecast in self.forecasts]
        half_widths = [(forecast.high - forecast.low) / 2 for forecast in self.forecasts]
        chosen = _parabola_peaks(losses)
        fitted_peaks = np.geomspace(self.peaks[chosen][0], self.peaks[chosen][-1], _DRAWN_PEAKS)
        center, least, curvature = _parabola(self.peaks[chosen], losses[chosen])
        fitted_losses = least + curvature * (np.log(fitted_peaks) - center) ** 2
        shown = PeaksToDraw(self.peaks, losses, half_widths, fitted_peaks, fitted_losses)
        return draw_peaks(shown, (self.peak, self.forecast.loss), (self.low, self.high), ax)


def best_peak(runs: Iterable[LossRun], curve: Curve) -> BestPeak:
    """Find the best peak of a curve from runs at three peaks or more, about a factor of 2 apart.

    The runs of each peak p are fitted alone by `fit_losses` and forecast the curve. Through the lowest
    forecast and its two neighbors, or the three peaks at an end if the lowest is there, goes a parabola:

        loss(p) = least + c·(ln p - ln peak)²,   low, high = peak·exp(∓ √(0.003/c))

    The runs may be short: a forecast reaches up to four times the steps of the longest run of each peak.
    `docs/forecast.md` says how good these peaks were on published runs.

    Args:
        runs: The runs of one model and data set. A run's peak is its largest learning rate; peaks within
            10⁻⁶, or 5 % if one was read from a log, are the same.
        curve: The curve to train with.

    Returns:
        The best peak with its range and all forecasts. `print` shows them in one line, and a notebook as a
        table; the method `plot()` draws them with matplotlib.

        `peak` is the best peak; it never lies outside those that were run. It is the largest learning rate of
        the curve, so `peak_value` is `peak` over the curve's largest multiplier, which is 1 for most curves.
        `low` and `high` are the range of peaks whose loss on the parabola is within 0.003 of its minimum, cut
        at the lowest and the highest peak that were run. `forecast` is the forecast at `peak`, with the
        fields that `LossFit.predict` describes: the minimum of the parabola, with the widest interval of its
        three forecasts, and the reasons of all three. `peaks` are all peaks that were run, ascending, and
        `forecasts` the forecasts of the curve at each of them.

    Raises:
        TypeError: A run is not a `LossRun`, or `curve` not a `Curve`.
        ValueError: There are fewer than three peaks; two neighbors of the parabola are more than a factor of
            2.5 or less than 1.2 apart; the minimum lies beyond the peaks that were run; the runs of a peak
            cannot be fitted, or the curve has more than four times their steps.

    >>> import numpy as np
    >>> from plateau_jax import LossRun, PlateauCurve, best_peak
    >>> curve, steps = PlateauCurve(1000, warmup_steps=50), np.arange(100, 1001, 25)
    >>> losses = 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps)
    >>> extra = {5e-4: 0.02, 1e-3: 0.0, 2e-3: 0.01}
    >>> runs = [LossRun(curve, peak, steps, losses + extra[peak]) for peak in extra]
    >>> print(best_peak(runs, PlateauCurve(2000, warmup_steps=50)))
    1.1e-03 (8.2e-04 to 1.5e-03 are within 0.003): 2.532, between 2.515 and 2.548
    """
    return best_peak_of_fits(fit_peaks(runs), curve)


def fit_peaks(runs: Iterable[LossRun]) -> dict[float, LossFit]:
    """Fit the law to the runs of each peak alone; peaks ascend."""
    runs = checked_runs(runs)
    groups = indices_by_peak(runs)
    check_peaks(list(groups))
    fits: dict[float, LossFit] = {}
    for peak, indices in groups.items():
        try:
            fits[peak] = fit_named_runs([runs[index] for index in indices], run_names(indices))
        except ValueError as error:
            advice = "; or leave this peak out" if len(groups) > _LEAST_PEAKS else ""
            raise ValueError(f"the runs at the peak {peak:g}: {error}{advice}") from None
    return fits


def check_peaks(peaks: Sequence[float]) -> None:
    """Raise if the peaks that were run, in ascending order, are too few for a parabola."""
    if not peaks:
        raise ValueError("there is no run: write best_peak([run, ...], curve)")
    if len(peaks) < _LEAST_PEAKS:
        raise _unclear(f"runs at {', '.join(f'{peak:g}' for peak in peaks)}")


def _unclear(what: str) -> ValueError:
    return ValueError(
        f"the {what} do not show the best peak: that takes {_LEAST_PEAKS} peaks or more, a factor of 1.2 to "
        "2.5 between the lowest forecast and those next to it, and a minimum that lies among the peaks"
    )


def best_peak_of_fits(fits: Mapping[float, LossFit], curve: Curve) -> BestPeak:
    """Find the best peak of a curve from the fit of each peak."""
    check_curve("curve", curve)
    largest = largest_multiplier(curve, curve.total_steps) or 1.0  # `predict` rejects a curve of zeros
    peaks, forecasts = tuple(fits), list[LossForecast]()
    for peak, fit in fits.items():
        try:
            forecasts.append(fit.predict(curve, peak / largest))
        except ValueError as error:
            raise ValueError(f"the runs at the peak {peak:g}: {error}") from None
    losses = [forecast.loss for forecast in forecasts]
    chosen = _parabola_peaks(losses)
    center, least, curvature = _parabola(peaks[chosen], losses[chosen])
    factors = [high / low for low, high in pairwise(peaks[chosen])]
    lowest, *_, highest = map(math.log, peaks[chosen])
    if not (
        min(factors) >= _LEAST_FACTOR
        and max(factors) <= _MOST_FACTOR
        and np.ptp(losses[chosen]) > _ROUNDING
        and curvature > 0
        and lowest - _ROUNDING <= center <= highest + _ROUNDING
    ):
        pairs = zip(peaks, losses, strict=True)
        raise _unclear(f"forecasts at {', '.join(f'{peak:g} ({loss:.4g})' for peak, loss in pairs)}")
    peak = min(max(math.exp(center), peaks[0]), peaks[-1])
    factor = math.exp(math.sqrt(_TOLERANCE / curvature))
    half = max((forecast.high - forecast.low) / 2 for forecast in forecasts[chosen])
    reasons = dict.fromkeys(reason for forecast in forecasts[chosen] for reason in forecast.reasons)
    forecast = LossForecast(least, least - half, least + half, tuple(reasons))
    low, high = max(peak / factor, peaks[0]), min(peak * factor, peaks[-1])
    return BestPeak(peak, low, high, forecast, peaks, tuple(forecasts))


def _parabola_peaks(losses: Sequence[float]) -> slice:
    """Return the three peaks of the parabola: around the lowest loss, or at its end."""
    first = min(max(losses.index(min(losses)) - 1, 0), len(losses) - _LEAST_PEAKS)
    return slice(first, first + _LEAST_PEAKS)


def _parabola(peaks: Sequence[float], losses: Sequence[float]) -> tuple[float, float, float]:
    """Return center, least and curvature of loss = least + curvature · (ln peak - center)² through 3 points.

    Without a minimum the curvature is not positive, and the others are not numbers.
    """
    x0, x1, x2 = map(math.log, peaks)
    y0, y1, y2 = losses
    slope = (y1 - y0) / (x1 - x0)
    curvature = ((y2 - y1) / (x2 - x1) - slope) / (x2 - x0)
    if curvature <= 0:
        return math.nan, math.nan, curvature
    center = (x0 + x1 - slope / curvature) / 2
    return center, y1 - curvature * (x1 - center) ** 2, curvature
