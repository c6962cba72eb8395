"""What is proved of every shape, by its spec in `proofs/shapes`.

**Errors.** How far a shape is off, for every x, every length and every P. The product's own
functions run on numbers that carry bounds (`proofs.arithmetic.bounded`), over boxes that cover all
x. A bound has up to four parts, all in units of 2⁻⁶²:

    rounding        of each operation, followed through the formula
    coefficients    the distance of each rounded coefficient from π, ln 2 and fractions as intervals
    omitted terms   of a series, by the term that would follow
    phase           of x, of rates and of logarithms, which are rounded before the shape begins

The spec has the sum. A test prints what it has shown; `python -m pytest -s` shows it.

**Monotonicity.** Values never go the wrong way from one step to the next, for every length.

- The product with the distance between the levels, the clamp at the lower level and the conversion
  to float32 never decrease (`test_product_never_decreases`; rounding to nearest never does). So it
  is enough that the interpolant S, or the power of two, is monotonic.
- From one step to the next it changes by at least some amount. If that exceeds the width of its
  error, it is monotonic.
- At the ends, a value lies between the two levels in 62 bits, because S is at most 1 (as
  `error_of_root` checks, `test_powers_of_two_are_at_most_1`, `test_parabola_is_at_most_1`). The
  levels are rounded towards each other, so no value passes the exact level of an end, whose nearest
  float32 is in the table.
"""

from pathlib import Path

import pytest
from proofs.arithmetic.proven import LEAST_STEP
from proofs.shapes.spec import ShapeSpec
from proofs.shapes.specs import INTERPOLATED_SPECS, SPECS

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.shapes.known_shapes import INTERPOLATED, SHAPES

every_shape = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def test_every_shape_has_a_spec() -> None:
    assert list(SPECS) == list(SHAPES)
    assert list(INTERPOLATED_SPECS) == list(INTERPOLATED)


@every_shape
def test_error(spec: ShapeSpec) -> None:
    error = spec.prove_error()
    print(f"{spec.name}: computed - exact lies in {error} units")
    assert error.outward(1000) == spec.error


@every_shape
def test_monotone(spec: ShapeSpec) -> None:
    spec.prove_monotone()


COUNTED_FROM_NEARER_END = {
    name: spec for name, spec in INTERPOLATED_SPECS.items() if spec.counted_from == "nearer end"
}


@pytest.mark.parametrize("spec", COUNTED_FROM_NEARER_END.values(), ids=COUNTED_FROM_NEARER_END)
def test_middle_of_a_segment(spec: ShapeSpec) -> None:
    """From step j, counted from the start, to a later step j', counted from the end.

    The value at j is a - D·S(x), the one at j' is b + D·S(x'), with D = a - b and x + x' <= 1 -
    1/L. They are in order if S(x) + S(x') <= 1 in 62 bits. Exactly, the sum is at most 1 - (S(x +
    1/L) - S(x)) for the greatest x below 1/2, at which S grows by 1/L at least: S is convex up to
    1/2, S(0) = 0, S(1/2) = 1/2, and S(1 - x) = 1 - S(x).
    """
    assert 2 * spec.error.high < LEAST_STEP


DOCS = Path(__file__).parents[2] / "docs"


@every_shape
def test_shape_is_documented(spec: ShapeSpec) -> None:
    places = {
        "docs/curves.md": (DOCS / "curves.md").read_text(encoding="utf-8"),
        "StagedCurve": StagedCurve.__doc__,
        "Curve.cooldown": Curve.cooldown.__doc__,
    }
    if spec.name in INTERPOLATED_SPECS:
        places["PlateauCurve"] = PlateauCurve.__doc__
    for place, text in places.items():
        assert text is not None
        assert f'"{spec.name}"' in text, place
