"""Fixed-point arithmetic: int64 in units of 2⁻⁶², using only the operators `+ - * << >> & |`.

The same functions run on arrays of NumPy, JAX and torch, and on Python's ints. `Operations` has the
few functions that have no operator.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

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


def ratio(steps: Any, inverse: Any, inverse_rest: Any) -> Any:
    """Return steps/L in 62 bits, for int64 steps.

    Args:
        steps: A number of steps, int64.
        inverse: 1/L in 62 bits, rounded down.
        inverse_rest: The next 31 bits of 1/L.
    """
    # 1/L has 93 fractional bits because 62 are not enough: the steps multiply its rounding error.
    # With 4-bit limbs, for 4 steps of L = 7: 2¹²/7 = 0x249, and
    #     4·0x24 + (4·0x9 >> 4) = 144 + 2 = 146 = 4·256/7, rounded down; 4·0x24 alone is 144
    return steps * inverse + ((steps * inverse_rest) >> LIMB_BITS)
