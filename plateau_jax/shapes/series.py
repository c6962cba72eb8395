"""The equation of every shape, as a series around the middle of a piece of a segment.

A shape is a function of mpmath's context, both levels a and b, the length L in steps, and P.
It returns a function of a piece, `expand_at(twice_middle, width)`: twice the step in the middle of
the piece, counted from the start level (so that it is an integer), and the width of the piece in
steps. For a width of 0, this is the exact level at a step. The example of each shape compares it
with the equation in floats, after 25 of 100 steps.

`plateau_jax/table/fitting.py` relies on two properties of a shape. Between its ends, the level
rises or falls all along. And the absolute slope rises, falls, or first rises and then falls, so
that within any piece it is least at one of the ends.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from plateau_jax.numerics import BITS, fixed


class Expansion(NamedTuple):
    """The level at a place u of a piece, for u in [-1/2, 1/2]: a constant and a series in u.

    The terms of even order are multiplied by `even`, those of odd order by `odd`.
    """

    constant: Any
    ratio: int
    """r, in units of 2^-BITS."""
    even: Any
    odd: Any
    power: Fraction | None = None
    """P, for the series of (1 + r·u)^P; None for that of e^(r·u), or of a wave."""
    is_wave: bool = False
    """True for the series of cos(r·u) + sin(r·u)."""

    @property
    def middle(self) -> Any:
        """The level in the middle of the piece."""
        return self.constant + self.even


Expander = Callable[[int, int], Expansion]
"""From twice the middle of a piece, and its width, to the level in this piece."""


def power_from_start(mp: Any, a: Any, b: Any, length: int, power: Fraction) -> Expander:
    """a + (b - a)·x^P.

    >>> from plateau_jax.numerics import mpmath_context
    >>> a, b, x = 1.0, 0.2, 0.25
    >>> level = power_from_start(mpmath_context(), a, b, 100, Fraction(1, 2))(2 * 25, 0).middle
    >>> abs(level - (a + (b - a) * x**0.5)) < 1e-15
    True
    """
    exponent = mp.mpf(power.numerator) / power.denominator
    scale = (b - a) / mp.mpf(2 * length) ** exponent

    def expand_at(twice_middle: int, width: int) -> Expansion:
        change = scale * mp.mpf(twice_middle) ** exponent
        ratio = (width << (BITS + 1)) // max(twice_middle, 1)  # at the start itself, the width is 0
        return Expansion(a, ratio, change, change, power)

    return expand_at


def power_from_end(mp: Any, a: Any, b: Any, length: int, power: Fraction) -> Expander:
    """b + (a - b)·(1 - x)^P.

    >>> from plateau_jax.numerics import mpmath_context
    >>> a, b, x = 1.0, 0.2, 0.25
    >>> level = power_from_end(mpmath_context(), a, b, 100, Fraction(2))(2 * 25, 0).middle
    >>> abs(level - (b + (a - b) * (1 - x) ** 2)) < 1e-15
    True
    """
    mirrored = power_from_start(mp, b, a, length, power)
    return lambda twice_middle, width: mirrored(2 * length - twice_middle, -width)


def cosine(mp: Any, a: Any, b: Any, length: int, _: Fraction) -> Expander:
    """(a + b)/2 + (a - b)/2·cos πx.

    >>> from math import cos, pi
    >>> from plateau_jax.numerics import mpmath_context
    >>> a, b, x = 1.0, 0.2, 0.25
    >>> level = cosine(mpmath_context(), a, b, 100, Fraction(1))(2 * 25, 0).middle
    >>> abs(level - ((a + b) / 2 + (a - b) / 2 * cos(pi * x))) < 1e-15
    True
    """
    half_step = mp.pi / (2 * length)

    def expand_at(twice_middle: int, width: int) -> Expansion:
        cos, sin = mp.cos_sin(half_step * twice_middle)
        amplitude = (a - b) / 2
        ratio = fixed(half_step * 2 * width)
        even, odd = amplitude * cos, -amplitude * sin
        return Expansion((a + b) / 2, ratio, even, odd, is_wave=True)

    return expand_at


def exponential(mp: Any, a: Any, b: Any, length: int, _: Fraction) -> Expander:
    """a^(1 - x)·b^x.

    >>> from plateau_jax.numerics import mpmath_context
    >>> a, b, x = 1.0, 0.2, 0.25
    >>> level = exponential(mpmath_context(), a, b, 100, Fraction(1))(2 * 25, 0).middle
    >>> abs(level - (a ** (1 - x) * b**x)) < 1e-15
    True
    """
    half_step = mp.log(b / a) / (2 * length)

    def expand_at(twice_middle: int, width: int) -> Expansion:
        level = a * mp.exp(half_step * twice_middle)
        return Expansion(mp.zero, fixed(half_step * 2 * width), level, level)

    return expand_at


def inverse_power(mp: Any, a: Any, b: Any, length: int, power: Fraction) -> Expander:
    """t^-P, with t = a^(-1/P)·(1 - x) + b^(-1/P)·x.

    >>> from plateau_jax.numerics import mpmath_context
    >>> a, b, x = 1.0, 0.2, 0.25
    >>> level = inverse_power(mpmath_context(), a, b, 100, Fraction(1, 2))(2 * 25, 0).middle
    >>> abs(level - ((a**-2 * (1 - x) + b**-2 * x) ** -0.5)) < 1e-15
    True
    """
    exponent = mp.mpf(-power.numerator) / power.denominator
    first = a ** (1 / exponent)
    half_step = (b ** (1 / exponent) - first) / (2 * length)

    def expand_at(twice_middle: int, width: int) -> Expansion:
        t = first + half_step * twice_middle
        level = t**exponent
        return Expansion(mp.zero, fixed(half_step * 2 * width / t), level, level, -power)

    return expand_at
