"""The multiplier at a step, from a table of segments, in integers alone.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, and divisions and
cosines differ between libraries. Integers can. A number v in [0, 1] is the int64 v·2⁶².

The same code serves NumPy, JAX, torch and single Python ints: it uses only operations that mean the
same in all of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    NUMPY,
    ONE,
    PYTHON,
    Operations,
    ratio,
)
from plateau_jax.shapes.known_shapes import GEOMETRIC, INTERPOLATED, SHAPE_NUMBERS
from plateau_jax.shapes.shape import SegmentPosition
from plateau_jax.table.encoding import DecodedSegments, DecodedTable

CHUNK = 3072
"""Steps that NumPy computes at once: a temporary array then takes 24 KiB. glibc returns the pages
of arrays of 32 KiB and more to the system and faults them in again, which doubles the time."""


def evaluate(xp: Operations, table: DecodedTable, step: Any, first: Any = 0) -> Any:
    """Return the multiplier at each step.

    Args:
        xp: The operations of the framework. In JAX 64-bit integers must be on.
        table: The columns of one curve, from `decode_table`, of shape (rows,); or those of several
            curves, of shape (curves, rows).
        step: int32 or int64 in [0, 2³¹), of any shape; for several curves, of shape
            (curves, steps).
        first: For several curves, the index of each curve's first row in the flattened columns, of
            shape (curves, 1).

    Returns:
        float32, of the shape of `step`.
    """
    return evaluate_rows(xp, table.segments, step, _row_index(xp, table.begin, step, first))


def evaluate_rows(xp: Operations, segments: DecodedSegments, step: Any, index: Any) -> Any:
    """Return the multiplier at each step, from the row with this index."""
    # Column by column: a gather of whole rows is several times slower in XLA.
    segment = segments.map(lambda column: xp.take(column, index, mode="clip"))
    x, value = _interpolate(xp, segment, step)
    # int64 to float32 rounds to nearest even, and the power of two is exact.
    multiplier = xp.asarray(value, dtype=xp.float32) * 2.0**-FIXED_BITS
    return xp.where(x == 0, segment.start_float32, multiplier)


def _row_index(xp: Operations, begin: Any, step: Any, first: Any) -> Any:
    """Return the index of the last row that begins at or before each step, plus `first`.

    Written out because `jnp.searchsorted` fails inside a `shard_map` over some axes of a mesh, and
    `torch.searchsorted` warns under vmap.
    """
    axis = begin.ndim - 1
    rows = begin.shape[-1]
    # Up to about 40 rows, comparing a step with every row is faster than a binary search.
    if rows <= 40:
        # The rows become a separate axis in front of the axes of the steps, and are summed away.
        later = begin[..., 1:].reshape(*begin.shape[:-1], rows - 1, *[1] * (step.ndim - axis))
        is_past = later <= step.reshape(*step.shape[:axis], 1, *step.shape[axis:])
        return first + is_past.sum(axis, dtype=begin.dtype)
    # The index is built from its highest bit down: a bit is set if the row it leads to begins in
    # time. For 5 rows that begin at 0, 10, 20, 30, 40 and step 25: 4 is too far, 2 is not, 3 is too
    # far, so it is row 2. The number of rounds depends on the number of rows alone, so compilers
    # can unroll them.
    index = 0 * step
    for bit in reversed(range((rows - 1).bit_length())):
        further = xp.minimum(index + (1 << bit), rows - 1)
        index = xp.where(xp.take(begin, first + further, mode="clip") <= step, further, index)
    return first + index


def evaluate_many(table: DecodedTable, steps: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the multiplier at each step, in NumPy, for steps in [0, 2³¹) of any shape."""
    flat = steps.ravel()
    multipliers = np.empty(flat.shape, np.float32)
    for begin in range(0, flat.size, CHUNK):
        part = flat[begin : begin + CHUNK]
        # NumPy's own search is several times faster than `_row_index`.
        index = np.searchsorted(table.begin, part, side="right") - 1
        segments = _without_other_shapes(table.segments, index)
        multipliers[begin : begin + CHUNK] = evaluate_rows(NUMPY, segments, part, index)
    return multipliers.reshape(steps.shape)


def fixed_values(table: DecodedTable, steps: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the integer that is rounded to float32 at each step, for steps of shape (steps,).

    It means nothing at a step whose multiplier is the start level from the table: at the first step
    of a whole segment, and all along a flat one.
    """
    index = np.searchsorted(table.begin, steps, side="right") - 1
    segments = table.segments.map(lambda column: column[index])
    _, values = _interpolate(NUMPY, segments, steps)
    return values


def _without_other_shapes(segments: DecodedSegments, index: NDArray[Any]) -> DecodedSegments:
    """Drop the parameters of shapes that none of the rows with these indices has."""
    if not segments.parameters:
        return segments
    present = set(segments.shape_number[index].tolist())
    parameters = {
        name: limbs for name, limbs in segments.parameters.items() if SHAPE_NUMBERS[name] in present
    }
    return segments._replace(parameters=parameters)


def evaluate_one(begins: Sequence[int], rows: Sequence[DecodedSegments], step: int) -> float:
    """Return the multiplier at one step, the value of a float32, from rows in Python numbers."""
    # A binary search by hand, since torch's compiler cannot trace `bisect`.
    index = 0
    end = len(begins)
    while end - index > 1:
        middle = (index + end) // 2
        if begins[middle] <= step:
            index = middle
        else:
            end = middle
    segment = rows[index]
    x, value = _interpolate(PYTHON, segment, step)
    if x == 0:
        return segment.start_float32
    return exact.round_to_float32(value, FIXED_BITS)


def _interpolate(xp: Operations, segment: DecodedSegments, step: Any) -> tuple[Any, Any]:
    """Return min(j, L - j)/L and the multiplier, both in 62 bits.

    After j of the L steps of a segment from a to b, the multiplier is

        m = a - (a - b)·S(j/L)          counted from the start
        m = b + (a - b)·(1 - S(j/L))    counted from the end

    for a shape with an interpolant S, and h·2^(-E) for a geometric shape with the higher level h.
    Counting from the nearer end makes both ends exact, needs S on [0, 1/2] only, and cannot leave
    the range between a and b. Levels far below 1 need more than 62 bits: at the start of a segment
    and all along a flat one, where x = 0, the callers take the level as float32 from the table
    instead.
    """
    # Why from the nearer end: 1/L is rounded down, so L·(1/L) < 1, and b would be missed. In units
    # of 1/256, with L = 3 and 1/L = 85, from a = 256 down to b = 0 in a straight line:
    #     always from a:     256 - 0·85 = 256, 256 - 1·85 = 171, 256 - 2·85 = 86, 256 - 3·85 = 1
    #     from nearer ends:  256 - 0·85 = 256, 256 - 1·85 = 171,   0 + 1·85 = 85,   0 + 0·85 = 0
    #
    # Compiled code cannot branch on a row's shape: every shape in the table is computed for every
    # step, and `where` selects. A shape that is not in the table at all costs nothing.
    elapsed = step - segment.phase_begin
    remaining = segment.length - elapsed
    nearer = xp.int64(xp.minimum(elapsed, remaining))
    x = ratio(nearer, segment.inverse, segment.inverse_rest)
    interpolant = x
    is_from_start = elapsed < remaining
    at = None
    if segment.parameters:
        at = SegmentPosition(
            elapsed=elapsed,
            remaining=remaining,
            x=x,
            length=segment.length,
            inverse=segment.inverse,
            inverse_rest=segment.inverse_rest,
            start=segment.start,
            end=segment.end,
        )
        interpolant, is_from_start = _select_interpolant(xp, segment, at, is_from_start)
    # The product of absolute values, because with a negative factor `multiply` is not monotone.
    # With 4-bit limbs -209·255 >> 8 is -210, but -209·256 >> 8 is -209; 209·255 and 209·256 give
    # 208 and 209.
    distance = xp.multiply(xp.abs(segment.start - segment.end), interpolant)
    distance = xp.where(segment.start < segment.end, -distance, distance)
    value = xp.where(is_from_start, segment.start - distance, segment.end + distance)
    if at is not None:
        value = _select_level(xp, segment, at, value)
    if segment.shift is not None:
        # The exact product is at most 1; the error of `value` may carry it a few units beyond.
        value = xp.minimum(value << segment.shift, ONE)
    return x, value


def _select_interpolant(
    xp: Operations, segment: DecodedSegments, at: SegmentPosition, is_from_start: Any
) -> tuple[Any, Any]:
    """Return (S, True) or (1 - S, False) for each segment: counted from its start, or its end."""
    interpolant = at.x
    for name, parameters in segment.parameters.items():
        shape = INTERPOLATED.get(name)
        if shape is None:
            continue
        is_shape = segment.shape_number == SHAPE_NUMBERS[name]
        interpolant = xp.where(is_shape, shape.interpolant(xp, at, parameters), interpolant)
        if shape.counted_from != "nearer end":
            is_from_start = xp.where(is_shape, shape.counted_from == "start", is_from_start)
    return interpolant, is_from_start


def _select_level(xp: Operations, segment: DecodedSegments, at: SegmentPosition, value: Any) -> Any:
    """Return the level of each segment with a geometric shape, and `value` for other segments."""
    for name, parameters in segment.parameters.items():
        shape = GEOMETRIC.get(name)
        if shape is not None:
            level = shape.fixed_level(xp, at, parameters)
            value = xp.where(segment.shape_number == SHAPE_NUMBERS[name], level, value)
    return value
