"""Forecasts as JSON values: the law is fitted to runs, and the losses of curves are forecast.

The runs of each peak have a fit. A curve is forecast by that of the nearest peak.

The page sends its runs with each question, as it asks for forecasts whenever a handle moves. The latest fits
and forecasts are kept: the sums of a long curve take tens of milliseconds, and one curve changes at a time.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.design.opened_logs import read_run
from plateau_jax.design.questions import record_warnings
from plateau_jax.forecasts.loss_fit import LossFit, Prediction
from plateau_jax.forecasts.loss_fitting import fit_named_runs
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.theory.curve_parts import largest_multiplier
from plateau_jax.forecasts.run_peaks import indices_by_peak

_MAX_DRAWN = 600
"""How many logged losses of a run the page draws."""


class Fits(NamedTuple):
    """The fit of each peak, and the answer about the runs."""

    by_peak: dict[float, LossFit]
    answer: dict[str, Any]


@lru_cache(16)
def fit_runs(texts: tuple[str, ...]) -> Fits:
    """Fit the law to the runs of `open_log`; the answer is {"runs", "advice"} or {"fault"}.

    A run of the answer has the logged losses and the fitted law, as `LossFit.plot` draws them. It is null if
    it was not fitted.
    """
    names, runs = zip(*map(read_run, texts), strict=True)
    labels = [f"{name}: " if len(names) > 1 else "" for name in names]
    try:
        with record_warnings() as advice:
            by_peak, faults = _fit_peaks(runs, labels)
    except ValueError as error:
        return Fits({}, {"fault": str(error)})
    drawn = {id(run): _describe_run(fit, run) for fit in by_peak.values() for run in fit.runs}
    answer = {
        "runs": [drawn.get(id(run)) for run in runs],
        "advice": list(dict.fromkeys([*advice, *faults])),
    }
    return Fits(by_peak, answer)


def forecast_curves(fits: Fits, curves: Sequence[tuple[Curve, float]]) -> list[dict[str, Any]]:
    """Return the forecast of each curve at its peak: with a line and its band, or a fault.

    It has the difference to the first curve, if one fit forecasts both.
    """
    answers: list[dict[str, Any]] = []
    first: tuple[LossFit, Prediction] | None = None
    for number, (curve, peak) in enumerate(curves):
        try:
            fit = _nearest_fit(fits.by_peak, curve, peak)
            prediction, forecast = _forecast(fit, curve, peak)
        except ValueError as error:
            answers.append({"fault": str(error)})
            continue
        difference = None
        if first is not None and first[0] is fit:  # other fits have other errors
            difference = fit._difference(prediction, first[1])
            difference = difference._asdict() | {"remark": difference._remark}
        answers.append(forecast | {"difference": difference})
        if number == 0:
            first = fit, prediction
    return answers


def _nearest_fit(fits: Mapping[float, LossFit], curve: Curve, peak: float) -> LossFit:
    highest = peak * largest_multiplier(curve, curve.total_steps)
    if not highest > 0:
        raise ValueError("no learning rate above 0")
    return fits[min(fits, key=lambda fitted: abs(math.log(highest / fitted)))]


@lru_cache(64)
def _forecast(fit: LossFit, curve: Curve, peak: float) -> tuple[Prediction, dict[str, Any]]:
    prediction, line = fit._prediction(curve, peak), fit._line(curve, peak, "")
    answer = prediction.forecast._asdict()
    answer["line"] = {
        "steps": line.steps.tolist(),
        "losses": _for_drawing(line.losses),
        "half_widths": _for_drawing(line.half_widths),
    }
    return prediction, answer


def _describe_run(fit: LossFit, run: LossRun) -> dict[str, list[float]]:
    drawn = fit._run_to_draw(run)
    shown = np.unique(np.linspace(0, len(drawn.steps) - 1, _MAX_DRAWN).astype(np.int64))
    return {
        "steps": drawn.steps[shown].tolist(),
        "losses": _for_drawing(drawn.losses[shown]),
        "fitted_steps": drawn.fitted_steps.tolist(),
        "fitted_losses": _for_drawing(drawn.fitted_losses),
    }


def _for_drawing(losses: NDArray[np.float64]) -> list[float]:
    return [float(f"{loss:.6g}") for loss in losses.tolist()]


def _fit_peaks(runs: Sequence[LossRun], names: Sequence[str]) -> tuple[dict[float, LossFit], list[str]]:
    """Return the fit of each peak, and why those of other peaks cannot be fitted.

    Raises:
        ValueError: The runs of no peak can be fitted.
    """
    groups = indices_by_peak(runs)
    fits, faults = dict[float, LossFit](), list[str]()
    for peak, indices in groups.items():
        try:
            fits[peak] = fit_named_runs(
                [runs[index] for index in indices], [names[index] for index in indices]
            )
        except ValueError as error:
            where = "" if len(groups) == 1 else f"the runs at the peak {peak:g}: "
            faults.append(f"{where}{error}")
    if not fits:
        raise ValueError("; ".join(faults))
    return fits, faults
