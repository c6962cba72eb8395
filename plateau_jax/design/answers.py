"""What the page asks of the package: a JSON value in, a JSON value out."""

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from threading import Lock
from typing import Any, cast

import numpy as np

from plateau_jax.analysis.comparison import NOTE
from plateau_jax.analysis.last_iterate import Outlook, outlook
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.design import source
from plateau_jax.design.handles import handles_of
from plateau_jax.drawing.sampling import shaded_spans, steps_to_draw
from plateau_jax.numerics.exact_segments import describe_segments
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import CurveWarning

MOST_CURVES = 12
_MOST_POINTS = 20_000
_MOST_ROWS = 200

_warnings = Lock()
"""Held while Python's warnings are recorded: that changes them for all threads."""


_FIRST = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 70)], decay_shape="linear")


def start(named: Sequence[tuple[str, Curve]], peak: float) -> list[dict[str, Any]]:
    """The curves that the page begins with. One alone gets a cosine of its length to be compared with."""
    if len(named) > MOST_CURVES:
        raise ValueError(f"--design takes at most {MOST_CURVES} curves, not {len(named)}")
    found = list(named) or [("Stable + cooldown", _FIRST)]
    if len(found) == 1:
        curve = found[0][1]
        warmup = curve.warmup_steps if isinstance(curve, PlateauCurve) else 0
        found.insert(0, ("Cosine", PlateauCurve(curve.total_steps, warmup_steps=warmup)))
    return [{"name": name, "peak": peak, "curve": curve.to_dict()} for name, curve in found]


def shown(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curve": as of to_dict, "peak": a number} -> all that the page shows of a curve, or what is wrong."""
    arguments = question.get("curve")
    try:
        curve = Curve.from_dict(cast("Any", arguments))
    except (TypeError, ValueError) as error:
        return {"fault": _fault(arguments, error)}
    try:
        rate = checks.peak("peak", checks.number("peak", question.get("peak")))
    except (TypeError, ValueError) as error:
        return {"fault": {"path": [], "field": "peak", "message": str(error)}}
    peak = float(cast("float", question["peak"])) + 0.0
    steps = steps_to_draw(curve.rows)
    if len(steps) > _MOST_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, _MOST_POINTS).astype(np.int64)]
    arguments = curve.to_dict()
    segments = describe_segments(curve.rows, rate)
    handles = handles_of(curve, peak)
    return {
        "curve": arguments,
        "total": curve.total_steps,
        "steps": steps.tolist(),
        "levels": np.round(curve(steps).astype(np.float64), 6).tolist(),  # for the picture alone
        "spans": list(shaded_spans(curve.rows))[:_MOST_ROWS],
        "segments": segments[: _MOST_ROWS + 1],
        "handles": [asdict(handle) for handle in handles],
        "optax": source.for_optax(curve, peak),
        "torch": source.for_torch(curve, peak),
        "json": source.as_json(arguments),
        "advice": [*_advice(curve), *_left_out(len(segments) - 1, len(handles))],
    }


def outlooks(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves": [{"curve", "peak"}, …]} -> of each the bound and the advised peak, over those of the first.

    With the rate that the peak of the first one advises.
    """
    entries = _entries(question)
    found: list[dict[str, Any]] = []
    first, first_peak = None, 0.0
    for number, (curve, peak) in enumerate(entries):
        try:
            own = _outlook(curve)
        except ValueError:
            found.append({"fault": "no rate above 0"})
            continue
        if number == 0:
            first, first_peak = own, peak
        if first is None:
            found.append({"fault": "the first curve has no rate above 0"})
            continue
        advised = own.peak / first.peak
        found.append({"bound": own.bound / first.bound, "advised": advised, "rate": advised * first_peak})
    return {"outlooks": found, "note": NOTE}


def rates(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves": [{"curve", "peak"}, …], "step": an integer} -> the rate of each curve at that step."""
    step = checks.at_least("step", question.get("step"), 0)
    found = [float(np.float32(peak) * np.float32(curve(step))) for curve, peak in _entries(question)]
    return {"step": step, "rates": [float(f"{rate:.6g}") for rate in found]}


def opened(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"text": JSON of to_dict} -> {"curve": the same with every argument}, or what is wrong."""
    try:
        return {"curve": Curve.from_dict(parsed(question.get("text"))).to_dict()}
    except (TypeError, ValueError) as error:
        return {"fault": str(error)}


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/curve": shown,
    "/outlook": outlooks,
    "/rates": rates,
    "/open": opened,
}
"""The answer of each path."""


def answer(path: str, body: bytes) -> dict[str, Any]:
    """The answer to a request.

    Raises:
        TypeError: The body does not hold what the path takes.
        ValueError: The same, or the body is not JSON.
    """
    question = parsed(body)
    if not isinstance(question, Mapping):
        raise TypeError("the body must be a JSON object")
    return ANSWERS[path](cast("Mapping[str, Any]", question))


def parsed(text: Any) -> Any:
    """What a text or bytes of JSON say."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("this is nested too deep") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"this is not JSON: {error}") from None


def _entries(question: Mapping[str, Any]) -> list[tuple[Curve, float]]:
    entries = cast("list[Mapping[str, Any]]", question.get("curves"))
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise TypeError("curves must be a list of objects with the keys curve and peak")
    if len(entries) > MOST_CURVES:
        raise ValueError(f"curves holds {len(entries)} curves; it may hold {MOST_CURVES}")
    return [
        (Curve.from_dict(entry.get("curve", {})), float(checks.peak("peak", entry.get("peak"))))
        for entry in entries
    ]


@lru_cache(64)
def _outlook(curve: Curve) -> Outlook:
    """Of a long curve it takes a tenth of a second, and only one of several changes at a time."""
    return outlook(curve)


def _fault(arguments: Any, error: Exception, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The constructor's message, and where it belongs: the innermost curve that is refused, and its field."""
    found = cast("Mapping[str, Any]", arguments if isinstance(arguments, Mapping) else {})
    for name in ("curve", "other"):
        try:
            if name in found:
                Curve.from_dict(found[name])
        except (TypeError, ValueError) as inner:
            return _fault(found[name], inner, (*path, name))
    label = re.match(r"(\w+)(?:\[(\d+)\])?", str(error))
    name, index = label.groups() if label else ("", None)
    return {
        "path": path,
        "field": name if name in found else None,
        "index": None if index is None else int(index),
        "message": str(error),
    }


def _advice(curve: Curve) -> list[str]:
    """What the constructors warn of: likely mistakes."""
    with _warnings, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", CurveWarning)
        for part in _parts(curve):
            replace(part)
    return [str(warning.message) for warning in found]


def _left_out(segments: int, handles: int) -> Iterator[str]:
    """What the page does not show of a long curve."""
    if segments > _MOST_ROWS:
        yield f"The table shows the first {_MOST_ROWS} of {segments} segments."
    if handles == 1:  # that of the peak
        yield "The picture has no handles for so many parts: use the fields."


def _parts(curve: Curve) -> Iterator[Any]:
    """The curve, and the curves that it is made of."""
    yield curve
    for name in ("curve", "other"):
        if isinstance(inner := getattr(curve, name, None), Curve):
            yield from _parts(inner)
