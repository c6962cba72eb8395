"""Answers to the requests of the design page: a JSON value in, a JSON value out."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from threading import Lock
from typing import Any, cast, get_args

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message, Path
from plateau_jax.arguments.curve_warning import CurveWarning, suppress_warnings
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve, WarmupShape
from plateau_jax.curves.serialization import NESTED
from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO
from plateau_jax.tools.configuration import curve_from_text, parse_numbers
from plateau_jax.tools.design import code_snippets
from plateau_jax.tools.design.handles import curve_and_peak_handles
from plateau_jax.tools.drawing.sampling import shaded_spans, steps_to_draw
from plateau_jax.tools.drawing.segment_table import segment_cells
from plateau_jax.tools.theory.bounds import (
    NOTE,
    LeastBound,
    minimize_bound,
    peak_at_equal_length,
)

_MAX_ROWS = 200

_CELLS = {"start": 0, "steps": 0, "duration": 1, "length": 1, "to": 1, "shape": 2}
"""The index of each part in a pair or a stage."""

_DEFAULT_CURVE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 80)], decay_shape="1-sqrt")


# The beginning


def initial_curves(named_curves: Sequence[tuple[str, Curve]], peak: float) -> list[dict[str, Any]]:
    """Return the page's initial curves.

    A single curve is compared with a cosine of the same length and warmup.
    """
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
    for name, begin, after in shaded_spans(curve._exact_segments):
        if name == "warmup" and begin == 0:
            steps = min(after, curve.total_steps - 1)  # a step must remain to decay
            return {"warmup_steps": steps}
    return {"warmup_steps": 0}


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
        TypeError, ValueError: The curves, which may come from a file that the user opened, are not
            a list of objects. Curves and peaks may have any value: their faults are a part of the
            answer.
    """
    entries: Sequence[Any] = question["curves"]
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError('curves must be a list of objects, each with a "curve" and a "peak"')
    return {"curves": [_describe(entry) for entry in entries]}


def learning_rates_at_step(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves", "step"} of valid curves -> {"learning_rates"}."""
    step: int = question["step"]
    entries = map(_read, question["curves"])
    return {"learning_rates": [curve.learning_rate(step, peak) for curve, peak in entries]}


def compare_curves(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"curves"} of valid curves -> {"ratios", "note"}.

    `ratios` has the bound and the best peak of each curve, relative to those of the first, at equal
    length, or why there are none. `best_peak` is a learning rate, the peak of the first curve times
    that ratio.

    The bounds take longest: while a handle is dragged, the picture must not wait for them.
    """
    entries = [_read(entry) for entry in question["curves"]]
    ratios = [_compare(curve, *entries[0]) for curve, _ in entries]
    return {"ratios": ratios, "note": NOTE}


def _compare(curve: Curve, first: Curve, first_peak: float) -> dict[str, Any]:
    least = _least_bound(curve)
    first_least = _least_bound(first)
    if least is None:
        return {"fault": "no learning rate above 0"}
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


# Curves and peaks


def _read(entry: Mapping[str, Any]) -> tuple[Curve, float]:
    """Return the curve and the peak of an entry."""
    return _build(json.dumps(entry["curve"])), _read_peak(entry["peak"])


# The user changes one curve at a time.
@lru_cache(64)
def _build(text: str) -> Curve:
    with suppress_warnings():  # `_advice` collects them
        return curve_from_text(json.loads(text))


def _read_peak(typed: Any) -> float:
    # Not rounded to float32, because the code to copy shows it.
    peak = float(checks.number("peak", parse_numbers(typed)))
    checks.peak("peak", peak)
    return peak


def _describe(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything the page shows of a curve, or its fault."""
    place: Path = ("curve",)
    try:
        curve = _build(json.dumps(entry.get("curve")))
        place = ()
        peak = _read_peak(entry.get("peak"))
    except (TypeError, ValueError) as error:
        return {"fault": _placed(checks.message_of(error), place)}

    arguments = curve.to_dict()
    steps = steps_to_draw(curve._exact_segments)
    cells, omitted = segment_cells(curve.segments, np.float32(peak), _MAX_ROWS)
    advice = list(_advice(curve, ("curve",)))
    if omitted:
        advice.append(_placed(Message((), omitted)))
    return {
        "curve": arguments,
        "peak": peak,
        "total": curve.total_steps,
        "warmup": warmup_arguments(curve),
        "steps": steps.tolist(),
        # Six digits suffice for a picture.
        "levels": np.round(curve(steps).astype(np.float64), 6).tolist(),
        "spans": shaded_spans(curve._exact_segments),
        "segments": cells,
        "handles": [asdict(handle) for handle in curve_and_peak_handles(curve, peak)],
        "optax": code_snippets.optax_code(curve, peak),
        "torch": code_snippets.torch_code(curve, peak),
        "json": code_snippets.as_json(arguments),
        "advice": advice,
    }


def _placed(message: Message, place: Path = ()) -> dict[str, Any]:
    """Return a message about an argument of the curve at `place`, with the path of its field.

    A message without an argument has the path `place`.
    """
    keys = list(message.path)
    is_cell = len(keys) > 1 and isinstance(keys[-2], int)  # as in ("stages", 1, "to")
    if is_cell:
        keys[-1] = _CELLS.get(str(keys[-1]), keys[-1])
    return {"message": message, "path": (*place, *keys)}


_warnings_lock = Lock()
"""Held while warnings are recorded: `catch_warnings` replaces the filters of the whole process."""


def _advice(curve: Curve, place: Path) -> Iterator[dict[str, Any]]:
    """Yield the constructors' warnings about a curve and the curves it is derived from."""
    with _warnings_lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        replace(cast("Any", curve))  # runs the constructor again
    for warning in caught:
        yield _placed(checks.message_of(cast("Warning", warning.message)), place)
    for name in NESTED:
        inner = getattr(curve, name, None)
        if isinstance(inner, Curve):
            yield from _advice(inner, (*place, name))


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/describe": describe_curves,
    "/learning_rates": learning_rates_at_step,
    "/compare": compare_curves,
}
"""The function that answers each path."""
