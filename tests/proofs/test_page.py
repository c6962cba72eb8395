"""The page shows the bounds that the proofs show, rounded outward to tenths of a unit."""

from fractions import Fraction

import pytest
from proofs.arithmetic.intervals import Interval
from proofs.shapes.spec import ShapeSpec
from proofs.shapes.specs import SPECS
from support.docs.pages import section_named


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
    titles = {spec.title for spec in SPECS.values()}
    assert rows_of_page().keys() == titles


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_page_has_the_proven_bounds(spec: ShapeSpec) -> None:
    bounds = rows_of_page()[spec.title]
    assert bounds == [spec.error.outward(10), spec.value_error.outward(10)]
