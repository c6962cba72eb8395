"""Fixed-point arithmetic: int64 in units of 2⁻⁶², with the operators `+ - * << >> & |` alone.

The same functions run on arrays of NumPy, JAX and torch, and on Python's ints. `Operations` holds the few
functions that the operators lack.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FIXED_BITS = 62
"""Fractional bits of a level at run time: the most for which a product of limbs fits into int64."""

LIMB_BITS = FIXED_BITS // 2
"""Bits of a limb, half a level: a product of two levels is made of products of their limbs."""

LIMB = (1 << LIMB_BITS) - 1
"""A mask: all bits of a limb."""

ONE = 1 << FIXED_BITS


def multiply(a: Any, b: Any) -> Any:
    """a·b/2⁶² for |a| <= 2⁶² and 0 <= b <= 2⁶², at most two units low."""
    # In limbs of 31 bits, because int64 cannot hold a·b. The same with 4-bit limbs, 0xB7·0x5C >> 8:
    #     0xB·0x5 + ((0xB·0xC + 0x7·0x5) >> 4) = 55 + (167 >> 4) = 65 = 0x41
    # Without 0x7·0xC the result is at most two units low, and still never decreases as a or b grows.
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
        """Those of NumPy, or of a library with its names."""
        return cls(*(getattr(library, name) for name in cls._fields if name != "multiply"))


NUMPY = Operations.of(np)


def _where(condition: bool, first: Any, second: Any) -> Any:
    return first if condition else second


def _as_it_is(value: Any, *_: Any, **__: Any) -> Any:
    return value


PYTHON = Operations(int, float, _as_it_is, _as_it_is, _where, abs, min, max)
"""For single numbers of Python."""


class DecodedSegments(NamedTuple):
    """A row of a table, its words joined: columns, values gathered from them, or single Python numbers."""

    begin: Any
    length: Any
    inverse_high: Any
    """2⁹³/L: bits 31 to 94, int64."""
    inverse_low: Any
    """2⁹³/L: bits 0 to 30, int64."""
    start: Any
    """Start level times 2⁶², int64."""
    end: Any
    """End level times 2⁶², int64."""
    level: Any
    """Start level, float32."""
    shapes: dict[str, Any]
    """For each word that is the shape of a row: not 0 in these rows."""
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

    def map(self, change: Callable[[Any], Any]) -> "DecodedSegments":
        """The numbers with each column changed."""
        columns = {name: column for name, column in self._asdict().items() if name != "shapes"}
        return DecodedSegments(
            **{name: None if column is None else change(column) for name, column in columns.items()},
            shapes={name: change(column) for name, column in self.shapes.items()},
        )


def ratio(steps: Any, numbers: DecodedSegments) -> Any:
    """steps/L, for steps in int64."""
    return steps * numbers.inverse_high + ((steps * numbers.inverse_low) >> LIMB_BITS)
