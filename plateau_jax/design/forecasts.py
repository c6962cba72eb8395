"""Answers about forecasts: a log is read, the law is fitted to runs, and the losses of curves are forecast.

The runs of each peak have a fit. A curve is forecast by that of the nearest peak, and runs at three peaks or
more also tell its best peak.

The page keeps the runs. The server keeps the latest fits, since the page asks for forecasts whenever a handle
moves; the page asks for a fit again if it was forgotten.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.design.described_forecasts import CurveForecast, describe_best_peak, describe_run
from plateau_jax.design.questions import curves_and_peaks, record_warnings, typed_peak
from plateau_jax.forecasts.best_peaks import check_peaks
from plateau_jax.forecasts.log_files import parse_rows
from plateau_jax.forecasts.logged_lrs import UnclearLogError
from plateau_jax.forecasts.logs import Log, base_name, read_log
from plateau_jax.forecasts.loss_comparison import NOTE
from plateau_jax.forecasts.loss_fit import LossFit
from plateau_jax.forecasts.loss_fitting import fit_named_runs
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.forecasts.run_peaks import indices_by_peak
from plateau_jax.validation.curve_warning import suppress_warnings

MAX_FITS = 16
"""How many fits, and how many runs, the server keeps."""

_Value = TypeVar("_Value")


class _Recent(Generic[_Value]):
    """The latest values, by the digests of the JSON that they were made from."""

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}
        self._lock = Lock()

    def get(self, key: str) -> _Value | None:
        with self._lock:
            return self._values.get(key)

    def keep(self, key: str, value: _Value) -> None:
        with self._lock:
            self._values[key] = value
            while len(self._values) > MAX_FITS:
                del self._values[next(iter(self._values))]  # the oldest

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


class _Fits(NamedTuple):
    """The fit of each peak, whether they tell best peaks, and the answer about the runs."""

    by_peak: dict[float, LossFit]
    have_best: bool
    answer: dict[str, Any]


_runs = _Recent[LossRun]()
_fits = _Recent[_Fits]()


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "text", "curve", "peak", "columns", "unit"} -> {"run", "loss", "columns", "advice", …}.

    The answer also has `largest_lr`, the run's largest learning rate. Without a curve, the learning rates of
    the log are used. `columns` names those of `step`, `loss` and `lr` that the user chose, and in the answer
    those that were read. `unit` is that of the steps: see `_in_updates`. Or -> {"fault", "argument",
    "columns"}: the columns to choose from, if an argument is unclear.
    """
    name, columns = str(question.get("name")), dict(cast("Mapping[str, Any]", question.get("columns", {})))
    curve = None if question.get("curve") is None else Curve.from_dict(question["curve"])
    chosen: dict[str, str | None] = {argument: columns.get(argument) for argument in ("step", "loss", "lr")}
    try:
        peak = None if curve is None or question.get("peak") is None else typed_peak(question)
        with record_warnings() as advice:
            rows = parse_rows(str(question.get("text")), name)
            rows = _in_updates(rows, name, chosen["step"], question.get("unit", {}))
            log = read_log(rows, curve, peak, name=name, **chosen)
            run = LossRun._from_log(log)
    except UnclearLogError as error:
        return {"fault": error.problem, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        return {"fault": str(error), "argument": None, "columns": ()}
    loss, columns = base_name(log.columns["loss"]), list(log.columns.values())
    description = {
        "name": name,
        "columns": columns,
        "curve": run.curve.to_dict(),
        "peak": run.peak_value,
        "steps": run.steps.tolist(),
        "losses": run.losses.tolist(),
    }
    # A curve of all logged learning rates takes seconds to build.
    _runs.keep(_digest(description), run)
    largest = run._largest_learning_rate()
    return {
        "run": description,
        "largest_lr": largest,
        "loss": loss,
        "columns": columns,
        "advice": advice,
    }


def _in_updates(
    rows: Sequence[Mapping[str, Any]], name: str, step: str | None, unit: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a log with the column `step` in updates.

    `unit` is {"name", "size"}, with the name "updates", "samples" (or tokens; `size` of them in an update),
    or "epochs" (of `size` updates), 1 after the first; "epochs from 0" are 0 then.
    """
    kind, size = unit.get("name", "updates"), unit.get("size")
    if kind == "updates":
        return rows
    if not isinstance(size, int | float) or size <= 0:
        what = "samples or tokens per update" if kind == "samples" else "updates per epoch"
        raise UnclearLogError(f"{name}: the number of {what} must be positive", "unit")
    if step is None:
        columns = list(dict.fromkeys(column for row in rows for column in row))
        raise UnclearLogError(f"{name} has steps that are not updates", "step", columns)

    def updates(cell: Any) -> Any:
        try:
            number = float(cell)
            return round(number / size if kind == "samples" else (number + (kind == "epochs from 0")) * size)
        except (TypeError, ValueError, OverflowError):
            return cell  # it is missing, or `read_log` rejects it

    return [{**row, step: updates(row.get(step))} for row in rows]


def fit_runs(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"runs": [the run of each `open_log`]} -> {"fit", "runs", "advice", "best_fault"}, or {"fault"}.

    `fit` is a key for `forecast`. A run of the answer has the logged losses and the fitted law, as
    `LossFit.plot` draws them. It is null if it was not fitted.
    """
    runs = cast("list[Mapping[str, Any]]", question.get("runs"))
    if not isinstance(runs, list) or not all(isinstance(run, Mapping) for run in runs):
        raise TypeError("runs must be a list of objects")
    key = _digest(runs)
    kept = _fits.get(key)
    if kept is None:
        with suppress_warnings():
            loss_runs = [_loss_run(run) for run in runs]
        names = [f"{run.get('name')}: " if len(runs) > 1 else "" for run in runs]
        try:
            with record_warnings() as advice:
                by_peak, best_fault = _fit_peaks(loss_runs, names)
        except ValueError as error:
            return {"fault": str(error)}
        drawn = {id(run): describe_run(fit, run) for fit in by_peak.values() for run in fit.runs}
        answer = {
            "fit": key,
            "runs": [drawn.get(id(run)) for run in loss_runs],
            "advice": list(dict.fromkeys(advice)),
            "best_fault": best_fault,
        }
        kept = _Fits(by_peak, len(by_peak) > 1 and not best_fault, answer)
        _fits.keep(key, kept)
    return kept.answer


def forecast_curves(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"fit": key, "curves": [{"curve", "peak"}, …]} -> {"forecasts", "note"}, or {"forgotten": true}.

    A forecast has the difference to the first curve, if one fit forecasts both, and a line with its band; or
    it is a fault. If there are runs of three peaks or more, it has a best peak.
    """
    fits = _fits.get(str(question.get("fit")))
    if fits is None:
        return {"forgotten": True}
    forecasts: list[dict[str, Any]] = []
    first: CurveForecast | None = None
    for number, (curve, peak) in enumerate(curves_and_peaks(question)):
        best = describe_best_peak(fits.by_peak, curve) if fits.have_best else {}
        try:
            forecast = CurveForecast(fits.by_peak, curve, peak)
        except ValueError as error:
            forecasts.append({"fault": str(error)} | best)
            continue
        forecasts.append(forecast.describe(first) | best)
        if number == 0:
            first = forecast
    return {"forecasts": forecasts, "note": NOTE}


FORECAST_ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/log": open_log,
    "/fit": fit_runs,
    "/forecast": forecast_curves,
}
"""The function that answers each path."""


def _digest(value: Any) -> str:
    """Return a digest of JSON; a browser writes 2.0 as 2."""
    canonical = json.loads(json.dumps(value), parse_int=float)
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


def _loss_run(run: Mapping[str, Any]) -> LossRun:
    kept = _runs.get(_digest(run))
    if kept is not None:
        return kept
    curve, names = Curve.from_dict(run.get("curve", {})), ("step", "loss", "lr")
    columns = dict(zip(names, run.get("columns", names[:2]), strict=False))
    arguments = typed_peak(run), run.get("steps", ()), run.get("losses", ())
    return LossRun._from_log(Log(curve, *arguments, columns, str(run.get("name"))))


def _fit_peaks(runs: Sequence[LossRun], names: Sequence[str]) -> tuple[dict[float, LossFit], str]:
    """Return the fit of each peak, and why they tell no best peaks; empty if they do, or with one peak.

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
    problems = "; ".join(faults)
    if not fits:
        raise ValueError(problems)
    if faults or len(groups) == 1:
        return fits, problems
    try:
        check_peaks(list(fits))
    except ValueError as error:
        return fits, str(error)
    return fits, ""
