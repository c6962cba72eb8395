"""The square root: S(x) = √x, named after the level 1 - √x of a decay from 1 to 0."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import LIMB_BITS, ONE, Operations, ratio
from plateau_jax.numerics.exact import Level
from plateau_jax.shapes.shape import Interpolated, SegmentPosition


class SquareRoot(Interpolated):
    """S(x) = √x."""

    name = "1-sqrt"
    counted_from = "start"

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        return exact.interpolate(start, end, exact.square_root(x))

    @staticmethod
    def interpolant(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        """Return √(j/L) for 0 <= j < L, less than 3.1 units of 2⁻⁶² off."""
        # With y = j·4ᵏ/L in [1/4, 1) this is √y/2ᵏ: for j = 3 and L = 100, k = 2 and y = 48/100.
        k, scaled = scale_by_fours(xp, xp.int64(at.elapsed), xp.int64(at.length))
        return square_root(xp, ratio(scaled, at.inverse, at.inverse_rest)) >> k


def scale_by_fours(xp: Operations, steps: Any, length: Any) -> tuple[Any, Any]:
    """Return k and steps·4ᵏ, the greatest below the length."""
    k = 0
    for bits in (16, 8, 4, 2):
        shifted = steps << bits
        fits = shifted < length
        steps = xp.where(fits, shifted, steps)
        k = k + xp.where(fits, bits // 2, 0)
    return k, steps


# The first guess for 1/(2√y) on [1/4, 1]: (7/4 - y)·39/64 is within 9 %, the best that a straight
# line can do.
_SLOPE = 39 * ONE // 64
_INTERCEPT = 7 * _SLOPE // 4


def square_root(xp: Operations, y: Any) -> Any:
    """Return √y for y in [1/4, 1)."""
    h = _INTERCEPT - xp.multiply(y, _SLOPE)
    for _ in range(4):
        h = newton_step(xp, y, h)
    return heron_step(xp, y, h)


def newton_step(xp: Operations, y: Any, h: Any) -> Any:
    """Return a better approximation of 1/(2√y)."""
    # Newton's method for h = 1/(2√y) needs no division.
    return xp.multiply(h, 3 * ONE // 4 - xp.multiply(y, xp.multiply(h, h))) << 1


def heron_step(xp: Operations, y: Any, h: Any) -> Any:
    """Return √y, from h near 1/(2√y)."""
    # Heron's step, s + (y - s²)·h, removes most of the rounding error of s = 2yh.
    root = xp.multiply(y, h) << 1
    rest = y - xp.multiply(root, root)
    return root + ((rest * (h >> LIMB_BITS)) >> LIMB_BITS)
