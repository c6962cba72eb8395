"""Answers to the requests of the design page: a JSON value in, a JSON value out."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.design import source
from plateau_jax.design.forecasts import fit_runs, forecast_curves
from plateau_jax.design.handles import curve_and_peak_handles
from plateau_jax.design.opened_logs import open_log
from plateau_jax.design.questions import (
    MAX_CURVES,
    PlacedMessage,
    advice_about,
    check_size,
    curve_and_peak,
    entries_of,
    parse_json,
    placed_message,
    record_warnings,
    texts_of,
    typed_peak,
)
from plateau_jax.design.shape_choices import levels_of_shapes
from plateau_jax.drawing.sampling import shaded_spans, steps_to_draw
from plateau_jax.forecasts.loss_comparison import NOTE as FORECAST_NOTE
from plateau_jax.forecasts.lr_sums import largest_multiplier
from plateau_jax.numerics.exact_segments import describe_segments, end_of_rise, nonempty_segments
from plateau_jax.theory.comparison import NOTE, peak_at_equal_length
from plateau_jax.theory.last_iterate import outlook
from plateau_jax.validation import checks
from plateau_jax.validation.checks import Message, message_of
from plateau_jax.validation.curve_warning import suppress_warnings

_MAX_POINTS = 20_000
_MAX_ROWS = 200
_LARGEST_LIKELY_PEAK = 10.0
_MAX_NAME = 40  # characters

_DEFAULT_CURVE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 80)], decay_shape="1-sqrt")


def initial_curves(named_curves: Sequence[tuple[str, Curve]], peak: float) -> list[dict[str, Any]]:
    """Return the page's initial curves. A single one is compared with a cosine of its length and warmup."""
    if len(named_curves) > MAX_CURVES:
        raise ValueError(f"--design takes at most {MAX_CURVES} curves, not {len(named_curves)}")
    initial = list(named_curves) or [("Stable + cooldown", _DEFAULT_CURVE)]
    if len(initial) == 1:
        curve = initial[0][1]
        with suppress_warnings():  # the curve itself has warned of its warmup
            cosine = PlateauCurve(curve.total_steps, **warmup_arguments(curve))
        initial.insert(0, ("Cosine", cosine))
    return [{"name": name, "peak": peak, "curve": curve.to_dict()} for name, curve in initial]


def warmup_arguments(curve: Curve) -> dict[str, Any]:
    """Return the arguments that give a `PlateauCurve` of the same length the warmup of a curve of any kind.

    The warmup is the rise at the beginning. Its level at step 0 counts relative to the level that it reaches.

    >>> from plateau_jax import StagedCurve
    >>> warmup_arguments(StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0)]))
    {'warmup_steps': 500, 'init_lr_ratio': 0.0, 'warmup_shape': 'linear'}
    """
    end = end_of_rise(curve.rows)
    rise = [segment for segment, _ in nonempty_segments(curve.rows) if segment.begin < end]
    highest = rise[-1].at(end) if rise else 0
    if highest == 0:
        return {"warmup_steps": 0}
    # A rise may begin with a jump down, as where the batch of a scaled curve falls.
    first = rise[0].at(rise[0].begin)
    return {
        "warmup_steps": min(end, curve.total_steps - 1),  # a step must remain to decay
        "init_lr_ratio": min(1.0, float(first) / float(highest)),
        "warmup_shape": "cosine" if [segment.shape for segment in rise] == ["cosine"] else "linear",
    }


def answer_page(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves": [{"curve", "peak", "before"}, …], "describe", "step", "runs"} -> what the page shows.

    An entry whose curve or peak has a fault counts as it was `before`, when it was last valid, if ever. The
    answer describes the curves, unless `describe` is false, and has the learning rates at `step`, if that is
    not null. `runs` are those of each `open_log`. If they are null, the answer has neither bounds nor
    forecasts, which take longest: while a handle is dragged, the picture must not wait for them.
    """
    described = [_describe_entry(entry) for entry in entries_of(question)]
    answer: dict[str, Any] = {}
    if question.get("describe", True):
        answer["curves"] = [entry.answer for entry in described]
    if question.get("step") is not None:
        step = checks.at_least("step", question["step"], 0)
        rates = [entry.curve and entry.curve.learning_rate(step, entry.peak) for entry in described]
        answer["step"] = step
        answer["learning_rates"] = [lr if lr is None else float(f"{lr:.6g}") for lr in rates]
    runs = question.get("runs")
    if runs is not None:
        valid = {place: (curve, peak) for place, (curve, peak, _) in enumerate(described) if curve}

        def in_place(answers: Sequence[Any]) -> list[Any]:
            placed = dict(zip(valid, answers, strict=True))
            return [placed.get(place) for place in range(len(described))]

        answer |= {"outlooks": in_place(compare_curves(list(valid.values()))), "note": NOTE}
        if runs:
            fits = fit_runs(texts_of(runs))
            forecasts = forecast_curves(fits, list(valid.values())) if fits.by_peak else [None] * len(valid)
            answer |= {"fit": fits.answer, "forecasts": in_place(forecasts), "forecast_note": FORECAST_NOTE}
    return answer


class _Described(NamedTuple):
    """A curve with its peak and what the page shows of it; or None, any peak and the fault."""

    curve: Curve | None
    peak: float
    answer: dict[str, Any]


def _describe_entry(entry: Mapping[str, Any]) -> _Described:
    described, before = _describe(_json_of(entry)), entry.get("before")
    if described.curve is None and isinstance(before, Mapping):
        valid = _describe(_json_of(cast("Mapping[str, Any]", before)))
        return valid._replace(answer=valid.answer | described.answer)
    return described


def _json_of(entry: Mapping[str, Any]) -> str:
    return json.dumps({"curve": entry.get("curve"), "peak": entry.get("peak")})


# The user changes one curve at a time.
@lru_cache(64)
def _describe(text: str) -> _Described:
    """Describe an entry from its JSON text."""
    entry = json.loads(text)
    arguments = entry["curve"]
    try:
        check_size(arguments)
        with record_warnings() as warnings:  # of a percentage that rounds to no step, too
            curve = Curve.from_dict(arguments)
    except (TypeError, ValueError) as error:
        return _Described(None, 0.0, {"fault": asdict(placed_message(message_of(error), ("curve",)))})
    try:
        peak = typed_peak(entry)
    except (TypeError, ValueError) as error:
        return _Described(None, 0.0, {"fault": asdict(placed_message(message_of(error)))})
    return _Described(curve, peak, _describe_curve(curve, peak, warnings, arguments))


def _describe_curve(curve: Curve, peak: float, warnings: Sequence[Message], typed: Any) -> dict[str, Any]:
    """Return everything the page shows of a curve; `typed` are its arguments as the user typed them."""
    steps = steps_to_draw(curve.rows)
    if len(steps) > _MAX_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, _MAX_POINTS).astype(np.int64)]
    arguments = curve.to_dict()
    segments = describe_segments(curve.rows, np.float32(peak))
    handles = curve_and_peak_handles(curve, peak)
    repeated = list(advice_about(curve, ("curve",)))  # and at their place in a curve within a curve
    texts = {message.message for message in repeated}
    first = (placed_message(warning, ("curve",)) for warning in warnings)
    advice = [
        *(message for message in first if message.message not in texts),
        *repeated,
        *_remarks(peak, len(segments) - 1, len(handles)),
    ]
    return {
        "curve": arguments,
        "peak": peak,
        "total": curve.total_steps,
        "largest": largest_multiplier(curve, curve.total_steps),
        "warmup": warmup_arguments(curve),
        "steps": steps.tolist(),
        "levels": np.round(curve(steps).astype(np.float64), 6).tolist(),  # rounded: the picture needs no more
        "spans": list(shaded_spans(curve.rows))[:_MAX_ROWS],
        "segments": segments[: _MAX_ROWS + 1],
        "handles": [asdict(handle) for handle in handles],
        "shapes": levels_of_shapes([typed, arguments]),
        "optax": source.optax_code(curve, peak),
        "torch": source.torch_code(curve, peak),
        "json": source.as_json(arguments),
        "advice": [asdict(message) for message in advice],
    }


def compare_curves(curves: Sequence[tuple[Curve, float]]) -> list[dict[str, Any]]:
    """Return the bound and the best peak of each curve, relative to those of the first, or a fault.

    `peak_ratio` is that at equal length; `best_peak` is a learning rate, the first curve's peak times it.
    """
    outlooks: list[dict[str, Any]] = []
    first, first_peak, first_best = None, 0.0, 0.0
    for number, (curve, peak) in enumerate(curves):
        try:
            curve_outlook = _cached_outlook(curve)
        except ValueError:
            outlooks.append({"fault": "no learning rate above 0"})
            continue
        best = peak_at_equal_length(curve, curve_outlook)
        if number == 0:
            first, first_peak, first_best = curve_outlook, peak, best
        if first is None:
            outlooks.append({"fault": "the first curve has no learning rate above 0"})
            continue
        ratio = best / first_best
        bound = curve_outlook.bound / first.bound
        outlooks.append({"bound": bound, "peak_ratio": ratio, "best_peak": ratio * first_peak})
    return outlooks


def open_curves(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"text": JSON} -> {"curve": JSON}, or {"curves": [{"name", "peak", "curve"}]}, or {"fault"}."""
    try:
        arguments = parse_json(question.get("text"))
        if isinstance(arguments, Mapping) and "curves" in arguments:
            return _saved_page(cast("Mapping[str, Any]", arguments))
        check_size(arguments)
        with suppress_warnings():  # the page asks for its advice next
            return {"curve": Curve.from_dict(cast("Any", arguments)).to_dict()}
    except (TypeError, ValueError) as error:
        return {"fault": str(error)}


def _saved_page(saved: Mapping[str, Any]) -> dict[str, Any]:
    curves: list[dict[str, Any]] = []
    for number, entry in enumerate(entries_of(saved), 1):
        name = str(entry.get("name") or f"Curve {number}")[:_MAX_NAME]
        try:
            curve, peak = curve_and_peak(entry)
        except (TypeError, ValueError) as error:
            return {"fault": f"{name}: {error}"}
        curves.append({"name": name, "peak": peak, "curve": curve.to_dict()})
    return {"curves": curves} if curves else {"fault": "This page was saved without a curve"}


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/page": answer_page,
    "/open": open_curves,
    "/log": open_log,
}
"""The function that answers each path."""


def answer_request(path: str, body: bytes) -> dict[str, Any]:
    """Parse a request's body and answer it.

    Raises:
        TypeError: The body is not a question for this path.
        ValueError: Likewise, or the body is not JSON.
    """
    question = parse_json(body)
    if not isinstance(question, Mapping):
        raise TypeError("the body must be a JSON object")
    return ANSWERS[path](cast("Mapping[str, Any]", question))


# The outlook of a long curve takes a tenth of a second, and the user changes one curve at a time.
_cached_outlook = lru_cache(64)(outlook)


def _remarks(peak: float, segments: int, handles: int) -> Iterator[PlacedMessage]:
    """Yield a sentence about an unlikely peak, and about each thing that the page leaves out."""
    if peak > _LARGEST_LIKELY_PEAK:
        yield PlacedMessage("Learning rates are rarely above 10.", ("peak",))
    if segments > _MAX_ROWS:
        yield PlacedMessage(f"The table shows the first {_MAX_ROWS} of {segments} segments.")
    if handles == 1:  # the peak's handle alone
        yield PlacedMessage("The picture has no handles for this curve. Use the fields.")
