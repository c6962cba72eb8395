"""Test vectors: the table of a curve, and its values at many steps, for ports to other languages.

JSON parsers read numbers as float64, so integers that may have more than 53 bits are hexadecimal
text.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.table.evaluation import PYTHON, evaluate
from plateau_jax.tools.export.rows import ExportedRow, exported_rows, hexadecimal, steps_of_pieces
from plateau_jax.version import VERSION

FORMAT = 1
"""Incremented if programs that read earlier files would misread new ones."""


def vectors_as_json(curves: Sequence[Any], peak: float) -> str:
    """Return the text of a file of test vectors: a line per row, per piece and per step."""
    written = [_curve_as_json(curve, peak) for curve in curves]
    return (
        f'{{"format": {FORMAT}, "version": {json.dumps(VERSION)}, "peak": {peak!r},\n'
        f'"curves": {_lines(written)}}}\n'
    )


def _curve_as_json(curve: Curve, peak: float) -> str:
    rows = exported_rows(curve._python_table)
    heads: list[str] = []
    pieces: list[str] = []
    for row in rows:
        heads.append(json.dumps([row.first_step, row.shift, len(pieces)]))
        for exponent, coefficients in row.pieces:
            pieces.append(json.dumps([exponent, *map(hexadecimal, coefficients)]))
    vectors = [json.dumps(vector) for vector in _vectors(curve, rows, peak)]
    return (
        f'{{"curve": {json.dumps(curve.to_dict())},\n'
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


def _vectors(curve: Curve, rows: Sequence[ExportedRow], peak: float) -> Iterator[dict[str, Any]]:
    """Yield the values of the curve at the ends and in the middle of each piece."""
    for step in [-1, *sorted(set(steps_of_pieces(rows)))]:
        multiplier = curve.learning_rate(step, 1.0)
        lr = curve.learning_rate(step, peak)
        yield {
            "step": step,
            "value": hexadecimal(evaluate(_UNROUNDED, curve._python_table, max(step, 0))),
            "bits": _bits(multiplier),
            "multiplier": multiplier,
            "learning_rate_bits": _bits(lr),
            "learning_rate": lr,
        }


def _bits(number: float) -> int:
    """Return the bits of a float32, as an integer without a sign."""
    return np.float32(number).view(np.uint32).item()
