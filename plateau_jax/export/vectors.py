"""Test vectors: the values of a curve at many steps, for implementations in other languages.

JSON parsers read numbers as float64, so integers that may have more than 53 bits are hexadecimal
text.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.export.segments import FLAT, ExportedSegment, hexadecimal
from plateau_jax.numerics.exact import float32_bits

FORMAT = 1
"""Incremented if programs that read earlier files would misread new ones."""


class VectorInputs(NamedTuple):
    """A curve, and what is computed from it at an array of steps."""

    description: Mapping[str, Any]
    """The curve as JSON values."""
    segments: Sequence[ExportedSegment]
    multipliers: Callable[[Any], NDArray[np.float32]]
    fixed_values: Callable[[Any], NDArray[np.int64]]


def vectors_as_json(curves: Sequence[VectorInputs], peak: np.float32) -> str:
    """Return the text of a file of test vectors: a line per segment, and a line per step."""
    version = metadata.version("plateau-jax")
    written = [_curve_as_json(curve, peak) for curve in curves]
    return (
        f'{{"format": {FORMAT}, "version": {json.dumps(version)}, "peak": {float(peak)!r},\n'
        f'"curves": {_lines(written)}}}\n'
    )


def _curve_as_json(curve: VectorInputs, peak: np.float32) -> str:
    segments = [json.dumps(_describe(segment)) for segment in curve.segments]
    vectors = [json.dumps(vector) for vector in _vectors(curve, peak)]
    return (
        f'{{"curve": {json.dumps(curve.description)},\n'
        f'"segments": {_lines(segments)},\n'
        f'"vectors": {_lines(vectors)}}}'
    )


def _lines(items: Sequence[str]) -> str:
    """Return a JSON array with an item per line."""
    joined = ",\n".join(items)
    return f"[\n{joined}\n]"


def _describe(segment: ExportedSegment) -> dict[str, Any]:
    described: dict[str, Any] = {
        "first_step": segment.first_step,
        "multiplier": segment.multiplier,
        "shape": segment.shape,
    }
    if segment.shape == FLAT:
        return described
    described["skipped"] = segment.skipped
    described["length"] = segment.length
    described["start"] = hexadecimal(segment.start)
    described["end"] = hexadecimal(segment.end)
    for name, value in segment.parameters.items():
        described[name] = hexadecimal(value)
    described["shift"] = segment.shift
    return described


def _vectors(curve: VectorInputs, peak: np.float32) -> Iterator[dict[str, Any]]:
    """Yield the values of the curve at each step to test."""
    afters = [segment.first_step for segment in curve.segments[1:]]
    afters.append(MAX_STEP + 1)
    yield from _vectors_at([-1], curve.segments[0], curve, peak)
    for segment, after in zip(curve.segments, afters, strict=True):
        yield from _vectors_at(_steps_to_test(segment.first_step, after), segment, curve, peak)


def _vectors_at(
    steps: Sequence[int], segment: ExportedSegment, curve: VectorInputs, peak: np.float32
) -> Iterator[dict[str, Any]]:
    """Yield the values of the curve at steps of one segment."""
    clamped = np.maximum(steps, 0).astype(np.int32)
    multipliers = curve.multipliers(clamped)
    fixed_values: list[int] = curve.fixed_values(clamped).tolist()
    for index, step in enumerate(steps):
        fixed = None
        if segment.shape != FLAT and clamped[index] != segment.first_step - segment.skipped:
            fixed = hexadecimal(fixed_values[index])
        lr = peak * multipliers[index]
        yield {
            "step": step,
            "fixed": fixed,
            "bits": float32_bits(multipliers[index]),
            "multiplier": float(multipliers[index]),
            "learning_rate_bits": float32_bits(lr),
            "learning_rate": float(lr),
        }


def _steps_to_test(first_step: int, after: int) -> list[int]:
    """Return steps near both ends of a segment, at distances that double, and at each eighth."""
    length = after - first_step
    offsets = {length * eighth // 8 for eighth in range(8)}
    distance = 1
    while distance <= length:
        offsets |= {distance - 1, length - distance}
        distance *= 2
    return [first_step + offset for offset in sorted(offsets)]
