"""Test vectors: the table of a curve, and its values at many steps, for ports to other languages.

JSON parsers read numbers as float64, so integers that may have more than 53 bits are hexadecimal
text.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plateau_jax.export.rows import ExportedRow, exported_rows, hexadecimal, steps_of_pieces
from plateau_jax.numerics.exact import float32_bits
from plateau_jax.table.evaluation import PYTHON, WideTable, evaluate
from plateau_jax.version import VERSION

FORMAT = 1
"""Incremented if programs that read earlier files would misread new ones."""


class VectorInputs(NamedTuple):
    """A curve, and what is computed from it."""

    description: Mapping[str, Any]
    """The curve as JSON values."""
    table: WideTable
    """Its table from `in_python`."""
    learning_rates: Callable[[Any, float], Any]
    """Its method `learning_rate`."""


def vectors_as_json(curves: Sequence[VectorInputs], peak: float) -> str:
    """Return the text of a file of test vectors: a line per row, per piece and per step."""
    written = [_curve_as_json(curve, peak) for curve in curves]
    return (
        f'{{"format": {FORMAT}, "version": {json.dumps(VERSION)}, "peak": {peak!r},\n'
        f'"curves": {_lines(written)}}}\n'
    )


def _curve_as_json(curve: VectorInputs, peak: float) -> str:
    rows = exported_rows(curve.table)
    heads: list[str] = []
    pieces: list[str] = []
    for row in rows:
        heads.append(json.dumps([row.first_step, row.shift, len(pieces)]))
        for exponent, coefficients in row.pieces:
            pieces.append(json.dumps([exponent, *map(hexadecimal, coefficients)]))
    vectors = [json.dumps(vector) for vector in _vectors(curve, rows, peak)]
    return (
        f'{{"curve": {json.dumps(curve.description)},\n'
        f'"rows": {_lines(heads)},\n'
        f'"pieces": {_lines(pieces)},\n'
        f'"vectors": {_lines(vectors)}}}'
    )


def _lines(items: Sequence[str]) -> str:
    """Return a JSON array with an item per line."""
    joined = ",\n".join(items)
    return f"[\n{joined}\n]"


def _unrounded(value: int, exponent: Sequence[int], piece: int) -> int:
    return value


_UNROUNDED = PYTHON._replace(to_float32=_unrounded)


def _vectors(
    curve: VectorInputs, rows: Sequence[ExportedRow], peak: float
) -> Iterator[dict[str, Any]]:
    """Yield the values of the curve at the ends and in the middle of each piece."""
    for step in [-1, *sorted(set(steps_of_pieces(rows)))]:
        multiplier = curve.learning_rates(step, 1.0)
        lr = curve.learning_rates(step, peak)
        yield {
            "step": step,
            "value": hexadecimal(evaluate(_UNROUNDED, curve.table, max(step, 0))),
            "bits": float32_bits(multiplier),
            "multiplier": multiplier,
            "learning_rate_bits": float32_bits(lr),
            "learning_rate": lr,
        }
