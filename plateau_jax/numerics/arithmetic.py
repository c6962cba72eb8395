"""Fixed-point arithmetic: int64 in units of 2⁻⁶², using only the operators `+ - * << >> & |`.

The same functions run on arrays of NumPy, JAX and torch, and on Python's ints. `Operations` holds
the few functions that have no operator.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, cast

import numpy as np

FIXED_BITS = 62
"""Fractional bits of a level at run time: the most for which sums of products of limbs fit into
int64."""

LIMB_BITS = FIXED_BITS // 2
"""Bits of a limb: a level has two, and two levels are multiplied limb by limb."""

LIMB = (1 << LIMB_BITS) - 1
"""The mask that selects the lowest limb."""

INVERSE_BITS = FIXED_BITS + LIMB_BITS
"""Fractional bits of 1/L and of rates: 62 of them are still correct after a multiplication by a
number of steps below 2³¹."""

ONE = 1 << FIXED_BITS


def in_fixed_point(number: Fraction, bits: int) -> int:
    """Return the number with these fractional bits, rounded down."""
    return (number.numerator << bits) // number.denominator


def cut_into_limbs(value: int, count: int) -> tuple[int, ...]:
    """Cut a value into limbs, the highest first."""
    # With 4-bit limbs and a count of three, 0x3C5 is 0x3, 0xC, 0x5.
    places = reversed(range(count))
    return tuple((value >> (LIMB_BITS * place)) & LIMB for place in places)


def multiply(a: Any, b: Any) -> Any:
    """Return a·b/2⁶², less than two units low.

    Defined for -2⁶² <= a < 2⁶² + 2³¹ and 0 <= b < 2⁶² + 2³¹, or if one operand lies in
    [0, 5/4·2⁶²] and the other in [0, 3/4·2⁶²].
    """
    # a·b >> 62 in 31-bit limbs, because int64 cannot hold a·b. With 4-bit limbs, 0xB7·0x5C >> 8 is
    #     0xB·0x5 + ((0xB·0xC + 0x7·0x5) >> 4) = 55 + (167 >> 4) = 65 = 0x41
    # Without 0x7·0xC the result is less than two units low, and still never decreases as a or b
    # grows.
    a_high, a_low = a >> LIMB_BITS, a & LIMB
    b_high, b_low = b >> LIMB_BITS, b & LIMB
    return a_high * b_high + ((a_high * b_low + a_low * b_high) >> LIMB_BITS)


class Operations(NamedTuple):
    """The functions of an array library that the arithmetic calls, by NumPy's names."""

    int64: Any
    float32: Any
    asarray: Callable[..., Any]
    take: Callable[..., Any]
    where: Callable[..., Any]
    abs: Callable[..., Any]
    minimum: Callable[..., Any]
    maximum: Callable[..., Any]
    multiply: Callable[[Any, Any], Any] = multiply
    """The product of two fixed-point numbers: `multiply`, or a function that returns the same."""

    @classmethod
    def of(cls, library: Any) -> "Operations":
        """Collect the functions of NumPy, or of a library that has them under the same names."""
        return cls(*(getattr(library, name) for name in cls._fields if name != "multiply"))


NUMPY = Operations.of(np)


def _choose(condition: bool, if_true: Any, if_false: Any) -> Any:
    return if_true if condition else if_false


def _identity(value: Any, *_: Any, **__: Any) -> Any:
    return value


PYTHON = Operations(
    int64=int,
    float32=float,
    asarray=_identity,
    take=_identity,
    where=_choose,
    abs=abs,
    minimum=min,
    maximum=max,
)
"""The same functions for single Python numbers."""


class DecodedSegments(NamedTuple):
    """Segments in the numbers that the arithmetic reads: a table with its words joined.

    A field holds one number per row of the table, one per step (gathered from the rows), or the
    number of a single row (a Python number).
    """

    phase_begin: Any
    """Step of the start level; it may lie before the first step of the segment."""
    length: Any
    """Number of steps L; 0 if the segment is flat."""
    inverse: Any
    """2⁶²/L, rounded down, int64."""
    inverse_rest: Any
    """The next 31 bits of the inverse, int64."""
    start: Any
    """Start level times 2⁶², int64."""
    end: Any
    """End level times 2⁶², int64."""
    start_float32: Any
    """Start level, float32."""
    shape_number: Any
    """Number of its shape; None if all are straight lines."""
    parameters: dict[str, tuple[Any, ...]]
    """By name, each curved shape in the table, with the limbs of its parameters, int64."""
    shift: Any
    """n, int64: the levels are stored divided by 2ⁿ. None if that is 0 everywhere."""

    def map(self, change: Callable[[Any], Any]) -> "DecodedSegments":
        """Apply a function to each column."""
        return DecodedSegments(*(map_column(change, column) for column in self))


class DecodedTable(NamedTuple):
    """A whole table in the numbers that the arithmetic reads."""

    begin: Any
    """First step of each row, int32."""
    segments: DecodedSegments


def map_column(change: Callable[[Any], Any], column: Any) -> Any:
    """Apply a function to a column of a table, or to each limb of the parameters of its shapes."""
    if column is None:
        return None
    if isinstance(column, dict):
        parameters = cast("dict[str, tuple[Any, ...]]", column)
        return {name: tuple(map(change, limbs)) for name, limbs in parameters.items()}
    return change(column)


def ratio(steps: Any, segment: DecodedSegments) -> Any:
    """Return steps/L in 62 bits, for int64 steps."""
    # 1/L has 93 fractional bits because 62 are not enough: the steps multiply its rounding error.
    # With 4-bit limbs, for 4 steps of L = 7: 2¹²/7 = 0x249, and
    #     4·0x24 + (4·0x9 >> 4) = 144 + 2 = 146 = 4·256/7, rounded down; 4·0x24 alone is 144
    return steps * segment.inverse + ((steps * segment.inverse_rest) >> LIMB_BITS)
