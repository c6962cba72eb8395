"""Answers about forecasts: a log is read, the law is fitted to runs, and the losses of curves are forecast.

The page keeps the runs. The server keeps the latest fits, since the page asks for forecasts whenever a handle
moves; the page asks for a fit again if it was forgotten.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from plateau_jax.analysis.log_columns import base_name
from plateau_jax.analysis.log_files import parse_rows
from plateau_jax.analysis.logged_lrs import UnclearLogError
from plateau_jax.analysis.loss_comparison import NOTE
from plateau_jax.analysis.loss_fit import LossFit, Prediction, fit_losses
from plateau_jax.analysis.loss_logs import read_log
from plateau_jax.analysis.loss_run import LossRun
from plateau_jax.analysis.lr_sums import largest_multiplier
from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import curves_and_peaks, record_warnings, typed_peak
from plateau_jax.validation.curve_warning import suppress_warnings

MAX_FITS = 16
"""How many fits, and how many runs, the server keeps."""

_Value = TypeVar("_Value")

_PAGE_WORDS = [
    (
        r"^steps\[-1\] = (\d+) lies after the end of the curve, which has total_steps = (\d+): .*",
        r"the last reading, at step \1, lies after the end of the curve, at step \2: choose the run's curve",
    ),
    (r"^losses\[\d+\] = (\S+) must be finite and positive.*", r"a loss is \1: log finite, positive losses"),
    (r" is not a log: .*", " is not a log, with rows and columns"),
    (r"^peak(?:_value)? = (\S+) (must|is)", r"the peak, \1, \2"),
    (r"give another peak_value=", "choose another peak"),
    (r"fit the runs of one peak, or find .*", "keep the logs of one peak"),
    (r" = (?=.* must be (a number|an integer|written))", ": "),
    (r"(?<=more cells than columns): .*", ""),
    (r"maximum recursion depth .*", "it is nested too deep"),
    (r" \(char \d+\)$", ""),
    (r"(?<!\w)'([^']*)'", r"“\1”"),  # Python's quotes, but not the apostrophe of "the run's"
]
"""What to replace in messages about logs and forecasts: the page has no arguments."""


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


_runs = _Recent[LossRun]()
_fits = _Recent[LossFit]()


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "text", "curve", "peak", "columns"} -> {"run", "loss", "columns", "advice"}, or a fault.

    Without a curve, the learning rates of the log are used. `columns` names those of `step`, `loss` and `lr`
    that the user chose, and in the answer those that were read. A fault is {"fault", "argument", "columns"}:
    the columns to choose from, if one of these arguments is unclear.
    """
    name, columns = str(question.get("name")), dict(cast("Mapping[str, Any]", question.get("columns", {})))
    curve = None if question.get("curve") is None else Curve.from_dict(question["curve"])
    chosen: dict[str, str | None] = {argument: columns.get(argument) for argument in ("step", "loss", "lr")}
    try:
        peak = None if curve is None or question.get("peak") is None else typed_peak(question)
        with record_warnings() as advice:
            log = read_log(parse_rows(str(question.get("text")), name), curve, peak, name=name, **chosen)
            run = LossRun._from_log(log)
    except UnclearLogError as error:
        fault = _in_page_words(error.problem)
        return {"fault": fault, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        fault = _in_page_words(str(error))
        is_named = fault.startswith(name)
        return {
            "fault": fault if is_named else fault[:1].upper() + fault[1:],
            "argument": None,
            "columns": (),
        }
    description = {
        "name": name,
        "curve": run.curve.to_dict(),
        "peak": run.peak_value,
        "steps": run.steps.tolist(),
        "losses": run.losses.tolist(),
    }
    # A curve of all logged learning rates takes seconds to build.
    _runs.keep(_digest(description), run)
    loss, columns = base_name(log.columns["loss"]), list(log.columns.values())
    return {"run": description, "loss": loss, "columns": columns, "advice": advice}


def fit_runs(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"runs": [the run of an answer of `open_log`, …]} -> {"fit": key} or {"fault"}."""
    runs = cast("list[Mapping[str, Any]]", question.get("runs"))
    if not isinstance(runs, list) or not all(isinstance(run, Mapping) for run in runs):
        raise TypeError("runs must be a list of objects")
    key = _digest(runs)
    if _fits.get(key) is None:
        with suppress_warnings():
            loss_runs = [_loss_run(run) for run in runs]
        try:
            _fits.keep(key, fit_losses(loss_runs))
        except ValueError as error:
            names = [str(run.get("name")) for run in runs]
            fault = _in_page_words(str(error))
            return {"fault": re.sub(r"^runs\[(\d+)\]", lambda index: names[int(index[1])], fault)}
    return {"fit": key}


def forecast_curves(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"fit": key, "curves": [{"curve", "peak"}, …]} -> {"forecasts", "note"}, or {"forgotten": true}.

    A forecast has the difference to the first curve, or is a fault.
    """
    fit = _fits.get(str(question.get("fit")))
    if fit is None:
        return {"forgotten": True}
    forecasts: list[dict[str, Any]] = []
    first: Prediction | None = None
    for number, (curve, peak) in enumerate(curves_and_peaks(question)):
        if not peak * largest_multiplier(curve, curve.total_steps) > 0:
            forecasts.append({"fault": "no learning rate above 0"})
            continue
        try:
            prediction = _cached_prediction(fit, curve, peak)
        except ValueError as error:
            forecasts.append({"fault": _in_page_words(str(error))})
            continue
        forecasts.append(_describe(fit, prediction, first))
        if number == 0:
            first = prediction
    return {"forecasts": forecasts, "note": NOTE}


FORECAST_ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/log": open_log,
    "/fit": fit_runs,
    "/forecast": forecast_curves,
}
"""The function that answers each path."""

LARGE_QUESTIONS = "/log", "/fit"
"""Paths whose questions hold a log."""


def _in_page_words(text: str) -> str:
    for pattern, words in _PAGE_WORDS:
        text = re.sub(pattern, words, text)
    return text


def _digest(value: Any) -> str:
    """Return a digest of JSON; a browser writes 2.0 as 2."""
    canonical = json.loads(json.dumps(value), parse_int=float)
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


def _loss_run(run: Mapping[str, Any]) -> LossRun:
    kept = _runs.get(_digest(run))
    if kept is not None:
        return kept
    curve = Curve.from_dict(run.get("curve", {}))
    return LossRun(curve, typed_peak(run), run.get("steps", ()), run.get("losses", ()))


# The sums of a long curve take tens of milliseconds, and the user changes one curve at a time.
@lru_cache(64)
def _cached_prediction(fit: LossFit, curve: Curve, peak: float) -> Prediction:
    return fit._prediction(curve, peak)


def _describe(fit: LossFit, prediction: Prediction, first: Prediction | None) -> dict[str, Any]:
    answer: dict[str, Any] = prediction.forecast._asdict() | {"difference": None}
    if first is not None:
        difference = fit._difference(prediction, first)
        answer["difference"] = difference._asdict() | {"is_told_apart": difference.is_told_apart}
    return answer
