"""Fixed-point arithmetic: int64 in units of 2⁻⁶², using only the operators `+ - * << >> & |`.

The same functions run on arrays of NumPy, JAX and torch, and on Python's ints. `Operations` holds
the few functions that have no operator.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FIXED_BITS = 62
"""Fractional bits of a level at run time: the most for which sums of products of limbs fit into
int64."""

LIMB_BITS = FIXED_BITS // 2
"""Bits of a limb: a level has two, and two levels are multiplied limb by limb."""

LIMB = (1 << LIMB_BITS) - 1
"""The mask that selects the lowest limb."""

ONE = 1 << FIXED_BITS


def multiply(a: Any, b: Any) -> Any:
    """Return a·b/2⁶² for |a| <= 2⁶² and 0 <= b <= 2⁶², at most two units low."""
    # a·b >> 62 in 31-bit limbs, because int64 cannot hold a·b. The same with 4-bit limbs, 0xB7·0x5C
    # >> 8:
    #     0xB·0x5 + ((0xB·0xC + 0x7·0x5) >> 4) = 55 + (167 >> 4) = 65 = 0x41
    # Without 0x7·0xC the result is at most two units low, and still never decreases as a or b
    # grows.
    a_high, a_low = a >> LIMB_BITS, a & LIMB
    b_high, b_low = b >> LIMB_BITS, b & LIMB
    return a_high * b_high + ((a_high * b_low + a_low * b_high) >> LIMB_BITS)


class Operations(NamedTuple):
    """The functions of an array library that the arithmetic calls, by NumPy's names and meanings."""

    int64: Any
    float32: Any
    asarray: Callable[..., Any]
    take: Callable[..., Any]
    where: Callable[..., Any]
    abs: Callable[..., Any]
    minimum: Callable[..., Any]
    maximum: Callable[..., Any]
    multiply: Callable[[Any, Any], Any] = multiply
    """The product of two fixed-point numbers: `multiply`, or a function with its results."""

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
    """Segments in the numbers that the arithmetic reads: `Segments` with its words joined.

    A field holds a number for each row of the table, for each step (gathered from the rows), or for
    one row (a Python number). A field that is None in the table is None here too. Fields without a
    description are those of the table, as int64.
    """

    begin: Any
    """First step."""
    length: Any
    """Number of steps L; 0 if the segment is flat."""
    inverse_high: Any
    """2⁹³/L without its lowest limb, int64."""
    inverse_low: Any
    """2⁹³/L: the lowest limb, int64."""
    start: Any
    """Start level times 2⁶², int64."""
    end: Any
    """End level times 2⁶², int64."""
    level: Any
    """Start level, float32."""
    shapes: dict[str, Any]
    """For each curved shape without a parameter, by name: not 0 for the segments of this shape."""
    rate_whole: Any = None
    rate_high: Any = None
    rate_middle: Any = None
    rate_low: Any = None
    power: Any = None
    inverse_power: Any = None
    rate_top: Any = None
    exponent_whole: Any = None
    exponent_fraction: Any = None
    """P·2⁶²: bits 0 to 61."""
    phase_begin: Any = None
    """The step at which the segment would be at its start level; it may lie before the first
    step."""
    shift: Any = None

    def map(self, change: Callable[[Any], Any]) -> "DecodedSegments":
        """Apply a function to each column."""
        columns = {name: column for name, column in self._asdict().items() if name != "shapes"}
        return DecodedSegments(
            **{
                name: None if column is None else change(column) for name, column in columns.items()
            },
            shapes={name: change(column) for name, column in self.shapes.items()},
        )


def ratio(steps: Any, segment: DecodedSegments) -> Any:
    """Return steps/L in 62 bits, for int64 steps."""
    # 1/L has 93 fractional bits because 62 are not enough: their error would be multiplied by the
    # steps. With 4-bit limbs, for 4 steps of L = 7: 2¹²/7 = 0x249, and
    #     4·0x24 + (4·0x9 >> 4) = 144 + 2 = 146 = 4·256/7, rounded down; 4·0x24 alone is 144
    return steps * segment.inverse_high + ((steps * segment.inverse_low) >> LIMB_BITS)
