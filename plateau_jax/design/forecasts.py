"""Forecasts as JSON values: logs that the user opens, fits of the law, and the losses of curves.

Each log becomes a run, which the page keeps and sends with its questions.

The runs of each peak have a fit. A curve is forecast by that of the nearest peak.

The page sends its runs with each question, as it asks for forecasts whenever a handle moves. The
latest fits and forecasts are kept: the sums of a long curve take tens of milliseconds, and one
curve changes at a time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import parse_object, record_warnings, typed_peak
from plateau_jax.forecasts.logs import UnclearLogError, parse_rows
from plateau_jax.forecasts.loss_fit import LossFit, Prediction, fit_named_runs
from plateau_jax.forecasts.loss_run import LossRun, group_by_peak
from plateau_jax.theory.curve_parts import largest_multiplier
from plateau_jax.validation.curve_warning import suppress_warnings

_MAX_DRAWN = 600
"""How many logged losses of a run the page draws."""


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "text", "curve", "peak", "columns"} -> {"run", "largest_lr", "advice"}.

    `run` is JSON text for `read_run`, and `largest_lr` the run's largest learning rate. Without a
    curve, the learning rates of the log are used. `columns` has those of `step`, `loss` and `lr`
    that the user chose. Or -> {"fault", "argument", "columns"}: the columns to choose from, if an
    argument is unclear.
    """
    name = str(question.get("name"))
    columns = cast("Mapping[str, Any]", question.get("columns", {}))
    chosen = {argument: columns.get(argument) for argument in ("step", "loss", "lr")}
    curve, peak = None, None
    if question.get("curve") is not None:
        curve = Curve.from_dict(question["curve"])
        peak = typed_peak(question.get("peak"))
    try:
        with record_warnings() as advice:
            rows = parse_rows(str(question.get("text")), name)
            run = LossRun.read(rows, curve, peak, **chosen)
    except UnclearLogError as error:
        return {"fault": error.problem, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        return {"fault": str(error), "argument": None, "columns": ()}
    description = {
        "name": name,
        "lrs_from": run._lrs_from,
        "curve": run.curve.to_dict(),
        "peak": run.peak_value,
        "steps": run.steps.tolist(),
        "losses": run.losses.tolist(),
    }
    return {
        "run": json.dumps(description),
        "largest_lr": run._largest_learning_rate(),
        "advice": advice,
    }


@lru_cache(16)
def read_run(text: str) -> tuple[str, LossRun]:
    """Return the name and the run of an `open_log`, which are kept: a curve of many stages takes seconds."""
    run = parse_object(text)
    name = str(run.get("name"))
    with suppress_warnings():
        curve = Curve.from_dict(run.get("curve", {}))
    arguments = curve, typed_peak(run.get("peak")), run.get("steps", ()), run.get("losses", ())
    return name, LossRun._rebuild(*arguments, run.get("lrs_from"))


class Fits(NamedTuple):
    """The fit of each peak, and the answer about the runs."""

    by_peak: dict[float, LossFit]
    answer: dict[str, Any]


@lru_cache(16)
def fit_runs(texts: tuple[str, ...]) -> Fits:
    """Fit the law to the runs of `open_log`; the answer is {"runs", "advice"} or {"fault"}.

    A run of the answer has the logged losses and the fitted law, as `LossFit.plot` draws them. It
    is null if it was not fitted.
    """
    runs = [read_run(text) for text in texts]
    by_peak: dict[float, LossFit] = {}
    faults: list[str] = []
    with record_warnings() as warned:
        for peak, group in group_by_peak([run for _, run in runs]).items():
            members = [(name, run) for name, run in runs if run in group]
            names = [f"{name}: " if len(runs) > 1 else "" for name, _ in members]
            try:
                by_peak[peak] = fit_named_runs([run for _, run in members], names)
            except ValueError as error:
                faults.append(str(error))
    if not by_peak:
        return Fits({}, {"fault": "; ".join(faults)})
    drawn: list[dict[str, list[float]] | None] = []
    for _, run in runs:
        fits = [fit for fit in by_peak.values() if run in fit.runs]
        drawn.append(_describe_run(fits[0], run) if fits else None)
    return Fits(by_peak, {"runs": drawn, "advice": [*dict.fromkeys([*warned, *faults])]})


def forecast_curves(fits: Fits, curves: Sequence[tuple[Curve, float]]) -> list[dict[str, Any]]:
    """Return the forecast of each curve at its peak: with a line and its band, or a fault.

    It has the difference to the first curve, if one fit forecasts both. Limits are null for a curve
    with a warmup that no run had.
    """
    answers: list[dict[str, Any]] = []
    first: tuple[LossFit, Prediction] | None = None
    for number, (curve, peak) in enumerate(curves):
        try:
            fit = _nearest_fit(fits.by_peak, curve, peak)
            prediction, answer = _forecast(fit, curve, peak)
        except ValueError as error:
            answers.append({"fault": str(error)})
            continue
        difference = None
        if first is not None and first[0] is fit:  # other fits have other errors
            difference = _difference(fit, prediction, first[1])
        answers.append(answer | {"difference": difference})
        if number == 0:
            first = fit, prediction
    return answers


def _difference(fit: LossFit, prediction: Prediction, first: Prediction) -> dict[str, Any]:
    difference = fit._difference(prediction, first)
    if not (prediction.forecast.is_known and first.forecast.is_known):
        return {"difference": difference.difference, "low": None, "high": None, "remark": ""}
    return difference._asdict() | {"remark": difference.remark}


def _nearest_fit(fits: Mapping[float, LossFit], curve: Curve, peak: float) -> LossFit:
    highest = peak * largest_multiplier(curve, curve.total_steps)
    if not highest > 0:
        raise ValueError("no learning rate above 0")
    return fits[min(fits, key=lambda fitted: abs(math.log(highest / fitted)))]


@lru_cache(64)
def _forecast(fit: LossFit, curve: Curve, peak: float) -> tuple[Prediction, dict[str, Any]]:
    prediction, line = fit._prediction(curve, peak), fit._line(curve, peak, "")
    answer = prediction.forecast._asdict()
    if not prediction.forecast.is_known:
        answer |= {"low": None, "high": None}
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
