"""A curve as a Python file without dependencies: the rows of its table, and an evaluator."""

import json
from collections.abc import Sequence
from string import Template
from textwrap import TextWrapper

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.shapes.known_shapes import equation_of
from plateau_jax.table.exact_segments import ExactSegment, with_stops
from plateau_jax.tools.export.rows import ExportedRow, exported_rows, hexadecimal, steps_of_pieces
from plateau_jax.version import VERSION

CHECKED_PEAK = 3e-4
"""The peak with which the file checks its learning rates."""

# Text, not a module whose source is read: a package in a zip file or in an executable has none.
_FILE = Template('''\
"""A learning-rate schedule, written by plateau-jax $version. `multiplier(step)` and
`learning_rate(step, peak)` return the same float32 as this curve, at every step:

$curve

${unit}Python 3.9 or later, without dependencies. Run this file to check it. Copy, change and use it
without any condition.
"""

import struct
from bisect import bisect_right

# A row begins at a step, and has pieces of 2**shift steps: (first step, shift, pieces). A piece is
# a polynomial c[0] + c[1] * t + c[2] * t**2 ..., divided by 2**exponent: (exponent, c). The number
# t runs from -1/2 to 1/2 over the steps of the piece.
ROWS = [
$rows
]  # fmt: skip
FIRST_STEPS = [row[0] for row in ROWS]
CHECK_VALUE = $check_value


def multiplier(step: int) -> float:
    """Return the multiplier at a step, which is any integer: a float32 in [0, 1]."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step must be an integer, not {step!r}")
    step = min(max(step.__index__(), 0), 2**31 - 1)
    begin, shift, pieces = ROWS[bisect_right(FIRST_STEPS, step) - 1]
    index, rest = divmod(step - begin, 1 << shift)
    exponent, coefficients = pieces[index]
    t = (rest << (31 - shift)) - (1 << 30)  # in units of 2**-31
    value = 0
    for coefficient in reversed(coefficients):
        value = coefficient + (value * t >> 31)
    return round_to_float32(value, exponent)


def round_to_float32(value: int, exponent: int) -> float:
    """Return the float32 nearest to value / 2**exponent, ties to even; 0 below 2**-126."""
    dropped = max(value.bit_length() - 24, 0)
    rounded, rest = divmod(value, 1 << dropped)
    if 2 * rest + rounded % 2 > 1 << dropped:
        rounded += 1
    number = rounded * 2.0 ** (dropped - exponent)
    return number if number >= 2.0**-126 else 0.0


def learning_rate(step: int, peak: float$default_peak) -> float:
    """Return float32(float32(peak) * multiplier(step)); the peak is 0, or at least 2**-126."""
    if isinstance(peak, bool) or not hasattr(peak, "__float__"):
        raise TypeError(f"peak must be a number, not {peak!r}")
    if peak != 0 and not 2**-126 <= float(peak) < 2**128 - 2**103:
        raise ValueError(f"peak must be 0, or a finite float32 of at least 2**-126, not {peak!r}")
    (rounded_peak,) = struct.unpack("f", struct.pack("f", abs(peak)))
    product = rounded_peak * multiplier(step)  # exact, since float has 53 bits
    return struct.unpack("f", struct.pack("f", product))[0]


if __name__ == "__main__":
    value, count = 0, 0
    for (begin, shift, pieces), after in zip(ROWS, [*FIRST_STEPS[1:], 2**31]):
        for index in range(len(pieces)):
            first = begin + (index << shift)
            last = min(first + (1 << shift), after) - 1
            for step in (first, (first + last) // 2, last):
                for number in (multiplier(step), learning_rate(step, $checked_peak)):
                    (bits,) = struct.unpack("<I", struct.pack("<f", number))
                    value = (65537 * value + bits) % (2**61 - 1)
                count += 1
    if value != CHECK_VALUE:
        raise SystemExit(f"FAILED: the check value is {value}, not {CHECK_VALUE}")
    print(f"ok: {count} multipliers and learning rates have the check value {value}")
''')


def python_source(curve: Curve, peak: float | None) -> str:
    """Return the text of the file.

    Args:
        curve: The curve.
        peak: The default of the argument of `learning_rate`; None if it has no default.
    """
    if peak is not None:
        checks.peak("peak_value", peak)
        peak = float(peak)
    rows = exported_rows(curve._python_table)
    steps = steps_of_pieces(rows)
    multipliers_and_lrs = [curve.learning_rate(steps, scale) for scale in (1.0, CHECKED_PEAK)]
    pairs = np.stack(multipliers_and_lrs, axis=1)
    check_value = 0
    for bits in pairs.view(np.uint32).ravel().tolist():
        check_value = (65537 * check_value + bits) % (2**61 - 1)
    return _FILE.substitute(
        version=VERSION,
        curve="\n".join(_wrapped(json.dumps(curve.to_dict()))),
        unit="" if curve.unit is None else f"Samples or tokens per step: {curve.unit}.\n",
        rows="\n".join(_row_lines(rows, curve._exact_segments)),
        check_value=check_value,
        default_peak="" if peak is None else f" = {peak!r}",
        checked_peak=CHECKED_PEAK,
    )


def _row_lines(rows: Sequence[ExportedRow], segments: Sequence[ExactSegment]) -> list[str]:
    """Return the rows, with a comment for each segment."""
    lines: list[str] = []
    waiting = list(with_stops(segments))
    for row in rows:
        while waiting and waiting[0][0].begin <= row.first_step:
            lines += _wrapped(_comment(*waiting.pop(0)), "    # ", "    # ")
        pieces: list[str] = []
        for exponent, coefficients in row.pieces:
            pieces.append(f"({exponent}, [{', '.join(map(hexadecimal, coefficients))}])")
        line = f"({row.first_step}, {row.shift}, [{', '.join(pieces)}]),"
        lines += _wrapped(line, "    ", "     ")
    # Segments at the level of the last row have no rows.
    for segment in waiting:
        lines += _wrapped(_comment(*segment), "    # ", "    # ")
    return lines


def _comment(segment: ExactSegment, after: int | None) -> str:
    """Describe a segment: its steps, its levels, and the equation of its shape."""
    steps = f"from step {segment.begin}" if after is None else f"steps {segment.begin}-{after - 1}"
    start = f"{float(segment.start):.9g}"
    if segment.shape is None or segment.is_flat:
        return f"{segment.name}, {steps}: {start}"
    origin = segment.begin - segment.skipped
    elapsed = "step" if origin == 0 else f"(step - {origin})".replace("- -", "+ ")
    levels = f"a = {start}, b = {float(segment.end):.9g}"
    x = f"x = {elapsed}/{segment.length}"
    return f"{segment.name}, {steps}, {segment.shape}: {equation_of(segment.shape)}; {levels}, {x}"


def _wrapped(text: str, first_indent: str = "", indent: str = "") -> list[str]:
    """Break code, comments or JSON into lines, at spaces."""
    wrapper = TextWrapper(
        width=100,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return wrapper.wrap(text)
