"""Values that are wrong for several arguments of curves, and what their messages say."""

from collections.abc import Iterable

from support.numerics.shapes import FORMULAS, JOINING_ZERO

# Items of a dictionary or a set have no order that the user chose.
NOT_PAIRS = [(50,), (50, 10, 5), 50, "50", None, (), {85, 10}, frozenset((85, 10)), {85: 0, 10: 0}]
NOT_PERCENTAGES = ["-1%", "100.0001%", "nan%", "inf%", "%", "2%%", "2 % 3", "1/2%", "2%\n."]
NOT_SHAPES = [
    "x^2",
    "1 - x^2",
    "1-x**2",
    "1-X^2",
    "(1-x)2",
    "1-x",
    "",
    "sqrt",
    "Linear",
    2,
    ["linear"],
]


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(map(repr, names))}, with a decimal for P, such as '1-x^2'"


A_SHAPE = _one_of(FORMULAS)
A_DECAY_SHAPE = _one_of(JOINING_ZERO)
A_PERCENTAGE = "a percentage from 0% to 100%"
