"""The page shows the bounds that the proofs show, rounded outward to tenths of a unit."""

from fractions import Fraction

import pytest
from proofs.arithmetic.intervals import Interval
from proofs.arithmetic.proven import ERRORS, VALUE_ERRORS
from support.docs.pages import section_named

SHAPES_OF_ROWS = {
    "linear": ["linear"],
    "cosine": ["cosine"],
    "square root": ["1-sqrt"],
    "exponential": ["exponential"],
    "powers x^P and (1 − x)^P": ["1-x^P", "(1-x)^P"],
    "inverse power t^−P": ["t^-P"],
}


def read_interval(text: str) -> Interval:
    low, high = text.replace("−", "-").split(" … ")
    return Interval(Fraction(low), Fraction(high))


def rows_of_page() -> dict[str, list[Interval]]:
    """Return the cells of each row of the table, by the first one."""
    rows: dict[str, list[Interval]] = {}
    for name, *cells in section_named("The bounds of each shape").rows:
        rows[name.text] = [read_interval(cell.text) for cell in cells]
    return rows


def test_page_has_every_shape() -> None:
    assert rows_of_page().keys() == SHAPES_OF_ROWS.keys()
    shapes = [shape for names in SHAPES_OF_ROWS.values() for shape in names]
    assert sorted(shapes) == sorted(ERRORS)


@pytest.mark.parametrize("name", SHAPES_OF_ROWS)
def test_page_has_the_proven_bounds(name: str) -> None:
    of_shape, of_value = rows_of_page()[name]
    for shape in SHAPES_OF_ROWS[name]:
        assert of_shape == ERRORS[shape].outward(10)
        assert of_value == VALUE_ERRORS[shape].outward(10)
