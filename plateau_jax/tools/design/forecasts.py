"""Forecasts as JSON values: logs that the user opens, fits of the law, and the losses of curves.

Each log becomes a run, which the page keeps and sends with its questions. One fit covers all runs
with the same peak. A curve is forecast by the fit of the nearest peak.

The page asks for forecasts whenever a handle moves. The latest runs, fits and forecasts are kept:
the sums of a long curve take tens of milliseconds, and one curve changes at a time.
"""

import io
import json
import math
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.configuration import curve_from_text
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.design.questions import (
    MAX_ITEMS,
    check_size,
    errors_within,
    parse_fields,
    parse_object,
    record_warnings,
    typed_peak,
)
from plateau_jax.tools.forecasts.fitted_law import FittedLaw, Prediction, fit_named_runs
from plateau_jax.tools.forecasts.loss_run import (
    LossRun,
    group_by_peak,
    largest_lr_of,
)
from plateau_jax.tools.logged_lrs.log_files import decode_log, parse_log
from plateau_jax.tools.logged_lrs.logs import UnclearLogError
from plateau_jax.tools.theory.curve_parts import largest_multiplier

_MAX_DRAWN = 600
"""The most logged losses of a run that the page draws."""

_MAX_LINES = 100_000
"""The most lines of a log. Without a curve, a log of this length takes ten seconds."""


@dataclass(frozen=True)
class _Columns:
    step: str | None = None
    loss: str | None = None
    lr: str | None = None


@dataclass(frozen=True)
class _LogQuestion:
    name: str
    content: str
    curve: dict[str, Any] | None = None
    peak: Any = None
    columns: _Columns = _Columns()


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "content", "curve", "peak", "columns"} -> {"run", "largest_lr", "advice"}.

    `content` is the file in base64. `run` is JSON text for `_read_run`, and `largest_lr` the
    largest learning rate of the run. Without a curve, the learning rates of the log are used.
    `columns` has the columns that the user chose for `step`, `loss` and `lr`. Or -> {"fault",
    "argument", "columns"} after an error, with the columns to choose from if an argument is
    unclear.
    """
    asked = parse_fields(_LogQuestion, question)
    name = asked.name
    curve, peak = None, None
    if asked.curve is not None:
        curve = _read_curve(asked.curve, MAX_ITEMS)
        peak = typed_peak(asked.peak)
    try:
        with record_warnings() as advice:
            text = decode_log(_from_base64(asked.content), name)
            _check_lines(name, text)
            run = LossRun.read(parse_log(text, name), curve, peak, **asdict(asked.columns))
    except UnclearLogError as error:
        return {"fault": error.problem, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        return {"fault": str(error), "argument": None, "columns": ()}
    return {
        "run": _run_text(name, run),
        "largest_lr": largest_lr_of(run),
        "advice": advice,
    }


def _from_base64(content: str) -> bytes:
    try:
        return b64decode(content, validate=True)
    except ValueError as error:
        raise ValueError(f"content is not in base64: {error}") from None


def _check_lines(name: str, text: str) -> None:
    count = sum(1 for _ in io.StringIO(text, newline=None))
    if count > _MAX_LINES:
        raise ValueError(
            f"{name} has {count} lines; this page reads at most {_MAX_LINES}. Keep every tenth "
            "line, for example"
        )


def _read_curve(arguments: Mapping[str, Any], max_items: int) -> Curve:
    """Return the curve that a run was trained with."""
    with errors_within(("curve",)), suppress_warnings():
        check_size(arguments, max_items)
        return curve_from_text(arguments)


class _NamedRun(NamedTuple):
    name: str
    run: LossRun


def _run_text(name: str, run: LossRun) -> str:
    """Return the JSON text of a run."""
    description = {
        "name": name,
        "lrs_from": run.lrs_from,
        "curve": run.curve.to_dict(),
        "peak": run.peak_value,
        "steps": run.steps.tolist(),
        "losses": run.losses.tolist(),
    }
    return json.dumps(description)


@dataclass(frozen=True)
class _Run:
    """What `_run_text` writes."""

    name: str
    curve: dict[str, Any]
    peak: Any
    steps: list[Any]
    losses: list[Any]
    lrs_from: int | None = None


@lru_cache(16)  # a curve of many stages takes seconds
def _read_run(text: str) -> _NamedRun:
    """Return the run of a `_run_text`."""
    asked = parse_fields(_Run, parse_object(text))
    # A curve of a log has a stage for each line, and two more before the first.
    curve = _read_curve(asked.curve, _MAX_LINES + 2)
    peak = typed_peak(asked.peak)
    with suppress_warnings():
        run = LossRun(curve, peak, asked.steps, asked.losses, lrs_from=asked.lrs_from)
    return _NamedRun(asked.name, run)


class Fits(NamedTuple):
    """The fit of each peak, and the answer about the runs."""

    by_peak: dict[float, FittedLaw]
    answer: dict[str, Any]


@lru_cache(16)
def fit_runs(texts: tuple[str, ...]) -> Fits:
    """Fit the law to the runs of `open_log`; the answer is {"runs", "advice"} or {"fault"}.

    A run in the answer has the logged losses and the fitted law, as `LossFit.plot` draws them, or
    is null if it was not fitted.
    """
    named_runs: list[_NamedRun] = []
    for index, text in enumerate(texts):
        with errors_within(("runs", index)):
            named_runs.append(_read_run(text))
    groups = group_by_peak([run for _, run in named_runs])
    by_peak: dict[float, FittedLaw] = {}
    faults: list[str] = []
    with record_warnings() as warned:
        for peak, group in groups.items():
            try:
                by_peak[peak] = _fit_group(named_runs, group)
            except ValueError as error:
                faults.append(str(error))
    if not by_peak:
        return Fits({}, {"fault": "; ".join(faults)})

    fits = list(by_peak.values())
    drawn = [_describe_run(fits, run) for _, run in named_runs]
    advice = list(dict.fromkeys([*warned, *faults]))  # each once
    return Fits(by_peak, {"runs": drawn, "advice": advice})


def _fit_group(named_runs: Sequence[_NamedRun], group: Sequence[LossRun]) -> FittedLaw:
    """Fit the law to a group of the runs; if there are several runs, messages name them."""
    runs: list[LossRun] = []
    prefixes: list[str] = []
    for name, run in named_runs:
        if run in group:
            runs.append(run)
            prefixes.append(f"{name}: " if len(named_runs) > 1 else "")
    return fit_named_runs(runs, prefixes)


def _describe_run(fits: Sequence[FittedLaw], run: LossRun) -> dict[str, list[float]] | None:
    """Return the losses of a run and of its fit for the picture, or None without a fit."""
    fit = next((fit for fit in fits if run in fit.runs), None)
    if fit is None:
        return None
    drawn = fit.run_to_draw(run)
    evenly_spaced = np.linspace(0, len(drawn.steps) - 1, _MAX_DRAWN)
    shown = np.unique(evenly_spaced.astype(np.int64))
    return {
        "steps": drawn.steps[shown].tolist(),
        "losses": _for_drawing(drawn.losses[shown]),
        "fitted_steps": drawn.fitted_steps.tolist(),
        "fitted_losses": _for_drawing(drawn.fitted_losses),
    }


def forecast_curves(fits: Fits, curves: Sequence[tuple[Curve, float]]) -> list[dict[str, Any]]:
    """Return the forecast of each curve at its peak with a line and its band, or a fault.

    A forecast has the difference to the first curve, if the same fit forecasts both. The limits of
    an interval are null for a curve with a warmup that no run had.
    """
    answers: list[dict[str, Any]] = []
    first: tuple[FittedLaw, Prediction] | None = None
    for number, (curve, peak) in enumerate(curves):
        try:
            fit = _nearest_fit(fits.by_peak, curve, peak)
            prediction, answer = _forecast(fit, curve, peak)
        except ValueError as error:
            answers.append({"fault": str(error)})
            continue
        difference = None
        if first is not None:
            first_fit, first_prediction = first
            if first_fit is fit:  # different fits have different errors
                difference = _difference(fit, prediction, first_prediction)
        answers.append(answer | {"difference": difference})
        if number == 0:
            first = fit, prediction
    return answers


def _nearest_fit(fits: Mapping[float, FittedLaw], curve: Curve, peak: float) -> FittedLaw:
    highest = peak * largest_multiplier(curve, curve.total_steps)
    if not highest > 0:
        raise ValueError("no learning rate above 0")
    nearest = min(fits, key=lambda fitted_peak: abs(math.log(highest / fitted_peak)))
    return fits[nearest]


@lru_cache(64)
def _forecast(fit: FittedLaw, curve: Curve, peak: float) -> tuple[Prediction, dict[str, Any]]:
    """Return the forecast of a curve, and the answer with a line to draw.

    The answer is cached, so callers must not change it.
    """
    prediction = fit.predict(curve, peak)
    line = fit.line(curve, peak)
    answer = prediction.forecast._asdict()
    if not prediction.forecast.is_known:
        answer["low"] = None
        answer["high"] = None
    answer["line"] = {
        "steps": line.steps.tolist(),
        "losses": _for_drawing(line.losses),
        "half_widths": _for_drawing(line.half_widths),
    }
    return prediction, answer


def _difference(fit: FittedLaw, prediction: Prediction, first: Prediction) -> dict[str, Any]:
    difference = fit.difference(prediction, first)
    if prediction.forecast.is_known and first.forecast.is_known:
        return difference._asdict() | {"remark": difference.remark}
    return {"difference": difference.difference, "low": None, "high": None, "remark": ""}


def _for_drawing(losses: NDArray[np.float64]) -> list[float]:
    """Return losses with six digits, which suffice for a picture."""
    return [float(f"{loss:.6g}") for loss in losses.tolist()]
