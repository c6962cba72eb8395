"""Forecasts as JSON values: of a curve with its line, of its best peak; and a run with the fitted law."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.forecasts.best_peaks import BestPeak, best_peak_of_fits
from plateau_jax.forecasts.loss_fit import LossFit, Prediction
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.forecasts.lr_sums import largest_multiplier

_MAX_DRAWN = 600
"""How many logged losses of a run the page draws."""


def describe_run(fit: LossFit, run: LossRun) -> dict[str, list[float]]:
    """Return the logged losses of a run and the fitted law, as `LossFit.plot` draws them."""
    drawn = fit._run_to_draw(run)
    shown = np.unique(np.linspace(0, len(drawn.steps) - 1, _MAX_DRAWN).astype(np.int64))
    return {
        "steps": drawn.steps[shown].tolist(),
        "losses": _for_drawing(drawn.losses[shown]),
        "fitted_steps": drawn.fitted_steps.tolist(),
        "fitted_losses": _for_drawing(drawn.fitted_losses),
    }


class CurveForecast:
    """The forecast of one curve, by the fit of the nearest peak.

    Args:
        fits: The fit of each peak.
        curve: The curve.
        peak: Its peak.

    Raises:
        ValueError: The curve cannot be forecast; the message says why.
    """

    def __init__(self, fits: Mapping[float, LossFit], curve: Curve, peak: float) -> None:
        highest = peak * largest_multiplier(curve, curve.total_steps)
        if not highest > 0:
            raise ValueError("no learning rate above 0")
        nearest = min(fits, key=lambda fitted: abs(math.log(highest / fitted)))
        self.fit = fits[nearest]
        self._prediction = _cached_prediction(self.fit, curve, peak)
        self._line = _cached_line(self.fit, curve, peak)

    def describe(self, first: "CurveForecast | None") -> dict[str, Any]:
        """Return the forecast, its line with its band, and the difference to the first curve."""
        answer: dict[str, Any] = self._prediction.forecast._asdict()
        answer |= {"line": self._line, "difference": None}
        if first is not None and first.fit is self.fit:  # other fits have other errors
            difference = self.fit._difference(self._prediction, first._prediction)
            answer["difference"] = difference._asdict() | {"remark": difference._remark}
        return answer


def describe_best_peak(fits: Mapping[float, LossFit], curve: Curve) -> dict[str, Any]:
    """Return the best peak of a curve, as the peak to type and as a sentence; or why it is missing."""
    try:
        best = _cached_best_peak(tuple(fits.items()), curve)
    except ValueError as error:
        return {"best_fault": str(error)}
    peak = best.peak / largest_multiplier(curve, curve.total_steps)
    return {"best": {"peak": peak, "text": str(best), "reasons": best.forecast.reasons}}


# The sums of a long curve take tens of milliseconds, and the user changes one curve at a time.
@lru_cache(64)
def _cached_prediction(fit: LossFit, curve: Curve, peak: float) -> Prediction:
    return fit._prediction(curve, peak)


@lru_cache(64)
def _cached_line(fit: LossFit, curve: Curve, peak: float) -> dict[str, list[float]]:
    line = fit._line(curve, peak, "")
    return {
        "steps": line.steps.tolist(),
        "losses": _for_drawing(line.losses),
        "half_widths": _for_drawing(line.half_widths),
    }


@lru_cache(64)
def _cached_best_peak(fits: tuple[tuple[float, LossFit], ...], curve: Curve) -> BestPeak:
    return best_peak_of_fits(dict(fits), curve)


def _for_drawing(losses: NDArray[np.float64]) -> list[float]:
    return [float(f"{loss:.6g}") for loss in losses.tolist()]
