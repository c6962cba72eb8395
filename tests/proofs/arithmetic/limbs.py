"""Unknown limbs of 31 bits, alone and joined to numbers."""

from dataclasses import dataclass
from fractions import Fraction

from proofs.arithmetic.integers import Integer, integer
from proofs.arithmetic.intervals import Interval, Polynomial, constant, point
from proofs.arithmetic.proven import POWERS_OF_T

from plateau_jax.numerics.arithmetic import LIMB, ONE

HALF = 2**31
A_LIMB = Interval(0, LIMB)
FRACTIONS = Interval(0, ONE - 1)


def limb(name: str) -> Integer:
    return integer(name, A_LIMB)


def any_rate() -> list[Integer]:
    return [limb(name) for name in ("whole", "high", "middle", "low")]


def rates_below(most: Fraction) -> tuple[Integer, Integer, Integer, Integer]:
    """Return any rate from 0 up to a number."""
    most_in_limbs = int(most * HALF)
    whole = integer("rate, whole", Interval(0, most_in_limbs // HALF))
    high = integer("rate, high", Interval(0, min(most_in_limbs, LIMB)))
    return whole, high, limb("rate, middle"), limb("rate, low")


def lengths_from(doublings: int) -> list[Interval]:
    """Return intervals of all lengths from 2ⁿ to 2ⁿ⁺¹.

    They are so short that a product of steps with 1/L or with a rate is seen to fit into int64.
    """
    return list(Interval(2**doublings, 2 ** (doublings + 1)).boxes(8))


def joined(*limbs: Integer) -> Polynomial:
    """Return limbs as one number, the highest first."""
    number = constant(0)
    for digit in limbs:
        number = number.scaled(HALF) + digit.value
    return number


def joined_with_fraction(whole: Integer, fraction: Integer) -> Polynomial:
    return whole.value.scaled(ONE) + fraction.value


@dataclass(frozen=True)
class Limbs:
    """The limbs of every P in a range."""

    whole: Interval
    high: Interval
    low: Interval

    def unknown(self) -> tuple[Integer, Integer, Integer]:
        whole = integer("P, whole", self.whole)
        high = integer("P, high", self.high)
        return whole, high, integer("P, low", self.low)


def every_power(powers: Interval) -> list[Limbs]:
    """Return the limbs of every P below the greatest one, which is an integer, and its own."""
    most = powers.high
    below = Limbs(Interval(0, most - 1), A_LIMB, A_LIMB)
    return [below, Limbs(point(most), point(0), point(0))]


EVERY_POWER_OF_T = every_power(POWERS_OF_T)


def every_power_or_more(powers: Interval) -> tuple[Integer, Integer, Integer]:
    """Return limbs of every P, where a P above the greatest one does no harm."""
    return Limbs(Interval(0, powers.high), A_LIMB, A_LIMB).unknown()
