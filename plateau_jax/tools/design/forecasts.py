"""Forecasts as JSON values: logs that the user opens, a fit of the law, and the losses of curves.

Each log becomes a run, which the page keeps and sends with its questions. One fit covers all runs.

The page asks for forecasts whenever a handle moves. The latest runs, fits and forecasts are kept:
the sums of a long curve take tens of milliseconds, and one curve changes at a time.
"""

import io
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.design.messages import record_warnings
from plateau_jax.tools.drawing.sampling import thin_out
from plateau_jax.tools.forecasts.loss_fit import LossFit, Prediction, fit_runs
from plateau_jax.tools.forecasts.loss_run import LossRun, largest_lr_of
from plateau_jax.tools.logged_lrs.log_files import decode_log, parse_log
from plateau_jax.tools.logged_lrs.log_table import UnclearLogError

_MAX_DRAWN = 600
"""The most logged losses of a run that the page draws."""

_MAX_LINES = 100_000
"""The most lines of a log. Without a curve, a log of this length takes ten seconds."""


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "content", "curve", "peak", "columns"} -> {"run", "largest_lr", "advice"}.

    `content` is the file in base64. `run` is JSON text for `_read_run`, and `largest_lr` the
    largest learning rate of the run. Without a curve, the learning rates of the log are used.
    `columns` has the columns that the user chose for `step`, `loss` and `lr`. Or -> {"fault",
    "argument", "columns"} after an error, with the columns to choose from if an argument is
    unclear.
    """
    name = question["name"]
    curve = None
    if question["curve"] is not None:
        curve = _valid_curve(question["curve"])
    try:
        with record_warnings() as advice:
            text = decode_log(b64decode(question["content"]), name)
            _check_lines(name, text)
            log = parse_log(text, name)
            run = LossRun.read(log, curve, question["peak"], **question["columns"])
    except UnclearLogError as error:
        return {"fault": error.problem, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        return {"fault": str(error), "argument": None, "columns": ()}
    return {
        "run": _run_text(name, run),
        "largest_lr": largest_lr_of(run),
        "advice": advice,
    }


def _valid_curve(arguments: Mapping[str, Any]) -> Curve:
    """Return the curve that a run was trained with, which the page has described before."""
    with suppress_warnings():
        return Curve.from_dict(arguments)


def _check_lines(name: str, text: str) -> None:
    count = sum(1 for _ in io.StringIO(text, newline=None))
    if count > _MAX_LINES:
        raise ValueError(
            f"{name} has {count} lines; this page reads at most {_MAX_LINES}. Keep every tenth "
            "line, for example"
        )


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


@lru_cache(16)  # a curve of many stages takes seconds
def _read_run(text: str) -> _NamedRun:
    """Return the run of a `_run_text`."""
    values = json.loads(text)
    with suppress_warnings():
        run = LossRun(
            Curve.from_dict(values["curve"]),
            values["peak"],
            values["steps"],
            values["losses"],
            lrs_from=values["lrs_from"],
        )
    return _NamedRun(values["name"], run)


class RunsFit(NamedTuple):
    """The law fitted to the runs, or None, and the answer about them."""

    fit: LossFit | None
    answer: dict[str, Any]


@lru_cache(16)
def fit_logs(texts: tuple[str, ...]) -> RunsFit:
    """Fit the law to the runs of `open_log`; the answer is {"runs", "advice"} or {"fault"}.

    A run in the answer has the logged losses and the fitted law, as `LossFit.plot` draws them.
    """
    named_runs = [_read_run(text) for text in texts]
    runs = [run for _, run in named_runs]
    try:
        with record_warnings() as advice:
            fit = fit_runs(runs, [name for name, _ in named_runs])
    except ValueError as error:
        return RunsFit(None, {"fault": str(error)})
    return RunsFit(fit, {"runs": [_describe_run(fit, run) for run in runs], "advice": advice})


def _describe_run(fit: LossFit, run: LossRun) -> dict[str, list[float]]:
    """Return the losses of a run and of its fit for the picture."""
    drawn = fit._run_to_draw(run)
    shown = thin_out(np.arange(len(drawn.steps)), _MAX_DRAWN)
    return {
        "steps": drawn.steps[shown].tolist(),
        "losses": _for_drawing(drawn.losses[shown]),
        "fitted_steps": drawn.fitted_steps.tolist(),
        "fitted_losses": _for_drawing(drawn.fitted_losses),
    }


def forecast_curves(law: LossFit, curves: Sequence[tuple[Curve, float]]) -> list[dict[str, Any]]:
    """Return the forecast of each curve at its peak with a line and its band, or a fault.

    A forecast has the difference to that of the first curve, if there is one. The limits of an
    interval are null for a curve with a warmup that no run had.
    """
    answers: list[dict[str, Any]] = []
    first: Prediction | None = None
    for number, (curve, peak) in enumerate(curves):
        try:
            prediction, answer = _forecast(law, curve, peak)
        except ValueError as error:
            answers.append({"fault": str(error)})
            continue
        difference = None
        if first is not None:
            difference = _difference(law, prediction, first)
        answers.append(answer | {"difference": difference})
        if number == 0:
            first = prediction
    return answers


@lru_cache(64)
def _forecast(law: LossFit, curve: Curve, peak: float) -> tuple[Prediction, dict[str, Any]]:
    """Return the forecast of a curve, and the answer with a line to draw.

    The answer is cached, so callers must not change it.
    """
    prediction = law._predict(curve, peak)
    line = law._line(curve, peak)
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


def _difference(law: LossFit, prediction: Prediction, first: Prediction) -> dict[str, Any]:
    difference = law._difference(prediction, first)
    if prediction.forecast.is_known and first.forecast.is_known:
        return difference._asdict() | {"remark": difference.remark}
    return {"difference": difference.difference, "low": None, "high": None, "remark": ""}


def _for_drawing(losses: NDArray[np.float64]) -> list[float]:
    """Return losses with six digits, which suffice for a picture."""
    return [float(f"{loss:.6g}") for loss in losses.tolist()]
