"""The certificate of a piece, condition by condition, and the tables of curves of every shape.

Random curves hardly ever reach some conditions. So each has a test that exaggerates it: a shorter
series, wider pieces, or coefficients that lose as much as they can. `docs/how_it_works.md` argues
that the conditions suffice.
"""

from bisect import bisect_right
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, curves_and_steps, descriptions
from support.curves.strategies import MAX_STEP, randoms
from support.examples import examples
from support.numerics.oracle import Oracle, half_ulp, is_promised
from support.numerics.shapes import FORMULAS, SAMPLES, formula_and_power

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.shapes.known_shapes import SHAPES, parse_shape
from plateau_jax.shapes.series import Expansion
from plateau_jax.table import fitting
from plateau_jax.table.evaluation import PYTHON, evaluate, in_python
from plateau_jax.table.fitting import fit, round_coefficients, value_at

BITS = 224
precise: Any = mpmath.MPContext()
precise.prec = 500

PLACES = [Fraction(eighth, 16) for eighth in range(-8, 9)]
"""Places u in a piece, in [-1/2, 1/2]."""

HALF = 1 << 30
"""1/2 in units of 2⁻³¹, as t is."""


@pytest.fixture
def few_terms(monkeypatch):
    """Cut series off after two terms that the polynomial lacks, so that their tail counts."""
    cached = fitting._polynomial, fitting._economization
    monkeypatch.setattr(fitting, "TERMS", 13)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


# Step 1: the polynomial of a piece, before its coefficients are rounded.


def expander(shape, start, end, length):
    return parse_shape(shape).expander(Fraction(start), Fraction(end), length)


def check_polynomial(shape, length, middle, width):
    """Compare a polynomial with the formula of the shape; return False if there is none."""
    start, end = Fraction(7, 8), Fraction(1, 16)
    expanded = fitting.approximate(expander(shape, start, end, length)(middle, width), 10)
    if expanded is None:
        return False
    coefficients, error = expanded
    formula, power = formula_and_power(shape)
    for u in PLACES:
        x = (Fraction(middle, 2) + u * width) / length
        numbers = [precise.mpf(n.numerator) / n.denominator for n in (start, end, x, power)]
        level = formula.level(precise, *numbers) * 2**BITS
        value = sum(c * u**k for k, c in enumerate(coefficients))
        off = abs(precise.mpf(value.numerator) / value.denominator - level)
        assert off <= error
    return True


SIXTEENTHS = st.integers(1, 15)


@pytest.mark.parametrize("shape", SAMPLES)
@given(SIXTEENTHS, st.integers(0, 20), st.sampled_from((16, 4096, 2**31 - 1)))
def test_error_of_polynomial_is_bounded(shape, sixteenth, octaves, length):
    middle = 2 * length * sixteenth // 16
    width = min(middle, 2 * length - middle) >> octaves
    assume(check_polynomial(shape, length, middle, width))


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("shape", SAMPLES)
def test_error_of_polynomial_includes_the_tail(shape):
    """The widest piece whose series is accepted has the largest tail."""
    for middle in (2**13, 3 * 2**12, 7 * 2**11):
        accepted = [check_polynomial(shape, 2**14, middle, 2**bits) for bits in range(13)]
        assert accepted[0]
        assert accepted[1]


@pytest.mark.parametrize(
    ("power", "is_wave", "limit"),
    [
        (Fraction(1, 2), False, Fraction(1, 2)),
        (Fraction(20), False, Fraction(1, 2)),
        (Fraction(-4), False, Fraction(1, 2)),
        (None, False, Fraction(10)),
        (None, True, Fraction(10)),
    ],
)
def test_series_needs_terms_that_fall_by_half(power, is_wave, limit):
    """Up to the limit of the ratio, each term after the last is at most half of the one before."""
    largest = int(limit * 2**BITS)
    for sign in (1, -1):
        one = precise.one
        expansion = Expansion(precise.zero, sign * largest, one, one, power, is_wave)
        assert fitting.approximate(expansion, 10) is not None
        beyond = expansion._replace(ratio=sign * (largest + 1))
        assert fitting.approximate(beyond, 10) is None
    for n in range(10, 200):
        quotient = limit / 2 / (n + 1)
        if power is not None:
            quotient *= abs(power - n)
        assert quotient <= Fraction(1, 2)


@given(st.integers(0, 10))
def test_short_powers_are_exact_at_any_width(power):
    assume(power)
    expansion = Expansion(precise.zero, 2 << BITS, precise.one, precise.one, Fraction(power))
    expanded = fitting.approximate(expansion, 10)
    assert expanded is not None
    coefficients, error = expanded
    assert error == fitting.SLACK
    binomials = [precise.binomial(power, k) * 2**k for k in range(11)]
    assert [c / 2**BITS for c in coefficients] == binomials


# Step 2: integers.


@given(st.lists(st.integers(-(2**70), 2**70), min_size=11, max_size=11), st.integers(1, 40))
def test_rounded_coefficients_add_less_than_a_unit(drawn, dropped):
    # The second list loses the most: each coefficient lies just below the next unit.
    for exact in (drawn, [(c << dropped) - 1 for c in drawn]):
        rounded = round_coefficients(exact, dropped)
        for u in (Fraction(1, 2), Fraction(-1, 2)):
            lost = [Fraction(c, 2**dropped) - r for c, r in zip(exact, rounded, strict=True)]
            assert abs(sum(c * u**k for k, c in enumerate(lost))) <= 1


@given(
    st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=11),
    st.sampled_from((-HALF, HALF)) | st.integers(-HALF, HALF),
)
def test_products_rounded_down_lose_less_than_two_units(coefficients, t):
    exact = sum(Fraction(c) * Fraction(t, 2**31) ** k for k, c in enumerate(coefficients))
    assert abs(value_at(coefficients, t) - exact) < 2
    assert fitting.ROUNDING_ERROR >= 1 + 2


# Step 3: what is accepted.


def line(start, change):
    """Return a line through integers of 62 bits, which changes by this much from step to step."""

    def around_middle(middle, width):
        unit = precise.mpf(2) ** -62
        slope = precise.mpf(change * width) * unit
        level = (start + precise.mpf(change * middle) / 2) * unit
        ratio = int(slope * 2**BITS)
        return Expansion(level - 1, ratio, precise.mpf(1), precise.mpf(1), Fraction(1))

    return around_middle


BORDER = (1 << 61) + (1 << 37)
"""The middle between two float32 just above 1/2."""


def test_slow_pieces_are_rejected_at_rounding_borders():
    """E is 4 units here, so a step must change the value by 32, unless all have one float32."""
    for change in (32, 33, 100, -32, -100):
        piece, _ = fit(line(BORDER - 8 * change, change), 0, 4, 17, 10)
        assert piece is not None
        assert len(piece.coefficients) == 11
        assert piece.first != piece.following
    for change in (1, 31, -1, -31):
        piece, octaves = fit(line(BORDER - 8 * change, change), 0, 4, 17, 10)
        assert piece is None
        assert octaves < 0
        piece, _ = fit(line(BORDER + (1 << 36), change), 0, 4, 17, 10)
        assert piece is not None
        assert len(piece.coefficients) == 1


@pytest.mark.parametrize("change", [1, 31])
def test_slow_pieces_that_touch_a_border_have_one_float32(change):
    """A tie is rounded up, and a level just below it down, although values are too large."""
    below = 0.5
    above = 0.5 + 2.0**-24
    rising, _ = fit(line(BORDER, change), 0, 4, 17, 10)
    falling, _ = fit(line(BORDER + 16 * change, -change), 0, 4, 17, 10)
    for piece in (rising, falling):
        assert piece == fitting._constant(above)
    just_below, _ = fit(line(BORDER - 2, 1), 0, 1, 2, 10)
    assert just_below == fitting._constant(below)
    # Values that round to one float32, although the levels do not.
    assert fit(line(BORDER - 1, 1), 0, 1, 2, 10).piece is None


@pytest.mark.parametrize("bits", range(20, 127, 5))
def test_pieces_are_exact_enough_at_their_lower_end(bits):
    """The error may be 2⁻⁵⁴ of the value at the lower end, wherever that is."""
    lowest = 2.0**-bits
    for start, end in ((1.0, lowest), (lowest, 1.0)):
        shape = expander("exponential", start, end, 2**20)
        for elapsed in (0, 2**19, 2**20 - 2**16):
            for shift in range(1, 17):
                piece, _ = fit(shape, elapsed, shift, (1 << shift) + 1, 10)
                if piece is None or len(piece.coefficients) == 1:
                    continue
                for t, step in ((-HALF, elapsed), (HALF, elapsed + (1 << shift))):
                    level = shape(2 * step, 0).middle
                    off = abs(
                        precise.mpf(value_at(piece.coefficients, t)) - level * 2**piece.exponent
                    )
                    assert off <= level * 2 ** (piece.exponent - 54)


def test_pieces_meet_at_the_same_float32(monkeypatch):
    """If a piece does not begin where the one before leads to, its first step stands alone."""

    def fit_badly(*arguments):
        piece, octaves = fit(*arguments)
        if piece is not None:
            following = float(np.nextafter(np.float32(piece.following), np.float32(2)))
            piece = piece._replace(following=following)
        return piece, octaves

    (segment, _) = StagedCurve([(256, 0.0)], start=1.0)._exact_segments
    pieces = list(fitting._pieces_of(segment, 256, 10))
    starts = [begin for begin, piece in pieces if piece.shift > 0][1:]
    assert starts
    monkeypatch.setattr(fitting, "fit", fit_badly)
    shifted = dict(fitting._pieces_of(segment, 256, 10))
    wide = [begin for begin, piece in shifted.items() if piece.shift > 0]
    for begin in wide:
        after = begin + (1 << shifted[begin].shift)
        if after < 256:
            assert shifted[after].shift == 0
            assert shifted[after].first == shifted[begin].following


def test_shape_that_is_not_smooth_is_an_error(monkeypatch):
    monkeypatch.setattr(fitting, "fit", lambda *_: (None, -1))
    curve = StagedCurve([(10**6, 0.0)], start=1.0)
    with pytest.raises(ValueError, match=r"a linear from .* is not smooth"):
        curve(5)


# Tables.


def as_fraction(value, exponents, piece):
    return Fraction(value, 2 ** exponents[piece])


@examples(200)
@given(descriptions(scaled=True), randoms)
def test_value_before_rounding_is_within_2_to_minus_30_units(description, random):
    """At the ends of the pieces, where errors are largest, and at some steps between them."""
    curve = build(description)
    oracle = Oracle(description)
    table = in_python(curve._wide_table)
    unrounded = PYTHON._replace(to_float32=as_fraction)
    steps: set[int] = set()
    for _ in range(6):
        row = random.randrange(len(table.begin))
        piece = random.randrange(3) << table.shift[row]
        steps.update(table.begin[row] + piece + offset for offset in (-1, 0, 1))
        steps.add(random.randint(0, curve.total_steps))
    for step in steps:
        step = min(max(step, 0), MAX_STEP)
        level = oracle(step)
        assert is_promised(curve(step), level)
        row = bisect_right(table.begin, step) - 1
        index = table.first[row] + ((step - table.begin[row]) >> table.shift[row])
        if len(table.coefficients[index]) > 1 and level >= 2.0**-126:
            value = evaluate(unrounded, table, step)
            off = abs(precise.mpf(value.numerator) / value.denominator - level)
            assert off <= half_ulp(level) * 2.0**-29


@examples(60)
@given(curves_and_steps(range(3), 32, scaled=True))
def test_tables_are_small(case):
    curve, _ = case
    table = curve._wide_table
    segments = len(curve._exact_segments)
    assert len(table.exponent) <= 400 * segments
    assert len(table.begin) <= 80 * segments


@pytest.mark.parametrize("shape", SAMPLES)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 128, 255, 1000])
@ignore_curve_warnings()
def test_short_stages_are_right_at_every_step(shape, length):
    formula, _ = formula_and_power(shape)
    low = 0.0 if formula.allows_zero else 1e-3
    for start, end in ((1.0, low), (low, 1.0), (0.9, 0.1)):
        description = {"kind": "staged", "stages": [(length, end, shape)], "start": start}
        oracle = Oracle(description)
        values = build(description)(range(length + 1)).tolist()
        for step, value in enumerate(values):
            assert is_promised(value, oracle(step))
        assert values == sorted(values, reverse=start > end)


@pytest.mark.parametrize("end", [1.0, 0.5])
@pytest.mark.parametrize("length", [2**24, 2**25, 2**26])
def test_ties_of_long_lines_round_up(length, end):
    """On these lines, many levels lie exactly between two float32."""
    falling = StagedCurve([(length, end - 0.5)], start=end)
    rising = StagedCurve([(length, end)], start=end - 0.5)
    steps = (np.arange(20_000) * 7919 + 1) % length
    elapsed = steps / (2 * length)  # exact in double
    above = 1 + 2.0**-50
    np.testing.assert_array_equal(falling(steps), np.float32((end - elapsed) * above))
    np.testing.assert_array_equal(rising(steps), np.float32((end - 0.5 + elapsed) * above))


@pytest.mark.parametrize("shape", ["linear", "1-x^2", "(1-x)^3"])
@pytest.mark.parametrize("length", [7680, 24_576, 3 * 2**25])
def test_parts_have_the_same_bits_at_ties(shape, length):
    """Wherever pieces begin and end, ties are rounded up."""
    curve = PlateauCurve(length, decay_shape=shape)
    at = 5 * length // 8
    begin = length // 3
    steps = np.unique(np.linspace(0, at, 50_000).astype(np.int64))
    values = curve(steps)
    np.testing.assert_array_equal(curve.cooldown(at, 500)(steps), values)
    later = steps[steps >= begin]
    np.testing.assert_array_equal(curve.part(begin)(later - begin), values[steps >= begin])


@pytest.mark.parametrize(
    "curve",
    [
        PlateauCurve(17_000_000, absolute_plateaus=[(5_000_000, 1_000_000)], decay_shape="(1-x)^7"),
        StagedCurve([(24_576, 0.0, "(1-x)^2")], start=1.0).cooldown(
            12_279, 200_000, shape="1-x^20"
        ),
        StagedCurve([(2**23, 0.5 + 2.0**-25 + 2.0**-52)], start=0.5 + 2.0**-25 - 2.0**-52),
    ],
    ids=["plateau", "cooldown", "line"],
)
def test_segment_that_is_flat_at_a_tie_has_few_pieces(curve):
    assert len(curve._wide_table.exponent) < 100


def test_every_shape_has_a_formula():
    assert list(FORMULAS) == list(SHAPES)
