"""Requirements, as messages state them."""

from collections.abc import Iterable

from support.curves.strategies import MAX_STEP
from support.numerics.shapes import FORMULAS, SHAPES_ALLOWING_ZERO

AN_INTEGER = "must be an integer"
A_COUNT = f"{AN_INTEGER} or text such as '10k', '5M' or '2B'"
A_NUMBER = "must be a number"
A_REAL_SCALAR = "must be a real scalar"
A_MAPPING = "must be a mapping"
A_PEAK = "must be 0, or a finite float32 of at least 2**-126"
A_STEP = f"{MAX_STEP}. To count samples or tokens, train with clock=DataClock(unit)"
FINITE = "must be finite"
IN_0_TO_1 = "must lie in [0, 1]"


def in_range(least: int, most: int | str) -> str:
    return f"must lie in {least} … {most}"


def at_least(least: int) -> str:
    return f"must be at least {least}"


def at_most(most: int) -> str:
    return f"must be at most {most}"


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(map(repr, names))}, with a decimal for P, such as '1-x^2'"


A_SHAPE = _one_of(FORMULAS)
A_DECAY_SHAPE = _one_of(SHAPES_ALLOWING_ZERO)
A_PERCENTAGE = "a percentage from 0% to 100%"
