"""The table of a curve: pieces of polynomials, fitted to its exact segments.

When a piece is fitted, a bound on its error is computed in integers, and decides if the piece is
accepted. `docs/how_it_works.md` has the argument.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, comb, floor, frexp, log2
from operator import mul
from typing import NamedTuple

import numpy as np

from plateau_jax.numerics import (
    BITS,
    SLACK,
    fixed,
    nearest_float32,
    round_to_float32,
    round_up_ties,
)
from plateau_jax.shapes.known_shapes import parse_shape
from plateau_jax.shapes.series import Expander, Expansion
from plateau_jax.table.evaluation import LIMB_BITS, WideTable
from plateau_jax.table.exact_segments import ExactSegment, with_stops

PRECISION = 30
"""Before it is rounded, a multiplier is off by at most 2^-PRECISION units in the last place."""

DEGREE = 10
"""With 8 a curve needs a third more pieces, with 12 a quarter fewer, and each piece costs more."""

TERMS = 20
"""The most terms of a series before it becomes a polynomial of DEGREE."""

VALUE_BITS = 62
"""A value and its coefficients lie below 2⁶², so that no sum in `evaluate` leaves int64."""

MAX_PIECES = 4096
"""The most pieces in a segment. A segment of a shape in `series` needs at most some 400."""

ROUNDING_ERROR = 3
"""More than what rounded coefficients (below 1) and products rounded down (below 2) change."""

_ONE = 1 << BITS
_HALF = 1 << (LIMB_BITS - 1)


class Piece(NamedTuple):
    """A polynomial for 2^shift steps."""

    shift: int
    exponent: int
    coefficients: tuple[int, ...]
    """The lowest power first."""
    first: float
    """Its multiplier at its first step."""
    following: float
    """Its multiplier at the step after its last one."""


class PieceFit(NamedTuple):
    """The result of `fit`."""

    piece: Piece | None
    """None if a piece of this length is not exact enough."""
    octaves: int
    """By how many octaves the next attempt may be longer; negative if it must be shorter."""


def build_table(segments: Sequence[ExactSegment]) -> WideTable:
    """Return the table of a curve."""
    is_straight = all(segment.shape in ("linear", None) for segment in segments)
    degree = DEGREE
    if is_straight:
        degree = 1
    rows: list[tuple[int, int, int]] = []
    pieces: list[Piece] = []
    for segment, stop in with_stops(segments):
        after = -1  # a segment begins a row
        for begin, piece in _pieces_of(segment, stop, degree):
            is_flat = piece.shift == LIMB_BITS
            if is_flat and pieces and piece == pieces[-1]:
                continue
            if begin != after or rows[-1][1] != piece.shift:
                rows.append((begin, piece.shift, len(pieces)))
            pieces.append(piece)
            after = begin + (1 << piece.shift)
    coefficients = np.zeros((degree + 1, len(pieces)), np.int64)
    for index, piece in enumerate(pieces):
        coefficients[degree + 1 - len(piece.coefficients) :, index] = piece.coefficients[::-1]
    exponents = np.array([piece.exponent for piece in pieces], np.int32)
    begin, shift, first = np.array(rows, np.int32).T
    return WideTable(begin, shift, first, exponents, coefficients)


def _pieces_of(segment: ExactSegment, stop: int | None, degree: int) -> Iterator[tuple[int, Piece]]:
    """Yield (first step, piece) for a segment that ends before step `stop`, from left to right."""
    begin = segment.begin
    if segment.shape is None or segment.is_flat or stop is None:
        yield begin, _constant(nearest_float32(segment.start))
        return
    expand_at = parse_shape(segment.shape).expander(segment.start, segment.end, segment.length)
    multiplier = nearest_float32(segment.at(begin))
    shift = LIMB_BITS
    for _ in range(MAX_PIECES):
        rest = stop - begin
        shift = min(shift, (rest - 1).bit_length())
        elapsed = segment.skipped + begin - segment.begin
        piece = None
        octaves = 1
        while shift > 0 and piece is None:
            # It is fitted to one step more, at which the next piece must have the same float32.
            piece, octaves = fit(expand_at, elapsed, shift, min(rest, (1 << shift) + 1), degree)
            shift += min(octaves, 0)
        if piece is None or piece.first != multiplier:
            # The exact level of a single step.
            shift = 0
            octaves = 1
            piece = _constant(multiplier, shift)
        yield begin, piece
        begin += 1 << shift
        if begin >= stop:
            return
        multiplier = piece.following
        if shift == 0:
            multiplier = multiplier_at(expand_at, elapsed + 1)
        # A piece begins at a multiple of its length, counted from the start level. So every octave
        # has the same quotients of width and middle, and `_polynomial` is computed once.
        if octaves != 1 or (elapsed + (1 << shift)) % (2 << shift) == 0:
            shift += octaves
    raise ValueError(f"a {segment.shape} from {segment.start:g} to {segment.end:g} is not smooth")


def _constant(multiplier: float, shift: int = LIMB_BITS) -> Piece:
    """Return a piece with one float32 as its value; by default longer than any segment."""
    mantissa, exponent = frexp(multiplier)
    coefficient = int(mantissa * 2**24) << 37
    return Piece(shift, 61 - exponent if multiplier else 0, (coefficient,), multiplier, multiplier)


def fit(expand_at: Expander, elapsed: int, shift: int, count: int, degree: int) -> PieceFit:
    """Fit a piece of 2^shift steps, and certify its first `count` steps.

    Args:
        expand_at: The exact level as a function of a piece.
        elapsed: Steps from the start level to the piece.
        shift: The base-2 logarithm of the steps of the piece.
        count: Steps that the piece must fit, at least 2, at most 2^shift + 1.
        degree: The degree of the polynomial.
    """
    approximated = approximate(expand_at(2 * elapsed + (1 << shift), 1 << shift), degree)
    if approximated is None:
        return PieceFit(None, -1)
    exact, approximation = approximated
    # A coefficient c of u^k adds at most c·2^-k, but it must fit into 63 bits itself, too. Rounded
    # up, the first one stays below 2⁶², because an accepted piece has other coefficients: it
    # changes by at least 8·E from step to step.
    dropped = sum(map(abs, exact)).bit_length() - VALUE_BITS
    if dropped < 2:
        return PieceFit(_constant(0.0), 5)  # the level is below 2⁻¹⁵⁰
    coefficients = round_coefficients(exact, dropped)
    exponent = BITS - dropped
    error = 1 + (approximation >> dropped) + ROUNDING_ERROR
    # A level may lie exactly between two float32, and then every piece must round it up. So values
    # become too large, by E to 3·E.
    coefficients = (coefficients[0] + 2 * error, *coefficients[1:])
    most = 3 * error

    step = 1 << (LIMB_BITS - shift)
    last = (count - 1) * step - _HALF
    at_first, at_second, before_last, at_last = (
        value_at(coefficients, t) for t in (-_HALF, step - _HALF, last - step, last)
    )
    # A unit in the last place of a value is more than 2⁻²⁴ of it. The least value is at one end,
    # and so is the least change from step to step.
    allowed = max(min(at_first, at_last) - most, 0) >> (24 + PRECISION)
    slowest = min(abs(at_second - at_first), abs(at_last - before_last))
    # The first term left out grows by a factor of 2^(degree + 1) per octave.
    octaves = (log2(max(allowed, 2)) + dropped - log2(3 * approximation)) / (degree + 1)
    first, following = (round_to_float32(value, exponent) for value in (at_first, at_last))
    if most <= allowed and slowest >= 8 * error:
        piece = Piece(shift, exponent, coefficients, first, following)
        return PieceFit(piece, min(floor(octaves + 0.3), 5))
    if first == following:
        # Levels between two that round to one float32 round to it, too.
        multiplier = multiplier_at(expand_at, elapsed)
        if multiplier == multiplier_at(expand_at, elapsed + count - 1):
            return PieceFit(_constant(multiplier), 5)
    return PieceFit(None, min(ceil(octaves), -1))


def multiplier_at(expand_at: Expander, elapsed: int) -> float:
    """Return the float32 nearest to the exact level at a step, the larger one of a tie."""
    return round_up_ties(fixed(expand_at(2 * elapsed, 0).middle))


def approximate(expansion: Expansion, degree: int) -> tuple[list[int], int] | None:
    """Return a polynomial in u near an expansion, and the bound of its error for u in [-1/2, 1/2].

    All in units of 2^-BITS. None if the series might not converge fast enough.
    """
    polynomial = _polynomial(expansion.ratio, expansion.power, expansion.is_wave, degree)
    if polynomial is None:
        return None
    coefficients, error = polynomial
    exact = [fixed(expansion.constant), *[0] * degree]
    amplitudes = fixed(expansion.even), fixed(expansion.odd)
    for k, coefficient in enumerate(coefficients):
        # Of (2u)^k, as a coefficient of u^k.
        exact[k] += (amplitudes[k % 2] * coefficient) >> (BITS - k)
    return exact, SLACK + ((error * max(map(abs, amplitudes))) >> BITS)


def round_coefficients(exact: Sequence[int], dropped: int) -> tuple[int, ...]:
    """Drop the lowest bits of coefficients; for u in [-1/2, 1/2], this adds less than a unit."""
    half = 1 << (dropped - 1)
    return tuple((c + half) >> dropped for c in exact)


def value_at(coefficients: Sequence[int], t: int) -> int:
    """Return the value of a polynomial, as `evaluate` computes it."""
    value = 0
    for coefficient in reversed(coefficients):
        value = coefficient + ((value * t) >> LIMB_BITS)
    return value


@lru_cache(4096)
def _polynomial(
    ratio: int, power: Fraction | None, is_wave: bool, degree: int
) -> tuple[list[int], int] | None:
    """Return a polynomial in y = 2u near a series, and the bound of its error for y in [-1, 1].

    All in units of 2^-BITS. None if the series might not converge fast enough: if some term from
    the last one on might be more than half of the one before.
    """
    is_polynomial = power is not None and power.denominator == 1 and 0 < power <= degree
    largest = _ONE * degree if power is None else _ONE // 2
    if not is_polynomial and abs(ratio) > largest:
        return None
    series = _terms(ratio, power, is_wave, degree)
    columns, errors = _economization(degree)
    rest = series[degree + 1 :]
    polynomial: list[int] = []
    for term, column in zip(series, columns, strict=False):
        polynomial.append(term + (sum(map(mul, column, rest)) >> TERMS))
    error = sum(map(mul, errors, map(abs, rest))) >> TERMS
    # The tail is at most the last term, since each further term is at most half of the one before.
    return polynomial, error + abs(series[-1])


def _terms(ratio: int, power: Fraction | None, is_wave: bool, degree: int) -> list[int]:
    """Return the coefficients of y⁰, y¹, … of a series."""
    term = _ONE
    terms = [term]
    for n in range(TERMS - 1):
        if power is None:
            term = ((term * ratio) >> (BITS + 1)) // (n + 1)
        else:
            factor = power.numerator - n * power.denominator
            term = ((term * ratio * factor) >> (BITS + 1)) // ((n + 1) * power.denominator)
        # 1, y, -y²/2, -y³/6, y⁴/24, …
        is_negative = is_wave and (n + 1) % 4 in (2, 3)
        signed = term
        if is_negative:
            signed = -term
        terms.append(signed)
        if n >= degree and abs(term) < _ONE >> 72:
            break
    return terms


@lru_cache
def _economization(degree: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return for each n > degree a polynomial near yⁿ on [-1, 1], and its error, times 2^TERMS.

    yⁿ is a sum of Chebyshev polynomials, which lie in [-1, 1]. Those above the degree are left out:
    y² = (1 + T₂)/2, so for degree 1 it becomes 1/2, which is at most 1/2 off.

    The polynomials are returned by power: for y^k, its coefficient in each of them.
    """
    chebyshev = [[1], [0, 1]]
    for _ in range(degree):
        doubled = [0, *(2 * c for c in chebyshev[-1])]
        before = [*chebyshev[-2], 0, 0]
        chebyshev.append([c - d for c, d in zip(doubled, before, strict=True)])
    polynomials: list[list[int]] = []
    errors: list[int] = []
    for n in range(degree + 1, TERMS):
        polynomial = [0] * (degree + 1)
        error = 0
        for m in range(n % 2, n + 1, 2):
            coefficient = comb(n, (n - m) // 2) << (TERMS - n + (m > 0))
            if m > degree:
                error += coefficient
            else:
                for k, c in enumerate(chebyshev[m]):
                    polynomial[k] += coefficient * c
        polynomials.append(polynomial)
        errors.append(error)
    return list(zip(*polynomials, strict=True)), errors
