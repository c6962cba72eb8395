"""The rows of a table as they are exported, each with its pieces."""

from collections.abc import Sequence
from typing import NamedTuple

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.table.evaluation import WideTable


class ExportedPiece(NamedTuple):
    """A polynomial in t, divided by 2^exponent."""

    exponent: int
    coefficients: tuple[int, ...]
    """The lowest power first."""


class ExportedRow(NamedTuple):
    """Consecutive pieces of 2^shift steps."""

    first_step: int
    shift: int
    pieces: Sequence[ExportedPiece]


def exported_rows(table: WideTable) -> list[ExportedRow]:
    """Return the rows of a table from `in_python`."""
    pieces: list[ExportedPiece] = []
    for exponent, coefficients in zip(table.exponent, table.coefficients, strict=True):
        pieces.append(ExportedPiece(exponent, coefficients[::-1]))
    ends = [*table.first[1:], len(pieces)]
    rows: list[ExportedRow] = []
    for begin, shift, first, end in zip(*table[:3], ends, strict=True):
        rows.append(ExportedRow(begin, shift, pieces[first:end]))
    return rows


def hexadecimal(value: int) -> str:
    """Return the literal of an integer, for languages with `0x`."""
    if abs(value) < 10:
        return str(value)
    return f"{'-' if value < 0 else ''}0x{abs(value):X}"


def steps_of_pieces(rows: Sequence[ExportedRow]) -> list[int]:
    """Return the first, the middle and the last step of each piece."""
    steps: list[int] = []
    afters = [row.first_step for row in rows[1:]]
    for row, after in zip(rows, [*afters, MAX_STEP + 1], strict=True):
        for index in range(len(row.pieces)):
            first = row.first_step + (index << row.shift)
            last = min(first + (1 << row.shift), after) - 1
            steps += [first, (first + last) // 2, last]
    return steps
