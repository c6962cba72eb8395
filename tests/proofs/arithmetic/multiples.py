"""Numbers of steps of which only the fraction of the length is known.

A shape scales a number of steps j by powers of two until it is near the length L. A function that
runs on a `Multiple` uses products with integers and comparisons, and nothing else. So it treats all
j and L with the same j/L in the same way.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

from proofs.arithmetic.bounded import INT64
from proofs.arithmetic.proven import MAX_LENGTH, MOST_K_OF_ROOT, MOST_K_OF_X


@dataclass(frozen=True, slots=True, eq=False)
class Multiple:
    """Any integer c·L with a factor c between two fractions, for any length L; both ends count."""

    least: Fraction
    most: Fraction

    def __post_init__(self) -> None:
        assert 0 <= self.least <= self.most
        assert self.most * MAX_LENGTH in INT64, f"int64 overflows: {self}"

    def __mul__(self, factor: int) -> "Multiple":
        return Multiple(self.least * factor, self.most * factor)

    def __rmul__(self, factor: int) -> "Multiple":
        return self * factor

    def __lshift__(self, bits: int) -> "Multiple":
        assert 0 <= bits < 64, f"a shift by {bits} bits"
        return self * (1 << bits)

    def __bool__(self) -> NoReturn:
        raise AssertionError("a truth value of an unknown number")

    def __lt__(self, other: "Multiple") -> bool:
        is_less = self.most < other.least
        assert is_less or self.least >= other.most, "a comparison with both outcomes"
        return is_less


LENGTH = Multiple(Fraction(1), Fraction(1))


def steps_scaled_by_fours() -> list[Multiple]:
    """Return for each k all j from 1 to L - 1 for which j·4ᵏ is the greatest below L.

    Then j·4ᵏ <= L - 1, so j/L is below 4⁻ᵏ by at least 4⁻ᵏ/L. Next to each other, two of these
    ranges leave out only fractions of a larger denominator.
    """
    gap = Fraction(1, MAX_LENGTH)
    numbers: list[Multiple] = []
    for k in range(MOST_K_OF_ROOT + 1):
        least = Fraction(1, 4 ** (k + 1))
        most = (1 - gap) / 4**k
        numbers.append(Multiple(least, most))
    return numbers


def steps_scaled_by_twos() -> list[Multiple]:
    """Return for each k all j from 1 to L - 1 for which j·2ᵏ is the greatest below 10/7·L.

    Then 7·2ᵏ·j <= 10·L - 1, so j/L is below 10/7·2⁻ᵏ by at least 2⁻ᵏ/(7·L).
    """
    gap = Fraction(1, MAX_LENGTH)
    numbers = [Multiple(Fraction(5, 7), 1 - gap)]
    for k in range(1, MOST_K_OF_X + 1):
        least = Fraction(5, 7 * 2**k)
        most = (10 - gap) / (7 * 2**k)
        numbers.append(Multiple(least, most))
    return numbers
