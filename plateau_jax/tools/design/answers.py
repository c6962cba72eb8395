"""Answers to the requests of the design page: a JSON value in, a JSON value out."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve, WarmupShape
from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO
from plateau_jax.tools.configuration import curve_from_text, parse_numbers
from plateau_jax.tools.design import code_snippets
from plateau_jax.tools.design.handles import curve_and_peak_handles
from plateau_jax.tools.design.messages import advice_about, placed_message
from plateau_jax.tools.drawing.sampling import shaded_spans, steps_to_draw, thin_out
from plateau_jax.tools.drawing.segment_table import segment_table
from plateau_jax.tools.theory.bounds import (
    LeastBound,
    minimize_bound,
    note,
    peak_at_equal_length,
)

MAX_CURVES = 12
"""The number of looks in `looks.js`."""

_MAX_CHARACTERS = 200_000
"""The most characters of a curve as JSON: with 5000 stages, the page waits for seconds."""

_MAX_POINTS = 20_000
_MAX_ROWS = 200
_MAX_LIKELY_PEAK = 10.0
_DEFAULT_CURVE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 80)], decay_shape="1-sqrt")


# The beginning


def initial_curves(named_curves: Sequence[tuple[str, Curve]], peak: float) -> list[dict[str, Any]]:
    """Return the page's initial curves.

    A single curve is compared with a cosine of the same length and warmup.
    """
    if len(named_curves) > MAX_CURVES:
        raise ValueError(f"--design takes at most {MAX_CURVES} curves, not {len(named_curves)}")
    initial = list(named_curves) or [("Stable + cooldown", _DEFAULT_CURVE)]
    if len(initial) == 1:
        _, curve = initial[0]
        with suppress_warnings():  # the curve itself has warned of its warmup
            cosine = PlateauCurve(curve.total_steps, **warmup_arguments(curve))
        initial.insert(0, ("Cosine", cosine))
    return [{"name": name, "peak": peak, "curve": curve.to_dict()} for name, curve in initial]


def warmup_arguments(curve: Curve) -> dict[str, Any]:
    """Return the arguments that give a `PlateauCurve` of the same length the warmup of a curve.

    The warmup of a curve of a different kind is the rise that the picture shades at its beginning.

    >>> from plateau_jax import StagedCurve
    >>> warmup_arguments(StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0)]))
    {'warmup_steps': 500}
    """
    if isinstance(curve, PlateauCurve):
        names = "warmup_steps", "init_lr_ratio", "warmup_shape"
        return {name: getattr(curve, name) for name in names}
    name, begin, after = next(shaded_spans(curve._exact_segments), ("", 0, 0))
    if name != "warmup" or begin > 0:
        return {"warmup_steps": 0}
    return {"warmup_steps": min(after, curve.total_steps - 1)}  # a step must remain to decay


INITIAL_POWERS = {"1-x^P": "2", "(1-x)^P": "2", "t^-P": "0.5"}
"""The P with which a field begins, for each shape that has one."""


def choices_per_field() -> dict[str, list[dict[str, Any]]]:
    """Return the shapes that each field can have, each with the initial P of a formula."""
    names_per_field = {
        "warmup_shape": get_args(WarmupShape),
        "decay_shape": SHAPES_ALLOWING_ZERO,
        "shape": SHAPES,
    }
    return {
        field: [{"name": name, "power": INITIAL_POWERS.get(name)} for name in names]
        for field, names in names_per_field.items()
    }


# The page


def describe_curves(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves": [{"curve", "peak"}, …]} -> {"curves": a description of each, or its fault}.

    Raises:
        TypeError: The curves, which may come from a file that the user opened, are not a list of
            objects. Curves and peaks may have any value: their faults are a part of the answer.
        ValueError: There are too many curves.
    """
    return {"curves": [description for *_, description in _describe_all(question)]}


def learning_rates_at_step(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves", "step"} -> {"learning_rates"}, with six digits."""
    step: int = question["step"]
    lrs = [curve.learning_rate(step, peak) for curve, peak in _valid_curves(question)]
    return {"learning_rates": [float(f"{lr:.6g}") for lr in lrs]}


def answer_comparison(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves"} -> {"ratios", "note"}.

    The bounds take longest: while a handle is dragged, the picture must not wait for them.
    """
    curves = _valid_curves(question)
    is_scaled = any(curve.unit is not None for curve, _ in curves)
    return {"ratios": compare_curves(curves), "note": note(is_scaled=is_scaled)}


def _valid_curves(question: Mapping[str, Any]) -> list[tuple[Curve, float]]:
    """Return the curves without a fault, with their peaks."""
    return [(curve, peak) for curve, peak, _ in _describe_all(question) if curve]


def _describe_all(question: Mapping[str, Any]) -> "list[_Described]":
    return [_describe(text) for text in _entries_as_text(question["curves"])]


def _entries_as_text(entries: Any) -> list[str]:
    """Return the curve and the peak of each entry as JSON text."""
    if not isinstance(entries, list):
        raise TypeError("curves must be a list")
    items = cast("list[Any]", entries)
    if len(items) > MAX_CURVES:
        raise ValueError(f"there are {len(items)} curves; the page takes at most {MAX_CURVES}")
    texts: list[str] = []
    for item in items:
        if not isinstance(item, dict):
            raise TypeError(f"an item of curves must be an object, not {json.dumps(item)}")
        entry = cast("dict[str, Any]", item)
        texts.append(json.dumps((entry.get("curve"), entry.get("peak"))))
    return texts


class _Described(NamedTuple):
    """A curve, its peak, and what the page shows of them; or None, any peak, and the fault."""

    curve: Curve | None
    peak: float
    description: dict[str, Any]


# The user changes one curve at a time.
@lru_cache(64)
def _describe(text: str) -> _Described:
    """Describe a curve and its peak, given as JSON text."""
    arguments, typed_peak = json.loads(text)
    place: tuple[str, ...] = ("curve",)
    try:
        if len(text) > _MAX_CHARACTERS:
            problem = f"this curve has {len(text)} characters of JSON"
            raise ValueError(f"{problem}; the page takes at most {_MAX_CHARACTERS}")
        with suppress_warnings():  # `advice_about` collects them
            curve = curve_from_text(arguments)
        place = ()
        # Not rounded to float32, because the code to copy shows it.
        peak = float(checks.number("peak", parse_numbers(typed_peak)))
        checks.peak("peak", peak)
    except (TypeError, ValueError) as error:
        return _Described(None, 0.0, {"fault": placed_message(checks.message_of(error), place)})
    return _Described(curve, peak, _describe_curve(curve, peak))


def _describe_curve(curve: Curve, peak: float) -> dict[str, Any]:
    """Return everything the page shows of a curve."""
    arguments = curve.to_dict()
    steps = thin_out(steps_to_draw(curve._exact_segments), _MAX_POINTS)
    table = segment_table(curve.segments, np.float32(peak), _MAX_ROWS)
    handles = curve_and_peak_handles(curve, peak)
    advice = list(advice_about(curve, ("curve",)))
    advice.extend(placed_message(remark) for remark in _remarks(peak, table.note, len(handles)))
    return {
        "curve": arguments,
        "peak": peak,
        "total": curve.total_steps,
        "warmup": warmup_arguments(curve),
        "steps": steps.tolist(),
        # Six digits suffice for a picture.
        "levels": np.round(curve(steps).astype(np.float64), 6).tolist(),
        "spans": list(shaded_spans(curve._exact_segments)),
        "segments": {"headings": table.headings, "rows": table.rows},
        "handles": [asdict(handle) for handle in handles],
        "optax": code_snippets.optax_code(curve, peak),
        "torch": code_snippets.torch_code(curve, peak),
        "json": json.dumps(arguments),
        "advice": advice,
    }


def _remarks(peak: float, table_note: str, handles: int) -> Iterator[Message]:
    """Yield a sentence about an unlikely peak, and about each thing that the page leaves out."""
    if peak > _MAX_LIKELY_PEAK:
        yield Message(("peak",), f" = {peak:g} is large: learning rates are rarely above 10")
    if table_note:
        yield Message((), table_note)
    if handles == 1:  # the peak's handle alone
        yield Message((), "The picture has no handles for this curve. Use the fields.")


def compare_curves(curves: Sequence[tuple[Curve, float]]) -> list[dict[str, Any]]:
    """Return the bound and the best peak of each curve, relative to those of the first, or a fault.

    `peak_ratio` is the ratio at equal length; `best_peak` is a learning rate, the peak of the first
    curve times this ratio.
    """
    return [_compare(curve, *curves[0]) for curve, _ in curves]


def _compare(curve: Curve, first: Curve, first_peak: float) -> dict[str, Any]:
    least = _least_bound(curve)
    if least is None:
        return {"fault": "no learning rate above 0"}
    first_least = _least_bound(first)
    if first_least is None:
        return {"fault": "the first curve has no learning rate above 0"}
    ratio = peak_at_equal_length(curve, least) / peak_at_equal_length(first, first_least)
    return {
        "bound": least.bound / first_least.bound,
        "peak_ratio": ratio,
        "best_peak": ratio * first_peak,
    }


# The bound of a long curve takes a tenth of a second, and the user changes one curve at a time.
@lru_cache(64)
def _least_bound(curve: Curve) -> LeastBound | None:
    """Return the bound of a curve at its best peak; None if it is 0 at every step."""
    try:
        return minimize_bound(curve)
    except ValueError:
        return None


# Requests

ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/describe": describe_curves,
    "/learning_rates": learning_rates_at_step,
    "/compare": answer_comparison,
}
"""The function that answers each path."""


def answer_request(path: str, body: bytes) -> dict[str, Any]:
    """Parse a request's body and answer it.

    Raises:
        TypeError, ValueError: As `describe_curves` does, or the body is not JSON.
    """
    return ANSWERS[path](json.loads(body))
